/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a lane back from the other thread of the EFA NIC, before the lane is fenced or destroyed. */
#include "fabric/nic/efa/opener_priv.h"

void epf_efa_reopen_end(struct epf_efa *v, uint16_t lane)
{
	struct epf_opener *o = v->opener ? &v->opener->o : NULL;

	if (o && epf_opener_state(o) != EPF_OPENER_NONE && o->lane == lane)
		o->is_dropped = 1;
}
