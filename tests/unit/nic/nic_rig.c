/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two NICs on a virtual clock: see nic_rig.h. Test code: it asserts through cmocka. It must never look at
 * the inside of a NIC; the kinds of NIC are in nic_kinds.c.
 */
#include "tests/unit/nic/nic_rig.h"

#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"

#ifdef EPF_WITH_VERBS
# include "tests/unit/nic/efa/fake_efa.h"
#endif

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef EPF_WITH_VERBS
static uint64_t fake_efa_next(void)
{
	return UINT64_MAX;
}
#endif

/*
 * On the real clock: what has been posted and not reported, so that a run knows how long to wait. The rig puts these in the
 * places of post, reap and lane_destroy.
 */
enum { TRACKED_LANES = 512, TRACKED = 256 };

struct track {
	struct epf_nic_ops ops;
	const struct epf_nic_ops *real;
	struct epf_nic *nic;
	int ordered;
	unsigned outstanding;

	struct {
		unsigned n;
		uint32_t id[TRACKED];
	} lanes[TRACKED_LANES];
};

static struct track *tracks[2];

static struct track *track_of(const struct epf_nic *nic)
{
	return tracks[tracks[0]->nic == nic ? 0 : 1];
}

static int tracked_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct track *t = track_of(nic);
	int done = t->real->post(nic, lane, wr, n);

	for (int i = 0; i < done; i++) {
		assert_true(lane < TRACKED_LANES && t->lanes[lane].n < TRACKED);
		t->lanes[lane].id[t->lanes[lane].n++] = wr[i].id;
		t->outstanding++;
	}
	return done;
}

static void tracked_sent(struct track *t, const struct epf_wc *wc)
{
	unsigned n = t->lanes[wc->lane].n, at = n, from, gone;
	uint32_t *id = t->lanes[wc->lane].id;

	while (at && id[at - 1] != wc->id)
		at--;
	if (!at)
		return;
	from = t->ordered && wc->status == EPF_S_OK ? 0 : at - 1;
	gone = at - from;
	memmove(id + from, id + at, (n - at) * sizeof(*id));
	t->lanes[wc->lane].n -= gone;
	t->outstanding -= gone;
}

static int tracked_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct track *t = track_of(nic);
	int done = t->real->reap(nic, wc, n);

	for (int i = 0; i < done; i++)
		if (wc[i].op == EPF_WC_SENT)
			tracked_sent(t, &wc[i]);
	return done;
}

static void tracked_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct track *t = track_of(nic);

	t->outstanding -= t->lanes[lane].n;
	t->lanes[lane].n = 0;
	t->real->lane_destroy(nic, lane);
}

static void track(struct epf_nic *nic, int end, int ordered)
{
	struct track *t = tracks[end] ? tracks[end] : malloc(sizeof(*t));

	assert_non_null(t);
	memset(t, 0, sizeof(*t));
	t->real = nic->ops;
	t->nic = nic;
	t->ordered = ordered;
	t->ops = *nic->ops;
	t->ops.post = tracked_post;
	t->ops.reap = tracked_reap;
	t->ops.lane_destroy = tracked_destroy;
	nic->ops = &t->ops;
	tracks[end] = t;
}

static uint64_t real_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void run_real(struct rig *rig, uint64_t span_ns)
{
	const uint64_t quiet_ns = 8000000, patience_ns = 300000000, turn_ns = 20000000;
	uint64_t last = real_ns(), waited = 0, wait;

	do {
		unsigned n = rig_reap(&rig->a) + rig_reap(&rig->b);
		uint64_t now;

		if (!n)
			usleep(50);
		/* A machine that was not run meanwhile has not waited: neither have its devices. */
		now = real_ns();
		waited += now - last < turn_ns ? now - last : turn_ns;
		if (n)
			waited = 0;
		last = now;
		wait = span_ns > patience_ns ? span_ns : patience_ns;
		if (!tracks[0]->outstanding && !tracks[1]->outstanding)
			wait = quiet_ns;
	} while (waited < wait);
}

static uint64_t rig_now(void *arg)
{
	return ((struct rig *)arg)->now_ns;
}

/* Memory that plays a GPU's; the test looks at it behind its back. */
static void gpu_memory(struct rig_end *end)
{
	struct epf_copy_mem *mem;

	assert_int_equal(epf_copy_fake.mem_alloc(0, RIG_BYTES, &end->gpu), 0);
	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, end->gpu, RIG_BYTES, &mem), 0);
	if (end->nic->ops->region_register_gpu(end->nic, mem,
					       EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &end->mr))
		fail_msg("%s", epf_last_error());
	epf_copy_mem_put(mem);
	end->mem = epf_copy_fake_bytes(end->gpu, RIG_BYTES);
	assert_non_null(end->mem);
	end->base = (uint64_t)(uintptr_t)end->gpu;
}

static void open_end(struct rig *rig, struct rig_end *end, int number)
{
	if (rig->kind->open(&rig->opts, number, rig_now, rig, &end->nic))
		fail_msg("%s", epf_last_error());
	if (rig->kind->real)
		track(end->nic, number, rig->kind->ordered);
	end->copies = rig->kind->gpu != 0;
	if (rig->kind->gpu >> number & 1) {
		gpu_memory(end);
		return;
	}
	end->mem = calloc(1, RIG_BYTES);
	assert_non_null(end->mem);
	end->base = (uint64_t)(uintptr_t)end->mem;
	assert_int_equal(end->nic->ops->region_register(end->nic, end->mem, RIG_BYTES,
							EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
							&end->mr),
			 0);
}

void rig_close(struct rig *rig)
{
	rig->a.nic->ops->close(rig->a.nic);
	rig->b.nic->ops->close(rig->b.nic);
	if (rig->a.gpu)
		epf_copy_fake.mem_free(rig->a.gpu);
	else
		free(rig->a.mem);
	if (rig->b.gpu)
		epf_copy_fake.mem_free(rig->b.gpu);
	else
		free(rig->b.mem);
	free(rig);
}

void rig_lanes(struct rig *rig, uint16_t la, uint16_t lb)
{
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	uint64_t ta, tb;
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));

	assert_true(na > 0 && nb > 0);
	assert_int_equal(a->ops->lane_create(a, la, 128, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, lb, 128, &tb), 0);
	assert_int_equal(a->ops->lane_link(a, la), EPF_LANE_IDLE);
	assert_int_equal(a->ops->lane_connect(a, la, addr_b, (size_t)nb, tb), 0);
	assert_int_equal(b->ops->lane_connect(b, lb, addr_a, (size_t)na, ta), 0);
	assert_int_equal(a->ops->lane_link(a, la), EPF_LANE_READY);
}

/* Where lanes share a connection, the first request after a failure may meet the rest of the one that is lost. */
static void prove(struct rig *rig)
{
	int status = EPF_S_FLUSHED;

	for (int i = 0; i < 8 && status != EPF_S_OK; i++) {
		struct epf_wr wr = rig_write(rig, 0, 0, 0, 1);

		if (i) {
			rig->a.nic->ops->lane_destroy(rig->a.nic, 0);
			rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
			rig_lanes(rig, 0, 0);
		}
		rig_clear(rig);
		rig_post(rig, &wr);
		rig_run_until(rig, 1000000, &rig->a.n, 1);
		assert_true(rig_sent(rig, &rig->a, 0, &status));
	}
	assert_int_equal(status, EPF_S_OK);
	rig_clear(rig);
}

/* Over TCP one end is connected a moment before the other: a lane that fails in between would surprise its peer. */
static int is_tcp(const struct rig *rig)
{
	return strncmp(rig->kind->name, "tcp", 3) == 0;
}

void rig_reconnect(struct rig *rig)
{
	rig->a.nic->ops->lane_destroy(rig->a.nic, 0);
	rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
	rig_lanes(rig, 0, 0);
	if (rig->kind->refusal == NIC_REFUSAL_LOST || is_tcp(rig))
		prove(rig);
}

struct rig *rig_open(const struct nic_kind *kind, void (*tune)(struct epf_emu_opts *))
{
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	rig->kind = kind;
	rig->now_ns = 1000000;
	epf_emu_opts_defaults(&rig->opts);
	rig->opts.gpu = "fake";
	rig->opts.packets = 256;
	rig->opts.mtu = 1024;
	rig->opts.lanes = 512;
	if (tune)
		tune(&rig->opts);
	open_end(rig, &rig->a, 0);
	open_end(rig, &rig->b, 1);
	rig_lanes(rig, 0, 0);
	if (is_tcp(rig))
		prove(rig);
	return rig;
}

void rig_expect_whole(struct rig *rig)
{
	struct epf_nic_caps caps;
	struct epf_wr wr;
	int status;

	rig_reconnect(rig);
	rig_run(rig, 1000000);
	rig_clear(rig);
	rig->a.nic->ops->describe(rig->a.nic, &caps);
	for (uint32_t i = 0; i < 8; i++) {
		wr = rig_write(rig, i, 0, 0,
			       caps.max_msg_bytes < RIG_BYTES ? caps.max_msg_bytes : RIG_BYTES);
		rig_post(rig, &wr); /* an eighth of the pool each */
	}
	rig_run(rig, 1000000000);
	assert_true(rig_sent(rig, &rig->a, 7, &status));
	assert_int_equal(status, EPF_S_OK);
}

unsigned rig_reap(struct rig_end *end)
{
	struct epf_wc wc[16];
	int n = end->nic->ops->reap(end->nic, wc, 16);

	assert_in_range(n, 0, 16);
	if (end->copies) { /* what the run loop does between two steps */
		end->nic->ops->wake_peers(end->nic);
		sched_yield();
	}
	for (int i = 0; i < n; i++) {
		assert_true(end->n < RIG_LOG);
		if (wc[i].op == EPF_WC_RECV)
			memcpy(end->msg[end->n], wc[i].msg, wc[i].len);
		end->log[end->n++] = wc[i];
	}
	return (unsigned)n;
}

void rig_run(struct rig *rig, uint64_t span_ns)
{
	uint64_t end_ns = rig->now_ns + span_ns;

	if (rig->kind->real)
		run_real(rig, span_ns);
	for (; !rig->kind->real;) {
		uint64_t na, nb, next;
		unsigned n = rig_reap(&rig->a);

		n += rig_reap(&rig->b);
		if (n)
			continue;
		na = rig->a.nic->ops->next_event(rig->a.nic);
		nb = rig->b.nic->ops->next_event(rig->b.nic);
		next = na < nb ? na : nb;
		if (rig->kind->device && fake_efa_next() < next)
			next = fake_efa_next();
		if (next > end_ns)
			break;
		if (next > rig->now_ns)
			rig->now_ns = next;
	}
	rig->now_ns = end_ns;
}

int rig_run_until(struct rig *rig, uint64_t span_ns, const unsigned *n, unsigned want)
{
	int tries = rig->kind->real ? 10 : 1;

	while (*n < want && tries--)
		rig_run(rig, span_ns);
	return *n >= want;
}

int rig_silent(const struct rig *rig)
{
	return rig->kind->real && (tracks[0]->outstanding || tracks[1]->outstanding);
}

void rig_clear(struct rig *rig)
{
	rig->a.n = rig->b.n = 0;
}

unsigned rig_count(const struct rig_end *end, int op, int status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < end->n; i++)
		n += end->log[i].op == op && (status < 0 || end->log[i].status == status);
	return n;
}

int rig_sent(const struct rig *rig, const struct rig_end *end, uint32_t id, int *status)
{
	for (unsigned i = 0; i < end->n; i++) {
		const struct epf_wc *wc = &end->log[i];

		if (wc->op != EPF_WC_SENT || wc->lane != 0)
			continue;
		if (wc->id != id && !(rig->kind->ordered && wc->id > id && wc->status == EPF_S_OK))
			continue;
		*status = wc->status;
		return 1;
	}
	return 0;
}

struct epf_wr rig_write(const struct rig *rig, uint32_t id, uint64_t src, uint64_t dst,
			uint32_t len)
{
	return (struct epf_wr){
		.laddr = rig->a.base + src,
		.raddr = rig->b.mr.raddr + dst,
		.lkey = rig->a.mr.lkey,
		.rkey = rig->b.mr.rkey,
		.len = len,
		.id = id,
		.op = EPF_WR_WRITE,
	};
}

void rig_inline(const struct rig *rig, struct epf_wr *wr)
{
	wr->flags |= EPF_WR_INLINE;
	wr->laddr = (uint64_t)(uintptr_t)rig->a.mem + (wr->laddr - rig->a.base);
}

void rig_message(const struct rig *rig, struct epf_wr *wr)
{
	wr->op = EPF_WR_SEND;
	if (rig->a.gpu)
		rig_inline(rig, wr);
}

void rig_post(struct rig *rig, const struct epf_wr *wr)
{
	assert_int_equal(rig->a.nic->ops->post(rig->a.nic, 0, wr, 1), 1);
}

void rig_fill(unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56);
}

int rig_matches(const unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56))
			return 0;
	return 1;
}

uint64_t rig_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}
