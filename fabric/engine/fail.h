/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failing commands. Called by the hot files and by the control plane, on the core's thread.
 */
#ifndef EPF_FABRIC_ENGINE_FAIL_H
#define EPF_FABRIC_ENGINE_FAIL_H

#include "fabric/engine/core.h"

/* Ends command `seq` of a ring as failed. rank: the peer to blame; status, reason: for the ring's error record. */
EPF_COLD void epf_fail_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
			    uint32_t rank, unsigned status, unsigned reason);
/* Counts a command that the check refused by its reason, and fails it. */
EPF_COLD void epf_refuse_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
			      uint32_t rank, unsigned reason);
/* Fails a deferred command that the check would refuse by now: a region was withdrawn, or described again. Returns 1 if it did. */
EPF_COLD int epf_recheck_cold(struct epf_core *core, struct epf_deferred *p);
/* Fails one entry's command and reclaims the entry; the caller moves the lane's tail. */
EPF_COLD void epf_fail_entry_cold(struct epf_core *core, struct epf_lane *lane, struct epf_wr *wr,
				  unsigned status, unsigned reason);
/* Fences a lane and fails all its entries; drops control writes and messages. */
EPF_COLD void epf_fail_lane_cold(struct epf_core *core, struct epf_lane *lane, unsigned status);
/* Fails the deferred commands of a stream. */
EPF_COLD void epf_fail_stream_cold(struct epf_core *core, struct epf_stream *s, unsigned status);
/* Fails the deferred commands of all streams of local rank index `local` to rank `peer`; EPF_NONE: any. */
EPF_COLD void epf_fail_streams_cold(struct epf_core *core, uint32_t peer, uint32_t local);

#endif
