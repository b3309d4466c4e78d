/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 3: commands from CPU threads. Each packs one command, narrow where it fits, and pushes it; nothing here
 * knows the engine beyond the ring. The checks are the engine's: what it refuses shows in the ring's error record.
 */
#include "fabric/base/err.h"
#include "fabric/client/drive.h"
#include "fabric/client/handle.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool has_room(const void *arg)
{
	struct epf_ring *ring = (struct epf_ring *)(uintptr_t)arg;

	return epf_ring_room(&ring->producer, 2) >= 2;
}

/*
 * Waits for two free slots: what the largest command takes. One that must sleep is woken when the engine is through with most of the
 * ring, not for each slot: else the two would take turns.
 */
static int wait_room(struct epf_ring *ring)
{
	struct epf_condition condition = { EPF_WAKE_ON_RETIRED, ring->shm->ring_id,
					   ring->producer.pushed -
						   ((UINT64_C(1) << ring->producer.log2) / 4) };
	int rc = epf_wait(ring->ep, has_room, ring, &condition, 0, "ring", ring->id);

	return rc == -ETIMEDOUT ? epf_fail(EPF_R_RING_FULL, "ring %u: full", ring->id) : rc;
}

static int push(struct epf_ring *ring, const struct epf_op *op)
{
	struct epf_cmd wide[2];
	int rc;

	if (epf_ring_room(&ring->producer, 2) < 2) {
		rc = wait_room(ring);
		if (rc)
			return rc;
	}
	if (epf_op_is_narrow(op)) {
		epf_ring_push(&ring->producer, epf_op_pack_narrow(op));
	} else if (epf_op_fits_wide(op)) {
		epf_op_pack_wide(op, wide);
		epf_ring_push_wide(&ring->producer, wide);
	} else {
		return epf_fail(
			EPF_R_CMD_LIMIT,
			"command: rank %u, signal %u, %u bytes at local offset %llu, remote offset %llu",
			op->rank, op->signal, op->length, (unsigned long long)op->local_offset,
			(unsigned long long)op->remote_offset);
	}
	epf_kick(ring->ep, op->length);
	return 0;
}

/* Fields of transfers that may be out of range before they are cut to the width of struct epf_op. */
static int transfer(struct epf_ring *ring, struct epf_op *op, uint32_t lregion, uint32_t rregion,
		    uint64_t bytes)
{
	if (bytes < 1 || bytes > EPF_WIDE_LENGTH)
		return epf_fail(EPF_R_CMD_LIMIT, "command: %llu bytes; 1 to %llu are possible",
				(unsigned long long)bytes, (unsigned long long)EPF_WIDE_LENGTH);
	if (lregion >= EPF_WIDE_REGIONS || rregion >= EPF_WIDE_REGIONS)
		return epf_fail(EPF_R_CMD_LIMIT,
				"command: regions %u and %u; below %u are possible", lregion,
				rregion, EPF_WIDE_REGIONS);
	op->local_region = (uint16_t)lregion;
	op->remote_region = (uint16_t)rregion;
	op->length = (uint32_t)bytes;
	return push(ring, op);
}

int epf_put(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_PUT,
			     .flags = flags & EPF_BULK,
			     .rank = rank,
			     .local_offset = local_offset,
			     .remote_offset = remote_offset };

	return transfer(ring, &op, local_region, remote_region, bytes);
}

int epf_put_group(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		  uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		  uint64_t bytes, uint32_t signal, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_PUT,
			     .flags = (uint8_t)((flags & EPF_BULK) | EPF_F_COUNTED),
			     .rank = rank,
			     .signal = signal,
			     .local_offset = local_offset,
			     .remote_offset = remote_offset };

	return transfer(ring, &op, local_region, remote_region, bytes);
}

int epf_put_signal(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		   uint64_t bytes, uint32_t signal, uint32_t add, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_PUT_SIGNAL,
			     .flags = flags & (EPF_FENCE | EPF_BULK),
			     .rank = rank,
			     .signal = signal,
			     .add = add,
			     .local_offset = local_offset,
			     .remote_offset = remote_offset };

	return transfer(ring, &op, local_region, remote_region, bytes);
}

int epf_put_inline(struct epf_ring *ring, uint32_t rank, uint32_t remote_region,
		   uint64_t remote_offset, uint64_t value, uint32_t bytes, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_PUT_INLINE,
			     .flags = flags & EPF_BULK,
			     .rank = rank,
			     .remote_offset = remote_offset,
			     .value = value };

	if (bytes > 8)
		return epf_fail(EPF_R_CMD_LIMIT, "inline put: %u bytes; 1 to 8 are possible",
				bytes);
	return transfer(ring, &op, 0, remote_region, bytes);
}

int epf_signal_send(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		    unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_SIGNAL,
			     .flags = flags & EPF_BULK,
			     .rank = rank,
			     .signal = signal,
			     .value = value };

	return push(ring, &op);
}

int epf_signal_counted(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		       uint32_t count, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_SIGNAL,
			     .flags = (uint8_t)((flags & EPF_BULK) | EPF_F_COUNTED),
			     .rank = rank,
			     .signal = signal,
			     .value = value,
			     .count = count };

	return push(ring, &op);
}

int epf_add(struct epf_ring *ring, uint32_t rank, uint32_t remote_region, uint64_t remote_offset,
	    uint64_t value, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_ADD,
			     .flags = flags & EPF_BULK,
			     .rank = rank,
			     .remote_offset = remote_offset,
			     .value = value };

	return transfer(ring, &op, 0, remote_region, 8);
}

int epf_get(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_GET,
			     .flags = flags & EPF_BULK,
			     .rank = rank,
			     .local_offset = local_offset,
			     .remote_offset = remote_offset };

	return transfer(ring, &op, local_region, remote_region, bytes);
}

int epf_flush_post(struct epf_ring *ring, unsigned flags)
{
	struct epf_op op = { .op = EPF_OP_FLUSH, .flags = flags & EPF_ALL_RINGS };

	return push(ring, &op);
}

/*
 * The text names the first failure of all: what came later mostly follows from it. Commands to a rank that has closed because another one was lost fail, too: then
 * that one is named.
 */
static int fail_commands(const struct epf_ring *ring, uint64_t failed, enum epf_reason reason)
{
	const struct epf_done *done = &ring->shm->done;
	const struct epf_reason_info *info = epf_reason_info((enum epf_reason)done->error_reason);
	const char *cause = info ? info->cause : "unknown";
	size_t len = strlen(cause);
	char what[128];
	int rc = 0;

	snprintf(what, sizeof(what),
		 "ring %u: %llu commands failed, first number %llu to rank %u: ", ring->id,
		 (unsigned long long)(failed - ring->failures_seen),
		 (unsigned long long)(EPF_LOAD_ACQUIRE(&done->error_index) - 1), done->error_rank);
	if (reason == EPF_R_PEER_DOWN)
		rc = epf_fail_after_loss(ring->ep, what);
	return rc ? rc
		  : epf_fail(reason, "%s%.*s", what,
			     (int)(len && cause[len - 1] == '.' ? len - 1 : len), cause);
}

int epf_flush(struct epf_ring *ring, unsigned flags, uint64_t timeout_ns)
{
	int rc = epf_flush_post(ring, flags);
	uint64_t failed;

	if (!rc)
		rc = epf_wait_retired(ring, epf_ring_pushed(ring), timeout_ns);
	if (rc)
		return rc;
	failed = EPF_LOAD_ACQUIRE(&ring->shm->done.failed); /* A3 */
	if (failed == ring->failures_seen)
		return 0;
	/* If they failed because a rank is lost, the engine has said so first: who and why says more. */
	rc = epf_wait_why(ring->ep, "flush of ring", ring->id);
	return rc ? rc : fail_commands(ring, failed, EPF_R_CMD_FAILED);
}

int epf_ring_push_raw(struct epf_ring *ring, uint64_t lo, uint64_t hi)
{
	struct epf_cmd c = { lo & ~UINT64_C(1), hi & ~UINT64_C(1) };

	if (epf_ring_room(&ring->producer, 2) < 2) {
		int rc = wait_room(ring);

		if (rc)
			return rc;
	}
	epf_ring_push(&ring->producer, c);
	epf_kick(ring->ep, EPF_WIDE_LENGTH); /* nobody has looked what it is */
	return 0;
}

uint64_t epf_ring_pushed(const struct epf_ring *ring)
{
	return ring->producer.pushed;
}

uint64_t epf_ring_done(const struct epf_ring *ring)
{
	return epf_ring_retired(&ring->producer);
}

int epf_ring_error(struct epf_ring *ring, struct epf_ring_failure *out)
{
	const struct epf_done *done = &ring->shm->done;
	uint64_t failed = EPF_LOAD_ACQUIRE(&done->failed); /* A3 */
	enum epf_reason reason;

	if (failed == ring->failures_seen)
		return 0;
	reason = (enum epf_reason)done->error_reason;
	/* With the remedy of what happened, where the table has it. */
	(void)fail_commands(ring, failed, epf_reason_info(reason) ? reason : EPF_R_CMD_FAILED);
	ring->failures_seen = failed;
	out->failed = failed;
	out->index = EPF_LOAD_ACQUIRE(&done->error_index) - 1;
	out->rank = done->error_rank;
	out->status = done->error_status;
	out->reason = done->error_reason;
	return 1;
}
