/* SPDX-License-Identifier: Apache-2.0 */
/* For checks that provoke errors. */
#ifndef EPF_TOOLS_PROVE_FAILING_H
#define EPF_TOOLS_PROVE_FAILING_H

struct rig;

/*
 * ask_again() - whether to provoke an error once more: a device that reports nothing of one (rig_silent()) is asked again, a few times, and
 * it is said. Connects lane 0 again in that case. @silent counts, 0 at first.
 */
int ask_again(struct rig *rig, unsigned *silent);

#endif
