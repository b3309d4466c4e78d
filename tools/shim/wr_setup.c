/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow half of wr.h and fabric/protocol/channel.h: makes rings, and the words of refusals. It must not be called for a ring that kernels know already.
 */
#include "tools/shim/channel.h"

#include <errno.h>
#include <string.h>

_Static_assert((EPF_WR_RKEY & (EPF_WR_MAX_PES - 1)) == 0, "a rank fits into a key's low bits");
_Static_assert(EPF_WR_REMOTE_BASE % 8 == 0 && EPF_WR_OLD_ADDR % 4 == 0,
	       "aligned as an add needs it");

int epf_wr_ring_init(struct epf_wr_ring *ring, void *slots, uint32_t n_slots, uint64_t *wakeup,
		     void *cqe, uint32_t number, uint32_t seed)
{
	if (n_slots < 4 || n_slots > EPF_WR_MAX_SLOTS || (n_slots & (n_slots - 1)) != 0 ||
	    number >= 1u << 24)
		return -EINVAL;
	*ring = (struct epf_wr_ring){ .slots = slots,
				      .wakeup = wakeup,
				      .cqe = cqe,
				      .n_slots = n_slots,
				      .number = number,
				      .seed = seed };
	for (uint32_t i = 0; i < n_slots; i++)
		epf_wr_poison(ring, i);
	memset(cqe, 0xff, EPF_WR_CQE_BYTES);
	*wakeup = (uint64_t)__builtin_bswap32(number << 8) << 32;
	return 0;
}

const char *epf_wr_refusal_text(uint32_t refusal)
{
	static const char *const texts[EPF_WR_REFUSALS] = {
		[EPF_WR_OK] = "nothing is wrong",
		[EPF_WR_DOORBELL_RING] =
			"a doorbell names another ring: the program's kernels do not fit this shim",
		[EPF_WR_DOORBELL_INDEX] =
			"a doorbell announces more requests than the ring holds: raise NVSHMEM_QP_DEPTH",
		[EPF_WR_OPCODE] =
			"an operation that is not served (served: write, inline write of 4 bytes, 32-bit add)",
		[EPF_WR_INDEX] =
			"a request has another's number, the ring was overrun: raise NVSHMEM_QP_DEPTH",
		[EPF_WR_RING] =
			"a request names another ring: the program's kernels do not fit this shim",
		[EPF_WR_SHAPE] =
			"a request's length or flags do not fit its operation: the program's kernels do not fit this shim",
		[EPF_WR_PEER] =
			"a request names no rank: the program's kernels do not fit this shim",
		[EPF_WR_REMOTE] =
			"a request goes outside the peer's heap: look for a wrong buffer size in the program",
		[EPF_WR_LOCAL_KEY] =
			"a request names memory that is not the heap: the program's kernels do not fit this shim",
		[EPF_WR_LOCAL] =
			"a request reads outside the heap: look for a wrong buffer size in the program",
		[EPF_WR_ALIGN] = "a request's address is no multiple of 4 bytes",
		[EPF_WR_LENGTH] = "a request of 0 bytes or more than 2 GiB",
	};

	return refusal < EPF_WR_REFUSALS ? texts[refusal] : "an unknown refusal";
}

const char *epf_channel_refusal_text(uint32_t refusal)
{
	static const char *const texts[EPF_CHANNEL_REFUSALS] = {
		[EPF_CHANNEL_OK] = "nothing is wrong",
		[EPF_CHANNEL_FLAG] =
			"a word of the channel is of no lap: the program's NVSHMEM does not fit this shim",
		[EPF_CHANNEL_OPERATION] =
			"an operation that is not served (served: put, value, set, add, fence)",
		[EPF_CHANNEL_GROUP] =
			"a request of more than one thread: the program's NVSHMEM does not fit this shim",
		[EPF_CHANNEL_PEER] = "a request names no rank",
		[EPF_CHANNEL_LENGTH] = "a request has a length that its operation cannot have",
		[EPF_CHANNEL_REMOTE] = "a request goes outside the peer's heap, or is not aligned",
		[EPF_CHANNEL_LOCAL] = "a request reads outside the heap",
	};

	return refusal < EPF_CHANNEL_REFUSALS ? texts[refusal] : "an unknown refusal";
}
