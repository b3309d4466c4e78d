/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by name (counter.h), from the same table as the statistics file. Called for epf_counter() in the library and
 * for a client's COUNTER in the daemon; must not be called from a hot file.
 */
#include "fabric/engine/counter.h"
#include "fabric/engine/grow.h"

#include "fabric/engine/engine.h"
#include "queues/epf_stats.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define COUNTER_CORE(id, name) { name, EPF_STAT_CORE_##id },
#define COUNTER_RING(id, name)
#define COUNTER_LANE(id, name)
#define COUNTER_PEER(id, name)
#define COUNTER_NIC(id, name)
#define COUNTER_JOB(id, name)
#define COUNTER_RANK(id, name)
#define COUNTER_FLIGHT(id, name)
#define COUNTER_CALL(id, name)
#define COUNTER_WAIT(id, name)
#define COUNTER_ENDPOINT(id, name)
#define COUNTER_CONN(id, name)

static const struct {
	const char *name;
	uint32_t stat;
} core_counters[] = {

#define EPF_ROW(cls, id, name, unit, type, states, help) COUNTER_##cls(id, name)
#include "queues/stats_keys.h"
};

/* Counters of the NIC: its own thread copies them, so that the numbers are whole. */
#define NIC_COUNTER(field)                                \
 {                                                        \
  "nic_" #field, offsetof(struct epf_nic_counters, field) \
 }

static const struct {
	const char *name;
	size_t offset;
} nic_counters[] = {
	NIC_COUNTER(bytes_tx),          NIC_COUNTER(bytes_rx),
	NIC_COUNTER(messages_tx),       NIC_COUNTER(messages_rx),
	NIC_COUNTER(packets_dropped),   NIC_COUNTER(packets_duplicated),
	NIC_COUNTER(packets_reordered), NIC_COUNTER(retransmits),
	NIC_COUNTER(rnr_events),        NIC_COUNTER(errors),
	NIC_COUNTER(doorbells),         NIC_COUNTER(strangers),
};

/* Names of earlier releases, accepted until the next one. */
static const struct {
	const char *old, *name;
} renamed[] = {
	{ "cmds_taken", "cmds_dequeued" },
	{ "cmds_parked", "cmds_deferred" },
	{ "take_tsc", "dequeue_tsc" },
};

static int read_nic(struct epf_core *core, void *arg)
{
	core->ops->counters(core->nic, arg);
	return 0;
}

static int read_bytes(struct epf_core *core, void *arg)
{
	uint64_t bytes = core->peer_memory_bytes - core->grow_most + epf_grow_bytes(core);

	*(uint64_t *)arg = core->world ? bytes / core->world : 0;
	return 0;
}

uint64_t epf_counter_bytes_per_peer(struct epf_core *core)
{
	uint64_t bytes = 0;

	epf_core_call(core, read_bytes, &bytes);
	return bytes;
}

int epf_counter_read(struct epf_core *core, const char *name, uint64_t *value)
{
	struct epf_nic_counters c;

	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (strcmp(renamed[i].old, name) == 0)
			name = renamed[i].name;
	for (size_t i = 0; i < sizeof(core_counters) / sizeof(core_counters[0]); i++)
		if (strcmp(core_counters[i].name, name) == 0) {
			*value = epf_stat_get(core->stats, core_counters[i].stat);
			return 0;
		}
	for (size_t i = 0; i < sizeof(nic_counters) / sizeof(nic_counters[0]); i++)
		if (strcmp(nic_counters[i].name, name) == 0) {
			epf_core_call(core, read_nic, &c);
			memcpy(value, (uint8_t *)&c + nic_counters[i].offset, sizeof(*value));
			return 0;
		}
	if (strcmp(name, "bytes_per_peer") == 0) {
		*value = epf_counter_bytes_per_peer(core);
		return 0;
	}
	return -ENOENT;
}
