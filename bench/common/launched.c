/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank's side of launched.h: the launcher's variables, the rendezvous, the names of the nodes.
 */
#include "bench/common/launched.h"

#include "bench/common/bench.h"
#include "bench/common/world.h"
#include "bootstrap/boot.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t my_rank;

static void complain_as_rank(const char *line)
{
	fprintf(stderr, "ep-bench: rank %u: %s\n", my_rank, line);
}

static bool same_node(const struct epf_blob *a, const struct epf_blob *b)
{
	return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static uint32_t count_nodes(const struct epf_blob *name, uint32_t ranks)
{
	uint32_t nodes = 0;

	for (uint32_t i = 0; i < ranks; i++) {
		uint32_t j = 0;

		while (j < i && !same_node(&name[i], &name[j]))
			j++;
		nodes += j == i;
	}
	return nodes;
}

/* Two ranks share a node exactly where the blocks of bench_nodes() say so. */
static int check_blocks(const struct epf_blob *name, uint32_t ranks, uint32_t nodes)
{
	uint32_t *node_of = calloc(ranks, sizeof(*node_of));
	int err = 0;

	if (!node_of)
		return -ENOMEM;
	bench_nodes(ranks, nodes, node_of);
	for (uint32_t i = 1; i < ranks && !err; i++) {
		if (same_node(&name[i - 1], &name[i]) == (node_of[i - 1] == node_of[i]))
			continue;
		bench_complain(
			"%u ranks are on %u nodes, rank %u on %.*s: must be in blocks, as even as can be, the larger ones first",
			ranks, nodes, i, (int)name[i].len, (const char *)name[i].data);
		err = -EINVAL;
	}
	free(node_of);
	return err;
}

/* The name that the fabric uses, unless the setting node says another. */
static void node_name(char name[HOST_NAME_MAX + 1])
{
	const char *given = getenv("EPF_NODE");

	if (given && *given)
		snprintf(name, HOST_NAME_MAX + 1, "%s", given);
	else if (gethostname(name, HOST_NAME_MAX + 1))
		name[0] = 0;
	name[HOST_NAME_MAX] = 0;
}

static int find_nodes(struct bench_launched *l)
{
	char name[HOST_NAME_MAX + 1];
	struct epf_blob *all = NULL;
	int err;

	node_name(name);
	err = epf_boot_allgather(l->boot, name, strlen(name), &all);
	if (err) {
		bench_complain("%s", epf_last_error());
		return err;
	}
	l->nodes = count_nodes(all, l->ranks);
	err = check_blocks(all, l->ranks, l->nodes);
	epf_boot_free_blobs(all);
	return err;
}

int bench_launched_meet(uint64_t timeout_ns, struct bench_launched *out)
{
	struct epf_rank_info info;
	struct epf_boot_opts o = { .size = sizeof(o), .timeout_ns = timeout_ns };
	struct bench_launched l = { 0 };
	int err = epf_rank_discover(&info);

	if (!err) {
		my_rank = info.rank;
		bench_complain_to(complain_as_rank);
		l.rank = o.rank = info.rank;
		l.ranks = o.world = info.world;
		o.rendezvous = info.rendezvous;
		o.job = info.job;
		o.ifname = getenv("EPF_SOCKET_IFNAME");
		o.is_root = !info.rank && !getenv("EPF_BOOTSTRAP_SERVER");
		err = epf_boot_tcp_open(&o, &l.boot);
	}
	if (err) {
		bench_complain("%s", epf_last_error());
		return err;
	}
	err = find_nodes(&l);
	if (err)
		epf_boot_close(l.boot);
	else
		*out = l;
	return err;
}

int bench_launched_gather(struct epf_boot *boot, const void *mine, size_t bytes,
			  void (*each)(void *arg, const void *bytes), void *arg)
{
	struct epf_blob *all = NULL;
	int err = epf_boot_allgather(boot, mine, bytes, &all);

	if (err) {
		bench_complain("%s", epf_last_error());
		return err;
	}
	for (uint32_t i = 0; i < epf_boot_world(boot) && !err; i++) {
		if (all[i].len == bytes) {
			each(arg, all[i].data);
			continue;
		}
		bench_complain("rank %u is of another release: it gives %zu bytes, not %zu", i,
			       all[i].len, bytes);
		err = -EPROTO;
	}
	epf_boot_free_blobs(all);
	return err;
}
