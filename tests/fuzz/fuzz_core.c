/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: an engine core against everything it does not control. The input is a little program: slots pushed into a ring, bytes
 * scribbled over the ring's memory, arrivals from a peer engine (messages of every kind, immediates), completions, ranks that go, come
 * back and are masked, and steps in between. The core must stay inside its tables and the memory of its ranks (AddressSanitizer
 * watches both); every transfer that it stages must lie inside the regions and rights of both ends (null_rig_inspect); only words and signals
 * that the peer engine may change may change; and at the end the honest rank beside the fuzzed one must still get its commands done.
 */
#include "fabric/engine/recovery.h"
#include "tests/unit/engine/null_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * The operations of the little program. The last two draw their fields near the edges of tables and regions: random bytes hardly ever name
 * the last byte of a region, or the first behind it.
 */
enum op {
	PUSH,
	SCRIBBLE,
	MESSAGE,
	IMMEDIATE,
	STEP,
	COMPLETE,
	GONE,
	BACK,
	MASK,
	EDGE_COMMAND,
	EDGE_MESSAGE,
	OPS
};

enum { MOST_OPS = 400 };

struct world {
	struct null_rig rig; /* its rank 0 is the fuzzed one, rank 1 the honest one */
	/* What the peer engine was allowed to change, by what it sent: words of regions, signals. */
	uint8_t may_add[NULL_LOCAL][NULL_REGIONS][NULL_BYTES / 8];
	uint8_t may_signal[NULL_LOCAL][NULL_SIGNALS];
};

struct input {
	const uint8_t *at;
	size_t left;
};

static void must(int rule)
{
	if (!rule)
		abort();
}

static void take(struct input *in, void *to, size_t n)
{
	size_t have = in->left < n ? in->left : n;

	memset(to, 0, n);
	memcpy(to, in->at, have);
	in->at += have;
	in->left -= have;
}

static unsigned take_byte(struct input *in)
{
	uint8_t b;

	take(in, &b, 1);
	return b;
}

static void push(struct null_rank *r, struct input *in)
{
	struct epf_cmd c;

	take(in, &c, sizeof(c));
	c.lo &= ~UINT64_C(1);
	c.hi &= ~UINT64_C(1);
	if (r->shm && epf_ring_room(&r->ring, 1))
		epf_ring_push(&r->ring, c);
}

/* What another process of the client could do to the ring's memory at any moment. */
static void scribble(struct null_rank *r, struct input *in)
{
	uint16_t offset;
	uint64_t value;

	take(in, &offset, sizeof(offset));
	take(in, &value, sizeof(value));
	if (r->shm)
		memcpy((uint8_t *)r->shm + offset % (epf_ring_bytes(NULL_RING_LOG2) - 7), &value,
		       8);
}

/* The peer engine's rights, in the words of the design: what this message may change, now or later. */
static void allow(struct world *w, const struct epf_msg *m)
{
	if (m->rank >= NULL_LOCAL)
		return;
	if ((m->kind == EPF_MSG_SIGNAL || m->kind == EPF_MSG_NOTIFY) && m->signal < NULL_SIGNALS)
		w->may_signal[m->rank][m->signal] = 1;
	if (m->kind == EPF_MSG_ADD && m->signal < NULL_REGIONS &&
	    (null_regions[m->signal].access & EPF_MR_REMOTE_WRITE) && m->a % 8 == 0 &&
	    m->a < null_regions[m->signal].bytes && null_regions[m->signal].bytes - m->a >= 8)
		w->may_add[m->rank][m->signal][m->a / 8] = 1;
}

static void deliver(struct world *w, struct input *in, const struct epf_msg *m, uint32_t len)
{
	struct epf_wc wc = { .op = EPF_WC_RECV, .len = len, .msg = m };

	wc.lane = (uint16_t)(NULL_LANES + take_byte(in) % NULL_LANES);
	allow(w, m);
	epf_arrive(w->rig.core, &wc);
}

static void message(struct world *w, struct input *in)
{
	struct epf_msg m;
	struct input lane = { in->at, in->left ? 1 : 0 };
	uint32_t len;

	take_byte(in);
	len = take_byte(in) == 255 ? 63 : sizeof(m);
	take(in, &m, sizeof(m));
	deliver(w, &lane, &m, len);
}

/* A number of things up to and including `n`, mostly the last or the one behind it. */
static uint32_t near(struct input *in, uint32_t n)
{
	unsigned b = take_byte(in);

	return b < 64 ? n - 1 : b < 128 ? n : b % (n + 1);
}

/* An offset from which `length` bytes reach about the end of `bytes`. */
static uint64_t near_end(struct input *in, uint32_t bytes, uint32_t length, uint32_t grain)
{
	static const int off[] = { 0, 1, -1, 2, 0, 1, 0, -8 };
	int64_t at = (int64_t)bytes - length + off[take_byte(in) % 8] * (int64_t)grain;

	return at < 0 ? 0 : (uint64_t)at / grain * grain;
}

static uint32_t bytes_of(uint32_t region)
{
	return region < NULL_REGIONS ? null_regions[region].bytes : NULL_BYTES;
}

/* A command at the edge of what the rank may do, in either form. */
static void edge_command(struct null_rank *r, struct input *in)
{
	static const uint8_t ops[] = {
		EPF_OP_PUT,        EPF_OP_PUT, EPF_OP_PUT_SIGNAL, EPF_OP_GET,
		EPF_OP_PUT_INLINE, EPF_OP_ADD, EPF_OP_SIGNAL,     EPF_OP_PUT
	};
	unsigned form = take_byte(in), which = take_byte(in);
	struct epf_op op = { .op = ops[which % 8], .add = 1, .value = take_byte(in) };
	uint32_t grain = form & 1 ? 1 : 16;
	struct epf_cmd two[2];

	op.rank = which & 8 ? near(in, NULL_WORLD) : 2 + (which >> 4) % 2;
	op.local_region = (uint16_t)(which & 64 ? near(in, NULL_REGIONS) : which >> 4 & 3);
	op.remote_region = (uint16_t)(which & 128 ? near(in, NULL_REGIONS) : form >> 3 & 3);
	op.length = op.op == EPF_OP_ADD || op.op == EPF_OP_PUT_INLINE ? 8 : (1 + (form >> 5)) * 16;
	op.local_offset = form & 2 ? near_end(in, bytes_of(op.local_region), op.length, grain) : 0;
	op.remote_offset =
		form & 4 ? near_end(in, bytes_of(op.remote_region), op.length, grain) : 0;
	if (op.op == EPF_OP_SIGNAL || op.op == EPF_OP_PUT_SIGNAL)
		op.signal = near(in, NULL_SIGNALS);
	if (!epf_op_has_value(op.op))
		op.value = 0;
	if (!r->shm || !epf_ring_room(&r->ring, 2))
		return;
	if (!(form & 1) && epf_op_is_narrow(&op)) {
		epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
		return;
	}
	epf_op_pack_wide(&op, two);
	epf_ring_push_wide(&r->ring, two);
}

/* A message about a rank of the peer engine: a withdrawal, or a description with other regions than before. */
static void edge_description(struct epf_msg *m, struct input *in)
{
	static const uint8_t kinds[] = { EPF_MSG_REVOKE, EPF_MSG_REGION, EPF_MSG_REGION,
					 EPF_MSG_RANK };
	unsigned which = take_byte(in);

	m->kind = kinds[which & 3];
	m->rank = 2 + (which >> 2 & 1);
	m->d = which >> 3 & 3; /* rights of a region */
	m->c = which >> 5;     /* its key; the epoch of a rank */
	m->value = m->kind == EPF_MSG_RANK ? NULL_REGIONS : which >> 5;
	m->b = take_byte(in);
	m->e = 1 + take_byte(in) % NULL_REGIONS;
	m->a = m->kind == EPF_MSG_RANK ? NULL_SIGNALS : 1u << 20;
	m->signal = m->kind == EPF_MSG_RANK ? EPF_PEER_UP : take_byte(in) % NULL_REGIONS;
}

/* A signal or an addition at the edge of what the peer engine may do, or a description of its rank, as the next event of its stream. */
static void edge_message(struct world *w, struct input *in)
{
	static const uint8_t offs[] = { 0, 4, 8, 12, 13, 14, 16, 24 };
	unsigned which = take_byte(in);
	struct epf_node *node = &w->rig.core->nodes[1];
	struct epf_msg m = { .kind = which & 1 ? EPF_MSG_ADD : EPF_MSG_SIGNAL,
			     .rank = which & 2 ? near(in, NULL_LOCAL) : 0,
			     .handle = (uint16_t)(which >> 2 & 7),
			     .value = 1 };

	m.count = node->rx[m.handle].base;
	m.signal = near(in, m.kind == EPF_MSG_ADD ? NULL_REGIONS : NULL_SIGNALS);
	if (which & 32)
		m.signal = which >> 6;
	m.a = bytes_of(m.signal) + UINT64_C(4) - offs[take_byte(in) % 8];
	if (which >= 224)
		edge_description(&m, in);
	deliver(w, in, &m, sizeof(m));
}

static void immediate(struct world *w, struct input *in)
{
	struct epf_wc wc = { .op = EPF_WC_RECV_IMM, .len = 64 };

	wc.lane = (uint16_t)(NULL_LANES + take_byte(in) % NULL_LANES);
	take(in, &wc.imm, sizeof(wc.imm));
	epf_arrive(w->rig.core, &wc);
}

/* Nothing of a rank's memory has changed but what the peer engine may change. The null NIC moves nothing. */
static void must_be_untouched(const struct world *w, uint32_t rank)
{
	static const uint8_t zero[8];
	const struct null_rank *r = &w->rig.rank[rank];

	for (uint32_t i = 0; i < NULL_REGIONS && r->memory[i]; i++)
		for (uint32_t at = 0; at < null_regions[i].bytes; at += 8) {
			uint32_t n = null_regions[i].bytes - at;

			must(w->may_add[rank][i][at / 8] ||
			     memcmp(r->memory[i] + at, zero, n < 8 ? n : 8) == 0);
		}
	for (uint32_t i = 0; r->signals && i < NULL_SIGNALS; i++)
		must(w->may_signal[rank][i] || r->signals[i].value == 0);
}

/* A lane of the other node fails. */
static void fail_lane(struct world *w, struct input *in)
{
	struct epf_lane *lane = &w->rig.core->lanes[NULL_LANES + take_byte(in) % NULL_LANES];

	epf_lane_error_cold(w->rig.core, lane, EPF_S_RETRY_EXCEEDED);
}

static void back(struct world *w)
{
	struct null_rig *rig = &w->rig;
	struct null_rank *r = &rig->rank[0];

	if (rig->core->ranks[r->local].life == EPF_RANK_LIVE ||
	    !epf_core_rank_drained(rig->core, r->local))
		return;
	must_be_untouched(w, 0);
	null_rig_forget(r);
	null_rig_memory(r);
	must(epf_core_rank_back(rig->core, r->local, r->signals, NULL_SIGNALS, NULL) == 0);
	null_rig_register(rig, r);
	must(epf_core_rank_announce(rig->core, r->local) == 0);
}

/* Every transfer that was staged lies inside regions and rights, whatever the engine's checks said. */
static void inspect(struct world *w)
{
	const char *wrong = null_rig_inspect(&w->rig);

	if (!wrong)
		return;
	fprintf(stderr, "fuzz_core: staged: %s\n", wrong);
	abort();
}

static void one(struct world *w, struct input *in)
{
	struct null_rank *r = &w->rig.rank[0];
	struct epf_core *core = w->rig.core;
	unsigned n;

	switch (take_byte(in) % OPS) {
	case PUSH:
		push(r, in);
		break;
	case SCRIBBLE:
		scribble(r, in);
		break;
	case MESSAGE:
		message(w, in);
		break;
	case IMMEDIATE:
		immediate(w, in);
		break;
	case STEP:
		for (n = take_byte(in) % 70; n; n--) {
			epf_core_step(core);
			inspect(w);
		}
		break;
	case COMPLETE:
		fail_lane(w, in);
		break;
	case GONE:
		epf_core_rank_gone(core, r->local, take_byte(in) & 1);
		break;
	case BACK:
		back(w);
		break;
	case MASK:
		n = take_byte(in);
		epf_core_mask_peer(core, r->local, n % NULL_WORLD, (int)(n >> 7));
		break;
	case EDGE_COMMAND:
		edge_command(r, in);
		break;
	case EDGE_MESSAGE:
		edge_message(w, in);
		break;
	}
	inspect(w);
}

/* The honest rank's commands to itself are done, whatever the other one did. */
static void honest(struct world *w)
{
	struct null_rank *r = &w->rig.rank[1];
	struct epf_op op = { .op = EPF_OP_PUT, .rank = 1, .length = 64 };

	if (!w->rig.core->ranks[r->local].usable[1])
		return; /* the other engine may have said that this rank is lost: it has that right */
	for (int i = 0; i < 8; i++)
		epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
	for (int i = 0; i < 2000 && r->shm->done.retired < 8; i++)
		epf_core_step(w->rig.core);
	must(r->shm->done.retired == 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	static struct world w;

	memset(&w, 0, sizeof(w));
	null_rig_open(&w.rig, false);
	for (unsigned i = 0; in.left && i < MOST_OPS; i++)
		one(&w, &in);
	honest(&w);
	for (uint32_t rank = 0; rank < NULL_LOCAL; rank++)
		must_be_untouched(&w, rank);
	null_rig_close(&w.rig);
	return 0;
}
