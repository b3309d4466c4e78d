/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of proto.h over a Unix stream socket. channel.c holds what both ends need and the daemon calls directly: a reader and a writer
 * that never wait (struct epf_svc_input, epf_svc_output). channel_client.c is the client's end for libepf and the tools: one
 * request, its answer, with a deadline. Nothing here trusts a length before the bytes are there, keeps a descriptor that nobody asked for,
 * raises SIGPIPE, or waits without a deadline.
 *
 * All int functions return 0 (or what they say) or -errno with the line in epf_last_error().
 */
#ifndef EPF_FABRIC_PROTOCOL_CHANNEL_H
#define EPF_FABRIC_PROTOCOL_CHANNEL_H

#include "fabric/protocol/proto.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the client's end ---- */

struct epf_svc_channel;

/**
 * epf_svc_channel_open() - connect to the daemon's socket.
 * @path: of the socket. @timeout_ns: how long to try again while nobody listens there; 0 tries once.
 *
 * Errors: EPF_R_SVC_ABSENT (-ENOENT, -ECONNREFUSED: nobody listens), EPF_R_SVC_ACCESS (-EACCES, -EPERM).
 * A handle is used by one thread at a time, except epf_svc_channel_check().
 */
int epf_svc_channel_open(const char *path, uint64_t timeout_ns, struct epf_svc_channel **out);

/* epf_svc_channel_close() - close the socket without a farewell (that is EPF_SVC_LEAVE); NULL is fine. */
void epf_svc_channel_close(struct epf_svc_channel *ch);

/* epf_svc_channel_fd() - the socket, for poll(2) and getsockopt(2); the channel keeps it. */
int epf_svc_channel_fd(const struct epf_svc_channel *ch);

/* epf_svc_channel_minor() - the minor both speak; 0 before epf_svc_hello(). */
unsigned epf_svc_channel_minor(const struct epf_svc_channel *ch);

/**
 * epf_svc_hello() - say HELLO, check the versions and keep the minor of both in the channel.
 * @flags: of struct epf_svc_hello. @program: name for the daemon's log; what is too long is cut, control characters become '?'.
 *
 * Errors: EPF_R_SVC_VERSION with both versions, those of epf_svc_call().
 */
int epf_svc_hello(struct epf_svc_channel *ch, uint32_t flags, const char *program,
		  struct epf_svc_hello_reply *out, uint64_t timeout_ns);

/**
 * epf_svc_call() - one request and its answer.
 * @req: struct of the request, NULL for an empty one. @fds, @n_fds: descriptors that go with it; the caller keeps them.
 * @reply: struct of the answer, NULL when the answer has no body. Variable bytes in it point into the channel and are valid
 *	until its next call.
 * @reply_fds, @reply_fds_max: room for descriptors (close-on-exec) that the caller then owns; more than fit are closed.
 *	May be NULL and 0.
 * @n_reply_fds: set to their number; may be NULL.
 * @timeout_ns: for the whole call.
 *
 * An answer that says no becomes this thread's error with its reason and text, and its errno is returned; the channel stays usable.
 * After EPF_R_SVC_TIMEOUT the answer that comes late is skipped by the next call, unless the request itself was cut off.
 * Errors: those of the daemon; EPF_R_SVC_GONE the daemon ended; EPF_R_SVC_TIMEOUT; EPF_R_SVC_MESSAGE, EPF_R_SVC_DESCRIPTOR its answer
 * cannot be. After GONE, MESSAGE and DESCRIPTOR that it raised every later call fails with EPF_R_SVC_GONE.
 */
int epf_svc_call(struct epf_svc_channel *ch, unsigned type, const void *req, const int *fds,
		 unsigned n_fds, void *reply, int *reply_fds, unsigned reply_fds_max,
		 unsigned *n_reply_fds, uint64_t timeout_ns);

/**
 * epf_svc_channel_check() - without waiting: 0, or -ECONNRESET with EPF_R_SVC_GONE when the daemon has hung up.
 *
 * One poll(2), no allocation; any thread, also during a call of another one.
 */
int epf_svc_channel_check(const struct epf_svc_channel *ch);

/* ---- frames without waiting: the daemon's end, one of each for a connection ---- */

enum {
	EPF_SVC_INPUT_STEP = 64 << 10,  /* bytes one epf_svc_input_read() takes at most */
	EPF_SVC_OUTPUT_BYTES = 1 << 20, /* a frame is refused when more wait already */
	EPF_SVC_OUTPUT_FRAMES = 64,     /* or as many as this: they may hold descriptors */
};

/* What has arrived of one message. Zeroed memory with epf_svc_input_init() is an empty one; read head, body, fds when complete. */
struct epf_svc_input {
	struct epf_svc_head head;
	uint8_t *body;            /* head.bytes of them; NULL when 0 */
	int fds[EPF_SVC_FDS_MAX]; /* head.fds of them: write -1 over one to keep it, reset closes the rest */
	uint32_t limit;           /* of head.bytes; set it when HELLO is done */
	/* Below: the reader's own. */
	bool complete;
	uint8_t raw[EPF_SVC_HEAD_BYTES];
	uint32_t raw_got;
	uint32_t n_fds;
	size_t got, cap;
};

/* epf_svc_input_init() - nothing has arrived. @limit: EPF_SVC_HELLO_MAX before HELLO, EPF_SVC_BODY_MAX after. */
void epf_svc_input_init(struct epf_svc_input *in, uint32_t limit);

/**
 * epf_svc_input_read() - take what the socket has, never beyond the end of one message.
 *
 * Memory grows with the bytes that arrived, not with what the header announces. At most EPF_SVC_INPUT_STEP bytes a call: use
 * level-triggered polling. A complete message stays until epf_svc_input_reset(); reading again returns 1.
 *
 * Return: 1 a whole message, 0 not yet; -ECONNRESET (EPF_R_SVC_GONE) the other end closed; -EBADMSG (EPF_R_SVC_MESSAGE) no message of ours or too long;
 * -EBADF (EPF_R_SVC_DESCRIPTOR) descriptors other than announced; -ENOMEM. After a negative one the connection is of no more use, and
 * the input holds nothing.
 */
int epf_svc_input_read(struct epf_svc_input *in, int fd);

/**
 * epf_svc_input_request() - read a complete message as a request: known type, status 0, as many descriptors as the type wants, body.
 * @minor: what the sender speaks (0 for HELLO). @msg: the struct of the request; pointers in it are valid until the reset. NULL only checks.
 *
 * Return: 0, -EBADMSG or -EBADF; the connection can still answer and go on.
 */
int epf_svc_input_request(const struct epf_svc_input *in, unsigned minor, void *msg);

/* epf_svc_input_reset() - be ready for the next message: close descriptors that are still there, free the body, keep the limit. */
void epf_svc_input_reset(struct epf_svc_input *in);

/* epf_svc_input_destroy() - the same, at the end; NULL is fine. */
void epf_svc_input_destroy(struct epf_svc_input *in);

struct epf_svc_frame;

/* Frames that wait to be written. Zeroed memory is an empty one. */
struct epf_svc_output {
	struct epf_svc_frame *first, *last;
	size_t bytes; /* not written yet */
	unsigned frames;
};

/**
 * epf_svc_output_add() - queue one frame.
 * @head: bytes and fds are set from the other arguments.
 * @body: malloced, or NULL; the queue's from now on, also when this fails.
 * @fds, @n_fds: sent with its first byte. @own_fds: close them when written, or when this fails; else they must stay open until then.
 *
 * Errors: EPF_R_SVC_LIMIT (-ENOSPC) the other end does not read what was sent to it; EPF_R_SVC_MESSAGE; EPF_R_NO_MEMORY.
 */
int epf_svc_output_add(struct epf_svc_output *out, const struct epf_svc_head *head, void *body,
		       size_t len, const int *fds, unsigned n_fds, bool own_fds);

/**
 * epf_svc_output_answer() - encode and queue the answer to a request that succeeded.
 * @minor: what the receiver speaks. @msg: struct of the answer, NULL when it has no body. @fds: closed when written, and when this fails.
 */
int epf_svc_output_answer(struct epf_svc_output *out, const struct epf_svc_head *request,
			  unsigned minor, const void *msg, const int *fds, unsigned n_fds);

/**
 * epf_svc_output_failure() - queue the answer to a request that failed, with this thread's last error.
 * @rc: negative errno.
 */
int epf_svc_output_failure(struct epf_svc_output *out, const struct epf_svc_head *request, int rc);

/**
 * epf_svc_output_write() - write what the socket takes.
 *
 * Return: 1 all written, 0 the socket is full (wait for POLLOUT), -ECONNRESET (EPF_R_SVC_GONE) the other end closed, other -errno.
 */
int epf_svc_output_write(struct epf_svc_output *out, int fd);

/* epf_svc_output_destroy() - drop what waits; NULL is fine. */
void epf_svc_output_destroy(struct epf_svc_output *out);

#endif
