/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands, flushes and waits from a CUDA or HIP kernel. One source for both, in the common subset of C and C++; included by users'
 * kernels. The host side is epf_gpu_open() in epf.h, whose context a kernel takes as its argument. A whole program:
 * kernels/examples/ring_put.cu.
 *
 *     __global__ void send(const struct epf_gpu_ctx *ctx, uint32_t peer)
 *     {
 *         struct epf_dev d;
 *         ... every thread writes its part of the payload into a registered region ...
 *         epf_block_fence();                                  // payload of the whole block before the command
 *         if (threadIdx.x == 0) {
 *             epf_dev_open(&d, ctx);                          // a private ring if one is free, else a shared one
 *             epf_dev_put_signal(&d, peer, 0, 0, 0, 0, BYTES, SIGNAL, 1, 0);
 *             epf_dev_flush(&d, 0);
 *             epf_dev_close(&d);
 *         }
 *     }
 *
 * struct epf_dev is one producer's access to one ring, kept in registers. Three forms of each call:
 *  - epf_dev_*: one thread that opened d by epf_dev_open().
 *  - epf_warp_*: all lanes of one warp, converged, with the d that epf_warp_open() gave each of them. Every lane brings its own
 *    command and says by `active` whether it has one; the commands are stored side by side, in lane order.
 *  - epf_block_*: all threads of a block; a block barrier, then thread 0 acts with its d, then a barrier. All get the result.
 *
 * Order and visibility. A command is one relaxed 16-byte store of system scope: fast, and it orders NOTHING before it. What a put is to
 * send must be made visible first, by epf_dev_fence() in the thread that wrote it (epf_warp_fence(), epf_block_fence(): for what the
 * whole warp or block wrote). One fence covers everything before it, so pay it once for a batch of commands. Data that was
 * written before the kernel began needs no fence. Commands of one ring are dequeued in the order of their pushes; what that
 * means for data and signals at the peer is the contract at the top of epf.h.
 *
 * Results: 0, or a negative enum epf_gpu_code. The first failure of any thread is also recorded, and epf_gpu_check() makes a sentence of it. No wait
 * is endless: each ends at the context's deadline (gpu-timeout), or soon after epf_abort() on the host. Nobody waits for a private ring.
 */
#ifndef EPF_KERNELS_DEVICE_CUH
#define EPF_KERNELS_DEVICE_CUH

#include "kernels/epf_device_cmd.cuh"
#include "kernels/epf_device_done.cuh"
#include "kernels/epf_device_group.cuh"
#include "kernels/epf_device_ring.cuh"
#include "kernels/epf_device_wait.cuh"

#endif
