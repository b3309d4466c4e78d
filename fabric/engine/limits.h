/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of an engine core from the configuration, and the real-time clock. Called by client/embedded.c and the service daemon
 * when they create a core. Slow path; the caller's identity is deliberately not passed.
 */
#ifndef EPF_FABRIC_ENGINE_LIMITS_H
#define EPF_FABRIC_ENGINE_LIMITS_H

#include <stdint.h>

struct epf_conf;
struct epf_core_limits;

/* epf_limits_from_conf() - fills the fields of @limits that have a setting; leaves the others alone. */
void epf_limits_from_conf(const struct epf_conf *conf, struct epf_core_limits *limits);

/* epf_limits_nic() - returns the NIC that the setting "nic" chooses, for epf_nic_find(): a static string. */
const char *epf_limits_nic(const struct epf_conf *conf);

/* epf_limits_now() - returns the monotonic clock in ns, from the time-stamp counter: no system call. @arg is unused. */
uint64_t epf_limits_now(void *arg);

#endif
