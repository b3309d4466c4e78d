/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the control protocol. Byte 0 chooses: a header; a body of any type; a list of descriptions; or a
 * connection, in which the rest is a script of what a client sends, with how many descriptors and in which pieces, while the daemon's reader and
 * writer work on it. It aborts when a limit is passed, when what is read is not what would be written, when a refusal says nothing or keeps
 * memory, and when a descriptor is left over.
 */
#include "bootstrap/boot.h"
#include "fabric/base/err.h"
#include "fabric/protocol/channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER, BODY, LIST, CONNECTION, MODES };

enum { SCRIPT_CLOSE = 0xff, SCRIPT_LARGE = 0xfe, SCRIPT_MANY = 0xfd, LARGE = 300000, SPECIALS = 6 };

static void must(bool rule)
{
	if (!rule)
		abort();
}

static void must_say(int rc)
{
	must(rc == -EBADMSG || rc == -EBADF || rc == -EPROTO || rc == -ENOSPC || rc == -ECONNRESET);
	must(strstr(epf_last_error(), "[EPF-") != NULL);
}

static void header(const uint8_t *data, size_t size)
{
	uint8_t in[EPF_SVC_HEAD_BYTES] = { 0 }, out[EPF_SVC_HEAD_BYTES];
	struct epf_svc_head h;
	int rc;

	memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
	rc = epf_svc_head_decode(in, &h);
	if (rc) {
		must_say(rc);
		return;
	}
	must(h.fds <= EPF_SVC_FDS_MAX && h.bytes <= EPF_SVC_BODY_MAX);
	epf_svc_head_encode(&h, out);
	must(!memcmp(in, out, sizeof(in)));
	rc = epf_svc_version_check("a client", h.type, h.fds);
	must(rc == 0 || rc == -EPROTO);
	must(epf_svc_minor(h.fds) <= EPF_SVC_MINOR);
}

/* Bytes 0 to 2: type, answer, minor. */
static void body(const uint8_t *data, size_t size)
{
	uint64_t msg[32] = { 0 }, again[32] = { 0 };
	uint8_t *one, *two;
	size_t n_one, n_two;
	int rc;

	if (size < 3)
		return;
	rc = epf_svc_decode(data[0], data[1] & 1, data[2] & 1, data + 3, size - 3, msg);
	must((*epf_svc_type_name(data[0]) != '?') || rc);
	must(epf_svc_type_fds(data[0], data[1] & 1) <= EPF_SVC_FDS_MAX);
	if (rc) {
		must_say(rc);
		must(!memcmp(msg, again, sizeof(msg)));
		return;
	}
	/* Its own writing reads the same. */
	must(epf_svc_encode(data[0], data[1] & 1, EPF_SVC_MINOR, msg, &one, &n_one) == 0);
	must(epf_svc_decode(data[0], data[1] & 1, EPF_SVC_MINOR, one, n_one, again) == 0);
	must(epf_svc_encode(data[0], data[1] & 1, EPF_SVC_MINOR, again, &two, &n_two) == 0);
	must(n_one == n_two && !memcmp(one, two, n_one));
	free(one);
	free(two);
	/* A struct of any bytes may be refused, but not half written. */
	memcpy(again, data + 3, size - 3 < sizeof(again) ? size - 3 : sizeof(again));
	if (data[0] == EPF_SVC_COUNTER || data[0] == EPF_SVC_LINK) {
		rc = epf_svc_encode(data[0], false, EPF_SVC_MINOR, again, &one, &n_one);
		if (rc)
			must_say(rc);
		else
			free(one);
	}
}

/* Byte 0: ranks. */
static void list(const uint8_t *data, size_t size)
{
	struct epf_blob blobs[256];
	uint8_t *out;
	size_t len;
	int rc;

	if (!size)
		return;
	rc = epf_svc_unpack(data + 1, size - 1, data[0], blobs);
	if (rc) {
		must_say(rc);
		return;
	}
	must(epf_svc_pack(blobs, data[0], &out, &len) == 0);
	must(len == size - 1 && !memcmp(out, data + 1, len));
	free(out);
	blobs[0] = (struct epf_blob){ data, (size_t)EPF_SVC_BODY_MAX + data[0] };
	must_say(epf_svc_pack(blobs, 1, &out, &len));
}

struct connection {
	int fd[2]; /* the daemon's, the client's */
	struct epf_svc_input in, back;
	struct epf_svc_output out;
	size_t sent;
	unsigned specials; /* they cost time, which is better spent on bytes */
	bool over;
};

static int lowest_fd(void)
{
	int fd = dup(0);

	must(fd >= 0);
	close(fd);
	return fd;
}

/* The client reads what the daemon wrote: whole frames, answers all of them. */
static void client_reads(struct connection *c)
{
	int rc;

	while ((rc = epf_svc_input_read(&c->back, c->fd[1])) == 1) {
		must(c->back.head.type & EPF_SVC_ANSWER);
		epf_svc_input_reset(&c->back);
	}
	must(rc == 0 || rc == -ECONNRESET);
}

static void flush(struct connection *c)
{
	int rc;

	while ((rc = epf_svc_output_write(&c->out, c->fd[0])) == 0)
		client_reads(c);
	if (rc == 1)
		client_reads(c);
	else
		must_say(rc);
	must(rc < 0 || (c->out.frames == 0 && c->out.bytes == 0));
}

/* The daemon answers with zeros and the descriptors of the type, or says no. */
static void answer(struct connection *c, int rc)
{
	static const uint64_t zeros[32];
	const struct epf_svc_head *h = &c->in.head;
	unsigned n = epf_svc_type_fds(h->type, true);
	int fds[EPF_SVC_FDS_MAX];

	if (rc) {
		must_say(rc);
		rc = epf_svc_output_failure(&c->out, h, rc);
	} else {
		for (unsigned i = 0; i < n; i++)
			fds[i] = dup(c->fd[0]);
		rc = epf_svc_output_answer(&c->out, h, h->seq & 1, zeros, fds, n);
	}
	if (rc)
		must_say(rc);
}

static void daemon_reads(struct connection *c)
{
	uint64_t msg[32];
	int rc;

	while (!c->over && (rc = epf_svc_input_read(&c->in, c->fd[0])) != 0) {
		if (rc < 0) {
			must_say(rc);
			must(!c->in.body && !c->in.n_fds && !c->in.complete);
			c->over = true;
			return;
		}
		must(c->in.head.bytes == c->in.got && c->in.got <= c->in.limit &&
		     c->in.head.fds == c->in.n_fds);
		rc = epf_svc_input_request(&c->in, c->in.head.seq & 1, msg);
		if (rc == 0 && c->in.head.type == EPF_SVC_HELLO)
			c->in.limit = EPF_SVC_BODY_MAX;
		answer(c, rc);
		if (c->in.head.seq & 2)
			flush(c);
		/* One descriptor is kept. */
		if (c->in.head.fds) {
			close(c->in.fds[0]);
			c->in.fds[0] = -1;
		}
		epf_svc_input_reset(&c->in);
	}
	must(c->in.cap <= 4096 || c->in.cap <= 2 * c->sent);
}

static void client_sends(struct connection *c, const uint8_t *bytes, size_t len, unsigned n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(8 * sizeof(int))];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = len };
	struct msghdr mh = { .msg_iov = &part, .msg_iovlen = 1 };

	if (n_fds && len) {
		mh.msg_control = &control;
		mh.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		for (unsigned i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(&control.align) + i * sizeof(int), &c->fd[1], sizeof(int));
	}
	if (sendmsg(c->fd[1], &mh, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len)
		c->sent += len;
}

/* Steps that bytes cannot make. */
static void special(struct connection *c, uint8_t what)
{
	const struct epf_svc_head h = { .type = EPF_SVC_STATUS | EPF_SVC_ANSWER };
	int rc = 0;

	if (c->specials++ == SPECIALS)
		c->over = true;
	if (what == SCRIPT_CLOSE)
		shutdown(c->fd[1], SHUT_RDWR);
	for (int i = 0; what == SCRIPT_MANY && i < 2 * EPF_SVC_OUTPUT_FRAMES; i++) {
		int fd = dup(c->fd[0]);

		rc = epf_svc_output_add(&c->out, &h, NULL, 0, &fd, 1, true);
	}
	if (what == SCRIPT_LARGE)
		rc = epf_svc_output_add(&c->out, &h, calloc(1, LARGE), LARGE, c->fd, 1, false);
	if (rc)
		must_say(rc);
	must(c->out.frames <= EPF_SVC_OUTPUT_FRAMES);
	must(c->out.bytes <= EPF_SVC_OUTPUT_BYTES + LARGE + EPF_SVC_HEAD_BYTES);
}

/* Byte 0: bit 0 before or after HELLO. Then steps: bytes to send, descriptors with them (or a special step), the bytes. */
static void connection(const uint8_t *data, size_t size)
{
	struct connection c = { .sent = 0 };
	int lowest = lowest_fd();

	if (!size)
		return;
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, c.fd) == 0);
	epf_svc_input_init(&c.in, data[0] & 1 ? EPF_SVC_BODY_MAX : EPF_SVC_HELLO_MAX);
	epf_svc_input_init(&c.back, EPF_SVC_BODY_MAX);
	for (data++, size--; size >= 2 && !c.over;) {
		size_t len = data[0] < size - 2 ? data[0] : size - 2;

		if (data[0] >= SCRIPT_MANY) {
			special(&c, data[0]);
			len = 0;
		} else if (len) {
			client_sends(&c, data + 2, len, data[1] & 7);
		}
		daemon_reads(&c);
		data += 2 + len;
		size -= 2 + len;
	}
	flush(&c);
	epf_svc_output_destroy(&c.out);
	epf_svc_input_destroy(&c.in);
	epf_svc_input_destroy(&c.back);
	close(c.fd[0]);
	close(c.fd[1]);
	must(lowest_fd() == lowest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const modes[MODES])(const uint8_t *, size_t) = {
		[HEADER] = header,
		[BODY] = body,
		[LIST] = list,
		[CONNECTION] = connection,
	};

	if (size)
		modes[data[0] % MODES](data + 1, size - 1);
	return 0;
}
