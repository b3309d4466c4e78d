/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of ep-bench jobs: options, what ranks and parent share in memory, what ranks report.
 */
#ifndef EPF_BENCH_JOBS_H
#define EPF_BENCH_JOBS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	JOBS_NODES = 2,
	JOBS_P99_ROUNDS = 1000,
	JOBS_ROUNDS_MAX = 10000,
	JOBS_RANKS_MAX = 16,
	JOBS_SETTINGS_MAX = 16
};

#define JOBS_ROW_BYTES  UINT64_C(14336) /* of decode: 7168 BF16 */
#define JOBS_PAUSE_US   UINT64_C(500)   /* of decode, after a round */
#define JOBS_BULK_BYTES (UINT64_C(1) << 20)

/* What runs beside the decode job. */
enum jobs_form { JOBS_ALONE, JOBS_FAIR, JOBS_UNFAIR, JOBS_FORMS };

struct jobs_opts {
	uint64_t decode_ranks;
	uint64_t bulk_ranks; /* of a bulk job */
	uint64_t bulk_jobs;
	uint64_t tokens;
	uint64_t rounds;
	uint64_t repeat;
	uint64_t timeout_s;
	bool json;
	const char *fabric_program;
	const char
		*setting[JOBS_SETTINGS_MAX + 2]; /* NULL-terminated; room for one of the parent's */
	uint32_t settings;
	char timeout_text[64]; /* storage of the setting made from timeout_s */
};

int jobs_opts_parse(int argc, char **argv, struct jobs_opts *o);

/* A page that all ranks of both jobs share, made by the parent. */
struct jobs_shared {
	atomic_uint bulk_ranks;  /* of this form; set by the parent */
	atomic_uint bulk_moving; /* bulk ranks that have moved their first lap */
	atomic_uint decode_done; /* decode ranks that have measured all rounds */
};

/* A rank's report; of a decode rank followed by its rounds' times. */
struct jobs_result {
	uint64_t wrong;
	uint64_t bytes;   /* put while it was measured */
	uint64_t ns;      /* how long that was */
	uint64_t samples; /* of uint32_t, ns of each round; 0 for a bulk rank */
};

#endif
