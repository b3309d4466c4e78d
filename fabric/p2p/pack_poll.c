/* SPDX-License-Identifier: Apache-2.0 */
/* Moves compressed chunks on whose commands are retired (pack_priv.h). Any thread: the endpoint's, and those that wait or test. */
#include "fabric/p2p/pack_priv.h"

void epf_p2p_pack_poll(struct conn *c)
{
	struct pack_over over;

	if (!epf_p2p_pack_look(c, &over))
		return;
	for (unsigned i = 0; i < over.n; i++) {
		struct pack_slot *s = over.slot[i];

		if (s->is_served)
			epf_p2p_pack_served(c, s, over.status[i]);
		else if (s->is_packed && !over.status[i])
			epf_p2p_pack_announce(c, s);
		else
			epf_p2p_pack_finish(c, s, over.status[i]);
	}
}

bool epf_p2p_pack_poll_all(struct epf_p2p *ep)
{
	enum { MOST = 64 };
	struct conn *busy[MOST];
	unsigned n = 0;

	if (!EPF_LOAD_RELAXED(&ep->has_engines))
		return false;
	pthread_mutex_lock(&ep->lock);
	for (struct conn *c = ep->all; c && n < MOST; c = c->next)
		if (c->pack && EPF_LOAD_RELAXED(&c->pack->busy)) {
			epf_p2p_conn_ref(c);
			busy[n++] = c;
		}
	pthread_mutex_unlock(&ep->lock);
	for (unsigned i = 0; i < n; i++) {
		epf_p2p_pack_poll(busy[i]);
		epf_p2p_conn_put(busy[i]);
	}
	return n != 0;
}
