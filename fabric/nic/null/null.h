/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the null NIC, for nic.c and data_hot.c only: a bitmap of lanes with something posted,
 * and per lane how many and the latest id. It must stay small enough to measure nothing but the engine.
 */
#ifndef EPF_FABRIC_NIC_NULL_NULL_H
#define EPF_FABRIC_NIC_NULL_NULL_H

#include "fabric/nic/nic.h"

enum { EPF_NULL_LANES = 4096, EPF_NULL_DEPTH = 1 << 20 };

struct epf_null_lane {
	uint32_t outstanding;
	uint32_t depth;
	uint32_t last_id;
	uint8_t used;
	uint8_t link; /* enum epf_lane_link */
	uint16_t reserved;
};

struct epf_null {
	struct epf_nic nic;
	uint64_t summary;                    /* bit w: dirty[w] is not 0 */
	uint64_t dirty[EPF_NULL_LANES / 64]; /* lanes with something to complete */
	struct epf_nic_counters counters;
	uint32_t keys, epoch;
	struct epf_null_lane lanes[EPF_NULL_LANES];
};

int epf_null_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
int epf_null_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
uint64_t epf_null_next_event(const struct epf_nic *nic);

#endif
