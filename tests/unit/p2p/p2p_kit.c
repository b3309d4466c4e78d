/* SPDX-License-Identifier: Apache-2.0 */
/* A target endpoint in another process (p2p_kit.h). */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/gpu/copy.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

const char *target_more;

uint8_t pattern(uint64_t i)
{
	return (uint8_t)(i * 131 + (i >> 8) * 31 + (i >> 16));
}

static void say(int fd, const void *data, size_t bytes)
{
	if (send(fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		_exit(9);
}

static void need(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "target: %s\n", epf_last_error());
	_exit(8);
}

static void wait_note(struct epf_p2p *ep, int fd)
{
	struct epf_p2p_event e;
	int32_t len;

	for (;;) {
		int rc = epf_p2p_wait_event(ep, 20 * SECOND);

		if (rc) {
			len = rc;
			say(fd, &len, sizeof(len));
			return;
		}
		if (epf_p2p_events(ep, &e, 1) != 1)
			continue;
		if (e.kind == EPF_P2P_NOTE)
			break;
		epf_p2p_event_free(&e);
	}
	len = (int32_t)e.bytes;
	say(fd, &len, sizeof(len));
	if (len)
		say(fd, e.data, e.bytes);
	epf_p2p_event_free(&e);
}

static void send_notes(struct epf_p2p *ep)
{
	uint64_t conn;

	while (epf_p2p_accept(ep, EPF_P2P_NOW, &conn) == 0)
		need(epf_p2p_notify(ep, conn, "hello", 5, SECOND));
}

static int32_t import_from_first(struct epf_p2p *ep, int fd)
{
	uint8_t key[EPF_P2P_KEY_BYTES];
	uint64_t conn, import;

	if (recv(fd, key, sizeof(key), MSG_WAITALL) != (ssize_t)sizeof(key))
		_exit(7);
	need(epf_p2p_accept(ep, 10 * SECOND, &conn));
	return epf_p2p_import(ep, conn, key, 10 * SECOND, &import);
}

uint64_t sum_of(const uint8_t *m)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		sum += m[i] * (i + 1);
	return sum;
}

enum { FILES_MOST = 1024 };

static int held[FILES_MOST];
static int n_held;

/* Opens files until only one more is allowed. Returns 0. */
static int32_t fill_files(void)
{
	struct rlimit limit;

	need(getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = FILES_MOST;
	need(setrlimit(RLIMIT_NOFILE, &limit));
	while (n_held < FILES_MOST && (held[n_held] = dup(0)) >= 0)
		n_held++;
	return close(held[--n_held]);
}

static int32_t empty_files(void)
{
	while (n_held > 0)
		close(held[--n_held]);
	return 0;
}

static void export_again(struct epf_p2p *ep, int fd, uint64_t region, uint8_t *key)
{
	need(epf_p2p_export(ep, region, 0, TARGET_BYTES, EPF_P2P_READ | EPF_P2P_WRITE, 0, 0, key));
	say(fd, key, EPF_P2P_KEY_BYTES);
}

static void serve(struct epf_p2p *ep, int fd, uint8_t *memory, uint64_t region, uint8_t *key)
{
	for (;;) {
		uint64_t sum;
		int32_t rc;
		char command;

		if (read(fd, &command, 1) != 1)
			_exit(7);
		if (command != T_EXIT)
			say(fd, &command, 1);
		switch (command) {
		case T_SUM:
			sum = sum_of(memory);
			say(fd, &sum, sizeof(sum));
			break;
		case T_FILL:
			for (uint64_t i = 0; i < TARGET_BYTES; i++)
				memory[i] = pattern(i);
			break;
		case T_WITHDRAW:
			rc = epf_p2p_withdraw(ep, key, 10 * SECOND);
			say(fd, &rc, sizeof(rc));
			break;
		case T_RENEW:
			rc = epf_p2p_withdraw(ep, key, 10 * SECOND);
			say(fd, &rc, sizeof(rc));
			export_again(ep, fd, region, key);
			break;
		case T_MORE:
			export_again(ep, fd, region, key);
			break;
		case T_FULL:
		case T_ROOM:
			rc = command == T_FULL ? fill_files() : empty_files();
			say(fd, &rc, sizeof(rc));
			break;
		case T_NOTE:
			wait_note(ep, fd);
			break;
		case T_SEND:
			send_notes(ep);
			break;
		case T_IMPORT:
			rc = import_from_first(ep, fd);
			say(fd, &rc, sizeof(rc));
			break;
		default:
			epf_p2p_close(ep);
			say(fd, &command, 1);
			_exit(0);
		}
	}
}

static int open_endpoint(const char *name, const char *setting, const char *more,
			 struct epf_p2p **ep)
{
	enum { MOST = 8 };
	struct epf_p2p_options o;
	char text[256];
	const char *settings[MOST + 1] = { NULL };
	char *rest = NULL;
	int n = 0;

	snprintf(text, sizeof(text), "%s %s", setting ? setting : "", more ? more : "");
	for (char *s = strtok_r(text, " ", &rest); s && n < MOST; s = strtok_r(NULL, " ", &rest))
		settings[n++] = s;
	epf_p2p_options_init(&o);
	o.name = name;
	o.settings = settings;
	return epf_p2p_open(&o, ep);
}

static void *take_memory(bool is_gpu)
{
	void *memory = NULL;

	if (is_gpu)
		return epf_copy_fake.mem_alloc(0, TARGET_BYTES, &memory) ? NULL : memory;
	memory = mmap(NULL, TARGET_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	return memory == MAP_FAILED ? NULL : memory;
}

static void run(int fd, enum target_memory from, const char *name, const char *setting)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES];
	struct epf_p2p *ep;
	uint64_t region;
	uint32_t bytes;
	void *memory, *bytes_at;
	int n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	need(open_endpoint(name, setting, target_more, &ep));
	if (from == T_MAPPED)
		need(epf_p2p_alloc(ep, TARGET_BYTES, &memory));
	else
		memory = take_memory(from == T_GPU);
	need(memory ? 0 : -ENOMEM);
	bytes_at = from == T_GPU ? epf_copy_fake_bytes(memory, TARGET_BYTES) : memory;
	need(epf_p2p_register(ep, memory, TARGET_BYTES, from == T_GPU ? 0 : EPF_P2P_HOST, &region));
	need(epf_p2p_export(ep, region, 0, TARGET_BYTES, EPF_P2P_READ | EPF_P2P_WRITE, 0, 0, key));
	n = epf_p2p_metadata(ep, meta, sizeof(meta));
	need(n);
	bytes = (uint32_t)n;
	say(fd, &bytes, sizeof(bytes));
	say(fd, meta, bytes);
	say(fd, key, sizeof(key));
	say(fd, &memory, sizeof(memory));
	serve(ep, fd, bytes_at, region, key);
}

int64_t target_answer(struct target *t, void *data, size_t bytes)
{
	size_t have = 0;

	while (have < bytes) {
		ssize_t n = read(t->socket, (uint8_t *)data + have, bytes - have);

		if (n <= 0)
			return -1;
		have += (size_t)n;
	}
	return (int64_t)have;
}

void target_start(struct target *t, enum target_memory from, const char *name, const char *setting)
{
	int fd[2];
	uint32_t bytes = 0;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	fflush(NULL);
	t->pid = fork();
	assert_true(t->pid >= 0);
	if (t->pid == 0) {
		close(fd[0]);
		run(fd[1], from, name, setting);
		_exit(0);
	}
	close(fd[1]);
	t->socket = fd[0];
	assert_int_equal(target_answer(t, &bytes, sizeof(bytes)), sizeof(bytes));
	t->metadata_bytes = bytes;
	assert_int_equal(target_answer(t, t->metadata, bytes), bytes);
	assert_int_equal(target_answer(t, t->key, sizeof(t->key)), sizeof(t->key));
	assert_int_equal(target_answer(t, &t->addr, sizeof(t->addr)), sizeof(t->addr));
}

void target_tell(struct target *t, enum target_command command)
{
	char c = (char)command, back = 0;

	assert_int_equal(send(t->socket, &c, 1, MSG_NOSIGNAL), 1);
	assert_int_equal(target_answer(t, &back, 1), 1);
	assert_int_equal(back, c);
}

void target_stop(const struct target *t)
{
	int status;

	kill(t->pid, SIGSTOP);
	waitpid(t->pid, &status, WUNTRACED);
}

void target_kill(struct target *t)
{
	kill(t->pid, SIGKILL);
	waitpid(t->pid, NULL, 0);
	close(t->socket);
}

void target_exit(struct target *t)
{
	int status = 0;

	target_tell(t, T_EXIT);
	waitpid(t->pid, &status, 0);
	close(t->socket);
	assert_int_equal(status, 0);
}

struct epf_p2p *endpoint_with(const char *name, const char *setting)
{
	struct epf_p2p *ep;

	assert_ok(open_endpoint(name, setting, NULL, &ep));
	return ep;
}

struct epf_p2p *endpoint(const char *name)
{
	return endpoint_with(name, NULL);
}

uint64_t connect_to(struct epf_p2p *ep, const struct target *t)
{
	uint64_t conn;

	assert_ok(epf_p2p_connect(ep, t->metadata, t->metadata_bytes, 10 * SECOND, &conn));
	return conn;
}

void both_begin(struct both *b, enum target_memory here, enum target_memory there, const char *name,
		const char *target_name, const char *setting)
{
	target_start(&b->t, there, target_name, setting);
	b->ep = endpoint_with(name, setting);
	b->conn = connect_to(b->ep, &b->t);
	b->mine = take_memory(here == T_GPU);
	assert_non_null(b->mine);
	b->bytes = here == T_GPU ? epf_copy_fake_bytes(b->mine, TARGET_BYTES) : b->mine;
	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		b->bytes[i] = pattern(i);
	assert_ok(epf_p2p_register(b->ep, b->mine, TARGET_BYTES, EPF_P2P_AUTO, &b->region));
	assert_ok(epf_p2p_import(b->ep, b->conn, b->t.key, 10 * SECOND, &b->import));
}

void both_end_here(struct both *b)
{
	epf_p2p_close(b->ep);
	if (b->bytes != b->mine)
		epf_copy_fake.mem_free(b->mine);
	else
		munmap(b->mine, TARGET_BYTES);
}

void both_end(struct both *b)
{
	both_end_here(b);
	target_exit(&b->t);
}

uint64_t sum_there(struct both *b)
{
	uint64_t sum;

	target_tell(&b->t, T_SUM);
	assert_int_equal(target_answer(&b->t, &sum, sizeof(sum)), sizeof(sum));
	return sum;
}
