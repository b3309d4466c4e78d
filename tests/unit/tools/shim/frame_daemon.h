/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that is a thread and does what its script says, for the tests of the client's end of the control socket.
 */
#ifndef EPF_TEST_FRAME_DAEMON_H
#define EPF_TEST_FRAME_DAEMON_H

#include "tests/unit/tools/shim/frame_kit.h"

#include <pthread.h>
#include <sys/un.h>

/* One daemon that serves one connection by its script. */
struct daemon {
	char dir[32], path[64];
	int listener;
	pthread_t thread;
	void (*script)(int fd);
	unsigned late_ms; /* until it listens */
};

static inline void daemon_listen(struct daemon *d)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", d->path);
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(d->listener >= 0 && bind(d->listener, (void *)&at, sizeof(at)) == 0);
	must(listen(d->listener, 4) == 0);
}

static inline void *daemon_main(void *arg)
{
	struct daemon *d = arg;
	int fd;

	if (d->late_ms) {
		usleep(d->late_ms * 1000);
		daemon_listen(d);
	}
	fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	must(fd >= 0);
	d->script(fd);
	close(fd);
	return NULL;
}

static inline void daemon_start(struct daemon *d, void (*script)(int fd), unsigned late_ms)
{
	*d = (struct daemon){ .dir = "/tmp/epf-svc-XXXXXX", .script = script, .late_ms = late_ms };
	must(mkdtemp(d->dir) != NULL);
	snprintf(d->path, sizeof(d->path), "%s/main.sock", d->dir);
	if (!late_ms)
		daemon_listen(d);
	must(pthread_create(&d->thread, NULL, daemon_main, d) == 0);
}

static inline void daemon_join(struct daemon *d)
{
	pthread_join(d->thread, NULL);
	close(d->listener);
	unlink(d->path);
	rmdir(d->dir);
}

static inline struct epf_svc_channel *channel_to(struct daemon *d, void (*script)(int fd))
{
	struct epf_svc_channel *ch = NULL;

	daemon_start(d, script, 0);
	assert_ok(epf_svc_channel_open(d->path, LONG_NS, &ch));
	return ch;
}

static inline void finish(struct daemon *d, struct epf_svc_channel *ch)
{
	epf_svc_channel_close(ch);
	daemon_join(d);
}

/* The daemon's side of a script: the next request, or false at the end. */
static inline bool next_request(int fd, struct epf_svc_input *in)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int rc;

	epf_svc_input_init(in, EPF_SVC_BODY_MAX);
	while ((rc = epf_svc_input_read(in, fd)) == 0)
		poll(&p, 1, -1);
	return rc == 1;
}

/* The header of the next request, whose rest does not matter; type 0 at the end. */
static inline struct epf_svc_head take(int fd)
{
	struct epf_svc_input in;
	struct epf_svc_head head = { 0 };

	if (next_request(fd, &in))
		head = in.head;
	epf_svc_input_destroy(&in);
	return head;
}

/* A whole answer with a body of zeros and any number of copies of a descriptor. */
static inline void answer_raw(int fd, const struct epf_svc_head *request, size_t len,
			      uint16_t announced, unsigned n_fds, int status)
{
	struct epf_svc_head h = { .type = request->type | EPF_SVC_ANSWER,
				  .fds = announced,
				  .seq = request->seq,
				  .status = status };
	uint8_t frame[512], zeros[256] = { 0 };
	int fds[5] = { fd, fd, fd, fd, fd };

	send_raw(fd, frame, make_frame(h, zeros, len, frame), fds, n_fds);
}

#endif
