/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank discovery; see rank_env.h. One table says which launcher sets which variable for which
 * field. What is no plain variable (a port made from a number, the first host of a list) is made
 * by the functions below the table. Only epf_rank_discover() touches this process.
 */
#include "bootstrap/rank_env.h"

#include "bootstrap/slurm.h"

#include "fabric/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum launcher { EPF, TORCHRUN, SLURM, PMIX, OMPI, LAUNCHERS };

static const char *const launcher_names[LAUNCHERS] = { "epf", "torchrun", "slurm", "pmix", "ompi" };

/*
 * Variables by launcher and field, the first that is set counts. PMIx itself names neither the
 * size nor a place on the node, so those come from the launchers that speak PMIx. MASTER_ADDR is
 * accepted with every launcher: users of PyTorch set it by hand under srun and mpirun.
 */
/* clang-format off */
static const char *const table[LAUNCHERS][EPF_RANK_F_COUNT] = {
	[EPF] = {
		[EPF_RANK_F_RANK]        = "EPF_RANK",
		[EPF_RANK_F_WORLD]       = "EPF_WORLD_SIZE",
		[EPF_RANK_F_LOCAL_RANK]  = "EPF_LOCAL_RANK",
		[EPF_RANK_F_LOCAL_WORLD] = "EPF_LOCAL_WORLD_SIZE",
		[EPF_RANK_F_NODE_ID]     = "EPF_NODE_ID",
		[EPF_RANK_F_PORT]        = "EPF_PORT",
		[EPF_RANK_F_JOB]         = "EPF_JOB",
		[EPF_RANK_F_NODE]        = "EPF_NODE",
	},
	[TORCHRUN] = {
		[EPF_RANK_F_RANK]        = "RANK",
		[EPF_RANK_F_WORLD]       = "WORLD_SIZE",
		[EPF_RANK_F_LOCAL_RANK]  = "LOCAL_RANK",
		[EPF_RANK_F_LOCAL_WORLD] = "LOCAL_WORLD_SIZE",
		[EPF_RANK_F_NODE_ID]     = "GROUP_RANK",
		[EPF_RANK_F_HOST]        = "MASTER_ADDR",
		[EPF_RANK_F_JOB]         = "TORCHELASTIC_RUN_ID",
	},
	[SLURM] = {
		[EPF_RANK_F_RANK]        = "SLURM_PROCID",
		[EPF_RANK_F_WORLD]       = "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS",
		[EPF_RANK_F_LOCAL_RANK]  = "SLURM_LOCALID",
		[EPF_RANK_F_NODE_ID]     = "SLURM_NODEID",
		[EPF_RANK_F_HOST]        = "MASTER_ADDR",
		[EPF_RANK_F_NODE]        = "SLURMD_NODENAME",
	},
	[PMIX] = {
		[EPF_RANK_F_RANK]        = "PMIX_RANK",
		[EPF_RANK_F_WORLD]       = "OMPI_COMM_WORLD_SIZE PMI_SIZE SLURM_STEP_NUM_TASKS SLURM_NTASKS",
		[EPF_RANK_F_LOCAL_RANK]  = "OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID",
		[EPF_RANK_F_LOCAL_WORLD] = "OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS",
		[EPF_RANK_F_HOST]        = "MASTER_ADDR",
		[EPF_RANK_F_JOB]         = "PMIX_NAMESPACE",
		[EPF_RANK_F_NODE]        = "PMIX_HOSTNAME",
	},
	[OMPI] = {
		[EPF_RANK_F_RANK]        = "OMPI_COMM_WORLD_RANK",
		[EPF_RANK_F_WORLD]       = "OMPI_COMM_WORLD_SIZE",
		[EPF_RANK_F_LOCAL_RANK]  = "OMPI_COMM_WORLD_LOCAL_RANK",
		[EPF_RANK_F_LOCAL_WORLD] = "OMPI_COMM_WORLD_LOCAL_SIZE",
		[EPF_RANK_F_HOST]        = "MASTER_ADDR",
		[EPF_RANK_F_JOB]         = "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid",
		[EPF_RANK_F_NODE]        = "PMIX_HOSTNAME",
	},
};

/* clang-format on */

/* The callback, and what is being filled. */
struct search {
	epf_getenv_fn env;
	void *arg;
	enum launcher launcher;
	struct epf_rank_info info;
};

const char *epf_rank_field_text(enum epf_rank_field field)
{
	static const char *const names[] = {
#define F(name, text) text,
		EPF_RANK_FIELDS(F)
#undef F
	};

	return (unsigned int)field < EPF_RANK_F_COUNT ? names[field] : "unknown";
}

/* An empty variable counts as not set, and so does "auto" in one of ours: it means this search. */
static const char *get(const struct search *s, const char *name)
{
	const char *v = s->env(name, s->arg);

	if (!v || !*v || (!strncmp(name, "EPF_", 4) && !strcmp(v, "auto")))
		return NULL;
	return v;
}

/* The first variable of a list that is set; its name goes to @name, 64 bytes. */
static const char *get_first(const struct search *s, const char *list, char name[64])
{
	while (list && *list) {
		size_t n = strcspn(list, " ");
		const char *v;

		snprintf(name, 64, "%.*s", (int)n, list);
		v = get(s, name);
		if (v)
			return v;
		list += n;
		list += *list == ' ';
	}
	return NULL;
}

__attribute__((format(printf, 3, 4))) static void
set_origin(struct search *s, enum epf_rank_field field, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(s->info.origin[field], sizeof(s->info.origin[field]), fmt, args);
	va_end(args);
}

static int read_u32(const char *name, const char *text, uint32_t max, uint32_t *out)
{
	size_t n = strlen(text);
	unsigned long long v;

	if (n > 10 || strspn(text, "0123456789") != n)
		return epf_fail(EPF_R_BOOT_BAD_ENV,
				"%s is '%.40s', which is no number from 0 to %u", name, text, max);
	v = strtoull(text, NULL, 10);
	if (v > max)
		return epf_fail(EPF_R_BOOT_BAD_ENV, "%s is %s, which is above %u", name, text, max);
	*out = (uint32_t)v;
	return 0;
}

/* A field that is a number: from EPF_, else from the launcher. Not set: stays as it is. */
static int find_number(struct search *s, enum epf_rank_field field, uint32_t *out)
{
	const enum launcher order[] = { EPF, s->launcher };

	for (int i = 0; i < 2; i++) {
		char name[64];
		const char *v = get_first(s, table[order[i]][field], name);
		int rc;

		if (!v)
			continue;
		rc = read_u32(name, v, EPF_RANK_UNKNOWN - 1, out);
		if (!rc)
			set_origin(s, field, "%s", name);
		return rc;
	}
	return 0;
}

/* A field that is a text. */
static int find_text(struct search *s, enum epf_rank_field field, char *out, size_t size)
{
	const enum launcher order[] = { EPF, s->launcher };

	for (int i = 0; i < 2; i++) {
		char name[64];
		const char *v = get_first(s, table[order[i]][field], name);

		if (!v)
			continue;
		if (strlen(v) >= size)
			return epf_fail(EPF_R_BOOT_BAD_ENV, "%s is longer than %zu bytes", name,
					size - 1);
		snprintf(out, size, "%s", v);
		set_origin(s, field, "%s", name);
		return 0;
	}
	return 0;
}

static bool same_value(const struct search *s, enum epf_rank_field field, enum launcher a,
		       enum launcher b)
{
	char name[64];
	const char *x = get_first(s, table[a][field], name);
	const char *y = get_first(s, table[b][field], name);

	return x && y && !strcmp(x, y);
}

/*
 * Whether a launcher has started us. mpirun inside a Slurm job: all its ranks inherit the task
 * number of the batch script, so Slurm's numbers count only where Open MPI does not contradict.
 */
static bool is_complete(struct search *s, enum launcher l)
{
	char name[64];

	if (!get_first(s, table[l][EPF_RANK_F_RANK], name) ||
	    !get_first(s, table[l][EPF_RANK_F_WORLD], name))
		return false;
	if (l == SLURM && get_first(s, table[OMPI][EPF_RANK_F_RANK], name) &&
	    !(same_value(s, EPF_RANK_F_RANK, SLURM, OMPI) &&
	      same_value(s, EPF_RANK_F_WORLD, SLURM, OMPI))) {
		snprintf(
			s->info.note, sizeof(s->info.note),
			"SLURM_PROCID is not used: Open MPI's variables say otherwise and are nearer");
		return false;
	}
	return true;
}

static void find_launcher(struct search *s)
{
	char name[64];

	for (int l = TORCHRUN; l < LAUNCHERS; l++)
		if (is_complete(s, (enum launcher)l)) {
			s->launcher = (enum launcher)l;
			break;
		}
	if (s->launcher == SLURM && !get_first(s, "SLURM_STEP_ID SLURM_STEPID", name))
		snprintf(
			s->info.note, sizeof(s->info.note),
			"SLURM_STEP_ID is not set: a batch script that was not started by srun is always rank 0");
	s->info.launcher = launcher_names[s->launcher];
}

static int find_ranks(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	int rc = find_number(s, EPF_RANK_F_RANK, &i->rank);

	if (!rc)
		rc = find_number(s, EPF_RANK_F_WORLD, &i->world);
	if (!rc)
		rc = find_number(s, EPF_RANK_F_LOCAL_RANK, &i->local_rank);
	if (!rc)
		rc = find_number(s, EPF_RANK_F_LOCAL_WORLD, &i->local_world);
	if (!rc)
		rc = find_number(s, EPF_RANK_F_NODE_ID, &i->node_id);
	return rc;
}

static int check_ranks(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	const char *lone = NULL; /* a launcher's rank that came without a world size */

	for (int l = TORCHRUN; l < LAUNCHERS && !lone; l++)
		if (get(s, table[l][EPF_RANK_F_RANK]))
			lone = table[l][EPF_RANK_F_RANK];
	if (i->rank == EPF_RANK_UNKNOWN && i->world == EPF_RANK_UNKNOWN && !lone)
		return epf_fail(
			EPF_R_BOOT_NO_RANK,
			"no variable names a rank (EPF_RANK, RANK, SLURM_PROCID, PMIX_RANK, OMPI_COMM_WORLD_RANK)");
	if (i->rank == EPF_RANK_UNKNOWN)
		return epf_fail(EPF_R_BOOT_NO_RANK,
				"%s is set, but the %s that belongs to it is not",
				i->world != EPF_RANK_UNKNOWN ? i->origin[EPF_RANK_F_WORLD] : lone,
				i->world != EPF_RANK_UNKNOWN ? "rank" : "world size");
	if (i->world == EPF_RANK_UNKNOWN)
		return epf_fail(EPF_R_BOOT_NO_RANK,
				"%s is set, but no variable names the world size",
				i->origin[EPF_RANK_F_RANK]);
	if (!i->world || i->rank >= i->world)
		return epf_fail(EPF_R_BOOT_BAD_ENV, "%s is %u, but %s is %u",
				i->origin[EPF_RANK_F_RANK], i->rank, i->origin[EPF_RANK_F_WORLD],
				i->world);
	if (i->local_world != EPF_RANK_UNKNOWN && i->local_rank != EPF_RANK_UNKNOWN &&
	    i->local_rank >= i->local_world)
		return epf_fail(EPF_R_BOOT_BAD_ENV, "%s is %u, but %s is %u",
				i->origin[EPF_RANK_F_LOCAL_RANK], i->local_rank,
				i->origin[EPF_RANK_F_LOCAL_WORLD], i->local_world);
	return 0;
}

/* FNV-1a: spreads job names over ports; nothing depends on its quality. */
static uint16_t port_of_name(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 16777619u;
	return (uint16_t)(EPF_RANK_PORT_FIRST + h % EPF_RANK_PORT_COUNT);
}

/* Slurm's job and step numbers, in @job; false when there are none. */
static bool slurm_job(const struct search *s, char *job, size_t size)
{
	char name[64], step_name[64];
	const char *id = get_first(s, "SLURM_JOB_ID SLURM_JOBID", name);
	const char *step = get_first(s, "SLURM_STEP_ID SLURM_STEPID", step_name);

	if (!id)
		return false;
	/* mpirun's ranks are in steps that differ from node to node: the job's number is common. */
	if (step && s->launcher == SLURM)
		snprintf(job, size, "slurm-%s.%s", id, step);
	else
		snprintf(job, size, "slurm-%s", id);
	return true;
}

static int find_job(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	char name[64];
	int rc = find_text(s, EPF_RANK_F_JOB, i->job, sizeof(i->job));

	if (!rc && !i->job[0] && slurm_job(s, i->job, sizeof(i->job)))
		set_origin(s, EPF_RANK_F_JOB, "SLURM_JOB_ID%s",
			   s->launcher == SLURM && get_first(s, "SLURM_STEP_ID SLURM_STEPID", name)
				   ? " and SLURM_STEP_ID"
				   : "");
	if (!rc)
		rc = find_text(s, EPF_RANK_F_NODE, i->node, sizeof(i->node));
	if (!rc && s->launcher == SLURM && i->local_world == EPF_RANK_UNKNOWN &&
	    i->node_id != EPF_RANK_UNKNOWN) {
		const char *v =
			get_first(s, "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE", name);

		i->local_world = v ? epf_slurm_tasks_on(v, i->node_id) : EPF_RANK_UNKNOWN;
		if (i->local_world != EPF_RANK_UNKNOWN)
			set_origin(s, EPF_RANK_F_LOCAL_WORLD, "%s", name);
	}
	return rc;
}

/*
 * The host of mpirun itself, of Open MPI up to 4: number.0;tcp://10.0.0.1,10.1.0.1:4711;tcp6://... It serves if rank 0 runs there, which is what that rank knows:
 * mpirun is its node's daemon, too. Later versions name no host.
 */
static int find_mpirun(struct search *s)
{
	static const char tcp[] = "tcp://";
	struct epf_rank_info *i = &s->info;
	const char *uri = get(s, "OMPI_MCA_orte_hnp_uri"), *at = uri ? strstr(uri, tcp) : NULL;
	const char *daemon = get(s, "OMPI_MCA_orte_local_daemon_uri");
	size_t n;

	if (!at || (s->launcher != PMIX && s->launcher != OMPI))
		return 0;
	if (i->rank == 0 && (!daemon || strcmp(uri, daemon) != 0))
		return epf_fail(
			EPF_R_BOOT_NO_RANK,
			"rank 0 runs on another host than mpirun, and no variable names it: mpirun -x MASTER_ADDR=HOST");
	at += sizeof(tcp) - 1;
	n = strcspn(at, ",:;");
	if (!n || n >= sizeof(i->host))
		return 0;
	snprintf(i->host, sizeof(i->host), "%.*s", (int)n, at);
	set_origin(s, EPF_RANK_F_HOST, "OMPI_MCA_orte_hnp_uri");
	return 0;
}

static int find_host(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	char name[64];
	const char *v;
	int rc = find_text(s, EPF_RANK_F_HOST, i->host, sizeof(i->host));

	if (rc || i->host[0])
		return rc;
	v = get_first(s, "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST", name);
	/* Before the lists: one node needs no network, and no secret either. */
	if (i->world == 1 || i->local_world == i->world) {
		snprintf(i->host, sizeof(i->host), "127.0.0.1");
		set_origin(s, EPF_RANK_F_HOST, "all ranks are on this node");
	} else if (v && s->launcher != EPF && s->launcher != TORCHRUN) {
		if (epf_slurm_first_host(v, i->host, sizeof(i->host)))
			return epf_fail(EPF_R_BOOT_BAD_ENV,
					"%s is '%.80s', which is no list of hosts", name, v);
		set_origin(s, EPF_RANK_F_HOST, "%s", name);
	} else {
		return find_mpirun(s);
	}
	return 0;
}

static int find_port(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	uint32_t port = EPF_RANK_UNKNOWN, offset = EPF_RANK_PORT_OFFSET;
	const char *v = get(s, "MASTER_PORT"), *o = get(s, "EPF_PORT_OFFSET"),
		   *p = get(s, "EPF_PORT");
	bool master = !strcmp(i->origin[EPF_RANK_F_HOST], "MASTER_ADDR");
	char job[EPF_BOOT_NAME_MAX + 1];
	int rc = 0;

	if (p)
		rc = read_u32("EPF_PORT", p, 65535, &port);
	else if (v && (master || s->launcher == TORCHRUN))
		rc = read_u32("MASTER_PORT", v, 65535, &port);
	if (!rc && o)
		rc = read_u32("EPF_PORT_OFFSET", o, 32767, &offset);
	if (rc)
		return rc;
	if (p) {
		set_origin(s, EPF_RANK_F_PORT, "EPF_PORT");
	} else if (port != EPF_RANK_UNKNOWN) {
		bool up = port + offset <= 65535;

		set_origin(s, EPF_RANK_F_PORT, "MASTER_PORT %c %u", up ? '+' : '-', offset);
		port = up ? port + offset : port - offset;
	} else if (slurm_job(s, job, sizeof(job))) {
		port = port_of_name(job);
		set_origin(s, EPF_RANK_F_PORT, "made from %s", job);
	} else if (i->job[0]) {
		port = port_of_name(i->job);
		set_origin(s, EPF_RANK_F_PORT, "made from the job's name (%s)",
			   i->origin[EPF_RANK_F_JOB]);
	}
	i->port = port == EPF_RANK_UNKNOWN ? 0 : (uint16_t)port;
	return 0;
}

static int find_rendezvous(struct search *s)
{
	struct epf_rank_info *i = &s->info;
	const char *whole = get(s, "EPF_RENDEZVOUS");
	int rc;

	if (whole) {
		rc = epf_net_split(whole, i->host, &i->port);
		if (rc)
			return rc;
		set_origin(s, EPF_RANK_F_HOST, "EPF_RENDEZVOUS");
		set_origin(s, EPF_RANK_F_PORT, "EPF_RENDEZVOUS");
	} else {
		rc = find_host(s);
		if (!rc)
			rc = find_port(s);
		if (rc)
			return rc;
	}
	if (!i->host[0] || !i->port)
		return epf_fail(EPF_R_BOOT_NO_RANK,
				"rank %u of %u (%s): no variable names the %s of the rendezvous%s",
				i->rank, i->world, i->origin[EPF_RANK_F_RANK],
				i->host[0] ? "port"
				: i->port  ? "host"
					   : "host and port",
				s->launcher == PMIX || s->launcher == OMPI
					? " (mpirun -x MASTER_ADDR=HOST, the host of rank 0)"
					: "");
	snprintf(i->rendezvous, sizeof(i->rendezvous), strchr(i->host, ':') ? "[%s]:%u" : "%s:%u",
		 i->host, i->port);
	return 0;
}

int epf_rank_discover_from(epf_getenv_fn env, void *arg, struct epf_rank_info *out)
{
	struct search s = {
		.env = env,
		.arg = arg,
		.launcher = EPF,
		.info = { .rank = EPF_RANK_UNKNOWN,
			  .world = EPF_RANK_UNKNOWN,
			  .local_rank = EPF_RANK_UNKNOWN,
			  .local_world = EPF_RANK_UNKNOWN,
			  .node_id = EPF_RANK_UNKNOWN },
	};
	int rc;

	find_launcher(&s);
	rc = find_ranks(&s);
	if (!rc)
		rc = check_ranks(&s);
	if (!rc)
		rc = find_job(&s);
	if (!rc)
		rc = find_rendezvous(&s);
	if (!rc)
		*out = s.info;
	return rc;
}

static const char *env_of_process(const char *name, void *arg)
{
	return getenv(name);
}

int epf_rank_discover(struct epf_rank_info *out)
{
	int rc = epf_rank_discover_from(env_of_process, NULL, out);

	if (rc || out->node[0])
		return rc;
	if (gethostname(out->node, sizeof(out->node) - 1) == 0)
		snprintf(out->origin[EPF_RANK_F_NODE], sizeof(out->origin[EPF_RANK_F_NODE]),
			 "the host's name");
	return 0;
}
