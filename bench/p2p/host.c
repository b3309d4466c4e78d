/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p between two hosts, server and client as perftest's: this process is one of the two ranks, the other is on the host
 * that was named, or that will call. The client says what is tested; devices, NIC and other settings are each end's own.
 */
#include "bench/common/bench.h"
#include "bench/common/meet.h"
#include "bench/p2p/p2p.h"
#include "bootstrap/boot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_MAGIC UINT64_C(0x3170327032703270)

/* What the server takes from the client; both are of one release, or the magic differs. */
struct plan {
	uint64_t magic;
	uint64_t op, test, size, iterations, duration_s;
	uint64_t all, both, size_given;
	uint64_t against, list, depth, lists, rounds, slices;
	uint64_t gpu, gpu_signals, warps;
};

static int take_plan(struct p2p_opts *o, const struct plan *p)
{
	if (p->magic != PLAN_MAGIC || p->op > P2P_GET || p->test > P2P_BW || p->size < 1 ||
	    p->size > P2P_SIZE_MAX || p->slices < 1 || p->slices > 99 || p->list < 1 ||
	    p->list > 64 || p->depth > 8192 || (p->against && p->size > P2P_AGAINST_MAX)) {
		bench_complain("the client is of another release, or no ep-bench p2p");
		return -EPROTO;
	}
	/* Each end's --gpu names a GPU of that end, so both ends need the option. */
	if (!p->gpu != !o->gpu || p->warps > 1u << 16) {
		bench_complain("--gpu is given at one end and not at the other");
		return -EPROTO;
	}
	o->gpu_signals = p->gpu_signals != 0;
	o->warps = p->warps;
	o->op = (enum p2p_op)p->op;
	o->test = (enum p2p_test)p->test;
	o->size = p->size;
	o->iterations = p->iterations;
	o->duration_s = p->duration_s;
	o->all = p->all != 0;
	o->both = p->both != 0;
	o->size_given = p->size_given != 0;
	o->against = p->against != 0;
	o->raw.list = p->list;
	o->raw.depth = p->depth;
	o->raw.lists = p->lists != 0;
	o->rounds = p->rounds;
	o->slices = p->slices;
	return 0;
}

/* Both have met by now, so both know how. */
static int find_way(struct p2p_opts *o, struct epf_boot *boot)
{
	char host[EPF_BOOT_ADDRESS_MAX];
	bool is_secret;
	int n, rc = epf_boot_route(boot, host, &is_secret);

	if (rc || !host[0])
		return rc;
	n = snprintf(o->way, sizeof(o->way), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
		     (unsigned)o->tcp_port);
	return n < 0 || (size_t)n >= sizeof(o->way) ? -ENAMETOOLONG : 0;
}

static int agree(struct p2p_opts *o, struct epf_boot *boot)
{
	struct plan mine = { .magic = PLAN_MAGIC,
			     .op = o->op,
			     .test = o->test,
			     .size = o->size,
			     .iterations = o->iterations,
			     .duration_s = o->duration_s,
			     .all = o->all,
			     .both = o->both,
			     .size_given = o->size_given,
			     .against = o->against,
			     .list = o->raw.list,
			     .depth = o->raw.depth,
			     .lists = o->raw.lists,
			     .rounds = o->rounds,
			     .slices = o->slices,
			     .gpu = o->gpu,
			     .gpu_signals = o->gpu_signals,
			     .warps = o->warps };
	struct plan theirs;
	int rc = bench_meet_swap(boot, &mine, &theirs, sizeof(mine));

	if (!rc && !o->host)
		rc = take_plan(o, &theirs);
	if (!rc)
		rc = find_way(o, boot);
	return rc ? rc : p2p_settings(o);
}

struct rows {
	const struct p2p_opts *o;
	struct p2p_against *against;
};

static void on_row(void *arg, const void *row, size_t bytes)
{
	struct rows *rows = arg;

	if (rows->against && bytes == sizeof(struct p2p_pair))
		p2p_against_add(rows->against, row);
	else if (!rows->against && bytes == sizeof(struct p2p_row) && rows->o->host)
		p2p_print_row(rows->o, row);
}

/* Of both ends. */
static int sum_wrong(struct epf_boot *boot, uint64_t mine, uint64_t *sum)
{
	uint64_t theirs;
	int rc = bench_meet_swap(boot, &mine, &theirs, sizeof(mine));

	if (!rc)
		*sum = mine + theirs;
	return rc;
}

static int run(struct p2p_opts *o, struct epf_boot *boot)
{
	struct rows rows = { .o = o };
	struct p2p_rank r = { .o = o,
			      .rank = o->host ? BENCH_MEET_CLIENT : BENCH_MEET_SERVER,
			      .row = on_row,
			      .row_arg = &rows };
	uint64_t wrong = 0;
	int below = 0, rc = agree(o, boot);

	if (rc)
		return rc;
	if (o->host && o->against)
		rows.against = p2p_against_new(o);
	else if (o->host)
		p2p_print_head(o);
	if (o->host && o->against && !rows.against)
		return -ENOMEM;
	rc = p2p_run(&r, boot);
	if (!rc)
		rc = sum_wrong(boot, r.wrong, &wrong);
	if (!rc && rows.against)
		below = p2p_against_print(rows.against, wrong);
	else if (!rc)
		printf("# wrong: %" PRIu64 "\n", wrong);
	free(rows.against);
	if (rc)
		return rc;
	return wrong || below ? -EIO : 0;
}

int bench_p2p_host(struct p2p_opts *o)
{
	struct epf_boot *boot = NULL;
	char gpu[P2P_GPU_NAME];
	int rc;

	if (o->server)
		printf("# waiting for a client at port %" PRIu64 "\n", o->tcp_port);
	fflush(stdout);
	if (o->gpu && (rc = p2p_gpu_probe(o, gpu)))
		return rc;
	rc = bench_meet(o->host, o->tcp_port, o->timeout_s * 1000000000ull, &boot);
	if (!rc)
		rc = run(o, boot);
	epf_boot_close(boot);
	return rc ? BENCH_WRONG : BENCH_OK;
}
