/* SPDX-License-Identifier: Apache-2.0 */
/* What an end of a rig has outstanding. Included by rig.h. */
#ifndef EPF_TOOLS_PROVE_RIG_TRACK_H
#define EPF_TOOLS_PROVE_RIG_TRACK_H

#include "tools/prove/ends.h"

/* On the real clock: counts what is outstanding at an end from now on; how much that is. */
void rig_track(struct rig_end *end, int ordered);
unsigned rig_outstanding(const struct rig_end *end);

#endif
