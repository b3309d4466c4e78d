/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of an engine core by name, as epf_counter() gives them. Called by client/embedded.c in the library and by the service
 * daemon for its clients. Slow path: NIC counters are read on the core's thread. The caller's identity is deliberately not passed.
 */
#ifndef EPF_FABRIC_ENGINE_COUNTER_H
#define EPF_FABRIC_ENGINE_COUNTER_H

#include <stdint.h>

struct epf_core;

/**
 * epf_counter_read() - one number of @core.
 * @name: of class core in queues/stats_keys.h ("cmds_dequeued"), of struct epf_nic_counters ("nic_retransmits"), or
 *        "bytes_per_peer".
 *
 * Return: 0; -ENOENT without a text: there is no such counter.
 */
int epf_counter_read(struct epf_core *core, const char *name, uint64_t *value);

#endif
