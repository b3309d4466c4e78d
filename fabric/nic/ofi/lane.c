/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the ofi NIC, and the peers in its address vector. Slow path, without a system call of this NIC.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int epf_ofi_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct epf_ofi_token mine = { .lane = lane };
	struct epf_ofi_lane *l;
	uint64_t random;
	int rc;

	if (lane >= EPF_OFI_MAX_LANES)
		return epf_fail(EPF_R_NIC_LIMIT, "ofi: lane %u, but a NIC has lanes 0 to %d", lane,
				EPF_OFI_MAX_LANES - 1);
	if (depth == 0 || depth > EPF_OFI_MAX_DEPTH)
		return epf_fail(EPF_R_NIC_LIMIT, "ofi: lane-depth %u is not in 1 to %d", depth,
				EPF_OFI_MAX_DEPTH);
	if (epf_ofi_lane_at(v, lane))
		return epf_fail(EPF_R_NIC_LANE, "ofi: lane %u exists already", lane);
	/* What earlier lanes have left with the provider comes back by itself, so it is room for later. */
	rc = epf_ofi_more_ops(v, v->wanted_ops + depth + v->in_provider);
	if (rc)
		return rc;
	v->wanted_ops += depth;
	random = epf_ofi_random(v);
	l = &v->lanes[lane];
	mine.generation = l->generation ? (uint16_t)(l->generation + 1) : (uint16_t)random;
	if (!mine.generation)
		mine.generation = 1;
	mine.nonce = (uint32_t)(random >> 32) | 1;
	*l = (struct epf_ofi_lane){ .is_waiting = l->is_waiting, .next_waiting = l->next_waiting };
	l->is_used = 1;
	l->generation = mine.generation;
	l->nonce = mine.nonce;
	l->depth = depth;
	l->link = EPF_LANE_IDLE;
	if (lane >= v->lanes_end)
		v->lanes_end = lane + 1u;
	*token = epf_ofi_token_encode(&mine);
	return 0;
}

/* ---- peers ---- */

static int peer_make(struct epf_ofi *v, const struct epf_ofi_place *place,
		     struct epf_ofi_peer **out)
{
	struct epf_ofi_peer *p = calloc(1, sizeof(*p));
	int n;

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "ofi: a peer");
	p->place = *place;
	n = fi_av_insert(v->av, place->name, 1, &p->at, 0, NULL);
	if (n != 1) {
		free(p);
		return epf_ofi_call_failed(v, "fi_av_insert", n < 0 ? n : -FI_EADDRNOTAVAIL);
	}
	p->next = v->peers;
	v->peers = p;
	*out = p;
	return 0;
}

static int peer_get(struct epf_ofi *v, const struct epf_ofi_place *place, struct epf_ofi_peer **out)
{
	struct epf_ofi_peer *p = v->peers;

	while (p && memcmp(&p->place, place, sizeof(*place)) != 0)
		p = p->next;
	*out = p;
	return p ? 0 : peer_make(v, place, out);
}

/* One lane less leads to a peer. What an earlier lane has left with the provider may still name it, so addresses stay while there is any. */
static void peer_put(struct epf_ofi *v, struct epf_ofi_peer *p)
{
	struct epf_ofi_peer **at = &v->peers;

	if (!p || --p->users || v->in_provider)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	fi_av_remove(v->av, &p->at, 1, 0);
	free(p);
}

int epf_ofi_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct epf_ofi_lane *l = epf_ofi_lane_at(v, lane);
	struct epf_ofi_token remote;
	struct epf_ofi_place place;
	struct epf_ofi_peer *p;
	int rc;

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "ofi: lane %u is not idle", lane);
	rc = epf_ofi_place_decode(addr, addr_len, &place);
	if (rc)
		return rc;
	if (epf_ofi_token_decode(token, &remote))
		return epf_fail(EPF_R_NIC_ADDRESS, "ofi: lane %u got an impossible token", lane);
	if (place.kind != v->place.kind)
		return epf_fail(EPF_R_NIC_PEER_MODE,
				"ofi: the peer uses another provider than %s; set ofi-provider to "
				"the same on all ranks",
				v->name);
	rc = peer_get(v, &place, &p);
	if (rc)
		return rc;
	p->users++;
	l->peer = p;
	l->remote = remote;
	l->to = p->at;
	l->link = EPF_LANE_READY;
	v->is_held_ready = v->n_held != 0;
	return 0;
}

/* ---- the end of a lane ---- */

void epf_ofi_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct epf_ofi_lane *l = epf_ofi_lane_at(v, lane);

	if (!l)
		return;
	if (l->gone) {
		l->gone = 0;
		v->n_gone--;
	}
	if (l->link != EPF_LANE_ERROR)
		epf_ofi_lane_stop(v, lane);
}

int epf_ofi_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_ofi_lane *l = epf_ofi_lane_at(epf_ofi_of(nic), lane);

	return !l || (l->link == EPF_LANE_ERROR && !l->outstanding && !l->in_provider);
}

/* Drops arrivals and reports of a lane that goes. */
static void forget(struct epf_ofi *v, uint16_t lane)
{
	struct epf_ofi_list kept = { NULL, NULL };
	struct epf_ofi_op *op;
	uint32_t n = 0;

	while ((op = epf_ofi_take(&v->done))) {
		if (op->lane != lane) {
			epf_ofi_append(&kept, op);
			continue;
		}
		op->is_listed = 0;
		if (op->stage == EPF_OFI_DONE)
			epf_ofi_op_free(v, op);
	}
	v->done = kept;
	for (uint32_t i = 0; i < v->n_held; i++)
		if (v->held[i].lane != lane)
			v->held[n++] = v->held[i];
		else
			epf_ofi_refuse_cold(v, v->held[i].slot);
	v->n_held = n;
}

void epf_ofi_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct epf_ofi_lane *l = epf_ofi_lane_at(v, lane);

	if (!l)
		return;
	epf_ofi_lane_fence(nic, lane);
	forget(v, lane);
	v->wanted_ops -= l->depth;
	peer_put(v, l->peer);
	/* It may stay in the list of waiting lanes, which skips it. */
	*l = (struct epf_ofi_lane){ .generation = l->generation,
				    .is_waiting = l->is_waiting,
				    .next_waiting = l->next_waiting };
}

enum epf_lane_link epf_ofi_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_ofi_lane *l = epf_ofi_lane_at(epf_ofi_of(nic), lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}
