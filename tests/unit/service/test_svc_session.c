/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the service daemon: strangers, turns, deadlines, versions, limits of clients and users, and the daemon's place in the
 * file system. What the daemon refuses must say which setting, harm nobody else, and be counted.
 */
#include "fabric/base/clock.h"
#include "fabric/service/service_priv.h"
#include "tests/unit/service/svc_kit.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cmocka.h>

/* Where a test waits for the end of it; elsewhere strangers may stay (svc_kit.h). */
#define STRANGER    "1s"
#define STRANGER_NS UINT64_C(1000000000)

/* A hang-up is waited for much longer than it takes. */
enum { HANG_UP_MS = 60000 };

static struct kit k;

static int setup(void **state)
{
	kit_make(&k);
	return 0;
}

static int teardown(void **state)
{
	kit_remove(&k);
	return 0;
}

/* 1 when the daemon hangs up within ms. */
static int hangs_up(const struct epf_svc_channel *ch, int ms)
{
	struct pollfd p = { .fd = epf_svc_channel_fd(ch), .events = POLLIN };
	char byte;

	return poll(&p, 1, ms) == 1 && recv(p.fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void silent_stranger_is_closed(void **state)
{
	struct epf_svc_channel *ch;
	uint64_t begun;
	int early;
	long n;

	kit_set(&k, "service-stranger-timeout", STRANGER);
	assert_int_equal(kit_run(&k), 0);
	begun = epf_now_ns();
	ch = kit_connect(&k);
	early = hangs_up(ch, 50);
	n = kit_number(&k, "strangers");
	/* Before its time is up it is there, unless this machine has slept through it. */
	if (epf_now_ns() - begun < STRANGER_NS) {
		assert_int_equal(early, 0);
		assert_int_equal(n, 1);
	}
	assert_int_equal(hangs_up(ch, HANG_UP_MS), 1);
	assert_true(epf_now_ns() - begun >= STRANGER_NS);
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_TIMEOUT), 1);
	assert_int_equal(kit_number(&k, "strangers"), 0);
	epf_svc_channel_close(ch);
}

static void oldest_stranger_makes_room(void **state)
{
	struct epf_svc_channel *ch[4];

	kit_set(&k, "service-strangers", "3");
	assert_int_equal(kit_run(&k), 0);
	for (int i = 0; i < 4; i++)
		ch[i] = kit_connect(&k);
	assert_int_equal(hangs_up(ch[0], HANG_UP_MS), 1);
	assert_int_equal(hangs_up(ch[1], 50), 0);
	assert_int_equal(hangs_up(ch[3], 50), 0);
	for (int i = 0; i < 4; i++)
		epf_svc_channel_close(ch[i]);
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_LIMIT), 1);
}

static void half_a_message_has_a_deadline(void **state)
{
	struct epf_svc_channel *quiet, *half;
	uint8_t head[EPF_SVC_HEAD_BYTES];
	struct epf_svc_head h = { .type = EPF_SVC_SIGNALS, .bytes = 4, .seq = 7 };

	kit_set(&k, "service-stranger-timeout", STRANGER);
	assert_int_equal(kit_run(&k), 0);
	quiet = kit_client(&k);
	half = kit_client(&k);
	assert_non_null(quiet);
	assert_non_null(half);
	epf_svc_head_encode(&h, head);
	assert_int_equal(send(epf_svc_channel_fd(half), head, 11, 0), 11);
	assert_int_equal(hangs_up(half, HANG_UP_MS), 1);
	/* A client that has nothing to say may stay as long as it likes. */
	assert_int_equal(hangs_up(quiet, 1200), 0);
	assert_int_equal(kit_signals(quiet, 4), 0);
	epf_svc_channel_close(half);
	epf_svc_channel_close(quiet);
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_TIMEOUT), 1);
}

static void garbage_ends_one_connection(void **state)
{
	struct epf_svc_channel *bad, *good;
	char junk[64];

	assert_int_equal(kit_run(&k), 0);
	good = kit_client(&k);
	bad = kit_connect(&k);
	memset(junk, 'x', sizeof(junk));
	assert_int_equal(send(epf_svc_channel_fd(bad), junk, sizeof(junk), 0), sizeof(junk));
	for (int i = 0; i < 12000 && !kit_refusals(&k, EPF_R_SVC_MESSAGE); i++)
		usleep(5000);
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_MESSAGE), 1);
	assert_int_equal(kit_signals(good, 4), 0);
	epf_svc_channel_close(bad);
	epf_svc_channel_close(good);
}

/* Each request that is not the connection's turn is answered, and ends that connection. */
static void requests_have_their_turn(void **state)
{
	union {
		struct epf_svc_world world;
		struct epf_svc_connect connect;
		struct epf_svc_mask mask;
		struct epf_svc_region_close close;
	} m;

	static const unsigned early[] = { EPF_SVC_WORLD,        EPF_SVC_CONNECT,  EPF_SVC_MASK,
					  EPF_SVC_REGION_CLOSE, EPF_SVC_DESCRIBE, EPF_SVC_UPDATE,
					  EPF_SVC_AWAKE };

	assert_int_equal(kit_run(&k), 0);
	memset(&m, 0, sizeof(m));
	for (unsigned i = 0; i < sizeof(early) / sizeof(early[0]); i++) {
		struct epf_svc_channel *ch = kit_client(&k);

		assert_int_equal(kit_call(ch, early[i], early[i] == EPF_SVC_DESCRIBE ? NULL : &m,
					  -1, NULL, NULL),
				 -EBADMSG);
		kit_says(epf_svc_type_name(early[i]));
		kit_says("not before ATTACH");
		assert_int_equal(hangs_up(ch, HANG_UP_MS), 1);
		epf_svc_channel_close(ch);
	}
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_MESSAGE), 7);
}

static void hello_names_both_versions(void **state)
{
	struct epf_svc_hello h = { .major = EPF_SVC_MAJOR + 1, .minor = 0, .program = "other" };
	struct epf_svc_hello_reply reply;
	struct epf_svc_channel *ch;
	char own[16];

	assert_int_equal(kit_run(&k), 0);
	ch = kit_connect(&k);
	assert_int_equal(kit_call(ch, EPF_SVC_HELLO, &h, -1, &reply, NULL), -EPROTO);
	snprintf(own, sizeof(own), "%u.%u", EPF_SVC_MAJOR, EPF_SVC_MINOR);
	kit_says(own);
	kit_says("2.0");
	assert_int_equal(hangs_up(ch, HANG_UP_MS), 1);
	epf_svc_channel_close(ch);
}

static void limits_name_their_setting(void **state)
{
	struct epf_svc_channel *a, *b;
	int fd = kit_memfd(1 << 20, F_SEAL_SHRINK);

	kit_set(&k, "user-clients", "2");
	kit_set(&k, "user-signals", "100");
	kit_set(&k, "user-rings", "3");
	kit_set(&k, "client-rings", "2");
	kit_set(&k, "user-regions", "2");
	kit_set(&k, "user-bytes", "64k");
	assert_int_equal(kit_run(&k), 0);
	a = kit_client(&k);
	b = kit_client(&k);
	assert_null(kit_client(&k));
	kit_says("user-clients is 2");
	assert_int_equal(kit_signals(a, 90), 0);
	assert_int_equal(kit_signals(b, 11), -ENOSPC);
	kit_says("user-signals is 100");
	assert_int_equal(kit_signals(b, 10), 0);
	assert_int_equal(kit_ring(a), 0);
	assert_int_equal(kit_ring(a), 0);
	assert_int_equal(kit_ring(a), -ENOSPC);
	kit_says("client-rings is 2");
	assert_int_equal(kit_ring(b), 0);
	assert_int_equal(kit_ring(b), -ENOSPC);
	kit_says("user-rings is 3");
	assert_int_equal(kit_region(a, fd, 0, 32768, NULL), 0);
	assert_int_equal(kit_region(a, fd, 0, 32769, NULL), -ENOSPC);
	kit_says("user-bytes is 65536");
	assert_int_equal(kit_region(b, fd, 0, 4096, NULL), 0);
	assert_int_equal(kit_region(b, fd, 0, 4096, NULL), -ENOSPC);
	kit_says("user-regions is 2");
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_LIMIT), 6);
	close(fd);
	epf_svc_channel_close(a);
	/* What a client had comes back with it, and only that. */
	assert_int_equal(kit_await(&k, "clients", 1), 0);
	assert_int_equal(kit_used(&k, "user-clients"), 1);
	assert_int_equal(kit_used(&k, "user-signals"), 10);
	assert_int_equal(kit_used(&k, "user-rings"), 1);
	assert_int_equal(kit_used(&k, "user-regions"), 1);
	assert_int_equal(kit_used(&k, "user-bytes"), 4096);
	epf_svc_channel_close(b);
	assert_int_equal(kit_await(&k, "users", 0), 0);
	a = kit_client(&k);
	assert_int_equal(kit_signals(a, 100), 0);
	epf_svc_channel_close(a);
}

static void service_clients_is_a_limit(void **state)
{
	struct epf_svc_channel *a;

	kit_set(&k, "service-clients", "1");
	assert_int_equal(kit_run(&k), 0);
	a = kit_client(&k);
	assert_null(kit_client(&k));
	kit_says("service-clients is 1");
	/* Who only looks gets in all the same. */
	assert_int_equal(kit_number(&k, "clients"), 1);
	epf_svc_channel_close(a);
}

static void operators_only_look(void **state)
{
	struct epf_svc_channel *ch;
	struct epf_svc_hello_reply reply;

	assert_int_equal(kit_run(&k), 0);
	ch = kit_connect(&k);
	assert_int_equal(epf_svc_hello(ch, 1, "kit", &reply, KIT_WAIT_NS), 0);
	assert_string_equal(reply.instance, "kit");
	assert_int_equal(kit_signals(ch, 4), -EBADMSG);
	kit_says("not as operator");
	assert_int_equal(hangs_up(ch, HANG_UP_MS), 1);
	epf_svc_channel_close(ch);
}

static void modes_and_names(void **state)
{
	char path[128];
	struct stat st;

	assert_int_equal(kit_run(&k), 0);
	assert_int_equal(stat(epf_svc_socket(k.svc), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(kit_files(&k), 3); /* socket, lock, statistics */
	kit_stop(&k);
	assert_int_equal(kit_files(&k), 0);
	/* A directory that the daemon makes is closed to others. */
	snprintf(path, sizeof(path), "%s/deep", k.dir);
	kit_set(&k, "runtime-dir", path);
	assert_int_equal(kit_run(&k), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	kit_stop(&k);
	rmdir(path);
	/* One that others can write is refused. */
	snprintf(path, sizeof(path), "%s/open", k.dir);
	assert_int_equal(mkdir(path, 0777), 0);
	assert_int_equal(chmod(path, 0777), 0);
	kit_set(&k, "runtime-dir", path);
	assert_int_not_equal(kit_run(&k), 0);
	kit_says("runtime-dir");
	rmdir(path);
	kit_set(&k, "runtime-dir", k.dir);
	kit_set(&k, "instance", "../x");
	assert_int_not_equal(kit_run(&k), 0);
	kit_says("instance");
	kit_set(&k, "instance", "kit");
	kit_set(&k, "service-group", "no-such-group");
	assert_int_not_equal(kit_run(&k), 0);
	kit_says("service-group");
	assert_int_equal(kit_files(&k), 0);
}

static void a_name_is_served_once(void **state)
{
	struct epf_svc *other;
	char pid[32];

	assert_int_equal(kit_run(&k), 0);
	assert_int_equal(epf_svc_create(&k.conf, "0", &other), -EADDRINUSE);
	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	kit_says(pid);
	assert_int_equal(kit_number(&k, "clients"), 0); /* still served */
	assert_int_equal(kit_files(&k), 3);
}

/* What a daemon that was killed leaves: its socket, its lock, nobody who holds it. */
static void stale_files_are_replaced(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char path[128];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s/kit.sock", k.dir);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	close(fd);
	snprintf(path, sizeof(path), "%s/kit.lock", k.dir);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "1\n", 2), 2);
	close(fd);
	assert_int_equal(kit_run(&k), 0);
	assert_int_equal(kit_number(&k, "clients"), 0);
	assert_int_equal(kit_stop(&k), 0);
	assert_int_equal(kit_files(&k), 0);
}

void *__wrap_realloc(void *at, size_t bytes);

/* A heap that is dirty wherever it grows. */
void *__wrap_realloc(void *at, size_t bytes)
{
	size_t before = at ? malloc_usable_size(at) : 0;
	void *more = malloc(bytes);

	if (!more)
		return NULL;
	memset(more, 0x5a, malloc_usable_size(more));
	if (at)
		memcpy(more, at, before < bytes ? before : bytes);
	free(at);
	return more;
}

/* A place that never became a ring is none when its client goes. */
static void a_refused_ring_leaves_nothing(void **state)
{
	struct epf_svc_channel *keeper;

	kit_set(&k, "user-rings", "2");
	assert_int_equal(kit_run(&k), 0);
	keeper = kit_client(&k); /* the user stays known */
	for (int round = 0; round < 3; round++) {
		struct epf_svc_channel *ch = kit_client(&k);

		assert_non_null(ch);
		assert_int_equal(kit_ring(ch), 0);
		assert_int_equal(kit_ring(ch), 0);
		assert_true(kit_ring(ch) < 0);
		kit_says("user-rings is 2");
		assert_int_equal(kit_used(&k, "user-rings"), 2);
		epf_svc_channel_close(ch);
		assert_int_equal(kit_await(&k, "clients", 1), 0);
	}
	epf_svc_channel_close(keeper);
}

/* What the kernel refuses is reported, and not tried for ever. */
static void memory_that_is_refused_is_reported(void **state)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(svc_memory_fill(fd, 0, 4096), -EBADF);
	close(fd);
}

enum { ASKED = 10000 };

/* Asks as often as the socket takes it, and reads nothing meanwhile. */
static unsigned ask_often(int fd)
{
	uint8_t frame[EPF_SVC_HEAD_BYTES + 4] = { 0 };
	struct epf_svc_head h = { .type = EPF_SVC_STATUS, .bytes = 4 };
	unsigned n = 0;

	for (unsigned idle = 0; n < ASKED && idle < 50;) {
		h.seq = 100 + n;
		epf_svc_head_encode(&h, frame);
		if (send(fd, frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL) ==
		    (ssize_t)sizeof(frame)) {
			n++;
			idle = 0;
		} else {
			idle++;
			usleep(2000);
		}
	}
	return n;
}

static void take(int fd, void *to, size_t bytes)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	for (size_t got = 0; got < bytes;) {
		ssize_t n;

		if (poll(&p, 1, HANG_UP_MS) != 1)
			fail_msg("no more answers");
		n = recv(fd, (char *)to + got, bytes - got, MSG_DONTWAIT);
		assert_true(n > 0);
		got += (size_t)n;
	}
}

/* Answers that the socket takes in parts: the daemon goes on when the client reads. */
static void answers_wait_for_their_reader(void **state)
{
	static char body[1 << 20];
	struct epf_svc_hello_reply hello;
	struct epf_svc_channel *ch;
	unsigned asked;

	kit_set(&k, "service-stranger-timeout", "600s");
	assert_int_equal(kit_run(&k), 0);
	ch = kit_connect(&k);
	assert_int_equal(epf_svc_hello(ch, 1, "slow", &hello, KIT_WAIT_NS), 0);
	asked = ask_often(epf_svc_channel_fd(ch));
	for (unsigned i = 0; i < asked; i++) {
		uint8_t raw[EPF_SVC_HEAD_BYTES];
		struct epf_svc_head h;

		take(epf_svc_channel_fd(ch), raw, sizeof(raw));
		assert_int_equal(epf_svc_head_decode(raw, &h), 0);
		assert_int_equal(h.seq, 100 + i);
		assert_int_equal(h.status, 0);
		assert_true(h.bytes <= sizeof(body));
		take(epf_svc_channel_fd(ch), body, h.bytes);
		usleep(1000); /* slower than the daemon, so that the last answer waits, too */
	}
	/* The sockets of both directions were full: the daemon reads the next request when its last answer is out. */
	assert_true(asked > 10 && asked < ASKED);
	epf_svc_channel_close(ch);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(silent_stranger_is_closed),     TEST(oldest_stranger_makes_room),
		TEST(half_a_message_has_a_deadline), TEST(garbage_ends_one_connection),
		TEST(requests_have_their_turn),      TEST(hello_names_both_versions),
		TEST(limits_name_their_setting),     TEST(service_clients_is_a_limit),
		TEST(operators_only_look),           TEST(modes_and_names),
		TEST(a_name_is_served_once),         TEST(stale_files_are_replaced),
		TEST(a_refused_ring_leaves_nothing), TEST(memory_that_is_refused_is_reported),
		TEST(answers_wait_for_their_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
