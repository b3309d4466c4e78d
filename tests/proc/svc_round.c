/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of a job does (svc_job.h). A slot has one sender and 2,048 bytes. A round sends a random piece of it; the rest must still
 * hold the filling that the receiver wrote there. Two sets of slots alternate: a rank sends round n+2 only after its peer's n+1, which
 * the peer sent after checking n.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <string.h>

enum { FILLING = 0xa5, FLUSH_EVERY = 8 };

static const char *const job_counter_name[JOB_COUNTERS] = { "lane_errors", "arrivals_refused",
							    "replays", "duplicates_dropped" };

static uint64_t region_bytes(uint32_t world)
{
	return UINT64_C(4) * world * JOB_SLOT;
}

static uint64_t slot_in(const struct job_rank *r, uint64_t seq, uint32_t sender)
{
	return ((seq & 1) * r->world + sender) * JOB_SLOT;
}

static uint64_t slot_out(const struct job_rank *r, uint64_t seq, uint32_t receiver)
{
	return ((2 + (seq & 1)) * r->world + receiver) * JOB_SLOT;
}

/* The bytes that `sender` sends to `receiver` in their round `seq`. */
struct letter {
	uint32_t offset, bytes, manner;
	uint64_t stream;
};

static struct letter letter_of(const struct job_rank *r, uint32_t sender, uint32_t receiver,
			       uint64_t seq)
{
	uint64_t s = r->plan->tag << 48 ^ (uint64_t)sender << 40 ^ (uint64_t)receiver << 32 ^ seq;
	struct letter l;
	uint64_t x;

	s = job_random(&s);
	x = job_random(&s);
	l.manner = (uint32_t)(x >> 60);
	l.offset = (uint32_t)(x & (JOB_SLOT - 1));
	l.bytes = 1 + (uint32_t)((x >> 20) % (JOB_SLOT - l.offset));
	if (x >> 50 & 1) { /* whole granules: the narrow form of a command */
		l.offset &= ~15u;
		l.bytes = (l.bytes + 15) & ~15u;
	}
	l.stream = s;
	return l;
}

static void letter_write(const struct letter *l, uint8_t *slot)
{
	uint64_t s = l->stream, x = 0;

	for (uint32_t i = 0; i < l->bytes; i++, x >>= 8) {
		if (i % 8 == 0)
			x = job_random(&s);
		slot[l->offset + i] = (uint8_t)x;
	}
}

/* Sends a letter in pieces, grouped or not; a piece of one byte is sent inline. */
static int put_pieces(struct job_rank *r, uint32_t peer, const struct letter *l, uint64_t from,
		      uint64_t to, uint32_t pieces, bool group)
{
	uint32_t done = 0;
	int rc = 0;

	for (uint32_t i = 0; i < pieces && !rc; i++) {
		uint32_t n = i + 1 == pieces ? l->bytes - done : l->bytes / pieces;

		if (n == 0)
			continue;
		if (group)
			rc = epf_put_group(r->ring, peer, 0, from + done, 0, to + done, n, r->me,
					   0);
		else if (n == 1)
			rc = epf_put_inline(r->ring, peer, 0, to + done, r->mem[from + done], 1, 0);
		else
			rc = epf_put(r->ring, peer, 0, from + done, 0, to + done, n,
				     i & 1 ? EPF_BULK : 0);
		done += n;
	}
	return rc;
}

static int send_letter(struct job_rank *r, uint32_t peer)
{
	struct letter l = letter_of(r, r->me, peer, r->seq[peer]);
	uint64_t out = slot_out(r, r->seq[peer], peer);
	uint64_t from = out + l.offset, to = slot_in(r, r->seq[peer], r->me) + l.offset;
	int rc;

	letter_write(&l, r->mem + out);
	switch (l.manner % 4) {
	case 0:
		return epf_put_signal(r->ring, peer, 0, from, 0, to, l.bytes, r->me, 1, EPF_FENCE);
	case 1:
		return epf_put_signal(r->ring, peer, 0, from, 0, to, l.bytes, r->me, 1, 0);
	case 2: {
		uint32_t pieces = l.bytes < 3 ? 1 : 3;

		rc = put_pieces(r, peer, &l, from, to, pieces, true);
		return rc ? rc : epf_signal_counted(r->ring, peer, r->me, 1, pieces, 0);
	}
	default:
		rc = put_pieces(r, peer, &l, from, to, 4, false);
		return rc ? rc : epf_signal_send(r->ring, peer, r->me, 1, 0);
	}
}

static void check_letter(struct job_rank *r, uint32_t peer)
{
	struct letter l = letter_of(r, peer, r->me, r->seq[peer]);
	uint8_t *slot = r->mem + slot_in(r, r->seq[peer], peer), want[JOB_SLOT];

	memset(want, FILLING, sizeof(want));
	letter_write(&l, want);
	JOB_CHECK(r, memcmp(slot, want, sizeof(want)) == 0);
	memset(slot, FILLING, JOB_SLOT);
}

/* Stores the ring's first failure in the report: the error text has no room for it. */
static void note_failure(struct job_rank *r, int rc)
{
	struct epf_ring_failure *f = &r->failure;

	if (rc == -EIO && epf_ring_error(r->ring, f))
		snprintf(r->report->failure, sizeof(r->report->failure),
			 "; command %llu to rank %u: status %u, reason %u",
			 (unsigned long long)f->index, f->rank, f->status, f->reason);
}

int job_rank_round(struct job_rank *r, uint64_t timeout_ns)
{
	unsigned every = r->plan->flush_every ? r->plan->flush_every : FLUSH_EVERY;
	int rc = 0;

	for (uint32_t p = 0; p < r->world && !rc; p++) {
		if (p == r->me || r->masked[p] || r->sent[p])
			continue;
		rc = send_letter(r, p);
		r->sent[p] = true;
	}
	for (uint32_t p = 0; p < r->world && !rc; p++) {
		if (p == r->me || r->masked[p] || r->got[p])
			continue;
		rc = epf_signal_wait(r->ep, p, r->expect[p] + 1, timeout_ns);
		if (rc)
			break;
		JOB_CHECK(r, epf_signal_value(r->ep, p) - r->expect[p] <= 2);
		check_letter(r, p);
		r->got[p] = true;
	}
	if (!rc)
		rc = r->round % every == every - 1
			     ? epf_flush(r->ring, r->round & 8 ? EPF_ALL_RINGS : 0, timeout_ns)
			     : epf_wait_retired(r->ring, epf_ring_pushed(r->ring), timeout_ns);
	if (rc) {
		note_failure(r, rc);
		return rc;
	}
	for (uint32_t p = 0; p < r->world; p++) {
		r->seq[p] += r->got[p];
		r->expect[p] += r->got[p];
		r->sent[p] = r->got[p] = false;
	}
	__atomic_store_n(&r->report->rounds, ++r->round, __ATOMIC_RELEASE);
	return 0;
}

void job_rank_renew(struct job_rank *r, uint32_t peer)
{
	r->seq[peer] = 0;
	r->expect[peer] = epf_signal_value(r->ep, peer);
	r->sent[peer] = r->got[peer] = r->masked[peer] = false;
	for (uint64_t set = 0; set < 2; set++)
		memset(r->mem + slot_in(r, set, peer), FILLING, JOB_SLOT);
}

static uint64_t sum_of(const uint8_t *bytes, uint64_t n)
{
	uint64_t sum = UINT64_C(0xcbf29ce484222325);

	for (uint64_t i = 0; i < n; i++)
		sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
	return sum;
}

int job_rank_guard(const struct job_rank *r)
{
	return sum_of(r->guard, JOB_GUARD) == r->guard_sum ? 0 : -1;
}

void job_rank_step(struct job_rank *r, enum job_step step)
{
	job_set(&r->report->step, step);
	if (step != JOB_FORKED && step == r->plan->pause_at && r->me == r->plan->pauses)
		JOB_CHECK(r, job_await(&r->page->go, 1, job_ms(60000)) == 0);
}

void job_rank_told(struct job_rank *r, int rc)
{
	r->report->rc = rc;
	snprintf(r->report->text, sizeof(r->report->text), "%s", epf_last_error());
	job_set(&r->report->notified_ns, epf_now_ns());
}

int job_rank_register(struct job_rank *r)
{
	uint64_t bytes = region_bytes(r->world), s = r->plan->tag ^ r->me;
	uint32_t region;
	void *mem;
	int rc;

	job_rank_step(r, JOB_REGISTER);
	rc = epf_memory_alloc(r->ep, bytes, &mem);
	if (rc)
		return rc;
	r->mem = mem;
	memset(mem, FILLING, bytes);
	rc = epf_region_register(r->ep, mem, bytes, EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region);
	if (rc)
		return rc;
	JOB_CHECK(r, region == 0);
	rc = epf_memory_alloc(r->ep, JOB_GUARD, &mem);
	if (rc)
		return rc;
	r->guard = mem;
	for (uint64_t i = 0; i < JOB_GUARD; i++)
		r->guard[i] = (uint8_t)job_random(&s);
	r->guard_sum = sum_of(r->guard, JOB_GUARD);
	rc = epf_region_register(r->ep, mem, JOB_GUARD, EPF_REMOTE_WRITE | EPF_REMOTE_READ,
				 &region);
	return rc ? rc : epf_ring_open(r->ep, NULL, &r->ring);
}

int job_rank_connect(struct job_rank *r)
{
	struct epf_boot_opts b = { .size = sizeof(b),
				   .rank = r->me,
				   .world = r->world,
				   .rendezvous = r->page->rendezvous,
				   .job = r->plan->name,
				   .timeout_ns = r->plan->boot_timeout_ns };
	const char *all[40] = { "signals=64" };
	struct epf_options o;
	char job[160];
	int n = 1, rc;

	snprintf(job, sizeof(job), "job=%s", r->plan->name);
	all[n++] = job;
	for (const char *const *s = r->plan->settings; s && *s && n < 30; s++)
		all[n++] = *s;
	for (const char *const *s = r->plan->client[r->me]; s && *s && n < 39; s++)
		all[n++] = *s;
	epf_options_init(&o);
	o.settings = all;
	rc = epf_boot_tcp_open(&b, &r->boot);
	job_rank_step(r, JOB_START);
	return rc ? rc : epf_open(&o, &r->ep);
}

int job_rank_open(struct job_rank *r)
{
	int rc = job_rank_connect(r);

	return rc ? rc : job_rank_register(r);
}

int job_rank_join(struct job_rank *r)
{
	job_rank_step(r, JOB_JOIN);
	return epf_join(r->ep, r->boot);
}

void job_rank_enter(struct job_rank *r)
{
	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
}

void job_rank_leave(struct job_rank *r)
{
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

int job_rank_until_error(struct job_rank *r)
{
	int rc;

	do
		rc = job_rank_round(r, job_wait_ns());
	while (!rc);
	return rc;
}

void job_play(struct job_rank *r)
{
	job_rank_enter(r);
	/* All ranks end with the same round: rank 0 chooses it, a few rounds ahead. */
	for (;;) {
		uint64_t last = job_get(&r->page->words[0]);

		if (r->me == 0 && !last && job_get(&r->page->end))
			job_set(&r->page->words[0], r->round + 4);
		if (last && r->round >= last)
			break;
		job_rank_step(r, r->round & 1 ? JOB_COMBINE : JOB_DISPATCH);
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
		if (r->plan->rest_us)
			usleep(r->plan->rest_us);
	}
	JOB_CHECK(r, job_rank_guard(r) == 0);
	for (unsigned i = 0; i < JOB_COUNTERS; i++)
		JOB_CHECK(r, epf_counter(r->ep, job_counter_name[i], &r->report->counter[i]) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_rank_step(r, JOB_CLOSE);
	job_rank_leave(r);
}
