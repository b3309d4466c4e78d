/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading for the graph of waits (waits.h): statistics files into instances, jobs, ranks and waits. What follows from what is
 * graph.c's. Rows are found by name, so files of older and newer engines are read as far as they say something.
 */
#include "tools/waits/waits_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waits *waits_new(void)
{
	return calloc(1, sizeof(struct waits));
}

void waits_free(struct waits *w)
{
	if (!w)
		return;
	for (uint32_t i = 0; i < w->n_instances; i++) {
		epf_stats_reader_close(w->instance[i].reader);
		free(w->instance[i].path);
	}
	free(w->instance);
	free(w->job);
	free(w->rank);
	free(w->lane);
	free(w->entry);
	free(w->order);
	free(w);
}

int waits_add_file(struct waits *w, const char *path, bool named)
{
	struct waits_instance *in;
	void *list = w->instance;

	for (uint32_t i = 0; i < w->n_instances; i++)
		if (!strcmp(w->instance[i].path, path))
			return 0;
	in = waits_grow(w, &list, &w->n_instances, &w->room[0], sizeof(*in));
	w->instance = list;
	if (!in)
		return -ENOMEM;
	in->named = named;
	in->path = strdup(path);
	if (!in->path) {
		w->n_instances--;
		return -ENOMEM;
	}
	return 0;
}

int waits_add_dir(struct waits *w, const char *dir)
{
	struct dirent **list;
	char path[4096 + 256];
	int n = epf_stats_list(dir, &list), rc = 0;

	if (n < 0)
		return n == -ENOENT ? 0 : n;
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, list[i]->d_name);
		if (!rc)
			rc = waits_add_file(w, path, false);
		free(list[i]);
	}
	free(list);
	return rc ? rc : n;
}

int waits_add_names(struct waits *w, const char *dir, char *const *names, int n)
{
	int rc = n ? 0 : waits_add_dir(w, dir);

	for (int i = 0; i < n && !rc; i++) {
		char *path = NULL;

		if (strchr(names[i], '/'))
			rc = waits_add_file(w, names[i], true);
		else if (asprintf(&path, "%s/%s" EPF_STATS_SUFFIX, dir, names[i]) < 0)
			return -ENOMEM;
		else
			rc = waits_add_file(w, path, true);
		free(path);
	}
	return rc < 0 ? rc : 0;
}

/* ---- one file ---- */

/* A rank, lane and so on: what does not fit 32 bits is none. */
static uint32_t number32(const struct waits_block *at, const char *row)
{
	uint64_t n = waits_number(at, row, WAITS_NONE);

	return n < WAITS_NONE ? (uint32_t)n : WAITS_NONE;
}

static uint32_t label32(const struct waits_block *at, const char *name)
{
	return waits_label_below(at, name, WAITS_NONE);
}

/* The job of an engine core of this instance. */
struct core_job {
	uint32_t core, job;
};

struct reading {
	struct waits *w;
	uint32_t instance;
	struct core_job *cores;
	uint32_t n_cores, room;
	bool left_out; /* its ranks of living jobs alone: somebody may wait for them */
};

/* What was agreed at the join distinguishes jobs; a name may be any other job's, too. Without a number an engine is alone. */
static uint32_t find_job(const struct reading *r, const char *name, uint64_t id, uint32_t world)
{
	struct waits *w = r->w;
	struct waits_job *job;
	void *list = w->job;

	for (uint32_t i = 0; id && i < w->n_jobs; i++)
		if (w->job[i].id == id && w->job[i].world == world)
			return i;
	if (r->left_out)
		return WAITS_NONE;
	job = waits_grow(w, &list, &w->n_jobs, &w->room[1], sizeof(*job));
	w->job = list;
	if (!job)
		return WAITS_NONE;
	snprintf(job->name, sizeof(job->name), "%s", name);
	job->id = id;
	job->world = world;
	return w->n_jobs - 1;
}

static void read_job(struct reading *r, const struct waits_block *at)
{
	struct waits *w = r->w;
	uint32_t job = find_job(r, waits_label(at, "job"), waits_number(at, "id", 0),
				number32(at, "world"));
	uint64_t looked = waits_number(at, "look_ns", w->now_ns);
	struct core_job *core;
	void *list = r->cores;

	/* The daemon's control thread may live and give signs of life where an engine's does not. */
	if (w->instance[r->instance].alive == EPF_STATS_ALIVE && looked < w->now_ns &&
	    w->now_ns - looked > EPF_STATS_STALE_NS)
		w->instance[r->instance].alive = EPF_STATS_STALE;
	if (job == WAITS_NONE)
		return;
	core = waits_grow(w, &list, &r->n_cores, &r->room, sizeof(*core));
	r->cores = list;
	if (!core)
		return;
	*core = (struct core_job){ label32(at, "core"), job };
	if (r->left_out)
		return;
	w->job[job].nodes = number32(at, "nodes");
	w->job[job].waits += waits_number(at, "waits", 0);
	w->job[job].hidden += waits_number(at, "waits_hidden", 0);
	w->job[job].lanes_hidden += waits_number(at, "lanes_hidden", 0);
}

static uint32_t job_of(const struct reading *r, const struct waits_block *at)
{
	uint32_t core = label32(at, "core");

	for (uint32_t i = 0; i < r->n_cores; i++)
		if (r->cores[i].core == core)
			return r->cores[i].job;
	return WAITS_NONE;
}

static bool is_dead(const struct waits_instance *in)
{
	return in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED;
}

/* The entry of a block that waits long enough; NULL: it does not. */
static struct waits_entry *wait_entry(struct reading *r, const struct waits_block *at,
				      enum waits_who who)
{
	const struct waits_instance *in = &r->w->instance[r->instance];
	uint64_t now = r->w->now_ns;
	struct epf_stats_value v;
	struct waits_entry *e;

	/* The final snapshot of the dead were true when they died. */
	if (in->alive == EPF_STATS_DEAD && in->heartbeat_ns && in->heartbeat_ns < now)
		now = in->heartbeat_ns;
	if (!waits_value(at, "wait", &v) || v.number == EPF_STATS_WAIT_NONE || v.since_ns > now ||
	    now - v.since_ns < r->w->least_ns)
		return NULL;
	e = waits_push(r->w);
	if (!e)
		return NULL;
	e->who = who;
	e->reason = (unsigned)v.number;
	e->job = job_of(r, at);
	e->instance = r->instance;
	e->since_ns = v.since_ns;
	e->age_ns = now - v.since_ns;
	e->stream = number32(at, "wait_stream");
	e->lane = number32(at, "wait_lane");
	return e;
}

static void read_rank(struct reading *r, const struct waits_block *at)
{
	struct waits *w = r->w;
	const struct waits_instance *in = &w->instance[r->instance];
	uint32_t job = job_of(r, at);
	uint32_t number_of = label32(at, "rank");
	struct waits_entry *e;
	struct waits_rank *rank;
	void *list = w->rank;

	if (is_dead(in) &&
	    (job == WAITS_NONE ? r->left_out : waits_rank(w, job, number_of) != NULL))
		return; /* rejoined elsewhere */
	e = r->left_out ? NULL : wait_entry(r, at, WAITS_RANK);
	if (e) {
		e->rank = number_of;
		e->peer = number32(at, "wait_rank");
		e->signal = waits_number(at, "wait_number", 0);
		e->value = waits_number(at, "wait_value", 0);
		e->least = waits_number(at, "wait_least", 0);
		e->kernel = waits_number(at, "wait_kernel", 0) == 1;
		if (e->reason == EPF_STATS_WAIT_RING)
			e->ring = (uint32_t)e->signal;
	}
	rank = waits_grow(w, &list, &w->n_ranks, &w->room[2], sizeof(*rank));
	w->rank = list;
	if (!rank)
		return;
	rank->job = job;
	rank->instance = r->instance;
	rank->rank = number_of;
	rank->pid = waits_number(at, "pid", 0);
	rank->state = (unsigned)waits_number(at, "state", EPF_STATS_PEER_UP);
	rank->active_ns = waits_number(at, "active_ns", 0);
	/* Of a dead daemon's clients nothing is known: their numbers may be others' by now. */
	if (in->alive != EPF_STATS_DEAD || rank->pid == in->pid)
		rank->process = epf_stats_process_state(rank->pid, in->pid_space);
	if (job != WAITS_NONE && !r->left_out)
		w->job[job].ranks++;
}

static void read_ring(struct reading *r, const struct waits_block *at)
{
	struct waits_entry *e = wait_entry(r, at, WAITS_RING);

	if (!e)
		return;
	e->rank = label32(at, "rank");
	e->ring = label32(at, "ring");
	e->peer = number32(at, "wait_rank");
	e->deferred = waits_number(at, "deferred", 0);
	e->occupancy = number32(at, "occupancy");
	e->slots = number32(at, "slots");
}

static void read_path(struct reading *r, const struct waits_block *at)
{
	struct waits *w = r->w;
	struct epf_stats_value v;
	struct waits_lane *lane;
	void *list = w->lane;

	if (!waits_value(at, "path", &v) || v.number > EPF_STATS_PATH_UNCONNECTED)
		v.number = EPF_STATS_PATH_UNKNOWN;
	lane = waits_grow(w, &list, &w->n_lanes, &w->room[4], sizeof(*lane));
	w->lane = list;
	if (!lane)
		return;
	*lane = (struct waits_lane){ .job = job_of(r, at),
				     .instance = r->instance,
				     .lane = label32(at, "lane"),
				     .peer = label32(at, "peer"),
				     .path = (unsigned)v.number,
				     .since_ns = v.since_ns,
				     .retransmits = waits_number(at, "retransmits", 0),
				     .rtt_us = waits_number(at, "rtt_us", 0),
				     .unsent_bytes = waits_number(at, "unsent_bytes", 0) };
}

static void read_lane(struct reading *r, const struct waits_block *at)
{
	struct waits_entry *e = wait_entry(r, at, WAITS_LANE);

	read_path(r, at);
	if (!e)
		return;
	e->lane = label32(at, "lane");
	e->peer = label32(at, "peer");
	e->deferred = waits_number(at, "in_flight", 0);
}

static void read_peer(struct reading *r, const struct waits_block *at)
{
	struct waits_entry *e = wait_entry(r, at, WAITS_PEER);

	if (!e)
		return;
	e->peer = label32(at, "peer");
	e->deferred = waits_number(at, "deferred", 0);
}

static void read_nic(struct reading *r, const struct waits_block *at)
{
	struct waits_instance *in = &r->w->instance[r->instance];
	uint32_t links = number32(at, "links"), up = number32(at, "links_up");
	struct epf_stats_value v;

	if (links == WAITS_NONE || up == WAITS_NONE || up > links)
		return;
	in->links += links;
	in->links_up += up;
	if (up < links && waits_value(at, "link", &v))
		in->link_since_ns = v.number == EPF_STATS_LINK_DOWN ? v.since_ns : 0;
}

/* Blocks of one class after the other: jobs must be known before what belongs to them. */
static void read_class(struct reading *r, const char *name,
		       void (*read)(struct reading *r, const struct waits_block *at))
{
	const struct epf_stats_reader *reader = r->w->instance[r->instance].reader;

	for (unsigned i = 0; i < epf_stats_reader_info(reader)->block_count; i++) {
		const struct waits_block at = waits_block(reader, i);

		if (!strcmp(at.cls->name, name))
			read(r, &at);
	}
}

static void read_instance(struct waits *w, uint32_t i)
{
	struct reading r = { .w = w, .instance = i, .left_out = w->instance[i].left_out };

	read_class(&r, "job", read_job);
	read_class(&r, "rank", read_rank);
	if (!r.left_out) {
		read_class(&r, "nic", read_nic);
		read_class(&r, "ring", read_ring);
		read_class(&r, "peer", read_peer);
		read_class(&r, "lane", read_lane);
	}
	free(r.cores);
}

/* Opens or reads the file again; false: there is nothing to be had from it. */
static bool load(struct waits *w, struct waits_instance *in)
{
	const struct epf_stats_info *info;

	in->links = in->links_up = 0;
	if (in->reader && (epf_stats_reader_replaced(in->reader) ||
			   epf_stats_reader_refresh(in->reader, in->error, sizeof(in->error)))) {
		epf_stats_reader_close(in->reader);
		in->reader = NULL;
	}
	in->error[0] = '\0';
	if (!in->reader &&
	    epf_stats_reader_open(in->path, &in->reader, in->error, sizeof(in->error))) {
		in->reader = NULL;
		return false;
	}
	info = epf_stats_reader_info(in->reader);
	snprintf(in->name, sizeof(in->name), "%s", info->instance);
	in->pid = info->pid;
	in->pid_space = info->pid_space;
	in->heartbeat_ns = info->heartbeat_ns;
	in->changing = info->blocks_changing;
	in->alive = epf_stats_reader_alive(in->reader, w->now_ns, EPF_STATS_STALE_NS);
	in->process = in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED
			      ? 0
			      : epf_stats_process_state(in->pid, in->pid_space);
	return true;
}

int waits_refresh(struct waits *w, uint64_t now_ns, uint64_t least_ns)
{
	w->now_ns = now_ns;
	w->least_ns = least_ns;
	w->n_jobs = w->n_ranks = w->n_lanes = w->n_entries = w->n_left_out = 0;
	w->no_memory = false;
	for (uint32_t i = 0; i < w->n_instances; i++) {
		struct waits_instance *in = &w->instance[i];

		in->left_out = false;
		if (!load(w, in))
			continue;
		in->left_out = is_dead(in) && !in->named && !w->with_dead;
		w->n_left_out += in->left_out;
		if (!is_dead(in))
			read_instance(w, i);
	}
	/* Behind the living: what these still have is not read from the dead. */
	for (uint32_t i = 0; i < w->n_instances; i++)
		if (w->instance[i].reader && is_dead(&w->instance[i]))
			read_instance(w, i);
	waits_conclude(w);
	return w->no_memory ? -ENOMEM : 0;
}
