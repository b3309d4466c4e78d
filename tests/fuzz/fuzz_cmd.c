/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what a hostile client can write into a ring. Byte 0 chooses the tables, the rest is slots of 16 bytes, taken
 * as a core takes them (narrow, or wide when the first says so). It aborts when the check and a second opinion, computed
 * here with 128-bit numbers from the documented rules, differ: so what passes lies inside live regions that allow it, and
 * what is refused deserved it. Also: what has no reserved bit packs to the same bits again.
 */
#include "fabric/engine/check_hot.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef unsigned __int128 u128;

enum { OWN = 6, THEIRS = 6, WORLD = 3 };

struct tables {
	struct epf_region_local own[OWN];
	struct epf_region_remote theirs[WORLD][THEIRS];
	struct epf_rank_state rank;
	struct epf_peer peers[WORLD];
};

static void must(bool rule)
{
	if (!rule)
		abort();
}

/* Regions small and large, of every state; only live ones have bytes. */
static void set_up(struct tables *t, unsigned choice)
{
	static const uint64_t bytes[] = { 64, 1 << 20, EPF_NARROW_REGION_BYTES,
					  EPF_WIDE_REGION_BYTES };

	memset(t, 0, sizeof(*t));
	for (unsigned i = 0; i < OWN; i++) {
		t->own[i].state = i < 4 ? EPF_REGION_LIVE : (i + choice) % 5;
		if (t->own[i].state == EPF_REGION_LIVE)
			t->own[i].bytes = bytes[(i + choice) % 4] - (choice >> 2) % 4 * 8;
	}
	t->rank.regions = t->own;
	t->rank.n_regions = t->rank.max_regions = OWN;
	for (unsigned p = 0; p < WORLD; p++) {
		for (unsigned i = 0; i < THEIRS; i++) {
			struct epf_region_remote *r = &t->theirs[p][i];

			r->state = (uint16_t)(i < 4 ? EPF_REGION_LIVE : (i + p + choice) % 5);
			r->access = (uint16_t)(i == 0 ? 3 : (i + p + (choice >> 4)) & 3);
			if (r->state == EPF_REGION_LIVE)
				r->bytes = bytes[(i + p + choice) % 4];
		}
		t->peers[p].regions = t->theirs[p];
		t->peers[p].n_regions = p == WORLD - 1 ? 0 : THEIRS;
		t->peers[p].n_signals = p == 0 ? 1 << 20 : p;
	}
}

static bool inside(uint64_t bytes, uint64_t offset, uint64_t length)
{
	return (u128)offset + length <= bytes;
}

static bool own_is_good(const struct tables *t, const struct epf_op *o)
{
	const struct epf_region_local *r = &t->own[o->local_region % OWN];

	return o->local_region < OWN && r->state == EPF_REGION_LIVE &&
	       inside(r->bytes, o->local_offset, o->length);
}

static bool theirs_is_good(const struct epf_peer *p, const struct epf_op *o, unsigned access)
{
	const struct epf_region_remote *r = &p->regions[o->remote_region % THEIRS];

	return o->remote_region < p->n_regions && r->state == EPF_REGION_LIVE &&
	       (r->access & access) && inside(r->bytes, o->remote_offset, o->length);
}

/* The second opinion: docs/abi.md once more, without a thought for speed. */
static bool may_pass(const struct tables *t, const struct epf_op *o)
{
	const struct epf_peer *p = &t->peers[o->rank % WORLD];
	bool signal = o->signal < p->n_signals;

	if (o->reserved)
		return false;
	if (o->op == EPF_OP_NOP || o->op == EPF_OP_FLUSH)
		return true;
	if (o->rank >= WORLD)
		return false;
	switch (o->op) {
	case EPF_OP_PUT:
		return own_is_good(t, o) && theirs_is_good(p, o, EPF_MR_REMOTE_WRITE) &&
		       (!(o->flags & EPF_F_COUNTED) || signal);
	case EPF_OP_PUT_SIGNAL:
		return own_is_good(t, o) && theirs_is_good(p, o, EPF_MR_REMOTE_WRITE) && signal;
	case EPF_OP_GET:
		return own_is_good(t, o) && theirs_is_good(p, o, EPF_MR_REMOTE_READ);
	case EPF_OP_SIGNAL:
		return signal && (!(o->flags & EPF_F_COUNTED) || o->count > 0);
	case EPF_OP_PUT_INLINE:
		return o->length >= 1 && o->length <= 8 &&
		       theirs_is_good(p, o, EPF_MR_REMOTE_WRITE);
	case EPF_OP_ADD:
		return o->length == 8 && o->remote_offset % 8 == 0 &&
		       theirs_is_good(p, o, EPF_MR_REMOTE_WRITE);
	default:
		return false;
	}
}

static void same_bits(struct epf_cmd a, struct epf_cmd b)
{
	must(a.lo == (b.lo & ~EPF_CMD_PARITY_BITS) && a.hi == (b.hi & ~EPF_CMD_PARITY_BITS));
}

/* Only bits that mean something: packed again they are the same. */
static void pack_again(const struct epf_op *o, const struct epf_cmd c[2])
{
	struct epf_cmd again[2];

	if (o->reserved || o->op == EPF_OP_WIDE || o->op >= EPF_OP_COUNT)
		return;
	if (o->slots == 1) {
		must(epf_op_is_narrow(o));
		same_bits(epf_op_pack_narrow(o), c[0]);
		return;
	}
	/* A length that the operation cannot have is the check's to refuse. */
	must(epf_op_fits_wide(o) || o->length > 8 || o->op == EPF_OP_ADD);
	epf_op_pack_wide(o, again);
	same_bits(again[0], c[0]);
	same_bits(again[1], c[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct tables t;

	if (!size)
		return 0;
	set_up(&t, *data++);
	size--;
	while (size >= sizeof(struct epf_cmd)) {
		struct epf_cmd c[2] = { { 0, 0 }, { 0, 0 } };
		size_t have = size < sizeof(c) ? sizeof(c[0]) : sizeof(c);
		unsigned reason;
		struct epf_op o;

		memcpy(c, data, have);
		memset(&o, 0xee, sizeof(o));
		if (epf_cmd_op(c[0]) == EPF_OP_WIDE)
			epf_op_unpack_wide(c[0], c[1], &o);
		else
			epf_op_unpack_narrow(c[0], &o);
		must(o.slots == (epf_cmd_op(c[0]) == EPF_OP_WIDE ? 2 : 1) && o.reserved <= 1);
		reason = epf_cmd_check(&t.rank, t.peers, WORLD, &o);
		must((reason == 0) == may_pass(&t, &o));
		must(reason == 0 || (reason >= EPF_R_CMD_OP && reason <= EPF_R_CMD_ACCESS &&
				     epf_reason_info((enum epf_reason)reason)));
		pack_again(&o, c);
		data += sizeof(struct epf_cmd);
		size -= sizeof(struct epf_cmd);
	}
	return 0;
}
