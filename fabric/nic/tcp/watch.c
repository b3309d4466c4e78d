/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks after connections about ten times a second: one whose host has been silent for too long is lost, and so is a lane with work to which nobody connects. Called by the run loop on the core's
 * thread; makes a bounded number of system calls.
 *
 * TCP itself gives up after many minutes, and TCP_USER_TIMEOUT (tcp(7)) gives up on a peer that is alive but does not read, too. The age of the last acknowledgement tells
 * the two apart: a living host answers keepalives, and probes of a full buffer, whatever its processes do.
 */
#include "fabric/nic/tcp/copier.h"
#include "fabric/nic/tcp/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

enum { LANES_PER_WATCH = 64, SILENT_MS = 500, KEEPALIVE_MS = 1500 };

#define LOSSY_NS (UINT64_C(1000) * 1000 * 1000)

/* True if the kernel filled in this field of struct tcp_info, which grows with releases. */
#define HAS(len, field) \
 ((len) >= offsetof(struct tcp_info, field) + sizeof(((struct tcp_info *)0)->field))

/* The peer has no room: the window it offers is less than a segment, or, where the kernel does not say, it is probed. */
static bool is_full(const struct tcp_info *info, socklen_t len)
{
	if (!HAS(len, tcpi_notsent_bytes) || !info->tcpi_notsent_bytes)
		return false;
	return HAS(len, tcpi_snd_wnd) ? info->tcpi_snd_wnd < info->tcpi_snd_mss
				      : info->tcpi_probes && !info->tcpi_unacked;
}

/* Nothing has come for longer than an answer takes, to what was sent again or to keepalives. */
static bool is_unanswered(const struct tcp_info *info)
{
	uint32_t least = info->tcpi_retransmits ? SILENT_MS : KEEPALIVE_MS;

	return info->tcpi_last_ack_recv > least && info->tcpi_last_data_recv > least;
}

static void note_path(struct epf_tcp *t, struct epf_tcp_lane *l, const struct tcp_info *info,
		      socklen_t len)
{
	uint64_t now = t->now(t->now_arg);
	uint32_t more = info->tcpi_total_retrans - l->retransmits;

	l->retransmits = info->tcpi_total_retrans;
	t->counters.retransmits += more;
	t->tries[l->number].retransmits += more;
	if (more)
		l->lossy_until_ns = now + LOSSY_NS;
	l->path = (struct epf_nic_path){
		.rtt_us = info->tcpi_rtt,
		.cwnd_bytes = info->tcpi_snd_cwnd * info->tcpi_snd_mss,
		.unsent_bytes = HAS(len, tcpi_notsent_bytes) ? info->tcpi_notsent_bytes : 0,
		.state = is_unanswered(info)       ? EPF_STATS_PATH_SILENT
			 : is_full(info, len)      ? EPF_STATS_PATH_FULL
			 : now < l->lossy_until_ns ? EPF_STATS_PATH_LOSSY
						   : EPF_STATS_PATH_FINE,
	};
}

/* Takes in what the kernel knows of the connection. 1: the peer's host has been silent for too long. */
static int is_silent(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	uint64_t most_ms = t->opts.timeout_ns / 1000000u;

	if (getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len))
		return 0;
	note_path(t, l, &info, len);
	/* Anything that came is a sign of life, acknowledgement or data. */
	return info.tcpi_last_ack_recv > most_ms && info.tcpi_last_data_recv > most_ms;
}

int epf_tcp_lane_path(const struct epf_nic *nic, uint16_t lane, struct epf_nic_path *out)
{
	const struct epf_tcp *t = epf_tcp_of(nic);
	const struct epf_tcp_lane *l = epf_tcp_lane_at(t, lane);

	if (lane >= EPF_TCP_MAX_LANES || (l && l->is_loop))
		return 0;
	memset(out, 0, sizeof(*out));
	if (l && l->fd >= 0)
		*out = l->path;
	else
		out->state = t->tries[lane].path ? t->tries[lane].path : EPF_STATS_PATH_UNCONNECTED;
	out->retransmits = t->tries[lane].retransmits;
	return 1;
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

	if (t->copier)
		epf_tcp_copier_watch(t->copier);
	for (uint32_t i = 0; i < LANES_PER_WATCH && i < t->lanes_end; i++) {
		struct epf_tcp_lane *l = epf_tcp_lane_at(t, t->watch_lane);

		t->watch_lane = t->watch_lane + 1 < t->lanes_end ? t->watch_lane + 1 : 0;
		if (l)
			look(t, l, now);
	}
}
