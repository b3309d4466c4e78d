/* SPDX-License-Identifier: Apache-2.0 */
/* Moves compressed chunks on whose commands are retired (pack_priv.h). Any thread: the endpoint's, and those that wait or test. */
#include "fabric/p2p/pack_priv.h"

bool epf_p2p_pack_poll(struct conn *c)
{
	struct pack_over over;

	epf_p2p_pack_look(c, &over);
	for (unsigned i = 0; i < over.n; i++) {
		struct pack_slot *s = over.slot[i];

		if (s->is_served)
			epf_p2p_pack_served(c, s, over.status[i]);
		else if (s->is_packed && !over.status[i])
			epf_p2p_pack_announce(c, s);
		else
			epf_p2p_pack_finish(c, s, over.status[i]);
	}
	return over.is_moving;
}

bool epf_p2p_pack_poll_all(struct epf_p2p *ep)
{
	enum { MOST = 64 }; /* of a call; the next one goes on behind them */
	struct conn *busy[MOST] = { NULL };
	bool is_moving = false;
	unsigned n = 0, seen = 0;

	if (!EPF_LOAD_RELAXED(&ep->has_engines))
		return false;
	pthread_mutex_lock(&ep->lock);
	for (struct conn *c = ep->all; c; c = c->next)
		if (c->pack && EPF_LOAD_RELAXED(&c->pack->busy) && seen++ >= ep->pack_from &&
		    n < MOST) {
			epf_p2p_conn_ref(c);
			busy[n++] = c;
		}
	pthread_mutex_unlock(&ep->lock);
	is_moving = seen > n;
	ep->pack_from = ep->pack_from + n < seen ? ep->pack_from + n : 0;
	for (unsigned i = 0; i < n; i++) {
		is_moving |= epf_p2p_pack_poll(busy[i]);
		epf_p2p_conn_put(busy[i]);
	}
	return is_moving;
}
