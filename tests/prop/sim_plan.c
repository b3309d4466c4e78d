/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a seed: channels, messages, bytes, poison. Pure functions; see sim_traffic.h. Must never depend on
 * anything but its arguments: sender and receiver call it apart from each other.
 */
#include "tests/prop/sim_traffic.h"

#include <string.h>

enum { MOST_PIECES = 5 };

uint64_t sim_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

uint64_t sim_next(uint64_t *state)
{
	uint64_t x = sim_mix(*state);

	*state += 0x9e3779b97f4a7c15ull;
	return x;
}

uint32_t sim_range(uint64_t *state, uint32_t lo, uint32_t hi)
{
	return lo + (uint32_t)((sim_next(state) >> 32) * ((uint64_t)hi - lo + 1) >> 32);
}

const char *sim_kind_name(unsigned kind)
{
	static const char *const names[SIM_KINDS] = { "stream", "solo", "group", "echo",
						      "add",    "sum",  "get" };

	return kind < SIM_KINDS ? names[kind] : "?";
}

static uint64_t msg_key(const struct sim_plan *plan, uint32_t chan, uint64_t n)
{
	return sim_mix(sim_mix(plan->seed ^ 0x6d657373616765ull) ^ ((uint64_t)chan << 48) ^ n);
}

/* Bytes [off, off + len) of the endless stream of `key`. */
static void stream_bytes(uint64_t key, uint32_t off, uint32_t len, uint8_t *out)
{
	uint64_t word = 0;

	for (uint32_t i = 0; i < len; i++) {
		if (i == 0 || ((off + i) & 7) == 0)
			word = sim_mix(key + ((off + i) >> 3));
		out[i] = (uint8_t)(word >> (8 * ((off + i) & 7)));
	}
}

void sim_msg_bytes(const struct sim_plan *plan, uint32_t chan, uint64_t n, uint32_t off,
		   uint32_t len, uint8_t *out)
{
	stream_bytes(sim_mix(msg_key(plan, chan, n)), off, len, out);
}

void sim_ro_bytes(const struct sim_plan *plan, uint32_t rank, uint32_t off, uint32_t len,
		  uint8_t *out)
{
	stream_bytes(sim_mix(plan->seed ^ (0x726f00ull + rank)), off, len, out);
}

static uint8_t poison_at(uint32_t off)
{
	return (uint8_t)(0xc3u + off * 29u + (off >> 8) * 101u);
}

void sim_poison(uint8_t *region, uint32_t off, uint32_t len)
{
	for (uint32_t i = off; i < off + len; i++)
		region[i] = poison_at(i);
}

uint32_t sim_poison_check(const uint8_t *region, uint32_t off, uint32_t len)
{
	for (uint32_t i = off; i < off + len; i++)
		if (region[i] != poison_at(i))
			return i;
	return UINT32_MAX;
}

static uint32_t take_bytes(uint32_t *at, uint32_t bytes)
{
	uint32_t offset = *at + SIM_GUARD;

	*at = (offset + bytes + SIM_GUARD + 15) & ~15u;
	return offset;
}

static unsigned pick_kind(uint64_t *rng)
{
	static const uint8_t often[] = { SIM_STREAM, SIM_STREAM, SIM_STREAM, SIM_STREAM, SIM_SOLO,
					 SIM_SOLO,   SIM_GROUP,  SIM_GROUP,  SIM_ECHO,   SIM_ADD,
					 SIM_SUM,    SIM_GET,    SIM_GET };

	return often[sim_range(rng, 0, sizeof(often) - 1)];
}

void sim_plan_make(struct sim_plan *plan, uint64_t seed, uint32_t ranks, uint32_t rings,
		   uint32_t n_chans)
{
	uint64_t rng = sim_mix(seed ^ 0x706c616eull);
	uint32_t signals[SIM_RANKS] = { 0 };

	memset(plan, 0, sizeof(*plan));
	plan->seed = seed;
	plan->ranks = ranks;
	plan->rings = rings;
	plan->n_chans = n_chans;
	plan->early_signals = sim_range(&rng, 0, 1) != 0;
	for (uint32_t i = 0; i < n_chans; i++) {
		struct sim_chan *c = &plan->chans[i];

		/* The first ones are there whatever the seed says: a stream round the job. */
		c->kind = i < 2 ? SIM_STREAM : (uint8_t)pick_kind(&rng);
		c->from = i < 2 ? i : sim_range(&rng, 0, ranks - 1);
		c->to = i < 2 ? (i + 1) % ranks : sim_range(&rng, 0, ranks - 1);
		c->ring = (uint8_t)sim_range(&rng, 0, rings - 1);
		c->multi = sim_range(&rng, 0, 2) != 0;
		c->slots = c->kind == SIM_STREAM ? (uint8_t)sim_range(&rng, 1, SIM_SLOTS) : 1;
		c->slot_bytes = sim_range(&rng, 0, 3)
					? sim_range(&rng, 6, 40) * 16
					: sim_range(&rng, 6, SIM_SLOT_BYTES / 16) * 16;
		c->add = sim_range(&rng, 0, 1) ? sim_range(&rng, 1, 16)
					       : sim_range(&rng, 17, (1u << 30) - 1);
		c->rx_offset = plan->rx_bytes[c->to];
		c->rx_offset = take_bytes(&plan->rx_bytes[c->to], c->slots * c->slot_bytes);
		/* Each source has room for the shift and guards of its own; an ECHO fetches to a place behind. */
		c->tx_offset = take_bytes(&plan->tx_bytes[c->from],
					  (c->slots + (c->kind == SIM_ECHO ? 1u : 0u)) *
						  (c->slot_bytes + SIM_GUARD));
		plan->wide_flushes += c->kind == SIM_ECHO && c->multi;
		c->signal = signals[c->to]++;
		c->credit = signals[c->from]++;
	}
	for (uint32_t r = 0; r < ranks; r++) {
		plan->rx_bytes[r] += SIM_GUARD;
		plan->tx_bytes[r] += SIM_GUARD;
		if (signals[r] > plan->signals)
			plan->signals = signals[r];
	}
}

static struct sim_step *step(struct sim_msg *msg, unsigned op, unsigned ring)
{
	struct sim_step *s = &msg->steps[msg->n_steps++];

	*s = (struct sim_step){ .op = (uint8_t)op, .ring = (uint8_t)ring };
	return s;
}

/*
 * Cuts the buffer into `pieces` disjoint ranges that leave gaps, or, whole: cover it. Some on 16-byte lines (narrow
 * commands), some not.
 */
static unsigned cut(uint64_t *rng, uint32_t bytes, unsigned pieces, int whole, uint32_t *off,
		    uint32_t *len)
{
	uint32_t at = 0, share = bytes / pieces;
	unsigned odd = sim_range(rng, 0, 2);

	for (unsigned i = 0; i < pieces; i++) {
		uint32_t end = i + 1 == pieces ? bytes : at + share;

		if (!odd)
			end = i + 1 == pieces ? bytes : end & ~15u;
		off[i] = at;
		if (!whole && odd)
			off[i] += sim_range(rng, 0, (end - at) / 2);
		else if (!whole && end - at > 32)
			off[i] += 16 * sim_range(rng, 0, 1);
		len[i] = end - off[i];
		if (!whole && odd && len[i] > 1)
			len[i] -= sim_range(rng, 0, len[i] / 2);
		at = end;
	}
	return pieces;
}

/* One piece of a STREAM message: a put, inline puts, or a put of a word and an add to it. */
static void piece(const struct sim_plan *plan, uint32_t chan, uint64_t *rng, struct sim_msg *msg,
		  uint32_t off, uint32_t len)
{
	const struct sim_chan *c = &plan->chans[chan];
	unsigned how = sim_range(rng, 0, 5);
	struct sim_step *s;
	uint64_t word = 0, y;

	if (how == 0 || (how == 1 && (((c->rx_offset + off) & 7) || len < 8))) {
		s = step(msg, SIM_OP_INLINE, c->ring);
		s->off = off;
		s->len = len < 8 ? len : sim_range(rng, 1, 8);
		sim_msg_bytes(plan, chan, msg->n, s->off, s->len, (uint8_t *)&s->value);
	} else if (how == 1) {
		sim_msg_bytes(plan, chan, msg->n, off, 8, (uint8_t *)&word);
		y = sim_next(rng);
		s = step(msg, SIM_OP_INLINE, c->ring);
		s->off = off;
		s->len = 8;
		s->value = word - y;
		s = step(msg, SIM_OP_ADD, c->ring);
		s->off = off;
		s->len = 8;
		s->value = y;
	} else {
		s = step(msg, SIM_OP_PUT, c->ring);
		s->off = off;
		s->len = len;
		s->flags = sim_range(rng, 0, 2) ? 0 : EPF_BULK;
	}
}

static void make_stream(const struct sim_plan *plan, uint32_t chan, uint64_t *rng,
			struct sim_msg *msg)
{
	const struct sim_chan *c = &plan->chans[chan];
	unsigned pieces = sim_range(rng, 1, MOST_PIECES);
	uint32_t off[MOST_PIECES], len[MOST_PIECES];
	struct sim_step *s;

	cut(rng, c->slot_bytes, pieces, 0, off, len);
	for (unsigned i = 0; i + 1 < pieces; i++)
		piece(plan, chan, rng, msg, off[i], len[i]);
	if (sim_range(rng, 0, 1)) {
		s = step(msg, SIM_OP_PUT_SIGNAL, c->ring);
		s->off = off[pieces - 1];
		s->len = len[pieces - 1];
		s->flags = EPF_FENCE;
	} else {
		piece(plan, chan, rng, msg, off[pieces - 1], len[pieces - 1]);
		s = step(msg, SIM_OP_SIGNAL, c->ring);
	}
	s->value = 1;
}

/* Puts of a group by several rings, with its counted signals somewhere before, between or behind them. */
static void make_group(const struct sim_plan *plan, uint32_t chan, uint64_t *rng,
		       struct sim_msg *msg)
{
	const struct sim_chan *c = &plan->chans[chan];
	unsigned pieces = sim_range(rng, 1, MOST_PIECES), first;
	unsigned at[2] = { sim_range(rng, 0, pieces), sim_range(rng, 0, pieces) };
	uint32_t off[MOST_PIECES], len[MOST_PIECES];
	struct sim_step *s;

	if (!plan->early_signals)
		at[0] = at[1] = pieces;
	first = pieces > 1 ? sim_range(rng, 1, pieces - 1) : 0;
	cut(rng, c->slot_bytes, pieces, 0, off, len);
	for (unsigned i = 0; i <= pieces; i++) {
		for (unsigned k = 0; k < 2; k++)
			if (at[k] == i && (k || first)) {
				s = step(msg, SIM_OP_COUNTED, sim_range(rng, 0, plan->rings - 1));
				/* Which of the two comes first does not matter: the sum counts. */
				s->count = k ? pieces - first : first;
				s->value = k && !first ? 2 : 1;
			}
		if (i == pieces)
			break;
		s = step(msg, SIM_OP_PUT_GROUP,
			 c->multi ? sim_range(rng, 0, plan->rings - 1) : c->ring);
		s->off = off[i];
		s->len = len[i];
		s->flags = sim_range(rng, 0, 2) ? 0 : EPF_BULK;
	}
}

static void make_echo(const struct sim_plan *plan, uint32_t chan, uint64_t *rng,
		      struct sim_msg *msg)
{
	const struct sim_chan *c = &plan->chans[chan];
	unsigned pieces = sim_range(rng, 1, MOST_PIECES);
	uint32_t off[MOST_PIECES], len[MOST_PIECES];
	struct sim_step *s;

	cut(rng, c->slot_bytes, pieces, 1, off, len);
	for (unsigned i = 0; i < pieces; i++) {
		s = step(msg, SIM_OP_PUT, c->multi ? sim_range(rng, 0, plan->rings - 1) : c->ring);
		s->off = off[i];
		s->len = len[i];
		s->flags = sim_range(rng, 0, 2) ? 0 : EPF_BULK;
	}
	s = step(msg, SIM_OP_FLUSH, c->ring);
	s->flags = c->multi ? EPF_ALL_RINGS : 0;
	step(msg, SIM_OP_WAIT, c->ring);
	s = step(msg, SIM_OP_GET, c->ring);
	s->len = c->slot_bytes;
	step(msg, SIM_OP_WAIT, c->ring);
}

static void make_add(const struct sim_plan *plan, uint32_t chan, uint64_t *rng, struct sim_msg *msg)
{
	const struct sim_chan *c = &plan->chans[chan];
	unsigned n = sim_range(rng, 1, 4);
	struct sim_step *s;

	for (unsigned i = 0; i < n; i++) {
		s = step(msg, SIM_OP_ADD, c->ring);
		s->len = 8;
		s->value = sim_next(rng);
	}
	s = step(msg, SIM_OP_SIGNAL, c->ring);
	s->value = 1;
}

void sim_msg_make(const struct sim_plan *plan, uint32_t chan, uint64_t n, struct sim_msg *msg)
{
	const struct sim_chan *c = &plan->chans[chan];
	uint64_t rng = msg_key(plan, chan, n);
	struct sim_step *s;

	memset(msg, 0, offsetof(struct sim_msg, steps));
	msg->n = n;
	msg->shift = sim_range(&rng, 0, 1) ? 0 : sim_range(&rng, 0, 15);
	switch (c->kind) {
	case SIM_STREAM:
		make_stream(plan, chan, &rng, msg);
		break;
	case SIM_SOLO:
		s = step(msg, SIM_OP_PUT_SIGNAL, c->ring);
		s->off = sim_range(&rng, 0, 1) ? 0 : sim_range(&rng, 0, 40);
		s->len = sim_range(&rng, 0, 1) ? c->slot_bytes - (s->off + 15) / 16 * 16
					       : sim_range(&rng, 1, c->slot_bytes - s->off);
		s->value = c->add;
		break;
	case SIM_GROUP:
		make_group(plan, chan, &rng, msg);
		break;
	case SIM_ECHO:
		make_echo(plan, chan, &rng, msg);
		break;
	case SIM_ADD:
		make_add(plan, chan, &rng, msg);
		break;
	case SIM_SUM:
		s = step(msg, SIM_OP_SIGNAL, c->ring);
		/* Never 0: the receiver must be able to see it. */
		s->value = (sim_next(&rng) | 1) >> sim_range(&rng, 0, 40);
		s->value += s->value == 0;
		break;
	default:
		s = step(msg, SIM_OP_GET, c->ring);
		s->off = sim_range(&rng, 0, 31);
		s->len = sim_range(&rng, 1, c->slot_bytes - s->off);
		msg->remote = sim_range(&rng, 0, SIM_RO_BYTES - s->len);
		step(msg, SIM_OP_WAIT, c->ring);
		break;
	}
}

void sim_msg_image(const struct sim_plan *plan, uint32_t chan, const struct sim_msg *msg,
		   uint8_t *out)
{
	const struct sim_chan *c = &plan->chans[chan];
	uint32_t base = c->rx_offset + (uint32_t)(msg->n % c->slots) * c->slot_bytes;

	for (uint32_t i = 0; i < c->slot_bytes; i++)
		out[i] = poison_at(base + i);
	for (uint32_t i = 0; i < msg->n_steps; i++) {
		const struct sim_step *s = &msg->steps[i];

		if (s->op == SIM_OP_PUT || s->op == SIM_OP_PUT_GROUP ||
		    s->op == SIM_OP_PUT_SIGNAL || s->op == SIM_OP_INLINE)
			sim_msg_bytes(plan, chan, msg->n, s->off, s->len, out + s->off);
	}
}
