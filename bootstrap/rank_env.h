/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank am I, of how many, and where do we meet: read from what the launcher has put into the
 * environment. The library calls it when the application names no rank; the tool prints it. The
 * search itself is a pure function over a look-up callback: it reads no environment, no file and no
 * clock, so tests need none. It never guesses a rank: what is missing is an error that names it.
 */
#ifndef EPF_BOOTSTRAP_RANK_ENV_H
#define EPF_BOOTSTRAP_RANK_ENV_H

#include "bootstrap/auth.h"
#include "bootstrap/boot.h"
#include "bootstrap/net.h"

#define EPF_RANK_UNKNOWN     UINT32_MAX
#define EPF_RANK_PORT_OFFSET 137u   /* added to MASTER_PORT; EPF_PORT_OFFSET sets another */
#define EPF_RANK_PORT_FIRST  20000u /* ports made from a job number: below the ephemeral ones, */
#define EPF_RANK_PORT_COUNT  12000u /* see ip_local_port_range in ip(7) */

/* The fields that are looked for. F(NAME, "name for people and JSON") */
/* clang-format off */
#define EPF_RANK_FIELDS(F)        \
 F(RANK,        "rank")           \
 F(WORLD,       "world")          \
 F(LOCAL_RANK,  "local_rank")     \
 F(LOCAL_WORLD, "local_world")    \
 F(NODE_ID,     "node_id")        \
 F(HOST,        "host")           \
 F(PORT,        "port")           \
 F(JOB,         "job")            \
 F(NODE,        "node")

/* clang-format on */

enum epf_rank_field {

#define F(name, text) EPF_RANK_F_##name,
	EPF_RANK_FIELDS(F)
#undef F
		EPF_RANK_F_COUNT
};

/* What was found. Numbers that were not found are EPF_RANK_UNKNOWN, texts "". */
struct epf_rank_info {
	uint32_t rank;
	uint32_t world;
	uint32_t local_rank;
	uint32_t local_world;
	uint32_t node_id;
	uint16_t port;
	char host[EPF_NET_HOST_MAX];
	char rendezvous[EPF_BOOT_ADDRESS_MAX]; /* host and port as epf_boot_opts takes them */
	char job[EPF_BOOT_NAME_MAX + 1];
	char node[EPF_BOOT_NAME_MAX + 1];
	const char *launcher;              /* "torchrun", "slurm", "pmix", "ompi" or "epf" */
	char origin[EPF_RANK_F_COUNT][96]; /* the variable of each field, or how it was made; "" */
	char note[240];                    /* what a person should know, or "" */
};

/* epf_rank_field_text() - the name of a field. */
const char *epf_rank_field_text(enum epf_rank_field field);

/**
 * epf_rank_discover() - from the environment of this process; the node's name is the host's.
 *
 * Each field comes from its EPF_ variable, else from the first launcher that has set a rank and a
 * world size: torchrun, Slurm, PMIx, Open MPI. Fields of different launchers are not mixed, except
 * where the table in rank_env.c says so.
 *
 * Return: 0; -ENOENT (EPF_R_BOOT_NO_RANK) names what is missing, -EINVAL (EPF_R_BOOT_BAD_ENV)
 * the variable with an impossible value.
 */
int epf_rank_discover(struct epf_rank_info *out);

/* epf_rank_discover_from() - the same over @env; a pure function. */
int epf_rank_discover_from(epf_getenv_fn env, void *arg, struct epf_rank_info *out);

#endif
