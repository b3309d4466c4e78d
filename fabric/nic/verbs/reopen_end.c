/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a lane back from the other thread of the verbs NIC, before the lane is fenced, drained or destroyed. */
#include "fabric/nic/verbs/opener_priv.h"

#include <unistd.h>

enum { LOOK_AGAIN_US = 500 };

int epf_verbs_reopen_end(struct epf_verbs *v, uint16_t lane, int wait)
{
	struct epf_opener *o = v->opener ? &v->opener->o : NULL;

	if (!o || epf_opener_state(o) == EPF_OPENER_NONE || o->lane != lane)
		return 0;
	if (o->kind != EPF_OPENER_CONNECT) { /* the lane itself is not in it */
		o->is_dropped = 1;
		return 0;
	}
	if (wait && o->is_waking)
		epf_opener_wake(o);
	while (wait && epf_opener_state(o) == EPF_OPENER_ASKED)
		usleep(LOOK_AGAIN_US);
	if (epf_opener_state(o) == EPF_OPENER_ASKED) {
		o->is_dropped = 1;
		return 1;
	}
	v->lanes[lane].has_let_go = 1;
	epf_opener_clear(o);
	return 0;
}
