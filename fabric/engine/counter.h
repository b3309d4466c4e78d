/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads counters of an engine core by name, for epf_counter(). Called by client/embedded.c and by the service daemon. Slow path: NIC counters are read on the core's thread. The caller's identity is deliberately not passed.
 */
#ifndef EPF_FABRIC_ENGINE_COUNTER_H
#define EPF_FABRIC_ENGINE_COUNTER_H

#include <stdint.h>

struct epf_core;

/**
 * epf_counter_read() - reads one counter of @core.
 * @name: of class core in queues/stats_keys.h ("cmds_dequeued"), of struct epf_nic_counters ("nic_retransmits"), or
 *        "bytes_per_peer".
 *
 * Return: 0; -ENOENT, without an error text, for an unknown counter.
 */
int epf_counter_read(struct epf_core *core, const char *name, uint64_t *value);

/* Returns the engine's memory for peers as it is now, in bytes a rank of the job; 0 before the join. Any thread. */
uint64_t epf_counter_bytes_per_peer(struct epf_core *core);

#endif
