/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients, part 1: bad commands and scribbled shared memory. Every refusal of the command check is provoked once and read back
 * from a ring's error record; then commands in bulk, mutated from valid ones; then the memory is overwritten while the engine reads it.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/proc/svc_hostile.h"

#include <stdlib.h>
#include <string.h>

enum { WORLD = 2, RINGS = 4, COUNTED_MOST = 20, STUCK_MS = 2000 };

void hostile_job(const struct hostile *h, struct raw_rank r[2], const char *name, unsigned rings)
{
	struct raw_rank *all[2] = { &r[0], &r[1] };

	for (unsigned i = 0; i < WORLD; i++) {
		HOSTILE_CHECK(raw_rank_open(&r[i], h->path[i], EPF_SVC_MINOR, 0, HOSTILE_SIGNALS) ==
			      0);
		HOSTILE_CHECK(raw_rank_region(&r[i], HOSTILE_BYTES, 3) == 0);
		HOSTILE_CHECK(raw_rank_region(&r[i], HOSTILE_BYTES, 2) == 0);
		HOSTILE_CHECK(raw_rank_region(&r[i], HOSTILE_BYTES, 3) == 0);
		for (unsigned k = 0; k < rings; k++)
			HOSTILE_CHECK(raw_rank_ring(&r[i], HOSTILE_LOG2) == (int)k);
	}
	HOSTILE_CHECK(raw_job_join(all, WORLD, name, h->seed) == 0);
}

void hostile_end(struct raw_rank r[2], bool leave)
{
	for (unsigned i = 0; i < WORLD; i++)
		raw_rank_close(&r[i], leave);
}

uint64_t hostile_counter(struct raw_rank *r, const char *name)
{
	struct epf_svc_counter_reply reply;
	struct epf_svc_counter m;

	memset(&m, 0, sizeof(m));
	strncpy(m.name, name, sizeof(m.name) - 1);
	HOSTILE_CHECK(raw_call(&r->c, EPF_SVC_COUNTER, &m, NULL, 0, &reply) == 0);
	return reply.value;
}

/* ---- one of each ---- */

struct directed {
	struct epf_op op;
	unsigned reason;
	bool wide;
};

#define MOVE(kind, to) .op = EPF_OP_##kind, .rank = to, .length = 64, .add = 1

static const struct directed directed[] = {
	{ { .op = 12, .rank = 1 }, EPF_R_CMD_OP, true },
	{ { .op = EPF_OP_FLUSH }, EPF_R_CMD_RESERVED, true },
	{ { MOVE(PUT, 2) }, EPF_R_CMD_RANK, false },
	{ { MOVE(PUT, 1), .local_region = 9 }, EPF_R_CMD_LOCAL_REGION, false },
	{ { MOVE(PUT, 1), .local_offset = HOSTILE_BYTES - 32 }, EPF_R_CMD_LOCAL_RANGE, false },
	{ { MOVE(PUT, 1), .remote_region = 9 }, EPF_R_CMD_REMOTE_REGION, false },
	{ { MOVE(PUT, 1), .remote_offset = HOSTILE_BYTES - 32 }, EPF_R_CMD_REMOTE_RANGE, false },
	{ { MOVE(PUT_SIGNAL, 1), .signal = HOSTILE_SIGNALS }, EPF_R_CMD_SIGNAL, false },
	{ { .op = EPF_OP_SIGNAL, .rank = 1, .flags = EPF_F_COUNTED }, EPF_R_CMD_COUNT, false },
	{ { .op = EPF_OP_ADD, .rank = 1, .length = 4 }, EPF_R_CMD_LENGTH, true },
	{ { .op = EPF_OP_ADD, .rank = 1, .length = 8, .remote_offset = 4 }, EPF_R_CMD_ALIGN, true },
	{ { MOVE(PUT, 1), .remote_region = 1 }, EPF_R_CMD_ACCESS, false },
	{ { MOVE(PUT, 1), .local_region = 2 }, EPF_R_CMD_REVOKED, false },
	{ { MOVE(GET, 1), .local_offset = UINT64_C(1) << 35 }, EPF_R_CMD_LOCAL_RANGE, false },
	{ { MOVE(PUT, 0), .local_offset = (UINT64_C(1) << 48) - 1 }, EPF_R_CMD_LOCAL_RANGE, true },
};

static void push_op(struct raw_rank *r, int ring, const struct epf_op *op, bool wide)
{
	struct epf_ring_producer *p = &r->ring[ring].producer;
	struct epf_cmd c[2];

	if (wide) {
		epf_op_pack_wide(op, c);
		HOSTILE_CHECK(epf_ring_push_wide(p, c));
	} else {
		HOSTILE_CHECK(epf_ring_push(p, epf_op_pack_narrow(op)));
	}
	raw_rank_kick(r);
}

/* Repeats REGION_CLOSE until the region is gone. */
static void withdraw(struct raw_rank *r, uint32_t region)
{
	struct epf_svc_region_close m = { .region = region };
	struct epf_svc_region_close_reply reply = { 0 };

	for (unsigned i = 0; i < job_ms(60000) && !reply.done; i++) {
		HOSTILE_CHECK(raw_call(&r->c, EPF_SVC_REGION_CLOSE, &m, NULL, 0, &reply) == 0);
		usleep(1000);
	}
	HOSTILE_CHECK(reply.done);
}

void hostile_directed(const struct hostile *h)
{
	uint64_t before, n = sizeof(directed) / sizeof(directed[0]);
	struct raw_rank r[2];
	bool met[1024] = { false };

	hostile_job(h, r, "hostile-directed", 0);
	withdraw(&r[0], 2);
	before = hostile_counter(&r[0], "cmds_refused");
	for (unsigned i = 0; i < n; i++) {
		int ring = raw_rank_ring(&r[0], 4);
		const struct epf_done *done;

		HOSTILE_CHECK(ring >= 0);
		done = &r[0].ring[ring].shm->done;
		push_op(&r[0], ring, &directed[i].op, directed[i].wide);
		HOSTILE_CHECK(raw_rank_retired(&r[0], ring, 1, job_ms(60000)) == 0);
		if (done->failed != 1 || done->error_reason != directed[i].reason) {
			fprintf(stderr, "command %u: failed %llu, reason %u, not %u\n", i,
				(unsigned long long)done->failed, done->error_reason,
				directed[i].reason);
			_exit(1);
		}
		met[directed[i].reason] = true;
		HOSTILE_CHECK(raw_rank_ring_close(&r[0], ring) == 0);
	}
	/* The command for a withdrawn region counts as failed, not as refused. */
	before = hostile_counter(&r[0], "cmds_refused") - before;
	if (before != n - 1)
		fprintf(stderr, "%llu refused commands are counted, not %llu\n",
			(unsigned long long)before, (unsigned long long)n - 1);
	HOSTILE_CHECK(before == n - 1);
	/* Every reason of the check; CMD_LIMIT and CMD_FAILED are the library's. */
	for (unsigned reason = EPF_R_CMD_OP; reason <= EPF_R_CMD_REVOKED; reason++)
		HOSTILE_CHECK(met[reason]);
	HOSTILE_CHECK(met[EPF_R_CMD_ACCESS]);
	printf("# hostile: %llu directed commands, each refusal of the check met\n",
	       (unsigned long long)n);
	hostile_end(r, true);
}

/* ---- in bulk ---- */

struct bulk {
	struct raw_rank r[2];
	uint64_t random;
	uint64_t counted; /* counted signals that were sent: each may stop its ring for good */
	uint64_t rings_lost;
	uint64_t slots;
};

static void good_op(struct bulk *b, struct epf_op *op)
{
	static const uint8_t kinds[] = { EPF_OP_PUT, EPF_OP_PUT,    EPF_OP_PUT_SIGNAL,
					 EPF_OP_GET, EPF_OP_SIGNAL, EPF_OP_PUT_INLINE,
					 EPF_OP_ADD, EPF_OP_NOP };
	uint64_t x = job_random(&b->random), y = job_random(&b->random);

	memset(op, 0, sizeof(*op));
	op->op = kinds[x & 7];
	op->add = 1 + (uint32_t)(x >> 3 & 15);
	op->rank = (uint32_t)(x >> 8) % WORLD;
	if (op->op == EPF_OP_NOP)
		return;
	op->remote_offset = (y & 0xffff) % (HOSTILE_BYTES - 512) & ~UINT64_C(15);
	if (op->op == EPF_OP_SIGNAL) {
		op->remote_offset = 0;
		op->value = x >> 40;
	}
	op->length = 16 * (1 + (uint32_t)(x >> 20 & 15));
	if (op->op == EPF_OP_ADD || op->op == EPF_OP_PUT_INLINE) {
		op->length = 8;
		op->value = y;
	} else if (op->op != EPF_OP_SIGNAL) {
		op->local_offset = (y >> 16 & 0xffff) % (HOSTILE_BYTES - 512) & ~UINT64_C(15);
	}
	if (op->op == EPF_OP_SIGNAL || op->op == EPF_OP_PUT_SIGNAL)
		op->signal = (uint32_t)(x >> 32) % HOSTILE_SIGNALS;
	if ((x >> 60) == 0 && op->op == EPF_OP_PUT) { /* sometimes of a group */
		op->flags = EPF_F_COUNTED;
		op->signal = (uint32_t)(x >> 36) % HOSTILE_SIGNALS;
	}
}

static void flip(struct bulk *b, struct epf_cmd *c, unsigned slots)
{
	unsigned flips = 1 + (unsigned)(job_random(&b->random) % 3);

	while (flips--) {
		uint64_t bit = job_random(&b->random) % (128 * slots);
		uint64_t *word = bit & 64 ? &c[bit / 128].hi : &c[bit / 128].lo;

		*word ^= UINT64_C(1) << (bit & 63);
	}
	for (unsigned i = 0; i < slots; i++) {
		c[i].lo &= ~UINT64_C(1);
		c[i].hi &= ~UINT64_C(1);
	}
}

/* Limits counted signals: without its puts each stops its ring, which harms only the client but ends the test of that ring. */
static bool may_send(struct bulk *b, const struct epf_cmd *c, unsigned slots)
{
	struct epf_op op;

	for (unsigned i = 0; i < slots; i++) {
		if (epf_cmd_op(c[i]) == EPF_OP_SIGNAL && c[i].hi >> 1 & EPF_F_COUNTED)
			return ++b->counted <= COUNTED_MOST;
		if (epf_cmd_op(c[i]) != EPF_OP_WIDE)
			continue;
		epf_op_unpack_wide(c[i], c[i], &op);
		if (op.op == EPF_OP_SIGNAL && op.flags & EPF_F_COUNTED)
			return ++b->counted <= COUNTED_MOST;
	}
	return true;
}

static unsigned next_slots(struct bulk *b, struct epf_cmd c[2])
{
	uint64_t how = job_random(&b->random) % 16;
	struct epf_op op;
	unsigned slots = 1;

	do {
		good_op(b, &op);
		if (epf_op_is_narrow(&op) && how % 4) {
			c[0] = epf_op_pack_narrow(&op);
			slots = 1;
		} else if (epf_op_fits_wide(&op)) {
			epf_op_pack_wide(&op, c);
			slots = 2;
		} else {
			continue;
		}
		if (how >= 12) { /* noise */
			c[0].lo = job_random(&b->random) & ~UINT64_C(1);
			c[0].hi = job_random(&b->random) & ~UINT64_C(1);
			slots = 1;
		} else if (how >= 5) {
			flip(b, c, slots);
		}
	} while (!may_send(b, c, slots));
	return slots;
}

/* Waits for room. Returns -1 if the ring has stalled; it is closed then. */
static int room(struct bulk *b, struct raw_rank *r, int ring)
{
	struct epf_ring_producer *p = &r->ring[ring].producer;
	uint64_t since = epf_now_ns(), seen = 0;

	while (epf_ring_room(p, 2) < 2) {
		uint64_t now = epf_now_ns(), at = epf_ring_retired(p);

		raw_rank_kick(r);
		usleep(20);
		if (at != seen) {
			seen = at;
			since = now;
		}
		if (now - since < (uint64_t)job_ms(STUCK_MS) * 1000000)
			continue;
		HOSTILE_CHECK(b->counted); /* only a counted signal may stop a ring */
		b->rings_lost++;
		HOSTILE_CHECK(raw_rank_ring_close(r, ring) == 0);
		return -1;
	}
	return 0;
}

static void drain(struct bulk *b, struct raw_rank *r, int ring)
{
	struct epf_ring_producer *p = &r->ring[ring].producer;
	uint64_t since = epf_now_ns(), seen = 0;

	/* Two NOPs: a wide command at the end takes one as its second half. */
	if (room(b, r, ring))
		return;
	epf_ring_put_slot(p, (struct epf_cmd){ 0, 0 });
	epf_ring_put_slot(p, (struct epf_cmd){ 0, 0 });
	raw_rank_kick(r);
	while (EPF_LOAD_ACQUIRE(&p->shm->dequeued) != p->head) {
		uint64_t now = epf_now_ns(), at = epf_ring_retired(p);

		raw_rank_kick(r);
		if (at != seen) {
			seen = at;
			since = now;
		}
		if (now - since > (uint64_t)job_ms(STUCK_MS) * 1000000) {
			HOSTILE_CHECK(b->counted);
			b->rings_lost++;
			break;
		}
		usleep(100);
	}
}

void hostile_mutated(const struct hostile *h)
{
	static struct bulk b;
	uint64_t dequeued, refused, start = epf_now_ns();
	int ring[RINGS] = { 0, 1, 2, 3 };
	double share;

	b.random = h->seed;
	hostile_job(h, b.r, "hostile-mutated", RINGS);
	dequeued = hostile_counter(&b.r[0], "cmds_dequeued");
	refused = hostile_counter(&b.r[0], "cmds_refused");
	for (uint64_t i = 0; i < h->count;) {
		unsigned k = (unsigned)(job_random(&b.random) % RINGS), slots;
		struct epf_cmd c[2];

		if (room(&b, &b.r[0], ring[k])) {
			ring[k] = raw_rank_ring(&b.r[0], HOSTILE_LOG2);
			HOSTILE_CHECK(ring[k] >= 0);
			continue;
		}
		slots = next_slots(&b, c);
		for (unsigned s = 0; s < slots; s++)
			epf_ring_put_slot(&b.r[0].ring[ring[k]].producer, c[s]);
		b.slots += slots;
		if (++i % 32 == 0)
			raw_rank_kick(&b.r[0]);
	}
	for (unsigned k = 0; k < RINGS; k++)
		drain(&b, &b.r[0], ring[k]);
	dequeued = hostile_counter(&b.r[0], "cmds_dequeued") - dequeued;
	refused = hostile_counter(&b.r[0], "cmds_refused") - refused;
	HOSTILE_CHECK(dequeued > 0 && refused <= dequeued);
	share = 1 - (double)refused / (double)dequeued;
	printf("# hostile: %llu random and mutated commands in %llu slots, %llu dequeued, %llu refused, %.0f %% passed the check, "
	       "%llu rings stopped by counted signals, %.1f s\n",
	       (unsigned long long)h->count, (unsigned long long)b.slots,
	       (unsigned long long)dequeued, (unsigned long long)refused, share * 100,
	       (unsigned long long)b.rings_lost, (double)(epf_now_ns() - start) / 1e9);
	HOSTILE_CHECK(share >= 0.30 && share <= 0.90);
	HOSTILE_CHECK(dequeued >= h->count / 2);
	hostile_end(b.r, true);
}

/* ---- the memory itself ---- */

static void scribble(uint64_t *random, void *memory, size_t bytes, unsigned words)
{
	uint64_t *w = memory;

	while (words--) {
		uint64_t x = job_random(random);

		__atomic_store_n(&w[x % (bytes / 8)], job_random(random), __ATOMIC_RELAXED);
	}
}

/* Writes wrong values to words that a reader might trust. */
static void lie(uint64_t *random, struct epf_ring_shm *shm)
{
	static const uint64_t lies[] = { 0,   1, UINT64_MAX, UINT64_C(1) << 63, 1u << HOSTILE_LOG2,
					 4096 };
	uint64_t value = lies[job_random(random) % 6];

	__atomic_store_n(&shm->dequeued, value, __ATOMIC_RELAXED);
	__atomic_store_n(&shm->done.retired, value, __ATOMIC_RELAXED);
	__atomic_store_n(&shm->done.error_index, value, __ATOMIC_RELAXED);
	__atomic_store_n(&shm->log2_slots, (uint32_t)value, __ATOMIC_RELAXED);
	__atomic_store_n(&shm->magic, value, __ATOMIC_RELAXED);
	__atomic_store_n(&shm->abort, (int64_t)value, __ATOMIC_RELAXED);
}

void hostile_scribble(const struct hostile *h)
{
	uint64_t random = h->seed ^ 0x5c21, end = epf_now_ns() + h->count * 1000000, strokes = 0;
	struct raw_rank r[2];

	hostile_job(h, r, "hostile-scribble", RINGS);
	while (epf_now_ns() < end) {
		struct raw_rank *one = &r[strokes & 1];
		struct raw_ring *ring = &one->ring[job_random(&random) % RINGS];

		scribble(&random, ring->shm, ring->bytes, 256);
		scribble(&random, epf_ring_slots(ring->shm), ring->bytes - sizeof(*ring->shm), 256);
		lie(&random, ring->shm);
		scribble(&random, one->signals, one->signals_bytes & ~(size_t)7, 32);
		scribble(&random, one->wakeup, sizeof(*one->wakeup), 4);
		scribble(&random, one->kick, one->kick_bytes & ~(size_t)7, 4);
		epf_wakeup_wake(one->kick);
		strokes++;
	}
	printf("# hostile: shared memory scribbled on %llu times\n", (unsigned long long)strokes);
	for (unsigned i = 0; i < WORLD; i++)
		raw_rank_close(&r[i], i == 0); /* one in order, one not */
}
