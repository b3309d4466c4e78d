/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command check: the one place where a command from a ring is held against the tables. Commands come
 * from GPU kernels and other programs' threads; they are untrusted input. What passes here names a live region of
 * its own rank as source and a region that the peer exported as target, inside both, and a signal the peer has.
 *
 * epf_cmd_check() is called once per command, by step_hot.c on a private copy and by tests/fuzz/fuzz_cmd.c. Pure: reads tables, writes nothing.
 */
#ifndef EPF_FABRIC_ENGINE_CHECK_HOT_H
#define EPF_FABRIC_ENGINE_CHECK_HOT_H

#include "fabric/base/err.h"
#include "fabric/engine/core.h"

/* Local side: [offset, offset + length) inside a live region of the rank. */
EPF_INLINE unsigned check_local(const struct epf_rank_state *rank, const struct epf_op *op)
{
	const struct epf_region_local *region;

	if (EPF_UNLIKELY(op->local_region >= rank->n_regions))
		return EPF_R_CMD_LOCAL_REGION;
	region = &rank->regions[op->local_region];
	if (EPF_UNLIKELY(op->local_offset > region->bytes ||
			 op->length > region->bytes - op->local_offset)) {
		if (region->state > EPF_REGION_LIVE)
			return EPF_R_CMD_REVOKED;
		return region->bytes == 0 ? EPF_R_CMD_LOCAL_REGION : EPF_R_CMD_LOCAL_RANGE;
	}
	return 0;
}

/* Remote side: inside a live region that the peer exported. */
EPF_INLINE unsigned check_remote(const struct epf_peer *peer, const struct epf_op *op,
				 uint64_t length, unsigned access)
{
	const struct epf_region_remote *region;

	if (EPF_UNLIKELY(op->remote_region >= peer->n_regions))
		return EPF_R_CMD_REMOTE_REGION;
	region = &peer->regions[op->remote_region];
	if (EPF_UNLIKELY(op->remote_offset > region->bytes ||
			 length > region->bytes - op->remote_offset)) {
		if (region->state > EPF_REGION_LIVE)
			return EPF_R_CMD_REVOKED;
		return region->bytes == 0 ? EPF_R_CMD_REMOTE_REGION : EPF_R_CMD_REMOTE_RANGE;
	}
	return EPF_LIKELY(region->access & access) ? 0 : EPF_R_CMD_ACCESS;
}

EPF_INLINE unsigned check_signal(const struct epf_peer *peer, uint32_t signal)
{
	return EPF_LIKELY(signal < peer->n_signals) ? 0 : EPF_R_CMD_SIGNAL;
}

/*
 * Checks a command of local rank `rank` against the peers of the job. Returns 0 or the enum epf_reason of the
 * refusal. FLUSH and NOP name no peer.
 */
EPF_INLINE unsigned epf_cmd_check(const struct epf_rank_state *rank, const struct epf_peer *peers,
				  uint32_t world, const struct epf_op *op)
{
	const struct epf_peer *peer;
	unsigned reason;

	if (EPF_UNLIKELY(op->reserved))
		return EPF_R_CMD_RESERVED;
	if (op->op != EPF_OP_PUT && (op->op == EPF_OP_FLUSH || op->op == EPF_OP_NOP))
		return 0;
	if (EPF_UNLIKELY(op->rank >= world))
		return EPF_R_CMD_RANK;
	peer = &peers[op->rank];
	if (EPF_LIKELY(op->op == EPF_OP_PUT)) { /* most of all: before the table of the others */
		reason = check_local(rank, op);
		if (EPF_LIKELY(!reason))
			reason = check_remote(peer, op, op->length, EPF_MR_REMOTE_WRITE);
		if (EPF_LIKELY(!reason) && (op->flags & EPF_F_COUNTED))
			reason = check_signal(peer, op->signal);
		return reason;
	}
	switch (op->op) {
	case EPF_OP_PUT_SIGNAL:
		reason = check_local(rank, op);
		if (EPF_LIKELY(!reason))
			reason = check_remote(peer, op, op->length, EPF_MR_REMOTE_WRITE);
		return reason ? reason : check_signal(peer, op->signal);
	case EPF_OP_GET:
		reason = check_local(rank, op);
		return reason ? reason : check_remote(peer, op, op->length, EPF_MR_REMOTE_READ);
	case EPF_OP_SIGNAL:
		if ((op->flags & EPF_F_COUNTED) && op->count == 0)
			return EPF_R_CMD_COUNT;
		return check_signal(peer, op->signal);
	case EPF_OP_PUT_INLINE:
		return EPF_UNLIKELY(op->length > 8)
			       ? EPF_R_CMD_LENGTH
			       : check_remote(peer, op, op->length, EPF_MR_REMOTE_WRITE);
	case EPF_OP_ADD:
		if (EPF_UNLIKELY(op->remote_offset & 7u))
			return EPF_R_CMD_ALIGN;
		return EPF_UNLIKELY(op->length != 8)
			       ? EPF_R_CMD_LENGTH
			       : check_remote(peer, op, 8, EPF_MR_REMOTE_WRITE);
	default:
		return EPF_R_CMD_OP;
	}
}

#endif
