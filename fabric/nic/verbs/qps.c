/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From queue pair numbers to lanes: the hash table in which the verbs NIC looks arrivals up (complete_hot.c). Lanes enter when they are made, several
 * threads at a time while the job is set up, and leave when they end. It must never be entered by another thread than the NIC's once there is
 * traffic.
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"

#include <stdlib.h>

enum { MIN_QPS = 64 };

/* The hash table of queue pairs: open addressing, never more than half full. */
static void enter_qp(uint64_t *table, uint32_t mask, uint64_t entry)
{
	uint32_t at = epf_verbs_hash((uint32_t)(entry >> 32)) & mask;

	while (table[at])
		at = (at + 1) & mask;
	table[at] = entry;
}

static int rebuild_qps(struct epf_verbs *v, uint32_t size)
{
	uint64_t *table = calloc(size, sizeof(*table));

	if (!table)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a table of %u queue pairs", size);
	for (uint32_t i = 0; v->qps && i <= v->qps_mask; i++)
		if (v->qps[i])
			enter_qp(table, size - 1, v->qps[i]);
	free(v->qps);
	v->qps = table;
	v->qps_mask = size - 1;
	return 0;
}

void epf_verbs_qp_forget(struct epf_verbs *v, uint16_t lane)
{
	uint32_t at = epf_verbs_hash(v->lanes[lane].qp->qp_num) & v->qps_mask, next;

	while (epf_verbs_entry_lane(v->qps[at]) != lane)
		at = (at + 1) & v->qps_mask;
	v->qps[at] = 0;
	v->qps_used--;
	/* Those behind it move up, or a search would stop at the hole. */
	for (next = (at + 1) & v->qps_mask; v->qps[next]; next = (next + 1) & v->qps_mask) {
		uint64_t entry = v->qps[next];

		v->qps[next] = 0;
		enter_qp(v->qps, v->qps_mask, entry);
	}
}

int epf_verbs_qp_enter(struct epf_verbs *v, uint16_t lane)
{
	int rc = 0;

	pthread_mutex_lock(&v->setup);
	if (2 * (v->qps_used + 1) > v->qps_mask)
		rc = rebuild_qps(v, v->qps ? 2 * (v->qps_mask + 1) : MIN_QPS);
	if (!rc) {
		enter_qp(v->qps, v->qps_mask,
			 (uint64_t)v->lanes[lane].qp->qp_num << 32 | (lane + 1u));
		v->qps_used++;
		if (v->lanes_end <= lane)
			v->lanes_end = lane + 1u;
	}
	pthread_mutex_unlock(&v->setup);
	return rc;
}
