/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens engines, joins them by their own descriptions (fabric/join/world.h), and steps them in the order of the virtual clock; see scale.h.
 */
#include "bench/scale/scale.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/limits.h"
#include "fabric/join/world.h"
#include "queues/epf_stats.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RING_LOG2 = 8, SIGNAL_KINDS = 8, FAULT_TIMER = 1 << 16 };

struct scale_options scale_defaults(void)
{
	return (struct scale_options){
		.jobs = 1,
		.hidden = 7168,
		.step_ns = 100,
		.command_ns = 60,
		.arrival_ns = 60,
		.seed = 1,
		.limit_ns = UINT64_C(100000000000),
		.net = { .links = 8,
			 .lanes = 8,
			 .bytes_per_ns = 50,
			 .delay_ns = 1500,
			 .segment = 4096,
			 .header = 62, /* Ethernet with preamble and gap, IP, UDP, BTH, CRCs */
			 .mtu = 4096,
			 .resend_ns = 20000,
			 .reorder_ns = 10000,
			 .retry_ns = 500000,
			 .receives = 32767,
			 .seed = 1 },
	};
}

int scale_wrong(struct scale *s, const char *fmt, ...)
{
	va_list ap;

	if (!s->wrong++) {
		va_start(ap, fmt);
		vsnprintf(s->why, sizeof(s->why), fmt, ap);
		va_end(ap);
	}
	return -1;
}

uint32_t scale_node_of(const struct scale *s, uint32_t rank)
{
	return rank / s->o.per_node;
}

int scale_is_near(const struct scale *s, uint32_t a, uint32_t b)
{
	return a / s->o.near == b / s->o.near;
}

int scale_is_lost(const struct scale_rank *r, uint32_t rank)
{
	return r->core->core->peers_page->peers[rank].state == EPF_PEER_DOWN;
}

int scale_push(struct scale_rank *r, const struct epf_op *op)
{
	struct epf_cmd c[2];

	if (epf_ring_room(&r->ring, 2) < 2)
		return 0;
	r->commands++;
	if (epf_op_is_narrow(op))
		return epf_ring_push(&r->ring, epf_op_pack_narrow(op));
	epf_op_pack_wide(op, c);
	return epf_ring_push_wide(&r->ring, c);
}

struct epf_op scale_transfer(unsigned op, uint32_t rank, uint64_t from, uint64_t to, uint32_t bytes,
			     uint32_t signal, unsigned flags)
{
	return (struct epf_op){ .op = (uint8_t)op,
				.flags = (uint8_t)flags,
				.rank = rank,
				.local_offset = from,
				.remote_offset = to,
				.length = bytes,
				.signal = signal,
				.add = op == EPF_OP_PUT_SIGNAL };
}

/* ---- the thread of a node ---- */

static void cpu_at(struct scale *s, uint32_t node, uint64_t at)
{
	struct scale_cpu *cpu = &s->cpus[node];

	if (at < cpu->free_ns)
		at = cpu->free_ns;
	if (cpu->dead || cpu->due_ns <= at)
		return;
	cpu->due_ns = at;
	sim_net_at(s->net, at, node);
}

void scale_wake_at(struct scale_rank *r, uint64_t at)
{
	cpu_at(r->s, r->core->node, at);
}

static void on_wake(void *arg, uint32_t node, uint32_t job)
{
	struct scale *s = arg;

	(void)job;
	s->cpus[node].idle = 0;
	cpu_at(s, node, sim_net_now(s->net));
}

static void on_landed(void *arg, uint32_t node, uint32_t job, uint64_t addr, uint32_t bytes)
{
	struct scale *s = arg;
	uint64_t number = (addr - SIM_VIRTUAL) / SCALE_REGION_BYTES;

	(void)node;
	if (number >= s->n_numbers || number / s->o.ranks != job)
		scale_wrong(s, "a write of job %u landed at %#llx", job, (unsigned long long)addr);
	else if (s->program[job])
		s->program[job]->landed(&s->ranks[number], addr % SCALE_REGION_BYTES, bytes);
}

static void on_reaped(void *arg, uint32_t node, uint32_t job, const void *msg,
		      const struct sim_times *t)
{
	const struct epf_msg *m = msg;
	struct scale *s = arg;

	(void)node;
	if (m->kind == EPF_MSG_SIGNAL && m->rank < s->o.ranks)
		s->ranks[(size_t)job * s->o.ranks + m->rank].last = *t;
}

int scale_poll(struct scale *s, struct scale_core *c)
{
	int did = 0, rc;

	for (uint32_t i = 0; i < c->n_ranks && s->program[c->job]; i++) {
		struct scale_rank *r = &c->ranks[i];

		if (r->done)
			continue;
		rc = s->program[c->job]->poll(r);
		did += rc > 0 ? rc : 0;
		if (!r->done && rc >= 0)
			continue;
		r->done = 1;
		r->done_ns = s->o.nic ? 0 : sim_net_now(s->net);
		s->running--;
	}
	return did;
}

uint64_t scale_doorbells(const struct scale_core *c)
{
	struct epf_nic_counters k;

	c->nic->ops->counters(c->nic, &k);
	return k.doorbells;
}

/* One step of one engine. Returns its time in ns; *worked: it had something to do. */
static uint64_t step(struct scale *s, struct scale_core *c, int *worked)
{
	unsigned handled = epf_core_step(c->core);
	uint64_t dequeued = epf_stat_get(c->block, EPF_STAT_CORE_CMDS_DEQUEUED);
	uint32_t arrivals = sim_nic_arrivals(c->nic);
	uint64_t doorbells = scale_doorbells(c);
	double ns = s->o.step_ns + s->o.command_ns * (double)(dequeued - c->dequeued) +
		    s->o.arrival_ns * arrivals +
		    s->o.doorbell_ns * (double)(doorbells - c->doorbells);

	c->core->wakes = 0;
	c->dequeued = dequeued;
	c->doorbells = doorbells;
	*worked = handled != 0;
	if (handled)
		c->busy_ns += (uint64_t)ns;
	for (uint32_t l = 0; l < s->o.net.links; l++)
		if (c->core->load[l].bytes > c->most_inflight)
			c->most_inflight = c->core->load[l].bytes;
	if ((uint64_t)ns > c->longest_ns)
		c->longest_ns = (uint64_t)ns;
	s->steps++;
	return (uint64_t)ns;
}

/* The next seat that has a turn, as the daemon's thread has it (fabric/engine/scheduler.c). */
static struct scale_core *next_seat(struct scale_cpu *cpu)
{
	if (cpu->in_turn && (int64_t)(cpu->until - cpu->fair.seat[cpu->at].time) > 0)
		return cpu->seats[cpu->at];
	for (uint32_t looked = 0; looked < 2 * cpu->fair.n; looked++) {
		cpu->at = epf_fair_next(&cpu->fair, cpu->at);
		if (epf_fair_turn(&cpu->fair, cpu->at, &cpu->until))
			break;
	}
	return cpu->seats[cpu->at];
}

/* What an engine has sent so far: all peers that it puts to are on other nodes. */
static uint64_t bytes_of(const struct scale_core *c)
{
	return epf_stat_get(c->block, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE);
}

/* What the last step has posted leaves, the program sees what it has raised, and the next step begins. */
static void cpu_run(struct scale *s, uint32_t node)
{
	struct scale_cpu *cpu = &s->cpus[node];
	uint64_t now = sim_net_now(s->net), used, bytes, next = SIM_NEVER;
	struct scale_core *c = cpu->seats[cpu->at];
	int worked, pushed = 0;

	for (uint32_t i = 0; i < cpu->fair.n; i++) {
		sim_nic_ring(cpu->seats[i]->nic);
		pushed += scale_poll(s, cpu->seats[i]);
	}
	c = next_seat(cpu);
	bytes = bytes_of(c);
	used = step(s, c, &worked);
	epf_fair_step(&cpu->fair, cpu->at, used, bytes_of(c) - bytes, worked);
	cpu->in_turn = worked != 0;
	cpu->idle = worked || pushed ? 0 : cpu->idle + 1;
	cpu->free_ns = now + used;
	if (cpu->idle < cpu->fair.n) {
		cpu_at(s, node, now + used);
		return;
	}
	for (uint32_t i = 0; i < cpu->fair.n; i++)
		if (cpu->seats[i]->core->next_tick_ns < next)
			next = cpu->seats[i]->core->next_tick_ns;
	if (next != SIM_NEVER)
		cpu_at(s, node, next);
}

static void on_timer(void *arg, uint64_t what)
{
	struct scale *s = arg;

	if (what >= FAULT_TIMER) {
		s->fault(s, (uint32_t)(what - FAULT_TIMER));
		return;
	}
	if (s->cpus[what].dead || s->cpus[what].due_ns != sim_net_now(s->net))
		return; /* it was woken before */
	s->cpus[what].due_ns = SIM_NEVER;
	cpu_run(s, (uint32_t)what);
}

void scale_fault_at(struct scale *s, uint64_t after_ns, uint32_t what)
{
	sim_net_at(s->net, sim_net_now(s->net) + after_ns, FAULT_TIMER + what);
}

void scale_kill_node(struct scale *s, uint32_t node)
{
	s->cpus[node].dead = true;
	for (uint32_t l = 0; l < s->o.net.links; l++)
		sim_net_port(s->net, node, l, 0);
	for (uint32_t j = 0; j < s->o.jobs; j++) {
		struct scale_core *c = &s->cores[(size_t)j * s->n_nodes + node];

		for (uint32_t i = 0; i < c->n_ranks; i++) {
			s->running -= !c->ranks[i].done;
			c->ranks[i].done = 2;
		}
	}
}

void scale_begin(struct scale *s, uint64_t begun)
{
	s->running = 0;
	for (uint32_t i = 0; i < s->n_numbers; i++) {
		struct scale_rank *r = &s->ranks[i];

		r->begun_ns = begun;
		r->peer = r->at = r->part = r->waits = 0;
		r->commands = 0;
		r->done = s->cpus[r->core->node].dead ? 2 : !s->program[r->core->job];
		s->running += !r->done;
	}
	for (uint32_t i = 0; i < s->n_nodes * s->o.jobs; i++)
		s->cores[i].busy_ns = 0;
}

int scale_run(struct scale *s)
{
	uint64_t begun = sim_net_now(s->net);

	sim_net_port_stats_clear(s->net);
	scale_begin(s, begun);
	for (uint32_t n = 0; n < s->n_nodes; n++)
		on_wake(s, n, 0);
	while (s->running && !s->wrong) {
		if (!sim_net_run(s->net) || sim_net_now(s->net) - begun > s->o.limit_ns) {
			scale_wrong(s, "%u ranks have not ended after %llu us", s->running,
				    (unsigned long long)(sim_net_now(s->net) - begun) / 1000);
			return -ETIME;
		}
	}
	return s->wrong ? -EIO : 0;
}

/* ---- opening and joining ---- */

static int open_rank(struct scale *s, struct scale_core *c, uint32_t i)
{
	struct scale_rank *r = &c->ranks[i];
	uint64_t region_bytes = s->o.nic ? s->o.region_bytes : SCALE_REGION_BYTES;
	uint32_t region, id;
	void *memory;
	size_t bytes;
	int rc;

	r->s = s;
	r->core = c;
	r->rank = c->node * s->o.per_node + i;
	r->number = (uint32_t)(r - s->ranks);
	r->n_signals = SIGNAL_KINDS * s->o.ranks;
	bytes = r->n_signals * sizeof(*r->signals) + epf_ring_bytes(RING_LOG2);
	/* Zeros that take memory when they are touched. */
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "rank %u: no memory", r->rank);
	r->signals = memory;
	r->region = (void *)(uintptr_t)(SIM_VIRTUAL + r->number * SCALE_REGION_BYTES);
	if (s->o.nic)
		r->region = mmap(NULL, region_bytes, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->region == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "rank %u: no memory", r->rank);
	r->shm = (struct epf_ring_shm *)(void *)(r->signals + r->n_signals);
	rc = epf_core_add_rank(c->core, r->rank, r->signals, r->n_signals, 4, &r->wakeup,
			       &r->local);
	if (!rc)
		rc = epf_core_add_region(c->core, r->local, r->region, region_bytes,
					 EPF_MR_REMOTE_WRITE, &region);
	epf_ring_format(r->shm, RING_LOG2, 0, r->rank);
	if (!rc)
		rc = epf_core_add_ring(c->core, r->local, r->shm, RING_LOG2, 1, 0, &id);
	epf_ring_producer_init(&r->ring, r->shm, 0);
	return rc;
}

static int open_core(struct scale *s, struct scale_core *c, uint32_t node, uint32_t job)
{
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "sim", .tsc_hz = epf_tsc_hz() };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	struct epf_core_config cfg = { .now = sim_net_now,
				       .now_arg = s->net,
				       .max_ranks = s->o.per_node };
	char why[256] = "";
	int rc;

	c->node = node;
	c->job = job;
	c->ranks = &s->ranks[(size_t)job * s->o.ranks + (size_t)node * s->o.per_node];
	c->n_ranks = s->o.per_node;
	o.blocks[EPF_STATS_CORE] = 1;
	if (epf_stats_create(&o, &c->stats, why, sizeof(why)) ||
	    epf_stats_add_block(c->stats, EPF_STATS_CORE, labels, 2, &c->block))
		return epf_fail(EPF_R_NO_MEMORY, "simulation: %s", why);
	if (s->o.nic)
		cfg.now = epf_limits_now;
	rc = s->o.nic ? epf_nic_find(s->o.nic)->open(&s->conf, epf_limits_now, NULL, &c->nic)
		      : sim_nic_open(s->net, node, job, &c->nic);
	if (rc)
		return rc;
	cfg.nic = c->nic;
	cfg.stats = c->block;
	epf_limits_from_conf(&s->conf, &cfg.limits);
	cfg.limits.lanes_per_node = s->o.net.lanes;
	cfg.limits.beats = 1;
	rc = epf_core_create(&cfg, &c->core);
	for (uint32_t i = 0; i < c->n_ranks && !rc; i++)
		rc = open_rank(s, c, i);
	return rc;
}

/* What all ranks of a job say of themselves: what the rendezvous would carry. */
static int describe_job(struct scale *s, uint32_t job, struct epf_blob *blobs, uint64_t *tokens,
			size_t lanes)
{
	int rc = 0;

	for (uint32_t r = 0; r < s->o.ranks && !rc; r++) {
		struct scale_rank *rank = &s->ranks[(size_t)job * s->o.ranks + r];
		uint32_t node = scale_node_of(s, r);
		uint8_t *bytes;
		char place[32];

		snprintf(place, sizeof(place), "node%u", r / s->o.near);
		rc = epf_world_describe(rank->core->core, rank->local, place,
					rank->local ? NULL : tokens + node * lanes, &bytes,
					&blobs[r].len);
		blobs[r].data = rc ? NULL : bytes;
		s->description_bytes += rc ? 0 : blobs[r].len;
	}
	return rc;
}

static int join_job(struct scale *s, uint32_t job)
{
	size_t lanes = (size_t)s->n_nodes * s->o.net.lanes;
	uint64_t *tokens = calloc(s->n_nodes * lanes, sizeof(*tokens));
	struct epf_blob *blobs = calloc(s->o.ranks, sizeof(*blobs));
	uint32_t *node_of = calloc(s->o.ranks, sizeof(*node_of));
	struct scale_core *cores = &s->cores[(size_t)job * s->n_nodes];
	uint64_t t[4] = { epf_now_ns() };
	int rc =
		tokens && blobs && node_of ? 0 : epf_fail(EPF_R_NO_MEMORY, "simulation: no memory");

	for (uint32_t r = 0; r < s->o.ranks && !rc; r++)
		node_of[r] = scale_node_of(s, r);
	for (uint32_t n = 0; n < s->n_nodes && !rc; n++)
		rc = epf_core_set_world(cores[n].core, s->o.ranks, s->n_nodes, n, NULL,
					tokens + n * lanes);
	t[1] = epf_now_ns();
	if (!rc)
		rc = describe_job(s, job, blobs, tokens, lanes);
	t[2] = epf_now_ns();
	for (uint32_t n = 0; n < s->n_nodes && !rc; n++)
		rc = epf_world_connect(cores[n].core, blobs, node_of);
	t[3] = epf_now_ns();
	for (unsigned i = 0; i < 3; i++)
		s->join_ns[i] += t[i + 1] - t[i];
	for (uint32_t r = 0; r < s->o.ranks && blobs; r++)
		free((void *)(uintptr_t)blobs[r].data);
	free(blobs);
	free(tokens);
	free(node_of);
	return rc;
}

static int set_conf(struct scale *s)
{
	int rc = epf_conf_init(&s->conf);

	for (const char *const *t = s->o.settings; !rc && t && *t; t++) {
		const char *eq = strchr(*t, '=');
		char name[64];

		if (!eq || (size_t)(eq - *t) >= sizeof(name))
			return epf_fail(EPF_R_CONF_SYNTAX, "%s is not NAME=VALUE", *t);
		memcpy(name, *t, (size_t)(eq - *t));
		name[eq - *t] = 0;
		rc = epf_conf_set(&s->conf, name, eq + 1, EPF_CONF_PROGRAM);
	}
	return rc;
}

static int open_all(struct scale *s)
{
	static const struct sim_net_calls calls = {
		.wake = on_wake, .landed = on_landed, .reaped = on_reaped, .timer = on_timer
	};
	int rc = set_conf(s);

	if (!rc)
		rc = sim_net_create(&s->o.net, &calls, s, &s->net);
	for (uint32_t n = 0; n < s->n_nodes && !rc; n++) {
		struct scale_cpu *cpu = &s->cpus[n];

		cpu->due_ns = SIM_NEVER;
		epf_fair_init(&cpu->fair, s->conf.service_quantum_ns, s->conf.service_fair,
			      EPF_FAIR_64K_NS);
		for (uint32_t j = 0; j < s->o.jobs && !rc; j++) {
			cpu->seats[j] = &s->cores[(size_t)j * s->n_nodes + n];
			epf_fair_add(&cpu->fair, s->o.weight[j] ? s->o.weight[j] : 1);
			rc = open_core(s, cpu->seats[j], n, j);
		}
	}
	for (uint32_t j = 0; j < s->o.jobs && !rc; j++)
		rc = join_job(s, j);
	return rc;
}

struct scale *scale_open(const struct scale_options *o)
{
	struct scale *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->o = *o;
	s->n_nodes = o->ranks / o->per_node;
	s->n_numbers = o->ranks * o->jobs;
	s->o.net.nodes = s->n_nodes;
	s->o.net.jobs = o->jobs;
	s->cores = calloc((size_t)s->n_nodes * o->jobs, sizeof(*s->cores));
	s->cpus = calloc(s->n_nodes, sizeof(*s->cpus));
	s->ranks = calloc(s->n_numbers, sizeof(*s->ranks));
	if (!s->cores || !s->cpus || !s->ranks || open_all(s)) {
		scale_close(s);
		return NULL;
	}
	return s;
}

void scale_close(struct scale *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; s->cores && i < s->n_nodes * s->o.jobs; i++) {
		struct scale_core *c = &s->cores[i];

		epf_core_destroy(c->core);
		if (c->nic)
			c->nic->ops->close(c->nic);
		epf_stats_destroy(c->stats, 0);
	}
	for (uint32_t i = 0; s->ranks && i < s->n_numbers && s->o.nic; i++)
		if (s->ranks[i].region && s->ranks[i].region != MAP_FAILED)
			munmap(s->ranks[i].region, s->o.region_bytes);
	for (uint32_t i = 0; s->ranks && i < s->n_numbers; i++)
		if (s->ranks[i].signals)
			munmap(s->ranks[i].signals,
			       s->ranks[i].n_signals * sizeof(struct epf_signal) +
				       epf_ring_bytes(RING_LOG2));
	sim_net_destroy(s->net);
	epf_conf_destroy(&s->conf);
	free(s->cores);
	free(s->cpus);
	free(s->ranks);
	free(s);
}
