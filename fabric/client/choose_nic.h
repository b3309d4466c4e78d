/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NIC a rank opens where the setting nic says auto. Called once by lib.c, before the engine is opened; slow path.
 */
#ifndef EPF_FABRIC_CLIENT_CHOOSE_NIC_H
#define EPF_FABRIC_CLIENT_CHOOSE_NIC_H

#include "fabric/base/conf.h"
#include "fabric/place/place.h"

/*
 * Whether a job is on several hosts, by what is known before its ranks have met. rendezvous: "host:port", or "". local_world: ranks of this host,
 * 0: not known. Where nothing tells, one host if the rendezvous is on loopback or there is none.
 */
int epf_spans_hosts(const char *rendezvous, uint32_t world, uint32_t local_world);

/* The same of the job that this process is a rank of, by its configuration and its launcher's variables. */
int epf_job_spans_hosts(const struct epf_conf *conf);

/* Replaces auto in conf; anything else stays. 0, or -errno with epf_last_error() set. */
int epf_choose_nic(struct epf_conf *conf);

#endif
