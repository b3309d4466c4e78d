/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a rank of the checking traffic is: whether it is done, and what it waits for when the job is stuck. See
 * sim_traffic.h. Reads only.
 */
#include "tests/prop/sim_traffic.h"

#include <stdio.h>

int sim_rank_is_done(const struct sim_rank *r)
{
	for (uint32_t i = 0; i < r->plan->n_chans; i++) {
		const struct sim_chan *c = &r->plan->chans[i];
		const struct sim_tx *t = &r->out[i];
		const struct sim_rx *in = &r->in[i];
		unsigned has_receiver = c->kind != SIM_ECHO && c->kind != SIM_GET;

		if (c->from == r->rank &&
		    (t->sent != r->goal || t->open || t->busy[0] || t->busy[1] || t->busy[2] ||
		     (has_receiver && epf_signal_value(r->ep, c->credit) != r->goal)))
			return 0;
		if (c->to == r->rank && has_receiver &&
		    (in->taken != r->goal || in->granted != r->goal))
			return 0;
	}
	for (uint32_t i = 0; i < r->plan->rings; i++)
		if (epf_ring_done(r->rings[i]) != epf_ring_pushed(r->rings[i]))
			return 0;
	return 1;
}

void sim_rank_waits(const struct sim_rank *r, char *buf, size_t size)
{
	size_t at = 0;

#define SAY(...) at += at < size ? (size_t)snprintf(buf + at, size - at, __VA_ARGS__) : 0
	buf[0] = 0;
	for (uint32_t i = 0; i < r->plan->rings; i++)
		if (epf_ring_done(r->rings[i]) != epf_ring_pushed(r->rings[i]))
			SAY(" ring %u: %llu of its commands not retired;", i,
			    (unsigned long long)(epf_ring_pushed(r->rings[i]) -
						 epf_ring_done(r->rings[i])));
	for (uint32_t i = 0; i < r->plan->n_chans; i++) {
		const struct sim_chan *c = &r->plan->chans[i];
		const struct sim_tx *t = &r->out[i];
		unsigned has_receiver = c->kind != SIM_ECHO && c->kind != SIM_GET;

		if (c->from == r->rank && (t->sent != r->goal || t->open))
			SAY(" %s channel %u to rank %u ring %u: message %llu at step %u of %u, credit "
			    "%llu;",
			    sim_kind_name(c->kind), i, c->to, c->ring, (unsigned long long)t->sent,
			    t->at, t->open ? t->msg.n_steps : 0,
			    (unsigned long long)epf_signal_value(r->ep, c->credit));
		if (c->to == r->rank && has_receiver && r->in[i].taken != r->goal)
			SAY(" waits for message %llu of %s channel %u from rank %u, signal %u is %llu;",
			    (unsigned long long)r->in[i].taken, sim_kind_name(c->kind), i, c->from,
			    c->signal, (unsigned long long)epf_signal_value(r->ep, c->signal));
	}
#undef SAY
}
