/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of the checking traffic: sends its channels' messages, checks those that come, grants buffers back. See
 * sim_traffic.h. Never blocks: it pushes only where a ring has room. Must never look at another rank's state.
 */
#include "tests/prop/sim_traffic.h"

#include "fabric/client/handle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HELD_POLLS = 12 };

static int fail(struct sim_rank *r, int wrong, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->failure, sizeof(r->failure), fmt, ap);
	va_end(ap);
	r->wrong = wrong;
	return -1;
}

int sim_rank_setup(struct sim_rank *r, const struct sim_plan *plan, struct epf *ep, uint32_t rank)
{
	uint32_t region;
	int rc;

	memset(r, 0, sizeof(*r));
	r->plan = plan;
	r->ep = ep;
	r->rank = rank;
	r->rng = sim_mix(plan->seed + 77 * rank);
	r->slow = sim_range(&r->rng, 1, 6);
	r->rx = aligned_alloc(64, (plan->rx_bytes[rank] + 63) & ~63u);
	r->tx = aligned_alloc(64, (plan->tx_bytes[rank] + 63) & ~63u);
	r->ro = aligned_alloc(64, SIM_RO_BYTES);
	r->scratch = malloc(SIM_SLOT_BYTES);
	if (!r->rx || !r->tx || !r->ro || !r->scratch)
		return -12;
	sim_poison(r->rx, 0, plan->rx_bytes[rank]);
	sim_poison(r->tx, 0, plan->tx_bytes[rank]);
	sim_ro_bytes(plan, rank, 0, SIM_RO_BYTES, r->ro);
	for (uint32_t i = 0; i < plan->n_chans; i++) {
		const struct sim_chan *c = &plan->chans[i];

		if (c->kind == SIM_ADD && c->to == rank)
			memset(r->rx + c->rx_offset, 0, 8);
		if (c->from == rank || c->to == rank)
			r->own[r->n_own++] = i;
	}
	rc = epf_region_register(ep, r->rx, plan->rx_bytes[rank],
				 EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region);
	if (!rc)
		rc = epf_region_register(ep, r->tx, plan->tx_bytes[rank], 0, &region);
	if (!rc)
		rc = epf_region_register(ep, r->ro, SIM_RO_BYTES, EPF_REMOTE_READ, &region);
	return rc;
}

void sim_rank_free(struct sim_rank *r)
{
	free(r->rx);
	free(r->tx);
	free(r->ro);
	free(r->scratch);
}

static uint32_t source_of(const struct sim_chan *c, uint64_t n)
{
	return c->tx_offset + (uint32_t)(n % c->slots) * (c->slot_bytes + SIM_GUARD);
}

/* Where a GET puts its bytes: not on the source of the puts of an ECHO, which may not be retired yet. */
static uint32_t fetch_of(const struct sim_chan *c, uint64_t n)
{
	return source_of(c, n) + (c->kind == SIM_ECHO ? c->slot_bytes + SIM_GUARD : 0);
}

static uint32_t buffer_of(const struct sim_chan *c, uint64_t n)
{
	return c->rx_offset + (uint32_t)(n % c->slots) * c->slot_bytes;
}

static int has_room(struct epf_ring *ring)
{
	return epf_ring_room(&ring->producer, 2) >= 2;
}

/* All commands pushed when the ticket was taken are retired. */
static int is_retired(const struct sim_rank *r, const uint64_t *tickets)
{
	for (uint32_t i = 0; i < r->plan->rings; i++)
		if ((int64_t)(epf_ring_done(r->rings[i]) - tickets[i]) < 0)
			return 0;
	return 1;
}

static void take_tickets(struct sim_rank *r, uint64_t *tickets)
{
	for (uint32_t i = 0; i < r->plan->rings; i++)
		tickets[i] = epf_ring_pushed(r->rings[i]);
}

/* Pushes one command of a message; 1 pushed, 0 no room, or a negative errno of the library. */
static int push_step(struct sim_rank *r, uint32_t chan, const struct sim_msg *m,
		     const struct sim_step *s)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	struct epf_ring *ring = r->rings[s->ring];
	uint32_t src = source_of(c, m->n) + m->shift + s->off, dst = buffer_of(c, m->n) + s->off;
	int rc;

	if (!has_room(ring))
		return 0;
	switch (s->op) {
	case SIM_OP_PUT:
		rc = epf_put(ring, c->to, SIM_TX_REGION, src, SIM_RX_REGION, dst, s->len, s->flags);
		break;
	case SIM_OP_PUT_GROUP:
		rc = epf_put_group(ring, c->to, SIM_TX_REGION, src, SIM_RX_REGION, dst, s->len,
				   c->signal, s->flags);
		break;
	case SIM_OP_PUT_SIGNAL:
		rc = epf_put_signal(ring, c->to, SIM_TX_REGION, src, SIM_RX_REGION, dst, s->len,
				    c->signal, (uint32_t)s->value, s->flags);
		break;
	case SIM_OP_INLINE:
		rc = epf_put_inline(ring, c->to, SIM_RX_REGION, dst, s->value, s->len, s->flags);
		break;
	case SIM_OP_ADD:
		rc = epf_add(ring, c->to, SIM_RX_REGION, dst, s->value, s->flags);
		break;
	case SIM_OP_SIGNAL:
		rc = epf_signal_send(ring, c->to, c->signal, s->value, s->flags);
		break;
	case SIM_OP_COUNTED:
		rc = epf_signal_counted(ring, c->to, c->signal, s->value, s->count, s->flags);
		break;
	case SIM_OP_FLUSH:
		rc = epf_flush_post(ring, s->flags);
		break;
	default:
		rc = epf_get(ring, c->to, SIM_TX_REGION, fetch_of(c, m->n) + m->shift + s->off,
			     c->kind == SIM_GET ? SIM_RO_REGION : SIM_RX_REGION,
			     c->kind == SIM_GET ? m->remote : dst, s->len, s->flags);
		break;
	}
	return rc ? rc : 1;
}

/* Puts the bytes of a message at its source. */
static void fill_source(struct sim_rank *r, uint32_t chan, const struct sim_msg *m)
{
	uint8_t *src = r->tx + source_of(&r->plan->chans[chan], m->n) + m->shift;

	for (uint32_t i = 0; i < m->n_steps; i++) {
		const struct sim_step *s = &m->steps[i];

		if (s->op == SIM_OP_PUT || s->op == SIM_OP_PUT_GROUP || s->op == SIM_OP_PUT_SIGNAL)
			sim_msg_bytes(r->plan, chan, m->n, s->off, s->len, src + s->off);
	}
}

/* A GET is over: what it fetched, and that it touched nothing else. */
static int check_fetched(struct sim_rank *r, uint32_t chan, const struct sim_msg *m,
			 const struct sim_step *s)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	uint32_t at = fetch_of(c, m->n), from = m->shift + s->off;
	uint32_t bad;

	if (c->kind == SIM_GET)
		sim_ro_bytes(r->plan, c->to, m->remote, s->len, r->scratch);
	else
		sim_msg_image(r->plan, chan, m, r->scratch);
	for (uint32_t i = 0; i < s->len; i++)
		if (r->tx[at + from + i] != r->scratch[i])
			return fail(
				r, 1,
				"wrong bytes: rank %u: %s channel %u message %llu: byte %u of %u "
				"fetched from rank %u is %02x, not %02x",
				r->rank, sim_kind_name(c->kind), chan, (unsigned long long)m->n, i,
				s->len, c->to, r->tx[at + from + i], r->scratch[i]);
	bad = sim_poison_check(r->tx, at, from);
	if (bad == UINT32_MAX)
		bad = sim_poison_check(r->tx, at + from + s->len,
				       c->slot_bytes + SIM_GUARD - from - s->len);
	if (bad != UINT32_MAX)
		return fail(r, 1, "wrong bytes: rank %u: get of channel %u wrote at %u too",
			    r->rank, chan, bad);
	return 0;
}

/*
 * What the contract leaves to the caller: a flush covers a counted signal, so the puts of that must be pushed before it;
 * and what stands behind a second flush of one ring is not covered by a flush of all rings.
 */
static int may_flush(const struct sim_rank *r, unsigned ring)
{
	if (r->open_groups)
		return 0;
	return !r->plan->wide_flushes || !r->has_flushed[ring] ||
	       (int64_t)(epf_ring_done(r->rings[ring]) - r->flushes[ring]) >= 0;
}

/* A command has failed: -1, and the first of them is what is said. */
static int look_for_failures(struct sim_rank *r)
{
	struct epf_ring_failure f;

	for (uint32_t i = 0; i < r->plan->rings; i++)
		if (epf_ring_error(r->rings[i], &f))
			return fail(
				r, 0,
				"rank %u: ring %u: %llu commands failed, first %llu to rank %u: status "
				"%u, reason %u",
				r->rank, i, (unsigned long long)f.failed,
				(unsigned long long)f.index, f.rank, f.status, f.reason);
	return 0;
}

/* Carries the message under way on by one step. Progress, or -1. */
static int advance(struct sim_rank *r, uint32_t chan, struct sim_tx *t)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	struct sim_step *s = &t->msg.steps[t->at];
	uint64_t *tickets = t->tickets[t->msg.n % c->slots];
	int rc;

	if (s->op == SIM_OP_WAIT) {
		/* Only the ring of the flush or get is looked at: a flush has to cover the others by itself. */
		if ((int64_t)(epf_ring_done(r->rings[s->ring]) - tickets[s->ring]) < 0)
			return 0;
		/* A get that failed is retired too, and has fetched nothing. */
		if (s[-1].op == SIM_OP_GET &&
		    (look_for_failures(r) || check_fetched(r, chan, &t->msg, &s[-1])))
			return -1;
		if (s[-1].op == SIM_OP_GET)
			sim_poison(r->tx, fetch_of(c, t->msg.n), c->slot_bytes + SIM_GUARD);
		t->at++;
		return 1;
	}
	if (s->op == SIM_OP_FLUSH && !may_flush(r, s->ring))
		return 0;
	if (s->op == SIM_OP_COUNTED && !t->holds_group) {
		t->holds_group = 1;
		r->open_groups++;
	}
	rc = push_step(r, chan, &t->msg, s);
	if (rc < 0)
		return fail(r, 0, "rank %u: command refused by the library: %s", r->rank,
			    epf_last_error());
	if (!rc)
		return 0;
	t->at++;
	take_tickets(r, tickets);
	if (s->op == SIM_OP_FLUSH) {
		r->flushes[s->ring] = tickets[s->ring];
		r->has_flushed[s->ring] = 1;
	}
	return 1;
}

static int send_poll(struct sim_rank *r, uint32_t chan)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	struct sim_tx *t = &r->out[chan];
	unsigned has_receiver = c->kind != SIM_ECHO && c->kind != SIM_GET;
	uint64_t credit = epf_signal_value(r->ep, c->credit);
	int progress = 0, rc;

	for (unsigned k = 0; k < c->slots; k++)
		if (t->busy[k] && is_retired(r, t->tickets[k])) {
			sim_poison(r->tx, source_of(c, k), c->slot_bytes + SIM_GUARD);
			t->busy[k] = 0;
			progress++;
		}
	if (has_receiver && credit > t->sent + t->open)
		return fail(
			r, 1,
			"wrong sum: rank %u: channel %u: credit is %llu, but %llu messages were sent",
			r->rank, chan, (unsigned long long)credit, (unsigned long long)t->sent);
	if (!t->open) {
		if (t->sent == r->goal || t->busy[t->sent % c->slots] ||
		    (has_receiver && t->sent - credit >= c->slots))
			return progress;
		sim_msg_make(r->plan, chan, t->sent, &t->msg);
		fill_source(r, chan, &t->msg);
		t->open = 1;
		t->at = 0;
		progress++;
	}
	while (t->at < t->msg.n_steps) {
		rc = advance(r, chan, t);
		if (rc <= 0)
			return rc < 0 ? rc : progress;
		progress++;
		if (sim_range(&r->rng, 0, 3) == 0)
			return progress;
	}
	t->open = 0;
	t->busy[t->sent % c->slots] = 1;
	t->sent++;
	r->open_groups -= t->holds_group;
	t->holds_group = 0;
	return progress;
}

/* What the channel's signal may be while `taken` messages were taken: how many are there, or -1. */
static int available(struct sim_rank *r, uint32_t chan, const struct sim_rx *in)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	uint64_t value = epf_signal_value(r->ep, c->signal), least = in->taken, most, unit = 1;

	if (c->kind == SIM_SOLO)
		unit = c->add;
	else if (c->kind == SIM_GROUP)
		unit = 2;
	least = in->taken * unit;
	most = least + c->slots * unit;
	if (c->kind == SIM_SUM) {
		struct sim_msg m;

		sim_msg_make(r->plan, chan, in->taken, &m);
		least = in->sum;
		unit = m.steps[0].value;
		most = least + unit;
		if (value == least || value == most)
			return value == most;
	} else if (value - least <= most - least) {
		return c->kind == SIM_SOLO && value != least && value != most
			       ? fail(r, 1, "wrong sum: rank %u: signal of channel %u is %llu",
				      r->rank, chan, (unsigned long long)value)
			       : (int)((value - least) / unit);
	}
	return fail(r, 1,
		    "wrong sum: rank %u: signal %u (%s channel %u from rank %u) is %llu after %llu "
		    "messages, not %llu to %llu",
		    r->rank, c->signal, sim_kind_name(c->kind), chan, c->from,
		    (unsigned long long)value, (unsigned long long)in->taken,
		    (unsigned long long)least, (unsigned long long)most);
}

/* The signal of message `taken` is there: every byte of the buffer. */
static int check_message(struct sim_rank *r, uint32_t chan, struct sim_rx *in)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	const uint8_t *at = r->rx + buffer_of(c, in->taken);
	struct sim_msg m;
	uint64_t word;

	sim_msg_make(r->plan, chan, in->taken, &m);
	if (c->kind == SIM_ADD || c->kind == SIM_SUM) {
		for (uint32_t i = 0; i < m.n_steps; i++)
			if (c->kind == SIM_SUM || m.steps[i].op == SIM_OP_ADD)
				in->sum += m.steps[i].value;
		word = __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE);
		if (c->kind == SIM_ADD && word != in->sum)
			return fail(
				r, 1,
				"wrong sum: rank %u: adds of channel %u from rank %u, message %llu: "
				"%llx, not %llx",
				r->rank, chan, c->from, (unsigned long long)in->taken,
				(unsigned long long)word, (unsigned long long)in->sum);
		return 0;
	}
	sim_msg_image(r->plan, chan, &m, r->scratch);
	if (memcmp(at, r->scratch, c->slot_bytes) == 0)
		return 0;
	for (uint32_t i = 0; i < c->slot_bytes; i++)
		if (at[i] != r->scratch[i])
			return fail(
				r, 1,
				"wrong bytes: rank %u: %s channel %u from rank %u ring %u, message "
				"%llu: byte %u of %u is %02x, not %02x",
				r->rank, sim_kind_name(c->kind), chan, c->from, c->ring,
				(unsigned long long)in->taken, i, c->slot_bytes, at[i],
				r->scratch[i]);
	return 0;
}

/* The oldest buffer taken and not granted: a while later the poison must stand, then the sender may have it again. */
static int grant_poll(struct sim_rank *r, uint32_t chan, struct sim_rx *in)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	struct epf_ring *ring = r->rings[chan % r->plan->rings];
	uint32_t at = buffer_of(c, in->granted), bad;

	if (in->granted == in->taken)
		return 0;
	if (in->held) {
		in->held--;
		return 1; /* time passes by polls */
	}
	bad = c->kind == SIM_ADD ? UINT32_MAX : sim_poison_check(r->rx, at, c->slot_bytes);
	if (bad != UINT32_MAX)
		return fail(
			r, 1,
			"wrong bytes: rank %u: %s channel %u from rank %u: byte %u of its buffer was "
			"written after message %llu had been taken",
			r->rank, sim_kind_name(c->kind), chan, c->from, bad - at,
			(unsigned long long)in->granted);
	if (!has_room(ring))
		return 0;
	if (epf_signal_send(ring, c->from, c->credit, 1, 0))
		return fail(r, 0, "rank %u: credit: %s", r->rank, epf_last_error());
	in->granted++;
	in->held = sim_range(&r->rng, 1, MOST_HELD_POLLS);
	return 1;
}

static int receive_poll(struct sim_rank *r, uint32_t chan)
{
	const struct sim_chan *c = &r->plan->chans[chan];
	struct sim_rx *in = &r->in[chan];
	int progress = grant_poll(r, chan, in), n;

	if (progress < 0)
		return progress;
	n = available(r, chan, in);
	if (n < 0)
		return n;
	if (n == 0 || sim_range(&r->rng, 1, r->slow) != 1)
		return progress + n;
	if (check_message(r, chan, in))
		return -1;
	if (c->kind != SIM_ADD)
		sim_poison(r->rx, buffer_of(c, in->taken), c->slot_bytes);
	in->taken++;
	return progress + 1;
}

int sim_rank_poll(struct sim_rank *r)
{
	int progress = 0, rc = 0;

	for (uint32_t at = 0; at < r->n_own; at++) {
		uint32_t i = r->own[at];
		const struct sim_chan *c = &r->plan->chans[i];

		if (c->from == r->rank)
			rc = send_poll(r, i);
		if (rc < 0)
			return rc;
		progress += rc;
		rc = 0;
		if (c->to == r->rank && c->kind != SIM_ECHO && c->kind != SIM_GET)
			rc = receive_poll(r, i);
		if (rc < 0)
			return rc;
		progress += rc;
		rc = 0;
	}
	if (look_for_failures(r))
		return -1;
	return progress;
}

/* The bytes that stay in a rank's receiving region: those of the last ECHO, the words of ADD. */
static void final_image(const struct sim_rank *r, uint8_t *image)
{
	sim_poison(image, 0, r->plan->rx_bytes[r->rank]);
	for (uint32_t i = 0; i < r->plan->n_chans; i++) {
		const struct sim_chan *c = &r->plan->chans[i];
		struct sim_msg m;

		if (c->to != r->rank)
			continue;
		if (c->kind == SIM_ADD)
			memcpy(image + c->rx_offset, &r->in[i].sum, 8);
		if (c->kind == SIM_ECHO && r->goal) {
			sim_msg_make(r->plan, i, r->goal - 1, &m);
			sim_msg_image(r->plan, i, &m, image + c->rx_offset);
		}
	}
}

int sim_rank_final(struct sim_rank *r)
{
	uint32_t bytes = r->plan->rx_bytes[r->rank], bad = UINT32_MAX;
	uint8_t *image = malloc(bytes);

	if (!image)
		return fail(r, 0, "rank %u: no memory for the last check", r->rank);
	final_image(r, image);
	for (uint32_t i = 0; i < bytes && bad == UINT32_MAX; i++)
		if (r->rx[i] != image[i])
			bad = i;
	free(image);
	if (bad != UINT32_MAX)
		return fail(r, 1, "wrong bytes: rank %u: byte %u of its region changed at the end",
			    r->rank, bad);
	bad = sim_poison_check(r->tx, 0, r->plan->tx_bytes[r->rank]);
	if (bad != UINT32_MAX)
		return fail(r, 1, "wrong bytes: rank %u: byte %u of its sources changed", r->rank,
			    bad);
	sim_ro_bytes(r->plan, r->rank, 0, SIM_SLOT_BYTES, r->scratch);
	if (memcmp(r->ro, r->scratch, SIM_SLOT_BYTES))
		return fail(r, 1, "wrong bytes: rank %u: its constant region changed", r->rank);
	for (uint32_t i = 0; i < r->plan->n_chans; i++)
		if (r->plan->chans[i].to == r->rank && r->plan->chans[i].kind != SIM_ECHO &&
		    r->plan->chans[i].kind != SIM_GET && available(r, i, &r->in[i]) != 0)
			return r->failure[0]
				       ? -1
				       : fail(r, 1,
					      "wrong sum: rank %u: signal of channel %u moved at the "
					      "end",
					      r->rank, i);
	return 0;
}
