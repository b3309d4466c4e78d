/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of epf_device.cuh, which users include: the commands, thread forms. epf.h says what they mean.
 */
#ifndef EPF_KERNELS_DEVICE_CMD_CUH
#define EPF_KERNELS_DEVICE_CMD_CUH

#include "kernels/epf_device_ring.cuh"

EPF_DEV_FN struct epf_op epf_dev_transfer(unsigned op, uint32_t rank, uint32_t local_region,
					  uint64_t local_offset, uint32_t remote_region,
					  uint64_t remote_offset, uint64_t bytes, unsigned flags)
{
	struct epf_op o;

	o.local_offset = local_offset;
	o.remote_offset = remote_offset;
	o.value = 0;
	/* What no form can say becomes 0 bytes, which no form can say either. */
	o.length = bytes <= EPF_WIDE_LENGTH ? (uint32_t)bytes : 0u;
	o.rank = rank;
	o.signal = 0;
	o.add = 1;
	o.count = 0;
	o.local_region = (uint16_t)local_region;
	o.remote_region = (uint16_t)remote_region;
	o.op = (uint8_t)(local_region < EPF_WIDE_REGIONS && remote_region < EPF_WIDE_REGIONS
				 ? op
				 : EPF_OP_COUNT);
	o.flags = (uint8_t)flags;
	o.reserved = 0;
	o.slots = 1;
	return o;
}

/* epf_dev_put() - local memory to remote memory. The source may be reused when the command is retired (epf_dev_wait). */
EPF_DEV_FN int epf_dev_put(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			   uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_dev_push_op(d, &o);
}

/* epf_dev_put_group() - a put that counts towards group `signal` at `rank` (epf_dev_signal_counted). */
EPF_DEV_FN int epf_dev_put_group(struct epf_dev *d, uint32_t rank, uint32_t local_region,
				 uint64_t local_offset, uint32_t remote_region,
				 uint64_t remote_offset, uint64_t bytes, uint32_t signal,
				 unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, (flags & EPF_F_BULK) | EPF_F_COUNTED);

	o.signal = signal;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_put_signal() - put, then add `add` to the peer's signal; with EPF_F_FENCE after everything earlier of the stream. */
EPF_DEV_FN int epf_dev_put_signal(struct epf_dev *d, uint32_t rank, uint32_t local_region,
				  uint64_t local_offset, uint32_t remote_region,
				  uint64_t remote_offset, uint64_t bytes, uint32_t signal,
				  uint32_t add, unsigned flags)
{
	struct epf_op o =
		epf_dev_transfer(EPF_OP_PUT_SIGNAL, rank, local_region, local_offset, remote_region,
				 remote_offset, bytes, flags & (EPF_F_FENCE | EPF_F_BULK));

	o.signal = signal;
	o.add = add;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_signal() - adds to a signal of `rank` after everything earlier of the stream. */
EPF_DEV_FN int epf_dev_signal(struct epf_dev *d, uint32_t rank, uint32_t signal, uint64_t value,
			      unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0, flags & EPF_F_BULK);

	o.signal = signal;
	o.value = value;
	return epf_dev_push_op(d, &o);
}

/*
 * epf_dev_add() - adds to an aligned 8-byte word of a region of `rank`, GPU memory too, after everything earlier of the stream: a signal where
 * kernels wait in their own memory (epf_dev_wait_word). A wide command.
 */
EPF_DEV_FN int epf_dev_add(struct epf_dev *d, uint32_t rank, uint32_t remote_region,
			   uint64_t remote_offset, uint64_t value, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_ADD, rank, 0, 0, remote_region, remote_offset, 8,
					   flags & EPF_F_BULK);

	o.value = value;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_signal_counted() - adds to a signal once `count` more puts of its group from this rank are there. */
EPF_DEV_FN int epf_dev_signal_counted(struct epf_dev *d, uint32_t rank, uint32_t signal,
				      uint64_t value, uint32_t count, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_SIGNAL, rank, 0, 0, 0, 0, 0,
					   (flags & EPF_F_BULK) | EPF_F_COUNTED);

	o.signal = signal;
	o.value = value;
	o.count = count;
	return epf_dev_push_op(d, &o);
}

/* epf_dev_get() - remote memory to local memory; retired when the local memory is written. Read it after epf_dev_wait. */
EPF_DEV_FN int epf_dev_get(struct epf_dev *d, uint32_t rank, uint32_t local_region,
			   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
			   uint64_t bytes, unsigned flags)
{
	struct epf_op o = epf_dev_transfer(EPF_OP_GET, rank, local_region, local_offset,
					   remote_region, remote_offset, bytes, flags & EPF_F_BULK);

	return epf_dev_push_op(d, &o);
}

/* epf_dev_flush_post() - pushes a FLUSH; its ticket is retired when everything earlier of the ring is visible at its target. */
EPF_DEV_FN int epf_dev_flush_post(struct epf_dev *d, unsigned flags)
{
	return epf_dev_push(d, epf_cmd_flush(flags & EPF_F_ALL));
}

#endif
