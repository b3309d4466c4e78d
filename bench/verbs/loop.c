/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare post loop (rawverbs.h): lists of writes posted as long as there is room, completions polled, nothing else. It is what
 * `ib_write_bw` of perftest does, and the yardstick of the fabric: it must not be made slower, or cleverer, than that.
 */
#include "bench/common/bench.h"
#include "bench/verbs/rawverbs_priv.h"
#include "fabric/base/clock.h"
#include "queues/epf_base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL = 16 };

/* One write, over and over. */
struct job {
	uint64_t local, remote;
	uint32_t bytes;
	unsigned flags; /* IBV_SEND_INLINE or 0 */
};

static int post_wr(struct rawverbs *r, struct raw_qp *q, uint64_t id, const struct job *j,
		   unsigned signal)
{
	struct ibv_qp_ex *qp = q->qpx;
	unsigned list = (unsigned)r->o.list;

	ibv_wr_start(qp);
	for (unsigned i = 0; i < list; i++) {
		qp->wr_id = id + i;
		qp->wr_flags = j->flags | (i + 1 == list ? signal : 0);
		ibv_wr_rdma_write(qp, r->peer_rkey, j->remote);
		if (EPF_UNLIKELY(j->flags))
			ibv_wr_set_inline_data(qp, (void *)(uintptr_t)j->local, j->bytes);
		else
			ibv_wr_set_sge(qp, r->mr->lkey, j->local, j->bytes);
	}
	return ibv_wr_complete(qp);
}

static int post_list(struct rawverbs *r, struct raw_qp *q, uint64_t id, const struct job *j,
		     unsigned signal)
{
	struct ibv_send_wr *last = &q->wrs[r->o.list - 1], *bad;

	last->wr_id = id + r->o.list - 1;
	last->send_flags = j->flags | signal;
	return ibv_post_send(q->qp, q->wrs, &bad);
}

/* The list of a queue pair, as far as it is the same for all posts. */
static int prepare(struct rawverbs *r, struct raw_qp *q, const struct job *j)
{
	if (q->qpx)
		return 0;
	if (!q->wrs)
		q->wrs = calloc(r->o.list, sizeof(*q->wrs));
	if (!q->wrs) {
		snprintf(r->error, sizeof(r->error), "no memory for a list");
		return -ENOMEM;
	}
	q->sge = (struct ibv_sge){ .addr = j->local, .length = j->bytes, .lkey = r->mr->lkey };
	for (uint64_t i = 0; i < r->o.list; i++)
		q->wrs[i] = (struct ibv_send_wr){
			.next = i + 1 < r->o.list ? &q->wrs[i + 1] : NULL,
			.sg_list = &q->sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = j->flags,
			.wr.rdma = { .remote_addr = j->remote, .rkey = r->peer_rkey },
		};
	return 0;
}

/* Numbers of work requests: queue pair above, position below. */
static uint64_t wr_id(const struct rawverbs *r, const struct raw_qp *q)
{
	return (uint64_t)(q - r->qp) << 56 | q->posted;
}

/* Posts one list where there is room; `last`: it must be completed by itself. */
static int post(struct rawverbs *r, struct raw_qp *q, const struct job *j, int last)
{
	unsigned signal = 0;
	int rc;

	q->since_signalled += r->o.list;
	if (last || q->since_signalled >= r->o.moderation) {
		signal = IBV_SEND_SIGNALED;
		q->since_signalled = 0;
	}
	rc = q->qpx ? post_wr(r, q, wr_id(r, q), j, signal)
		    : post_list(r, q, wr_id(r, q), j, signal);
	if (EPF_UNLIKELY(rc)) {
		snprintf(r->error, sizeof(r->error), "%s: a list was not taken: %s", r->name,
			 strerror(rc));
		return -rc;
	}
	q->posted += r->o.list;
	return 0;
}

/* Takes completions; returns how many writes they stand for, or -EIO. */
static int64_t reap(struct rawverbs *r)
{
	struct ibv_wc wc[POLL];
	int n = ibv_poll_cq(r->cq, POLL, wc);
	int64_t over = 0;

	for (int i = 0; i < n; i++) {
		struct raw_qp *q = &r->qp[wc[i].wr_id >> 56];
		uint64_t at = (wc[i].wr_id & (UINT64_MAX >> 8)) + 1;

		if (EPF_UNLIKELY(wc[i].status != IBV_WC_SUCCESS)) {
			snprintf(r->error, sizeof(r->error),
				 "%s: write %llu failed with status %d of ibv_poll_cq(3)", r->name,
				 (unsigned long long)at, wc[i].status);
			return -EIO;
		}
		over += (int64_t)(at - q->reaped);
		q->reaped = at;
	}
	if (EPF_LIKELY(n >= 0))
		return over;
	snprintf(r->error, sizeof(r->error), "%s: ibv_poll_cq failed", r->name);
	return -EIO;
}

struct run {
	uint64_t total; /* writes; UINT64_MAX: until `end` */
	uint64_t start, end, cpu;
	uint64_t posted, reaped;
	struct bench_peak peak;
	uint64_t look_at; /* completions at which the clock is read again */
};

/* One list on each queue pair with room; 0, or -errno. */
static int post_round(struct rawverbs *r, const struct job *j, struct run *run)
{
	for (uint64_t i = 0; i < r->o.qps && run->posted < run->total; i++) {
		struct raw_qp *q = &r->qp[i];

		while (run->posted < run->total &&
		       q->posted - q->reaped + r->o.list <= r->o.depth) {
			/* What follows on this queue pair is not known: near the end each list asks. */
			int last = run->total - run->posted <= r->o.list * r->o.qps;
			int rc = post(r, q, j, last);

			if (rc)
				return rc;
			run->posted += r->o.list;
			if (r->o.qps > 1)
				break;
		}
	}
	return 0;
}

/* By time: stops posting at the end, which is seen only now and then. */
static void look_at_clock(const struct rawverbs *r, struct run *run, unsigned *looks)
{
	uint64_t lists = r->o.list * r->o.qps;

	if (!run->end || run->total != UINT64_MAX || (++*looks & 15) || epf_now_ns() < run->end)
		return;
	/* One more list on each queue pair, which asks for its completion. */
	run->total = (run->posted + lists - 1) / lists * lists + lists;
}

int rawverbs_write(struct rawverbs *r, uint64_t from, uint64_t to, uint64_t bytes, uint64_t n,
		   double seconds, struct rawverbs_result *out)
{
	struct job j = { .local = r->base + from,
			 .remote = r->peer_base + to,
			 .bytes = (uint32_t)bytes,
			 .flags = bytes <= r->o.inline_bytes ? IBV_SEND_INLINE : 0 };
	struct run run = { .total = n ? (n + r->o.list - 1) / r->o.list * r->o.list : UINT64_MAX };
	uint64_t window = n ? run.total / RAWVERBS_MARKS : 0;
	unsigned looks = 0;
	int rc = 0;

	/* Completions come in bunches: a window of few of them would measure those. */
	if (window < 4 * r->o.depth * r->o.qps)
		window = 4 * r->o.depth * r->o.qps;
	for (uint64_t i = 0; i < r->o.qps && !rc; i++)
		rc = prepare(r, &r->qp[i], &j);
	run.start = epf_now_ns();
	bench_peak_start(&run.peak, window, run.start);
	run.look_at = window;
	run.cpu = bench_thread_ns();
	run.end = n ? 0 : run.start + (uint64_t)(seconds * 1e9);
	while (!rc && run.reaped < run.total) {
		int64_t over;

		rc = post_round(r, &j, &run);
		over = rc ? 0 : reap(r);
		if (over < 0)
			rc = (int)over;
		run.reaped += over > 0 ? (uint64_t)over : 0;
		if (run.reaped >= run.look_at) {
			uint64_t now = epf_now_ns();

			bench_peak_note(&run.peak, run.reaped, now, now);
			run.look_at = run.reaped + window;
		}
		look_at_clock(r, &run, &looks);
	}
	if (rc)
		return rc;
	out->seconds = (double)(epf_now_ns() - run.start) / 1e9;
	out->cpu_seconds = (double)(bench_thread_ns() - run.cpu) / 1e9;
	out->writes = run.reaped;
	out->peak_per_second = bench_peak_end(&run.peak, (double)out->writes / out->seconds);
	return 0;
}
