/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The false daemon (fake_svc.h): one thread, poll(2), fabric/protocol/channel.h's server side. It keeps of each client the signals and rings it gave, so that
 * a test can ask by counters what became of them, and one peers page and one kick wakeup for all. Called by test_remote.c.
 */
#include "tests/unit/client/fake_svc.h"

#include "fabric/base/err.h"
#include "fabric/protocol/channel.h"
#include "queues/epf_peers.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_wakeup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENTS = 8, WORLD_MAX = 64 };

struct client {
	int fd;
	struct epf_svc_input in;
	struct epf_svc_output out;
	struct epf_signal *signals;
	struct epf_wakeup *wakeup;
	struct epf_ring_shm *ring; /* the newest */
	uint32_t regions, rings, closed;
	uint32_t awake, awakes; /* the last AWAKE, and how many came */
};

struct fake {
	struct fake_plan plan;
	unsigned seen; /* requests of the plan's type */
	struct client client[CLIENTS];
	struct epf_peers_shm *peers;
	int peers_fd, kick_fd;
	char name[64];
};

union body {
	struct epf_svc_hello hello;
	struct epf_svc_signals signals;
	struct epf_svc_region region;
	struct epf_svc_region_close region_close;
	struct epf_svc_ring ring;
	struct epf_svc_ring_close ring_close;
	struct epf_svc_attach attach;
	struct epf_svc_world world;
	struct epf_svc_connect connect;
	struct epf_svc_mask mask;
	struct epf_svc_awake awake;
	struct epf_svc_counter counter;
};

struct answer {
	union {
		struct epf_svc_hello_reply hello;
		struct epf_svc_signals_reply signals;
		struct epf_svc_region_reply region;
		struct epf_svc_region_close_reply region_close;
		struct epf_svc_ring_reply ring;
		struct epf_svc_attach_reply attach;
		struct epf_svc_world_reply world;
		struct epf_svc_describe_reply describe;
		struct epf_svc_counter_reply counter;
	};

	bool has_body;
	int fds[EPF_SVC_FDS_MAX];
	unsigned n_fds;
};

static void *make_memory(struct fake *f, enum fake_fault fault, size_t bytes, int *fd)
{
	void *at;

	(void)f;
	*fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (*fd < 0 || ftruncate(*fd, (off_t)bytes))
		_exit(9);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (at == MAP_FAILED)
		_exit(9);
	if (fault == FAKE_OTHER_FD || fault == FAKE_SMALL_FD) {
		close(*fd);
		*fd = fault == FAKE_OTHER_FD
			      ? open("/dev/null", O_RDWR | O_CLOEXEC)
			      : memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fault == FAKE_SMALL_FD && ftruncate(*fd, 16))
			_exit(9);
	}
	if (fault != FAKE_UNSEALED && fault != FAKE_OTHER_FD)
		fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	return at;
}

static void on_signals(struct fake *f, struct client *c, const union body *m, enum fake_fault fault,
		       struct answer *a)
{
	uint64_t offset =
		((uint64_t)m->signals.count * sizeof(struct epf_signal) + 127) / 128 * 128;
	uint8_t *at = make_memory(f, fault, offset + sizeof(struct epf_wakeup), &a->fds[0]);

	c->signals = (void *)at;
	c->wakeup = (void *)(at + offset);
	a->n_fds = 1;
	a->signals = (struct epf_svc_signals_reply){ m->signals.count,
						     offset + sizeof(struct epf_wakeup), offset };
	if (fault == FAKE_NUMBERS)
		a->signals.wakeup_offset = UINT64_MAX - 127;
}

static void on_ring(struct fake *f, struct client *c, const union body *m, enum fake_fault fault,
		    struct answer *a)
{
	size_t bytes = epf_ring_bytes(m->ring.log2);

	c->ring = make_memory(f, fault, bytes, &a->fds[0]);
	epf_ring_format(c->ring, m->ring.log2, c->rings, 0);
	epf_ring_reset(c->ring, m->ring.start);
	if (fault == FAKE_CONTENT)
		c->ring->log2_slots = 30;
	a->n_fds = 1;
	a->ring = (struct epf_svc_ring_reply){ c->rings++,
					       fault == FAKE_NUMBERS ? UINT64_MAX : bytes };
}

static void on_attach(struct fake *f, const union body *m, enum fake_fault fault, struct answer *a)
{
	size_t bytes = epf_peers_bytes(m->attach.world);

	if (!f->peers || fault) {
		f->peers = make_memory(f, fault, bytes, &f->peers_fd);
		epf_peers_format(f->peers, m->attach.world);
		f->peers->n_nodes = 2;
		for (uint32_t r = 0; r < m->attach.world; r++) {
			f->peers->peers[r].node = r & 1;
			epf_peers_set(f->peers, r, EPF_PEER_UP, 0, m->attach.flags);
		}
		make_memory(f, FAKE_NONE, 4096, &f->kick_fd);
	}
	if (fault == FAKE_CONTENT)
		f->peers->world++;
	a->attach = (struct epf_svc_attach_reply){ .node_id = { 7, (uint8_t)m->attach.rank },
						   .peers_bytes = bytes,
						   .kick_bytes = 4096 };
	if (fault == FAKE_NUMBERS)
		a->attach.peers_bytes = 16;
	a->fds[0] = fcntl(f->peers_fd, F_DUPFD_CLOEXEC, 0);
	a->fds[1] = fcntl(f->kick_fd, F_DUPFD_CLOEXEC, 0);
	a->n_fds = 2;
}

/* The remote control. -ENOENT: no such word. */
static int on_counter(struct fake *f, struct client *c, const char *name, uint64_t *value)
{
	*value = 0;
	if (strcmp(name, "poke") == 0) {
		__atomic_add_fetch(&c->signals[0].value, 1, __ATOMIC_RELEASE);
		epf_wakeup_wake(c->wakeup);
	} else if (strcmp(name, "lose_1") == 0) {
		epf_peers_set(f->peers, 1, EPF_PEER_DOWN, EPF_R_RANK_DIED, 0);
	} else if (strcmp(name, "return_1") == 0) {
		epf_peers_set(f->peers, 1, EPF_PEER_UP, 0, 1);
	} else if (strcmp(name, "slots") == 0) {
		struct epf_cmd *s = epf_ring_slots(c->ring);

		for (uint32_t i = 0; i < 1u << c->ring->log2_slots; i++)
			*value += epf_cmd_parity(0, 4) == (s[i].lo & 1u);
	} else if (strcmp(name, "regions") == 0) {
		*value = c->regions;
	} else if (strcmp(name, "closed") == 0) {
		*value = c->closed;
	} else if (strcmp(name, "rings") == 0) {
		*value = c->rings;
	} else if (strcmp(name, "awake") == 0) {
		*value = c->awake;
	} else if (strcmp(name, "awakes") == 0) {
		*value = c->awakes;
	} else {
		return -ENOENT;
	}
	return 0;
}

/* Fills the right answer, or what `fault` makes of it. */
static int serve(struct fake *f, struct client *c, const union body *m, enum fake_fault fault,
		 struct answer *a)
{
	a->has_body = true;
	switch (c->in.head.type) {
	case EPF_SVC_HELLO:
		a->hello = (struct epf_svc_hello_reply){
			EPF_SVC_MAJOR, EPF_SVC_MINOR, { 7 }, "", "fake", 8, 8, 8
		};
		if (fault == FAKE_VERSION)
			a->hello.major += 9;
		if (fault == FAKE_1_4)
			a->hello.minor = 4;
		memcpy(a->hello.instance, f->name, sizeof(f->name));
		return 0;
	case EPF_SVC_SIGNALS:
		on_signals(f, c, m, fault, a);
		return 0;
	case EPF_SVC_REGION:
		a->region.region = c->regions++ + (fault == FAKE_NUMBERS ? 7 : 0);
		return 0;
	case EPF_SVC_REGION_CLOSE:
		c->closed++;
		a->region_close = (struct epf_svc_region_close_reply){ 1, UINT32_MAX };
		return 0;
	case EPF_SVC_RING:
		on_ring(f, c, m, fault, a);
		return 0;
	case EPF_SVC_ATTACH:
		on_attach(f, m, fault, a);
		return 0;
	case EPF_SVC_WORLD:
		a->world = (struct epf_svc_world_reply){ 2, 0, { "sealed", 6 } };
		return 0;
	case EPF_SVC_DESCRIBE:
		a->describe.sealed = (struct epf_svc_bytes){ "again", 5 };
		return 0;
	case EPF_SVC_COUNTER:
		if (on_counter(f, c, m->counter.name, &a->counter.value))
			return epf_fail(EPF_R_SVC_ABSENT, "no such counter");
		return 0;
	case EPF_SVC_AWAKE:
		c->awake = m->awake.on;
		c->awakes++;
		a->has_body = false;
		return 0;
	default:
		a->has_body = false;
		return 0;
	}
}

static enum fake_fault due(struct fake *f, unsigned type)
{
	unsigned n;

	if (f->plan.fault == FAKE_NONE || f->plan.type != type)
		return FAKE_NONE;
	n = f->seen++;
	if (n < f->plan.skip || (f->plan.times && n >= f->plan.skip + f->plan.times))
		return FAKE_NONE;
	return f->plan.fault;
}

static void hang_up(struct client *c)
{
	close(c->fd);
	epf_svc_input_destroy(&c->in);
	epf_svc_output_destroy(&c->out);
	*c = (struct client){ .fd = -1 };
}

static void reply(struct client *c, struct answer *a, int rc, enum fake_fault fault)
{
	struct epf_svc_head head = c->in.head;
	uint8_t *one;

	if (rc) {
		epf_svc_output_failure(&c->out, &c->in.head, rc);
		return;
	}
	if (fault == FAKE_NO_FD)
		a->n_fds = 0;
	while (fault == FAKE_EXTRA_FD && a->n_fds < EPF_SVC_FDS_MAX)
		a->fds[a->n_fds++] = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (fault == FAKE_SHORT) {
		one = calloc(1, 1);
		head.type |= EPF_SVC_ANSWER;
		epf_svc_output_add(&c->out, &head, one, 1, a->fds, a->n_fds, true);
		return;
	}
	epf_svc_output_answer(&c->out, &c->in.head, EPF_SVC_MINOR, a->has_body ? (void *)a : NULL,
			      a->fds, a->n_fds);
}

static void request(struct fake *f, struct client *c)
{
	enum fake_fault fault = due(f, c->in.head.type);
	struct answer a = { .n_fds = 0 };
	union body m;
	int rc = epf_svc_input_request(&c->in, EPF_SVC_MINOR, &m);

	if (fault == FAKE_EXIT)
		_exit(0);
	if (fault == FAKE_CLOSE) {
		hang_up(c);
		return;
	}
	if (fault == FAKE_GARBAGE) {
		(void)!write(c->fd, "HTTP/1.1 200 OK\r\n\r\nthis is no frame of ours", 42);
	} else if (fault != FAKE_SILENT) {
		if (!rc && fault == FAKE_REFUSE)
			rc = epf_fail(EPF_R_SVC_DRAINING, "the false daemon is draining");
		if (!rc && fault == FAKE_AGAIN)
			rc = epf_fail(EPF_R_REJOIN, "the false daemon clears up");
		if (!rc)
			rc = serve(f, c, &m, fault, &a);
		reply(c, &a, rc, fault);
		epf_svc_output_write(&c->out, c->fd);
	}
	epf_svc_input_reset(&c->in);
	c->in.limit = EPF_SVC_BODY_MAX;
}

static void newcomer(struct fake *f, int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (int i = 0; i < CLIENTS && fd >= 0; i++)
		if (f->client[i].fd < 0) {
			f->client[i].fd = fd;
			epf_svc_input_init(&f->client[i].in, EPF_SVC_HELLO_MAX);
			return;
		}
	close(fd);
}

static void loop(struct fake *f, int listener)
{
	for (;;) {
		struct pollfd p[CLIENTS + 1] = { { .fd = listener, .events = POLLIN } };

		for (int i = 0; i < CLIENTS; i++)
			p[i + 1] = (struct pollfd){ .fd = f->client[i].fd, .events = POLLIN };
		poll(p, CLIENTS + 1, -1);
		for (int i = 0; i < CLIENTS; i++) {
			struct client *c = &f->client[i];
			int rc;

			if (!p[i + 1].revents || c->fd < 0)
				continue;
			rc = epf_svc_input_read(&c->in, c->fd);
			if (rc < 0)
				hang_up(c);
			else if (rc == 1)
				request(f, c);
		}
		if (p[0].revents)
			newcomer(f, listener);
	}
}

static int listen_at(const char *dir, const char *name)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char lock[256];
	int fd;

	snprintf(lock, sizeof(lock), "%s/%s.lock", dir, name);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB); i++) { /* held to the end */
		if (fd < 0 || i == 200) /* one of a test that failed is still there */
			_exit(8);
		usleep(10000);
	}
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s.sock", dir, name);
	unlink(at.sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 16))
		_exit(8);
	return fd;
}

static pid_t start(const char *dir, const char *name, const struct fake_plan *plan,
		   unsigned delay_ms)
{
	struct fake f = { .peers_fd = -1, .kick_fd = -1 };
	int ready[2], listener;
	char byte;
	pid_t pid;

	if (pipe2(ready, O_CLOEXEC))
		return -1;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		if (plan)
			f.plan = *plan;
		snprintf(f.name, sizeof(f.name), "%s", name);
		for (int i = 0; i < CLIENTS; i++)
			f.client[i].fd = -1;
		if (delay_ms) {
			close(ready[1]);
			usleep(delay_ms * 1000);
		}
		listener = listen_at(dir, name);
		if (!delay_ms)
			close(ready[1]);
		loop(&f, listener);
	}
	close(ready[1]);
	(void)!read(ready[0], &byte, 1); /* the end of the pipe: it listens */
	close(ready[0]);
	return pid;
}

pid_t fake_svc_start(const char *dir, const char *name, const struct fake_plan *plan)
{
	return start(dir, name, plan, 0);
}

pid_t fake_svc_start_late(const char *dir, const char *name, unsigned delay_ms)
{
	return start(dir, name, NULL, delay_ms);
}

void fake_svc_kill(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
