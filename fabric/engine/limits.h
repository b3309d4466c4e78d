/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine core is allowed, from the configuration; and the clock that cores of real time run by. Called where a core is made:
 * client/embedded.c in the library, and the service daemon. Slow path; the caller's identity is deliberately not passed.
 */
#ifndef EPF_FABRIC_ENGINE_LIMITS_H
#define EPF_FABRIC_ENGINE_LIMITS_H

#include <stdint.h>

struct epf_conf;
struct epf_core_limits;

/* epf_limits_from_conf() - fill every field of @limits that a setting decides; the others are not touched. */
void epf_limits_from_conf(const struct epf_conf *conf, struct epf_core_limits *limits);

/* epf_limits_nic() - name of the NIC that the setting "nic" chooses, for epf_nic_find(). A static text. */
const char *epf_limits_nic(const struct epf_conf *conf);

/* epf_limits_now() - the monotonic clock in ns from the time-stamp counter: no system call. @arg is not used. */
uint64_t epf_limits_now(void *arg);

#endif
