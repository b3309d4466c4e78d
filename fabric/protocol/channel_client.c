/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's end of the control socket: one request, its answer, with a deadline. Called by libepf in service mode
 * and by ep-fabric status, drain and link. The daemon is trusted to be honest, not to be correct or alive: every answer is checked
 * like any message, every wait ends, and a descriptor that was not asked for is closed.
 */
#include "fabric/protocol/channel.h"

#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_NS 10000000ull /* between two tries to connect */

struct epf_svc_channel {
	int fd;
	unsigned minor;
	uint32_t seq; /* of the last request */
	bool broken;
	struct epf_svc_input in;
	struct epf_svc_output out;
	struct sockaddr_un at;
};

static uint64_t deadline_of(uint64_t timeout_ns)
{
	uint64_t now = epf_now_ns();

	return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* Waits for an event: 0, or -ETIMEDOUT without an error text. */
static int wait_for(int fd, short events, uint64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = epf_now_ns();
		uint64_t left = now < deadline ? deadline - now : 0;
		uint64_t ms = left / 1000000 + (left % 1000000 != 0);
		int n = poll(&p, fd >= 0, ms > 1000000 ? 1000000 : (int)ms);

		if (n > 0)
			return 0;
		if (n == 0 && epf_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
}

static int set_address(const char *path, struct sockaddr_un *at)
{
	size_t len = path ? strlen(path) : 0;

	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (len == 0 || len >= sizeof(at->sun_path))
		return epf_fail(EPF_R_SVC_ABSENT,
				"the socket '%s': a path has 1 to %zu bytes, this one %zu",
				path ? path : "", sizeof(at->sun_path) - 1, len);
	memcpy(at->sun_path, path, len);
	return 0;
}

/* One try: the socket, or -errno without an error text. */
static int try_connect(const struct sockaddr_un *at)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int err;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0)
		return fd;
	err = errno;
	close(fd);
	return -err;
}

/* Tries until somebody listens: the socket, or an error with its text. */
static int connect_until(const struct sockaddr_un *at, uint64_t deadline)
{
	bool told = false;

	for (;;) {
		int fd = try_connect(at);
		uint64_t now = epf_now_ns();

		if (fd >= 0)
			return fd;
		if (fd == -EACCES || fd == -EPERM)
			return epf_fail_sys(EPF_R_SVC_ACCESS, -fd, "the socket %s", at->sun_path);
		if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS)
			return epf_fail_sys(EPF_R_SYSTEM, -fd, "a socket");
		/* EAGAIN: the daemon is there and its queue of newcomers is full. */
		if ((fd != -ENOENT && fd != -ECONNREFUSED && fd != -EAGAIN && fd != -EINTR) ||
		    now >= deadline)
			return epf_fail_sys(EPF_R_SVC_ABSENT, -fd, "the socket %s", at->sun_path);
		if (!told)
			epf_info("waiting for a daemon at %s", at->sun_path);
		told = true;
		wait_for(-1, 0, now + RETRY_NS < deadline ? now + RETRY_NS : deadline);
	}
}

int epf_svc_channel_open(const char *path, uint64_t timeout_ns, struct epf_svc_channel **out)
{
	struct epf_svc_channel *ch = calloc(1, sizeof(*ch));
	int rc;

	if (!ch)
		return epf_fail(EPF_R_NO_MEMORY, "a connection to the daemon");
	rc = set_address(path, &ch->at);
	if (rc == 0)
		rc = connect_until(&ch->at, deadline_of(timeout_ns));
	if (rc < 0) {
		free(ch);
		return rc;
	}
	ch->fd = rc;
	epf_svc_input_init(&ch->in, EPF_SVC_BODY_MAX);
	*out = ch;
	return 0;
}

void epf_svc_channel_close(struct epf_svc_channel *ch)
{
	if (!ch)
		return;
	close(ch->fd);
	epf_svc_input_destroy(&ch->in);
	epf_svc_output_destroy(&ch->out);
	free(ch);
}

int epf_svc_channel_fd(const struct epf_svc_channel *ch)
{
	return ch->fd;
}

unsigned epf_svc_channel_minor(const struct epf_svc_channel *ch)
{
	return ch->minor;
}

int epf_svc_channel_check(const struct epf_svc_channel *ch)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLRDHUP };

	if (poll(&p, 1, 0) <= 0)
		return 0;
	return epf_fail(EPF_R_SVC_GONE, "the daemon at %s has hung up", ch->at.sun_path);
}

/* The channel is of no more use; the error that says why gets the socket's name in front. */
static int give_up(struct epf_svc_channel *ch, const char *name, int rc)
{
	enum epf_reason reason = epf_last_reason();

	ch->broken = true;
	/* What was under way may own descriptors. */
	epf_svc_output_destroy(&ch->out);
	epf_svc_input_reset(&ch->in);
	if (reason == EPF_R_SVC_GONE) {
		epf_fail(EPF_R_SVC_GONE, "%s: the daemon at %s has hung up", name, ch->at.sun_path);
		return -ECONNRESET;
	}
	return rc;
}

static int timed_out(struct epf_svc_channel *ch, const char *name, uint64_t timeout_ns)
{
	return epf_fail(EPF_R_SVC_TIMEOUT, "%s: the daemon at %s has not answered in %.1f s", name,
			ch->at.sun_path, (double)timeout_ns / 1e9);
}

/*
 * Sends what is queued. A request that cannot be sent whole by the deadline ends the channel: its rest would have to come
 * before anything else. A daemon that refuses a request halfway may answer and hang up: its answer is still read.
 */
static int send_all(struct epf_svc_channel *ch, const char *name, uint64_t deadline, uint64_t ns)
{
	int rc;

	while ((rc = epf_svc_output_write(&ch->out, ch->fd)) == 0) {
		if (wait_for(ch->fd, POLLOUT, deadline) == 0)
			continue;
		timed_out(ch, name, ns);
		return give_up(ch, name, -ETIMEDOUT);
	}
	if (rc > 0)
		return 0;
	if (epf_last_reason() == EPF_R_SVC_GONE) {
		epf_svc_output_destroy(&ch->out);
		return 0;
	}
	return give_up(ch, name, rc);
}

/* The answer to the request `type` in ch->in; late answers to earlier requests are dropped. */
static int await_answer(struct epf_svc_channel *ch, unsigned type, const char *name,
			uint64_t deadline, uint64_t ns)
{
	for (;;) {
		const struct epf_svc_head *h = &ch->in.head;
		int rc = epf_svc_input_read(&ch->in, ch->fd);

		if (rc < 0)
			return give_up(ch, name, rc);
		if (rc == 0) {
			if (wait_for(ch->fd, POLLIN, deadline))
				return timed_out(ch, name, ns);
			continue;
		}
		if (h->seq == ch->seq && h->type == (type | EPF_SVC_ANSWER) && h->status <= 0)
			return 0;
		if ((int32_t)(h->seq - ch->seq) >= 0) {
			rc = epf_fail(
				EPF_R_SVC_MESSAGE,
				"%s: the daemon's answer has type 0x%04x, number %u and status %d; the request had number %u",
				name, h->type, h->seq, h->status, ch->seq);
			return give_up(ch, name, rc);
		}
		epf_svc_input_reset(&ch->in);
	}
}

/* The daemon says no: its reason and line become this thread's error. */
static int refused(struct epf_svc_channel *ch, const char *name)
{
	const struct epf_reason_info *info = epf_reason_info((enum epf_reason)ch->in.head.reason);
	int status = ch->in.head.status, len = (int)(ch->in.got < 500 ? ch->in.got : 500);
	char text[512], tail[160];
	size_t cut;

	snprintf(text, sizeof(text), "%.*s", len, len ? (const char *)ch->in.body : "");
	/* A reason of a newer daemon: its text has its own remedy. */
	if (!info)
		info = epf_reason_info(EPF_R_SYSTEM);
	/* epf_fail() puts the remedy behind the text again. */
	cut = (size_t)snprintf(tail, sizeof(tail), ": %s [EPF-%u]", info->remedy,
			       (unsigned)info->reason);
	if (strlen(text) > cut && !strcmp(text + strlen(text) - cut, tail))
		text[strlen(text) - cut] = 0;
	epf_fail(info->reason, "%s", *text ? text : name);
	return status;
}

/* Descriptors of the answer to the caller: as many as the type has, the rest is closed with the input. */
static int hand_fds(struct epf_svc_channel *ch, unsigned type, const char *name, int *fds,
		    unsigned max, unsigned *n)
{
	unsigned want = epf_svc_type_fds(type, true);

	if (ch->in.head.fds < want)
		return epf_fail(EPF_R_SVC_DESCRIPTOR,
				"%s: %u descriptors came from the daemon, it sends %u", name,
				ch->in.head.fds, want);
	if (want > max)
		want = max;
	for (unsigned i = 0; i < want; i++) {
		fds[i] = ch->in.fds[i];
		ch->in.fds[i] = -1;
	}
	/* The body stays for the caller, the descriptors nobody asked for do not. */
	for (unsigned i = want; i < ch->in.head.fds; i++) {
		close(ch->in.fds[i]);
		ch->in.fds[i] = -1;
	}
	if (n)
		*n = want;
	return 0;
}

int epf_svc_call(struct epf_svc_channel *ch, unsigned type, const void *req, const int *fds,
		 unsigned n_fds, void *reply, int *reply_fds, unsigned reply_fds_max,
		 unsigned *n_reply_fds, uint64_t timeout_ns)
{
	struct epf_svc_head head = { .type = (uint16_t)type };
	const char *name = epf_svc_type_name(type);
	uint64_t deadline = deadline_of(timeout_ns);
	uint8_t *body;
	size_t len;
	int rc;

	if (ch->broken)
		return epf_fail(EPF_R_SVC_GONE,
				"%s: the connection to the daemon at %s ended before", name,
				ch->at.sun_path);
	if (ch->in.complete)
		epf_svc_input_reset(&ch->in);
	rc = epf_svc_encode(type, false, ch->minor, req, &body, &len);
	if (rc)
		return rc;
	head.seq = ++ch->seq;
	rc = epf_svc_output_add(&ch->out, &head, body, len, fds, n_fds, false);
	if (rc == 0)
		rc = send_all(ch, name, deadline, timeout_ns);
	if (rc == 0)
		rc = await_answer(ch, type, name, deadline, timeout_ns);
	if (rc)
		return rc;
	if (ch->in.head.status < 0)
		return refused(ch, name);
	rc = epf_svc_decode(type, true, ch->minor, ch->in.body, ch->in.got, reply);
	if (rc == 0)
		rc = hand_fds(ch, type, name, reply_fds, reply_fds_max, n_reply_fds);
	return rc ? give_up(ch, name, rc) : 0;
}

int epf_svc_hello(struct epf_svc_channel *ch, uint32_t flags, const char *program,
		  struct epf_svc_hello_reply *out, uint64_t timeout_ns)
{
	struct epf_svc_hello req = { .major = EPF_SVC_MAJOR,
				     .minor = EPF_SVC_MINOR,
				     .flags = flags };
	struct epf_svc_hello_reply reply;
	char who[sizeof(ch->at.sun_path) + 32];
	int rc;

	snprintf(req.program, sizeof(req.program), "%s", program ? program : "");
	for (char *p = req.program; *p; p++) {
		if ((unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e)
			*p = '?';
	}
	rc = epf_svc_call(ch, EPF_SVC_HELLO, &req, NULL, 0, &reply, NULL, 0, NULL, timeout_ns);
	if (rc)
		return rc;
	snprintf(who, sizeof(who), "the daemon at %s", ch->at.sun_path);
	rc = epf_svc_version_check(who, reply.major, reply.minor);
	if (rc)
		return give_up(ch, "HELLO", rc);
	ch->minor = epf_svc_minor(reply.minor);
	*out = reply;
	return 0;
}
