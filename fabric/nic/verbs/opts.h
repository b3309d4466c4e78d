/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the verbs NIC, and a way to open one from them without the configuration table and over a given library: for
 * tests. The engine opens NICs by epf_nic_verbs_ops.open(conf, ...), which fills the same structure. It must never grow a
 * setting without a row there.
 */
#ifndef EPF_FABRIC_NIC_VERBS_OPTS_H
#define EPF_FABRIC_NIC_VERBS_OPTS_H

#include "fabric/base/conf.h"

#include <stdint.h>

struct epf_nic;
struct epf_verbs_lib;

struct epf_verbs_opts {
	struct epf_conf_list
		devices;        /* place/place.h has the syntax; borrowed until the NIC is open */
	uint32_t count;         /* of devices that one job uses; 0: by rule (rails.c) */
	int64_t local;          /* the rank's number on its node; -1: all ranks of the node */
	int may_be_down;        /* open a port that is not active: one of several */
	int port;               /* 1 to 255; -1: the first one that is active */
	int gid_index;          /* -1: by rule */
	uint32_t service_level; /* 0 to 15 */
	uint32_t traffic_class; /* 0 to 255 */
	uint32_t mtu;           /* bytes: 256 to 4,096, a power of two; 0: the port's */
	uint32_t timeout;       /* wait for an acknowledgement: 4.096 us * 2^timeout, 1 to 31 */
	uint32_t retries;       /* 0 to 7 */
	uint32_t rnr_retries;   /* 0 to 7; 7: without end */
	uint32_t rnr_timer;     /* IB code, 0 to 31: what a receiver without receives asks for */
	uint32_t inline_bytes;  /* asked of the device; it may give less */
	uint32_t
		signal_interval; /* every so many work requests of a lane one completion is asked */
	uint32_t completions;    /* work requests outstanding on the NIC */
	uint32_t lane_receives;  /* of one lane, where the device has no shared receive queue */
	uint32_t receives;       /* receives posted on the NIC */
	int ordered;             /* 0: say of itself that it has no order */
	int lists;               /* 1: ibv_post_send lists even where ibv_wr_* is there */
	int relaxed_ordering;    /* ask for it */
};

/* As the configuration's defaults. */
void epf_verbs_opts_defaults(struct epf_verbs_opts *opts);
void epf_verbs_opts_from_conf(struct epf_verbs_opts *opts, const struct epf_conf *conf);

/**
 * epf_verbs_open() - open a device as a NIC.
 * @lib: epf_verbs_lib(), or a table of a test.
 * @now: as in epf_nic_ops.open.
 *
 * Return: 0 and *out, to be closed by out->ops->close(); or minus errno with epf_last_error() set.
 */
int epf_verbs_open(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
		   uint64_t (*now)(void *), void *now_arg, struct epf_nic **out);

/* epf_verbs_open_chosen() - the same for the devices that placement and @opts choose: several of them as one NIC. */
int epf_verbs_open_chosen(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
			  uint64_t (*now)(void *), void *now_arg, struct epf_nic **out);

#endif
