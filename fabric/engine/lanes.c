/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets up several lanes at a time (lanes.h). Each thread touches one lane. A NIC that does not guard the rest itself
 * does not declare parallel_setup and gets one thread.
 */
#include "fabric/engine/lanes.h"
#include "fabric/engine/data_path.h"

#include "fabric/base/err.h"
#include "fabric/base/parallel.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/recovery.h"

#include <errno.h>
#include <stdlib.h>

/* Fewer lanes than this are not worth a thread. */
enum { TURNS_PER_THREAD = 4 };

struct connect {
	struct epf_node *node;
	struct epf_lane *lane;
	uint64_t token;
	int rc;
};

struct epf_lanes_batch {
	struct epf_core *core;
	uint32_t n;
	struct connect list[]; /* n_lanes */
};

static unsigned threads_for(const struct epf_core *core, uint32_t n)
{
	unsigned most = n / TURNS_PER_THREAD;

	if (!core->caps.parallel_setup || most <= 1)
		return 1;
	return most < core->limits.connect_threads ? most : core->limits.connect_threads;
}

struct creating {
	struct epf_core *core;
	uint64_t *tokens;
};

static int create_one(void *arg, uint32_t i)
{
	struct creating *c = arg;

	return c->core->ops->lane_create(c->core->nic, (uint16_t)i, c->core->limits.lane_depth,
					 &c->tokens[i]);
}

int epf_lanes_create(struct epf_core *core, uint64_t *tokens)
{
	struct creating c = { core, tokens };
	int rc =
		epf_parallel(threads_for(core, core->n_lanes), core->n_lanes, create_one, &c, NULL);

	/* Kept for reopen.c, which sends it again if the first connection fails. */
	for (uint32_t i = 0; i < core->n_lanes && !rc; i++)
		core->lanes[i].token = tokens[i];
	return rc;
}

/* Asks the NIC. A port that is down is no failure yet: the node may have lanes on others. */
static int ask_nic(struct epf_core *core, struct connect *c)
{
	c->rc = epf_core_connect_lane(core, c->node, c->lane, c->token);
	return c->rc == -ENETDOWN && c->node->n_lanes > 1 ? 0 : c->rc;
}

/* Handles the NIC's answer: a lane on a port that is down is opened later; a node without any other lane is unreachable. */
static int take_answer(struct epf_core *core, const struct connect *c)
{
	if (!c->rc)
		return 0;
	epf_reopen_later(core, c->node, c->lane, c->token);
	if (epf_other_lane(core, c->node))
		return 0;
	return epf_fail(EPF_R_LINK_LOST, "rank %u: all ports are down", c->node->rank);
}

int epf_lanes_connect(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      uint64_t token)
{
	struct connect c = { node, lane, token, 0 };

	if (!core->connecting) {
		int rc = ask_nic(core, &c);

		return rc ? rc : take_answer(core, &c);
	}
	core->connecting->list[core->connecting->n++] = c;
	return 0;
}

int epf_lanes_begin(struct epf_core *core)
{
	struct epf_lanes_batch *b = calloc(1, sizeof(*b) + core->n_lanes * sizeof(b->list[0]));

	if (!b)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u lanes", core->n_lanes);
	b->core = core;
	epf_lanes_forget(core);
	core->connecting = b;
	return 0;
}

static int connect_one(void *arg, uint32_t i)
{
	struct epf_lanes_batch *b = arg;

	return ask_nic(b->core, &b->list[i]);
}

int epf_lanes_end(struct epf_core *core, uint32_t *rank)
{
	struct epf_lanes_batch *b = core->connecting;
	uint32_t failed;
	int rc;

	if (!b)
		return 0;
	rc = epf_parallel(threads_for(core, b->n), b->n, connect_one, b, &failed);
	for (uint32_t i = 0; i < b->n && !rc; i++) {
		rc = take_answer(core, &b->list[i]);
		failed = i;
	}
	if (rc)
		*rank = b->list[failed].node->rank;
	epf_lanes_forget(core);
	return rc;
}

void epf_lanes_forget(struct epf_core *core)
{
	free(core->connecting);
	core->connecting = NULL;
}
