/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory in the data path: asynchronous additions to words (gpu_hold.c holds later arrivals), and flushes that make NIC writes
 * visible to kernels.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"

#include "fabric/base/clock.h"

#include <errno.h>

void epf_gpu_add_cold(struct epf_core *core, uint32_t local, const struct epf_region_local *region,
		      uint64_t offset, uint64_t value)
{
	int rc = core->ops->add(core->nic, &region->mr, offset, value);

	if (rc && rc != -EAGAIN) {
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		return;
	}
	if (core->adds == EPF_ADDS_NONE)
		core->adds = EPF_ADDS_UNDER_WAY;
	core->ranks[local].adding_to = region;
	core->ranks[local].adding_round = core->adding_round;
	if (!rc)
		return;
	if (core->adds != EPF_ADDS_HOLD)
		epf_hold_cold(core);
	core->hold_adds[core->adds_refused++] = (struct epf_gpu_add){ region->mr, offset, value };
}

void epf_hold_cold(struct epf_core *core)
{
	core->adds = EPF_ADDS_HOLD;
	core->hold_tsc = epf_tsc();
}

void epf_gpu_flush_cold(struct epf_core *core)
{
	for (uint32_t i = 0; i < core->n_gpu_flushes; i++)
		core->gpu_flushes[i].flush(core->gpu_flushes[i].arg);
	core->gpu_flushed = core->steps;
}
