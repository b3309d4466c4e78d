/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks after connections about ten times a second: one whose host has been silent for too long is lost, and so is a lane with work to which nobody connects. Called by the run loop on the core's
 * thread; makes a bounded number of system calls.
 *
 * TCP itself gives up after many minutes, and TCP_USER_TIMEOUT (tcp(7)) gives up on a peer that is alive but does not read, too. The age of the last acknowledgement tells
 * the two apart: a living host answers keepalives, and probes of a full buffer, whatever its processes do.
 */
#include "fabric/nic/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { LANES_PER_WATCH = 64 };

/* Takes in what the kernel knows of the connection. 1: the peer's host has been silent for too long. */
static int is_silent(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	uint64_t most_ms = t->opts.timeout_ns / 1000000u;

	if (getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	t->counters.retransmits += info.tcpi_total_retrans - l->retransmits;
	l->retransmits = info.tcpi_total_retrans;
	/* Anything that came is a sign of life, acknowledgement or data. */
	return info.tcpi_last_ack_recv > most_ms && info.tcpi_last_data_recv > most_ms;
}

static void look(struct epf_tcp *t, struct epf_tcp_lane *l, uint64_t now)
{
	if (l->link != EPF_LANE_READY || l->is_loop)
		return;
	if (t->is_down) {
		if (now - t->cut_ns > t->opts.timeout_ns)
			epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, "its link is switched off");
	} else if (l->fd >= 0) {
		if (is_silent(t, l))
			epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED,
				     "the peer's host has not answered for tcp-timeout");
	} else if (l->since_ns && now - l->since_ns > 2 * t->opts.timeout_ns) {
		epf_tcp_lose(t, l, EPF_S_RETRY_EXCEEDED, "the peer has not connected");
	}
}

void epf_tcp_watch(struct epf_nic *nic)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	uint64_t now = t->now(t->now_arg);

	for (uint32_t i = 0; i < LANES_PER_WATCH && i < t->lanes_end; i++) {
		struct epf_tcp_lane *l = epf_tcp_lane_at(t, t->watch_lane);

		t->watch_lane = t->watch_lane + 1 < t->lanes_end ? t->watch_lane + 1 : 0;
		if (l)
			look(t, l, now);
	}
}
