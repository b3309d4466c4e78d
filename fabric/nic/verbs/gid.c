/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for GIDs (gid.h).
 */
#include "fabric/nic/verbs/gid.h"

#include <errno.h>

static int is_zero(const union ibv_gid *gid)
{
	return gid->global.subnet_prefix == 0 && gid->global.interface_id == 0;
}

static int is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* Lower is better. */
static int rank_of(const struct ibv_gid_entry *e)
{
	if (e->gid_type == IBV_GID_TYPE_IB)
		return 0;
	return (e->gid_type == IBV_GID_TYPE_ROCE_V2 ? 0 : 2) + is_link_local(&e->gid);
}

int epf_verbs_pick_gid(const struct ibv_gid_entry *table, size_t n, unsigned port, int index)
{
	int best = -ENOENT;

	for (size_t i = 0; i < n; i++) {
		const struct ibv_gid_entry *e = &table[i], *b = best < 0 ? NULL : &table[best];

		/* A route has 8 bits for the index (ibv_global_route of ibv_modify_qp(3)). */
		if (e->port_num != port || is_zero(&e->gid) || e->gid_index > UINT8_MAX)
			continue;
		if (index >= 0) {
			if (e->gid_index == (uint32_t)index)
				return (int)i;
			continue;
		}
		if (!b || rank_of(e) < rank_of(b) ||
		    (rank_of(e) == rank_of(b) && e->gid_index < b->gid_index))
			best = (int)i;
	}
	return best;
}
