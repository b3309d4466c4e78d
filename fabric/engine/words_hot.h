/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control writes (words_hot.c): what the rest of the engine asks of them.
 */
#ifndef EPF_FABRIC_ENGINE_WORDS_HOT_H
#define EPF_FABRIC_ENGINE_WORDS_HOT_H

#include "fabric/engine/core.h"

/* Notes that the grant word of a lane must be written. */
void epf_grant_mark(struct epf_core *core, struct epf_lane *lane);
/*
 * Notes that acknowledgement word `word` of a node must be written: the flush message `count` of its stream has been passed. Returns 0 if
 * there is no such word.
 */
int epf_ack_mark(struct epf_core *core, struct epf_node *node, uint32_t word, uint32_t handle,
		 uint32_t count);
/* Stages the words that were marked, as far as lanes have room. Returns how many. */
unsigned epf_words_step(struct epf_core *core);
/* The entry of a control write has completed: the word is written again if it has changed since. */
void epf_reclaim_word(struct epf_core *core, struct epf_lane *lane, const struct epf_wr *wr);
/* Posts the grant word of a lane that is not used yet: its completion proves the path to the peer. Returns 0 if the NIC has no room. */
int epf_probe_post(struct epf_core *core, struct epf_lane *lane);
/* Stages a lane's grant word even if one is in flight: the post reminds the device. Ordered NICs only. Returns 0 if there is no room. */
int epf_nudge(struct epf_core *core, struct epf_lane *lane);

#endif
