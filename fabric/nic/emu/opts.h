/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the emulated NIC, and a way to open one from them without the configuration table.
 * Tests and simulations use it; the engine opens NICs by epf_nic_emu_ops.open(conf, ...), which fills
 * the same structure from the configuration. It must never grow a setting without a row there.
 */
#ifndef EPF_FABRIC_NIC_EMU_OPTS_H
#define EPF_FABRIC_NIC_EMU_OPTS_H

#include <stdint.h>

struct epf_conf;
struct epf_nic;

struct epf_emu_opts {
	int ordered;               /* 1: like reliable connections; 0: unordered like SRD */
	uint32_t mtu;              /* payload bytes a packet: a multiple of 64, 256 to 65,536 */
	uint32_t packets;          /* in the NIC's pool: 16 to 1,048,576 */
	uint32_t lanes;            /* most lanes: 1 to 4,096 */
	uint32_t links;            /* 1 to 8: lane L travels on link L % links */
	uint32_t lane_depth;       /* most work requests outstanding on a lane */
	uint32_t receives;         /* most receives posted */
	uint64_t seed;             /* of all fault decisions */
	uint64_t delay_ns;         /* each message (unordered: packet) waits 0 to this long */
	uint64_t retransmit_ns;    /* a dropped packet comes again after this time */
	uint64_t retry_timeout_ns; /* without an answer for this long: EPF_S_RETRY_EXCEEDED */
	uint64_t
		stall_timeout_ns; /* the same while the peer's process is not run at all; below retry_timeout_ns: that */
	uint64_t
		link_timeout_ns; /* the same on a link that is cut at this end; 0: retry_timeout_ns */
	uint64_t rnr_timeout_ns; /* without a receive for this long: EPF_S_RNR_EXCEEDED */
	double reorder;          /* probability of an extra delay (unordered only) */
	double duplicate;        /* probability of a second arrival (unordered only) */
	double drop;             /* probability of a drop with retransmission */
	double error;            /* probability that a message completes with an error */
	const char *
		gpu; /* whose memory GPU regions are: auto, cuda, hip, fake, none (static string) */
	int gpu_kernel; /* 1: copies by a kernel of bounded length, 0: by copy engines */
};

/* Ordered, 4 KiB MTU, 1,024 packets, 4,096 lanes on one link, no faults. */
void epf_emu_opts_defaults(struct epf_emu_opts *opts);

/* The same from a loaded configuration. */
void epf_emu_opts_from_conf(struct epf_emu_opts *opts, const struct epf_conf *conf);

/**
 * epf_emu_open() - open an emulated NIC.
 * @now: the core's clock in nanoseconds, a virtual one in simulations; called with @now_arg.
 *
 * Return: 0 and *out; -EINVAL for a setting out of its range, -ENOMEM, or -errno of the system call that
 * failed (epf_last_error() says which). Close it by out->ops->close().
 */
int epf_emu_open(const struct epf_emu_opts *opts, uint64_t (*now)(void *), void *now_arg,
		 struct epf_nic **out);

#ifdef EPF_TEST_HOOKS
/* Test hook: lane_fence no longer stops late packets at the target. */
extern int epf_hook_no_fence;
/* Test hook: peers are found dead by /proc alone, as where pidfd_open(2) is not permitted. */
extern int epf_hook_no_pidfd;
#endif

#endif
