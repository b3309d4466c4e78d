/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of the EFA NIC, and a way to open one from them without the configuration table and over a given library: for
 * tests. The engine opens NICs by epf_nic_efa_ops.open(conf, ...), which fills the same structure. It must never grow a
 * setting without a row there.
 */
#ifndef EPF_FABRIC_NIC_EFA_OPTS_H
#define EPF_FABRIC_NIC_EFA_OPTS_H

#include "fabric/base/conf.h"

#include <stdint.h>

struct epf_nic;
struct epf_efa_lib;

struct epf_efa_opts {
	struct epf_conf_list
		devices;        /* place/place.h has the syntax; borrowed until the NIC is open */
	uint32_t count;         /* devices: so many as one NIC; 0: all that are named, or one */
	int64_t local;          /* the rank's number on its node; -1: one NIC for the node */
	int may_be_down;        /* the port need not be active */
	uint32_t service_level; /* 0 to 15; 0: the device's own */
	uint32_t rnr_retries;   /* 0 to 7; 7: without end */
	uint32_t inline_bytes;  /* asked of the device: up to 32 for messages; more: writes too */
	uint32_t completions;   /* work requests outstanding on the NIC */
	uint32_t receives;      /* receives posted on the NIC, over all lanes */
	uint32_t lane_receives; /* receives that a lane's queue pair holds */
	uint64_t flush_wait_ns; /* a failed lane's completions are waited for so long */
	int unsolicited;        /* 0: writes with immediate consume receives on every device */
};

/* As the configuration's defaults. */
void epf_efa_opts_defaults(struct epf_efa_opts *opts);
void epf_efa_opts_from_conf(struct epf_efa_opts *opts, const struct epf_conf *conf);

/**
 * epf_efa_open() - open a device as a NIC.
 * @lib: epf_efa_lib(), or a table of a test.
 * @now: as in epf_nic_ops.open.
 *
 * Return: 0 and *out, to be closed by out->ops->close(); or minus errno with epf_last_error() set.
 */
int epf_efa_open(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
		 uint64_t (*now)(void *), void *now_arg, struct epf_nic **out);

/**
 * epf_efa_open_chosen() - open the adapters that placement and the settings choose, several as one NIC.
 *
 * Return: as epf_efa_open().
 */
int epf_efa_open_chosen(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
			uint64_t (*now)(void *), void *now_arg, struct epf_nic **out);

/* Two NICs wake the same sleeper: nic by the wakeup of another, which must be closed after it. Before either is armed. */
void epf_efa_share_wakeup(struct epf_nic *nic, const struct epf_nic *with);

#endif
