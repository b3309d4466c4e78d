/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engine cores in one thread: see core_rig.h.
 */
#include "tests/unit/engine/core_rig.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RING_LOG2 = 8, QUIET_STEPS = 200 };

static void set(struct epf_conf *conf, const char *setting)
{
	char name[64];
	const char *eq = strchr(setting, '=');

	memcpy(name, setting, (size_t)(eq - setting));
	name[eq - setting] = 0;
	assert_int_equal(epf_conf_set(conf, name, eq + 1, EPF_CONF_PROGRAM), 0);
}

void core_rig_memory(struct core_rank *r)
{
	r->signals = aligned_alloc(128, CORE_SIGNALS * sizeof(*r->signals));
	r->memory = aligned_alloc(4096, CORE_BYTES);
	r->shm = aligned_alloc(128, epf_ring_bytes(RING_LOG2));
	assert_true(r->signals && r->memory && r->shm);
	memset(r->signals, 0, CORE_SIGNALS * sizeof(*r->signals));
	memset(r->memory, 0x40 + (int)r->rank, CORE_BYTES);
}

void core_rig_forget(struct core_rank *r)
{
	free(r->signals);
	free(r->memory);
	free(r->shm);
	r->signals = NULL;
	r->memory = NULL;
	r->shm = NULL;
}

void core_rig_ring(struct core_rank *r)
{
	memset(r->shm, 0, epf_ring_bytes(RING_LOG2));
	epf_ring_format(r->shm, RING_LOG2, 0, r->rank);
	assert_int_equal(epf_core_add_ring(r->core, r->local, r->shm, RING_LOG2, 1, 0, &r->ring_id),
			 0);
	epf_ring_producer_init(&r->ring, r->shm, 0);
}

/* Keys of emulated NICs are numbers in order of registration: a device starts with regions nobody uses, another number of them each. */
static void open_devices(struct core_rig *rig, uint32_t n)
{
	static uint64_t unused;
	struct epf_nic_mr mr;

	for (unsigned i = 0; i < rig->devices; i++) {
		struct epf_nic **nic = &rig->device[n][i];

		assert_int_equal(epf_nic_find("emu")->open(&rig->conf, epf_limits_now, NULL, nic),
				 0);
		for (unsigned k = 0; k < 100 * i; k++)
			assert_int_equal((*nic)->ops->region_register(*nic, &unused, 8, 0, &mr), 0);
	}
	rig->nic[n] = rig->device[n][0];
	if (rig->devices > 1)
		assert_int_equal(epf_nic_rails_open(rig->device[n], rig->devices, &rig->nic[n]), 0);
}

static void open_node(struct core_rig *rig, uint32_t n,
		      int (*open_nic)(const struct epf_conf *, uint32_t, struct epf_nic **))
{
	struct epf_core_config cfg = { .max_ranks = CORE_PER_NODE, .now = epf_limits_now };
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "rig", .tsc_hz = epf_tsc_hz() };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	char why[256];
	uint32_t region;

	o.blocks[EPF_STATS_CORE] = 1;
	assert_int_equal(epf_stats_create(&o, &rig->stats[n], why, sizeof(why)), 0);
	assert_int_equal(epf_stats_add_block(rig->stats[n], EPF_STATS_CORE, labels, 2, &cfg.stats),
			 0);
	if (open_nic)
		assert_int_equal(open_nic(&rig->conf, n, &rig->nic[n]), 0);
	else
		open_devices(rig, n);
	epf_limits_from_conf(&rig->conf, &cfg.limits);
	cfg.nic = rig->nic[n];
	assert_int_equal(epf_core_create(&cfg, &rig->core[n]), 0);
	for (uint32_t i = 0; i < CORE_PER_NODE; i++) {
		struct core_rank *r = &rig->rank[n * CORE_PER_NODE + i];

		r->rank = n * CORE_PER_NODE + i;
		r->core = rig->core[n];
		core_rig_memory(r);
		assert_int_equal(epf_core_add_rank(r->core, r->rank, r->signals, CORE_SIGNALS, 8,
						   &r->wakeup, &r->local),
				 0);
		assert_int_equal(epf_core_add_region(r->core, r->local, r->memory, CORE_BYTES,
						     EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						     &region),
				 0);
		core_rig_ring(r);
	}
}

static void connect_nodes(struct core_rig *rig)
{
	static const uint32_t node_of[CORE_WORLD] = { 0, 0, 1, 1 };
	uint64_t tokens[CORE_NODES][CORE_NODES * EPF_MAX_LANES_PER_NODE];
	struct epf_blob blobs[CORE_WORLD];
	uint8_t *bytes[CORE_WORLD];

	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(epf_core_set_world(rig->core[n], CORE_WORLD, CORE_NODES, n, NULL,
						    tokens[n]),
				 0);
	for (uint32_t i = 0; i < CORE_WORLD; i++) {
		const struct core_rank *r = &rig->rank[i];
		uint32_t n = node_of[i];

		assert_int_equal(epf_world_describe(r->core, r->local, n ? "east" : "west",
						    r->local == 0 ? tokens[n] : NULL, &bytes[i],
						    &blobs[i].len),
				 0);
		blobs[i].data = bytes[i];
	}
	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(epf_world_connect(rig->core[n], blobs, node_of), 0);
	for (uint32_t i = 0; i < CORE_WORLD; i++)
		free(bytes[i]);
}

struct core_rig *core_rig_open(const char *const *settings)
{
	return core_rig_open_devices(settings, 1);
}

static struct core_rig *open_rig(const char *const *settings, unsigned devices,
				 int (*open_nic)(const struct epf_conf *, uint32_t,
						 struct epf_nic **))
{
	struct core_rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	rig->devices = devices;
	assert_int_equal(epf_conf_init(&rig->conf), 0);
	for (; settings && *settings; settings++)
		set(&rig->conf, *settings);
	for (uint32_t n = 0; n < CORE_NODES; n++)
		open_node(rig, n, open_nic);
	connect_nodes(rig);
	return rig;
}

struct core_rig *core_rig_open_devices(const char *const *settings, unsigned devices)
{
	return open_rig(settings, devices, NULL);
}

struct core_rig *core_rig_open_over(const char *const *settings,
				    int (*open_nic)(const struct epf_conf *, uint32_t,
						    struct epf_nic **))
{
	return open_rig(settings, 1, open_nic);
}

void core_rig_close(struct core_rig *rig)
{
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		epf_core_destroy(rig->core[n]);
		if (rig->nic[n])
			rig->nic[n]->ops->close(rig->nic[n]);
		epf_stats_destroy(rig->stats[n], 0);
	}
	for (uint32_t i = 0; i < CORE_WORLD; i++)
		core_rig_forget(&rig->rank[i]);
	epf_conf_destroy(&rig->conf);
	free(rig);
}

unsigned core_rig_step(struct core_rig *rig, uint32_t node)
{
	struct epf_core *core = rig->core[node];
	unsigned handled = epf_core_step(core);

	if (core->ops->wake_pending(core->nic))
		core->ops->wake_peers(core->nic);
	return handled;
}

bool core_rig_run(struct core_rig *rig, bool (*done)(void *arg), void *arg)
{
	uint64_t deadline = epf_now_ns() + CORE_RIG_LONGEST_NS;
	unsigned quiet = 0;

	while (done ? !done(arg) : quiet < QUIET_STEPS) {
		unsigned handled = 0;

		for (uint32_t n = 0; n < CORE_NODES; n++)
			handled += core_rig_step(rig, n);
		quiet = handled ? 0 : quiet + 1;
		if (epf_now_ns() > deadline)
			return false;
	}
	return true;
}

void core_rig_put(struct core_rank *r, uint32_t to, uint32_t bytes, uint32_t signal)
{
	struct epf_op op = { .op = EPF_OP_PUT_SIGNAL,
			     .rank = to,
			     .length = bytes,
			     .signal = signal,
			     .add = 1,
			     .flags = EPF_F_FENCE };

	assert_true(epf_ring_room(&r->ring, 2) >= 2);
	epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
}
