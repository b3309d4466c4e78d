/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p: latency and bandwidth of put, put_signal and get between two rank processes, with
 * the letters and the table of perftest where they mean the same. This file: parent and output.
 */
#include "bench/p2p/p2p.h"

#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/common/spawn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct parent {
	const struct p2p_opts *o;
	json_t *rows;
	uint64_t wrong;
	char gpu[P2P_GPU_NAME];    /* "": ordinary memory */
	struct p2p_row row[2][32]; /* --gpu: of both ranks */
	unsigned n[2];             /* of them */
};

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct parent *p = arg;
	struct p2p_row r;

	if (m->bytes != sizeof(r))
		return;
	memcpy(&r, bytes, sizeof(r));
	p->wrong += r.wrong;
	if (p->o->gpu && r.bytes && rank < 2 && p->n[rank] < 32)
		p->row[rank][p->n[rank]++] = r;
	if (rank != 0 || r.bytes == 0) /* the last one of each rank carries only `wrong` */
		return;
	if (p->o->json)
		json_array_append_new(p->rows, p2p_row_json(p->o, &r));
	else
		p2p_print_row(p->o, &r);
}

/* Of one size at one rank: where the engine's core was, ns a transfer. */
static void print_stages(json_t *row, uint32_t rank, const struct p2p_row *r)
{
	json_t *j = row ? json_object() : NULL;

	if (!row)
		printf("# engine of rank %u, ns a transfer:", rank);
	for (unsigned i = 0; i < P2P_STAGES; i++) {
		if (row)
			json_object_set_new(j, p2p_stage_name[i], json_real(r->stage_ns[i]));
		else
			printf(" %s %.1f", p2p_stage_name[i], r->stage_ns[i]);
	}
	if (row)
		json_object_set_new(row, rank ? "engine_1_ns" : "engine_0_ns", j);
	else
		printf("; stalls %.3f\n", r->stalls);
}

static void nic_stages(json_t *row, uint32_t rank, const struct p2p_row *r, double puts)
{
	if (row)
		json_object_set_new(row, rank ? "nic_1" : "nic_0", p2p_stages_json(r, puts));
	else
		p2p_stages_print(r, puts);
}

/* --gpu --test bw: next to each rate what bare copies reach, measured when the ranks have ended, and the cores' time. */
static void print_ceilings(struct parent *p)
{
	for (unsigned i = 0; i < p->n[0]; i++) {
		const struct p2p_row *r = &p->row[0][i];
		json_t *row = p->o->json ? json_array_get(p->rows, i) : NULL;
		double c = p2p_gpu_ceiling(p->o, r->bytes);

		if (c > 0 && row)
			json_object_set_new(row, "bare_copies_per_second", json_real(c));
		else if (c > 0)
			printf("# %" PRIu64
			       " bytes: %.3f million a second, bare copies by %s %.3f: %.2f of them\n",
			       r->bytes, r->rate_mpps, p->o->gpu_kernel ? "kernels" : "engines",
			       c / 1e6, r->rate_mpps * 1e6 / c);
		print_stages(row, 0, r);
		if (p->o->stages)
			nic_stages(row, 0, r, (double)r->iterations);
		if (i < p->n[1])
			print_stages(row, 1, &p->row[1][i]);
		if (i < p->n[1] && p->o->stages)
			nic_stages(row, 1, &p->row[1][i], (double)r->iterations);
	}
}

static void print_json(struct parent *p)
{
	const struct p2p_opts *o = p->o;
	json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:b, s:O, s:I}", "bench", "p2p", "op",
			      p2p_op_name[o->op], "test", p2p_test_name[o->test], "bidirectional",
			      (int)o->both, "same_node", (int)o->same_node, "sizes", p->rows,
			      "wrong", (json_int_t)p->wrong);

	if (o->gpu) {
		json_object_set_new(j, "gpu", json_string(p->gpu));
		json_object_set_new(j, "gpu_copy",
				    json_string(o->gpu_kernel ? "kernel" : "engine"));
	}
	bench_print_json(j);
}

int bench_p2p(int argc, char **argv)
{
	struct p2p_opts o;
	struct parent p = { .o = &o };
	struct bench_spawn s = { .ranks = 2,
				 .command = "p2p-rank",
				 .argc = argc,
				 .argv = argv,
				 .message = on_message,
				 .arg = &p };
	int err;

	if (p2p_opts_parse(argc, argv, &o))
		return BENCH_USAGE;
	if (o.host || o.server)
		return bench_p2p_host(&o);
	if (o.gpu && (err = p2p_gpu_probe(&o, p.gpu)))
		return err;
	if (o.service)
		return bench_p2p_service(&o, argc, argv);
	if (o.against)
		return bench_p2p_against(&o, argc, argv);
	s.timeout_ns = o.timeout_s * 1000000000ull;
	p.rows = json_array();
	if (!o.json)
		p2p_print_head(&o);
	err = bench_spawn_run(&s);
	if (!err && o.gpu && o.test == P2P_BW)
		print_ceilings(&p);
	if (!err && o.json) {
		print_json(&p);
	} else if (!err) {
		printf("---------------------------------------------------------------------------------------\n");
		printf("# wrong: %" PRIu64 "\n", p.wrong);
	}
	json_decref(p.rows);
	return err || p.wrong ? BENCH_WRONG : BENCH_OK;
}
