/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving: trains are checked as they come, and payload goes from the socket straight into the memory that it is for, after the same checks of key, range and right that a
 * NIC of its own would make. Called by the core's step, through reap(); makes system calls, never blocks, allocates nothing.
 *
 * What arrives together with the descriptors (a lane reads at most EPF_TCP_STAGE bytes ahead, and EPF_TCP_AHEAD behind long payloads) is copied from the
 * staging memory; the rest is never copied here.
 */
#include "fabric/nic/tcp/tcp.h"
#include "fabric/nic/tcp/trains.h"

#define EPF_LOG_COMP "tcp"
#include "fabric/base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { LONG_PAYLOAD = 8 << 10 };

/* Number of the descriptor whose payload comes next. */
static uint32_t current(struct epf_tcp_rx *rx)
{
	while (rx->current < rx->count && rx->ends[rx->current] <= rx->bytes)
		rx->current++;
	return rx->current;
}

/*
 * The places of payload that comes next, as far as it may be put there. Return: how many pieces. *all: to the end of the train.
 */
static int gather(struct epf_tcp *t, struct epf_tcp_lane *l, struct iovec *v,
		  struct epf_tcp_piece *pieces, size_t *bytes, bool *all)
{
	struct epf_tcp_rx *rx = &l->rx;
	uint32_t i = current(rx), at = rx->bytes, reserved = 0;
	int n = 0;

	*bytes = 0;
	for (; i < rx->count && n < EPF_TCP_PIECES; i++) {
		uint32_t left = rx->ends[i] - at;
		struct epf_tcp_spot dst;

		if (!left)
			continue;
		if (!epf_tcp_place_of(t, l, i, &dst))
			break;
		dst.at += epf_tcp_payload(&rx->descs[i]) - left;
		if (dst.mem) {
			uint32_t before = reserved;

			n += epf_tcp_gpu_gather(t, l, dst, i, left, &reserved, v, pieces, n);
			*bytes += reserved - before;
			if (reserved - before < left)
				break;
		} else {
			pieces[n] = (struct epf_tcp_piece){ dst, i };
			v[n++] = (struct iovec){ (void *)(uintptr_t)dst.at, left };
			*bytes += left;
		}
		at = rx->ends[i];
	}
	*all = i == rx->count;
	return n;
}

/* Moves payload that was read ahead to its place. Returns 1 if it moved some, 0 if the place is wrong, -EAGAIN if the ring to the GPU is full. */
static int copy_staged(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_rx *rx = &l->rx;
	int any = 0;

	while (rx->at < rx->end && rx->bytes < rx->ends[rx->count - 1]) {
		uint32_t i = current(rx), left = rx->ends[i] - rx->bytes;
		uint32_t n = rx->end - rx->at < left ? rx->end - rx->at : left;
		struct epf_tcp_spot dst;
		uint8_t *at;

		if (!epf_tcp_place_of(t, l, i, &dst))
			return any;
		dst.at += epf_tcp_payload(&rx->descs[i]) - left;
		at = (uint8_t *)(uintptr_t)dst.at;
		if (dst.mem && !epf_tcp_gpu_room(t, l, 0, &at, &n))
			return any ? any : -EAGAIN;
		memcpy(at, rx->stage + rx->at, n);
		if (dst.mem)
			epf_tcp_gpu_land(t, l, &dst, n, i);
		rx->at += n;
		rx->bytes += n;
		any = 1;
	}
	return any;
}

/* As recvmsg(2). */
static ssize_t receive_some(struct epf_tcp_lane *l, struct msghdr *msg)
{
	ssize_t n;

	if (l->seal)
		return epf_tcp_seal_receive(l->seal, l->fd, msg->msg_iov, msg->msg_iovlen);
	do
		n = recvmsg(l->fd, msg, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n;
}

/* Receives once. Return: bytes; 0: nothing more now. */
static size_t receive(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct epf_tcp_rx *rx = &l->rx;
	struct iovec v[EPF_TCP_PIECES + 1];
	struct epf_tcp_piece pieces[EPF_TCP_PIECES];
	struct msghdr msg = { .msg_iov = v };
	size_t payload, asked;
	bool all;
	ssize_t n;

	memmove(rx->stage, rx->stage + rx->at, rx->end - rx->at);
	rx->end -= rx->at;
	rx->at = 0;
	msg.msg_iovlen = (size_t)gather(t, l, v, pieces, &payload, &all);
	asked = payload;
	if (all) {
		size_t room = EPF_TCP_STAGE - rx->end;

		if (payload > LONG_PAYLOAD && room > EPF_TCP_AHEAD)
			room = EPF_TCP_AHEAD;
		v[msg.msg_iovlen++] = (struct iovec){ rx->stage + rx->end, room };
		asked += room;
	}
	if (!asked) {
		epf_tcp_gpu_pause(l);
		return 0;
	}
	n = receive_some(l, &msg);
	if (n <= 0) {
		rx->is_readable = false;
		if (n == 0)
			epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, "the peer closed the connection");
		else if (errno == EBADMSG)
			epf_tcp_broken(t, l, "what arrives is not what it encrypted");
		else if (errno != EAGAIN)
			epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, strerror(errno));
		return 0;
	}
	t->nic.served++;
	/* Less than was asked for: the socket is empty, and its next event comes by itself. */
	if ((size_t)n < asked && !rx->has_hung_up && !(l->seal && epf_tcp_seal_has_more(l->seal)))
		rx->is_readable = false;
	if (l->gpu)
		epf_tcp_gpu_land_pieces(t, l, v, pieces, (size_t)n < payload ? (size_t)n : payload);
	rx->bytes += (uint32_t)((size_t)n < payload ? (size_t)n : payload);
	rx->end += (uint32_t)((size_t)n > payload ? (size_t)n - payload : 0);
	return (size_t)n;
}

/* Nothing takes effect any more: what comes is thrown away, so that the end of the stream is seen. */
static void discard(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	ssize_t n = recv(l->fd, l->rx.stage, EPF_TCP_STAGE, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		l->rx.is_readable = false;
	else if (n <= 0 && errno != EINTR)
		epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, NULL);
}

/* Moves on with what is there. 1: did; 0: bytes are needed; -EAGAIN: something else is. */
static int advance(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	struct epf_tcp_rx *rx = &l->rx;
	struct epf_tcp_spot dst;
	int rc;

	if (!rx->count) {
		if (epf_tcp_is_holding(l) && !epf_tcp_settle(t, l, out))
			return -EAGAIN;
		if (rx->is_dead)
			return 1;
		rc = epf_tcp_open_train(l);
		if (rc < 0)
			epf_tcp_broken(t, l, "what it sends is no train");
		return rc < 0 ? -EAGAIN : rc;
	}
	if (!epf_tcp_settle(t, l, out))
		return -EAGAIN;
	if (!rx->count || rx->is_dead)
		return 1;
	if (rx->bytes == rx->ends[rx->count - 1]) { /* some of it is being copied */
		epf_tcp_gpu_pause(l);
		return -EAGAIN;
	}
	if (!epf_tcp_place_of(t, l, current(rx), &dst)) {
		epf_tcp_refuse_place(t, l, current(rx),
				     "no exported region covers it with that right and key");
		/* Bytes before it may still be on their way to a GPU. */
		if (!rx->is_dead)
			epf_tcp_gpu_pause(l);
		return -EAGAIN;
	}
	if (dst.mem && !epf_tcp_gpu_can_land(t, l)) {
		epf_tcp_refuse_place(t, l, current(rx),
				     "there is no pinned memory on the way to its GPU");
		return 1;
	}
	if (rx->at == rx->end)
		return 0;
	rc = copy_staged(t, l);
	if (rc >= 0)
		return 1;
	epf_tcp_gpu_pause(l);
	return rc;
}

int epf_tcp_can_advance(const struct epf_tcp *t, const struct epf_tcp_lane *l)
{
	const struct epf_tcp_rx *rx = &l->rx;

	/* A descriptor whose payload is in place did not take effect: there was no room to report it. */
	if (rx->is_dead)
		return 0;
	if (epf_tcp_is_holding(l))
		return epf_tcp_gpu_has_first(t, l);
	return rx->count && rx->ends[rx->done] <= rx->bytes &&
	       (!l->gpu || epf_tcp_gpu_landed(t, l, l->gpu->copied[rx->done]) != EPF_TCP_COPYING);
}

void epf_tcp_receive(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out)
{
	uint64_t budget = EPF_TCP_RX_BUDGET >> t->nic.pace;

	if (l->gpu)
		l->gpu->rx_waits = false;
	while (l->fd >= 0 && !t->is_down) {
		size_t n;
		int rc;

		if (l->rx.is_dead) {
			if (l->rx.is_readable)
				discard(t, l);
			return;
		}
		rc = advance(t, l, out);
		if (rc < 0)
			return;
		if (rc > 0)
			continue;
		if (!l->rx.is_readable || !budget)
			return;
		n = receive(t, l);
		if (!n)
			return;
		budget -= n < budget ? n : budget;
	}
}
