/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader and the writer of frames, without waiting; see channel.h. The daemon has one of each for a connection, the client's end
 * uses the same two. What comes in is untrusted: nothing is allocated for bytes that are only announced, and every descriptor
 * that arrives is either handed over or closed.
 */
#include "fabric/protocol/channel.h"

#include "fabric/base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_BYTES = 4096 }; /* of a body's buffer, doubled as the bytes arrive */

/* Room for exactly EPF_SVC_FDS_MAX descriptors: the kernel drops more and says MSG_CTRUNC. */
union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(EPF_SVC_FDS_MAX * sizeof(int))];
};

static_assert(CMSG_SPACE(EPF_SVC_FDS_MAX * sizeof(int)) <
		      CMSG_SPACE((EPF_SVC_FDS_MAX + 1) * sizeof(int)),
	      "padding has no room for one more descriptor");

struct epf_svc_frame {
	struct epf_svc_frame *next;
	uint8_t *body;
	size_t len, sent; /* of head and body */
	int fds[EPF_SVC_FDS_MAX];
	unsigned n_fds; /* 0 when they are sent */
	bool own_fds;
	uint8_t head[EPF_SVC_HEAD_BYTES];
};

static void close_fds(int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

void epf_svc_input_init(struct epf_svc_input *in, uint32_t limit)
{
	*in = (struct epf_svc_input){ .limit = limit };
}

void epf_svc_input_reset(struct epf_svc_input *in)
{
	close_fds(in->fds, in->n_fds);
	free(in->body);
	epf_svc_input_init(in, in->limit);
}

void epf_svc_input_destroy(struct epf_svc_input *in)
{
	if (in)
		epf_svc_input_reset(in);
}

/* Moves the descriptors of a received message to the input; the ones without room are closed. */
static int take_fds(struct epf_svc_input *in, struct msghdr *mh, bool first)
{
	bool wrong = (mh->msg_flags & MSG_CTRUNC) != 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		wrong |= !first;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (in->n_fds < EPF_SVC_FDS_MAX) {
				in->fds[in->n_fds++] = fd;
			} else {
				close(fd);
				wrong = true;
			}
		}
	}
	if (mh->msg_flags & MSG_CTRUNC)
		return epf_fail(
			EPF_R_SVC_DESCRIPTOR,
			"a message carries more than %d descriptors, or this process has no number free for them",
			EPF_SVC_FDS_MAX);
	return wrong ? epf_fail(EPF_R_SVC_DESCRIPTOR,
				"descriptors came behind the first byte of a message")
		     : 0;
}

/* At most `room` bytes: their number, 0 when none are there, or an error. */
static ssize_t receive(struct epf_svc_input *in, int fd, void *to, size_t room)
{
	struct iovec part = { .iov_base = to, .iov_len = room };
	union control control;
	struct msghdr mh = { .msg_iov = &part,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control) };
	ssize_t n;
	int rc;

	do
		n = recvmsg(fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	if (n < 0)
		return epf_fail_sys(EPF_R_SVC_GONE, errno, "recvmsg");
	rc = take_fds(in, &mh, in->raw_got == 0);
	if (rc)
		return rc;
	if (n == 0)
		return epf_fail(EPF_R_SVC_GONE, "the other end closed the connection%s",
				in->raw_got ? " in the middle of a message" : "");
	return n;
}

/* The header is whole: believe it as far as it is allowed. */
static int read_head(struct epf_svc_input *in)
{
	int rc = epf_svc_head_decode(in->raw, &in->head);

	if (rc)
		return rc;
	if (in->head.bytes > in->limit)
		return epf_fail(EPF_R_SVC_MESSAGE,
				"%s: a header announces %u bytes, the most is %u now",
				epf_svc_type_name(in->head.type), in->head.bytes, in->limit);
	if (in->head.fds != in->n_fds)
		return epf_fail(EPF_R_SVC_DESCRIPTOR,
				"%s: the header announces %u descriptors, %u came",
				epf_svc_type_name(in->head.type), in->head.fds, in->n_fds);
	return 0;
}

/* A stranger may wait for an answer before it sends as much as a header. */
static int check_magic(const struct epf_svc_input *in)
{
	static const char magic[] = "EPFS";
	size_t n = in->raw_got < 4 ? in->raw_got : 4;

	if (memcmp(in->raw, magic, n) != 0)
		return epf_fail(EPF_R_SVC_MESSAGE, "bytes that do not begin with EPFS");
	return 0;
}

/* Room for more of the body: twice what there is, never more than announced. */
static int grow(struct epf_svc_input *in)
{
	size_t cap = in->cap ? in->cap * 2 : FIRST_BYTES;
	uint8_t *body;

	if (in->got < in->cap)
		return 0;
	if (cap > in->head.bytes)
		cap = in->head.bytes;
	body = realloc(in->body, cap);
	if (!body)
		return epf_fail(EPF_R_NO_MEMORY, "a control message of %u bytes", in->head.bytes);
	in->body = body;
	in->cap = cap;
	return 0;
}

/* Some more of the header or the body: bytes read, 0 when none are there, or an error. */
static ssize_t read_some(struct epf_svc_input *in, int fd, size_t most)
{
	ssize_t n;
	int rc;

	if (in->raw_got < EPF_SVC_HEAD_BYTES) {
		n = receive(in, fd, in->raw + in->raw_got, EPF_SVC_HEAD_BYTES - in->raw_got);
		if (n <= 0)
			return n;
		in->raw_got += (uint32_t)n;
		rc = in->raw_got < EPF_SVC_HEAD_BYTES ? check_magic(in) : read_head(in);
		return rc ? rc : n;
	}
	rc = grow(in);
	if (rc)
		return rc;
	n = receive(in, fd, in->body + in->got,
		    in->cap - in->got < most ? in->cap - in->got : most);
	if (n > 0)
		in->got += (size_t)n;
	return n;
}

int epf_svc_input_read(struct epf_svc_input *in, int fd)
{
	size_t taken = 0;

	while (!in->complete && taken < EPF_SVC_INPUT_STEP) {
		ssize_t n = read_some(in, fd, EPF_SVC_INPUT_STEP - taken);

		if (n < 0)
			epf_svc_input_reset(in);
		if (n <= 0)
			return (int)n;
		taken += (size_t)n;
		in->complete = in->raw_got == EPF_SVC_HEAD_BYTES && in->got == in->head.bytes;
	}
	return in->complete;
}

int epf_svc_input_request(const struct epf_svc_input *in, unsigned minor, void *msg)
{
	const struct epf_svc_head *h = &in->head;
	const char *name = epf_svc_type_name(h->type);

	union {
		uint64_t align;
		uint8_t bytes[EPF_SVC_STRUCT_MAX];
	} unused;

	if (*name == '?')
		return epf_fail(EPF_R_SVC_MESSAGE, "a request of type %u, which is not known",
				h->type);
	if (h->status || h->reason)
		return epf_fail(EPF_R_SVC_MESSAGE, "%s: a request with status %d and reason %u",
				name, h->status, h->reason);
	if (h->fds != epf_svc_type_fds(h->type, false))
		return epf_fail(EPF_R_SVC_DESCRIPTOR, "%s: %u descriptors came, it takes %u", name,
				h->fds, epf_svc_type_fds(h->type, false));
	return epf_svc_decode(h->type, false, minor, in->body, in->got, msg ? msg : unused.bytes);
}

static void free_frame(struct epf_svc_frame *f)
{
	if (f->own_fds)
		close_fds(f->fds, f->n_fds);
	free(f->body);
	free(f);
}

/* Whether one more frame may wait. */
static int admit(const struct epf_svc_output *out, const struct epf_svc_head *head, size_t len,
		 unsigned n_fds)
{
	if (len > EPF_SVC_BODY_MAX || n_fds > EPF_SVC_FDS_MAX)
		return epf_fail(EPF_R_SVC_MESSAGE,
				"%s: %zu bytes and %u descriptors, the most is %d and %d",
				epf_svc_type_name(head->type & ~(unsigned)EPF_SVC_ANSWER), len,
				n_fds, EPF_SVC_BODY_MAX, EPF_SVC_FDS_MAX);
	if (out->bytes > EPF_SVC_OUTPUT_BYTES || out->frames >= EPF_SVC_OUTPUT_FRAMES)
		return epf_fail(EPF_R_SVC_LIMIT,
				"the other end does not read its answers: %u with %zu bytes wait",
				out->frames, out->bytes);
	return 0;
}

static struct epf_svc_frame *new_frame(const struct epf_svc_head *head, void *body, size_t len,
				       const int *fds, unsigned n_fds, bool own_fds)
{
	struct epf_svc_frame *f = calloc(1, sizeof(*f));
	struct epf_svc_head h = *head;

	if (!f) {
		epf_fail(EPF_R_NO_MEMORY, "a control message of %zu bytes", len);
		return NULL;
	}
	h.bytes = (uint32_t)len;
	h.fds = (uint16_t)n_fds;
	epf_svc_head_encode(&h, f->head);
	f->body = body;
	f->len = EPF_SVC_HEAD_BYTES + len;
	if (n_fds)
		memcpy(f->fds, fds, n_fds * sizeof(*fds));
	f->n_fds = n_fds;
	f->own_fds = own_fds;
	return f;
}

int epf_svc_output_add(struct epf_svc_output *out, const struct epf_svc_head *head, void *body,
		       size_t len, const int *fds, unsigned n_fds, bool own_fds)
{
	int rc = admit(out, head, len, n_fds);
	struct epf_svc_frame *f = rc ? NULL : new_frame(head, body, len, fds, n_fds, own_fds);

	if (!f) {
		for (unsigned i = 0; own_fds && i < n_fds; i++)
			close(fds[i]);
		free(body);
		return rc ? rc : -ENOMEM;
	}
	if (out->last)
		out->last->next = f;
	else
		out->first = f;
	out->last = f;
	out->bytes += f->len;
	out->frames++;
	return 0;
}

int epf_svc_output_answer(struct epf_svc_output *out, const struct epf_svc_head *request,
			  unsigned minor, const void *msg, const int *fds, unsigned n_fds)
{
	struct epf_svc_head head = { .type = request->type | EPF_SVC_ANSWER, .seq = request->seq };
	uint8_t *body;
	size_t len;
	int rc = epf_svc_encode(request->type, true, minor, msg, &body, &len);

	if (rc) {
		for (unsigned i = 0; i < n_fds; i++)
			close(fds[i]);
		return rc;
	}
	return epf_svc_output_add(out, &head, body, len, fds, n_fds, true);
}

int epf_svc_output_failure(struct epf_svc_output *out, const struct epf_svc_head *request, int rc)
{
	struct epf_svc_head head = { .type = request->type | EPF_SVC_ANSWER,
				     .seq = request->seq,
				     .status = rc < 0 ? rc : -EIO,
				     .reason = epf_last_reason() };
	char *text = strdup(epf_last_error());

	if (!text)
		return epf_fail(EPF_R_NO_MEMORY, "the text of an error");
	return epf_svc_output_add(out, &head, text, strlen(text), NULL, 0, false);
}

/* Sends what the socket takes of the first frame: bytes, 0 when it is full, or an error. */
static ssize_t send_some(struct epf_svc_frame *f, int fd)
{
	size_t head = f->sent < EPF_SVC_HEAD_BYTES ? EPF_SVC_HEAD_BYTES - f->sent : 0;
	size_t body = f->sent < EPF_SVC_HEAD_BYTES ? 0 : f->sent - EPF_SVC_HEAD_BYTES;
	struct iovec part[2] = {
		{ .iov_base = f->head + EPF_SVC_HEAD_BYTES - head, .iov_len = head },
		{ .iov_base = f->body ? f->body + body : NULL, .iov_len = f->len - f->sent - head },
	};
	union control control = { 0 };
	struct msghdr mh = { .msg_iov = part, .msg_iovlen = 2 };
	ssize_t n;

	if (f->n_fds) {
		struct cmsghdr *c = &control.align;

		mh.msg_control = &control;
		mh.msg_controllen = CMSG_SPACE(f->n_fds * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(f->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), f->fds, f->n_fds * sizeof(int));
	}
	do
		n = sendmsg(fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return 0;
	if (n < 0 && (errno == EPIPE || errno == ECONNRESET))
		return epf_fail(EPF_R_SVC_GONE, "the other end closed the connection");
	if (n < 0)
		return epf_fail_sys(errno == EBADF ? EPF_R_SVC_DESCRIPTOR : EPF_R_SYSTEM, errno,
				    "sendmsg of %zu bytes and %u descriptors", f->len, f->n_fds);
	return n;
}

int epf_svc_output_write(struct epf_svc_output *out, int fd)
{
	while (out->first) {
		struct epf_svc_frame *f = out->first;
		ssize_t n = send_some(f, fd);

		if (n <= 0)
			return (int)n;
		f->sent += (size_t)n;
		out->bytes -= (size_t)n;
		/* They went with the first byte: send them once only. */
		if (f->own_fds)
			close_fds(f->fds, f->n_fds);
		f->n_fds = 0;
		if (f->sent < f->len)
			continue;
		out->first = f->next;
		if (!out->first)
			out->last = NULL;
		out->frames--;
		free_frame(f);
	}
	return 1;
}

void epf_svc_output_destroy(struct epf_svc_output *out)
{
	while (out && out->first) {
		struct epf_svc_frame *f = out->first;

		out->first = f->next;
		free_frame(f);
	}
	if (out)
		*out = (struct epf_svc_output){ 0 };
}
