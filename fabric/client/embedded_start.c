/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making an engine inside this process (embedded.h): statistics, NIC, core, signals, and the thread that runs it. Called by
 * embedded.c only; slow path.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/embedded_priv.h"

#include "bootstrap/auth.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/watch.h"
#include "fabric/place/numa.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_stats(struct epf *ep)
{
	struct epf_stats_opts o = { .size = sizeof(o),
				    .tsc_hz = epf_tsc_hz(),
				    .job = ep->conf.job };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	struct epf_stats_label nic_labels[3] = { { ep->nic_name, 0 }, { NULL, 1 }, { NULL, 0 } };
	char dir[4096], reason[256] = "", name[64];
	int rc = epf_conf_stats_dir(&ep->conf, dir, sizeof(dir));

	o.blocks[EPF_STATS_CORE] = 1;
	o.blocks[EPF_STATS_NIC] = o.blocks[EPF_STATS_JOB] = 1;
	o.blocks[EPF_STATS_RANK] = o.blocks[EPF_STATS_FLIGHT] = 1;
	o.blocks[EPF_STATS_RING] = o.blocks[EPF_STATS_LANE] = o.blocks[EPF_STATS_PEER] =
		(uint32_t)ep->conf.stats_blocks;
	if (ep->conf.instance[0])
		snprintf(name, sizeof(name), "%s", ep->conf.instance);
	else
		snprintf(name, sizeof(name), "epf-%d-%llx", (int)getpid(),
			 (unsigned long long)(uintptr_t)ep >> 4);
	o.instance = name;
	o.dir = rc ? NULL : dir;
	if (ep->opts.now) /* a simulation: nobody watches it */
		o.dir = NULL;
	if (o.dir && (epf_stats_make_dir(o.dir, reason, sizeof(reason)) ||
		      epf_stats_create(&o, &ep->stats, reason, sizeof(reason)))) {
		epf_note(
			"statistics: %s: kept in memory only, ep-fabric stats will not see this rank",
			reason);
		o.dir = NULL;
	}
	if (!ep->stats && epf_stats_create(&o, &ep->stats, reason, sizeof(reason)))
		return epf_fail(EPF_R_NO_MEMORY, "statistics: %s", reason);
	if (epf_stats_add_block(ep->stats, EPF_STATS_CORE, labels, 2, &ep->block) ||
	    epf_stats_add_block(ep->stats, EPF_STATS_NIC, nic_labels, 3, &ep->nic_block))
		return epf_fail(EPF_R_NO_MEMORY, "statistics: no room for the core");
	/* What nobody measures yet must not read as zero. */
	epf_stat_forget(ep->block, EPF_STAT_CORE_RING_FULL_SEEN);
	return 0;
}

static int open_engine(struct epf *ep)
{
	struct epf_core_config cfg = { .max_ranks = 1, .now = ep->now, .now_arg = ep->now_arg };
	struct epf_watch_config watch = { .stats = ep->stats,
					  .most = (uint32_t)ep->conf.stats_blocks,
					  .job = ep->job,
					  .id = &ep->job_id };
	uint32_t local;
	int rc;

	ep->ops = epf_nic_find(ep->nic_name);
	if (!ep->ops)
		return epf_fail(EPF_R_NIC_UNKNOWN, "nic: no back-end named %s", ep->nic_name);
	rc = ep->ops->open(&ep->conf, cfg.now, cfg.now_arg, &ep->nic);
	if (rc)
		return rc;
	ep->ops = ep->nic->ops; /* of several devices as one, say */
	epf_limits_from_conf(&ep->conf, &cfg.limits);
	cfg.nic = ep->nic;
	cfg.stats = ep->block;
	rc = epf_core_create(&cfg, &ep->core);
	if (!rc && !ep->opts.now) /* a simulation's clock is not the watch's */
		rc = epf_watch_open(ep->core, &watch);
	if (rc)
		return rc;
	ep->n_signals = (uint32_t)ep->conf.signals;
	ep->signal_bytes = ((uint64_t)ep->n_signals * sizeof(struct epf_signal) + 127) / 128 * 128;
	ep->signals = mmap(NULL, ep->signal_bytes + sizeof(struct epf_wakeup),
			   PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ep->signals == MAP_FAILED) {
		ep->signals = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "signals: no memory for %u", ep->n_signals);
	}
	ep->wakeup = (struct epf_wakeup *)(void *)((uint8_t *)ep->signals + ep->signal_bytes);
	rc = epf_core_add_rank(ep->core, 0, ep->signals, ep->n_signals, (uint32_t)ep->conf.regions,
			       ep->wakeup, &local);
	if (!rc)
		ep->core->ranks[local].pid = (uint32_t)getpid();
	return rc;
}

/* The statistics' sign of life, on the core's thread: the NIC's counters, and the time. */
static void beat(void *arg)
{
	struct epf *ep = arg;

	epf_watch_nic(ep->core, ep->nic_block);
	epf_stats_beat(ep->stats, epf_now_ns());
}

/* Which rank of its node this is, as far as the launcher says: devices and CPUs are dealt out by that number. */
static int find_local_rank(struct epf *ep)
{
	struct epf_rank_info info;
	char number[16];
	int rc = 0;

	if (ep->conf.local_rank >= 0 || epf_rank_discover(&info) ||
	    info.local_rank == EPF_RANK_UNKNOWN)
		return 0;
	snprintf(number, sizeof(number), "%u", info.local_rank);
	rc = epf_conf_set(&ep->conf, "local-rank", number, EPF_CONF_PROGRAM);
	return rc;
}

/* The engine with its memory, near the device that it will use. */
static int open_near(struct epf *ep)
{
	struct epf_numa before;
	int rc = find_local_rank(ep);

	if (!rc)
		rc = epf_place_bind(&ep->conf, NULL, ep->conf.local_rank, 0, 1, &ep->bind);
	if (rc)
		return rc;
	if (ep->bind.why[0])
		epf_info("engine core: %s", ep->bind.why);
	if (epf_numa_begin(epf_numa_lib(), ep->bind.node, &before))
		epf_info("engine core: memory of NUMA node %d cannot be asked for", ep->bind.node);
	rc = open_engine(ep);
	epf_numa_end(epf_numa_lib(), &before);
	return rc;
}

int epf_embedded_open(struct epf *ep)
{
	int rc;

	snprintf(ep->mode, sizeof(ep->mode), "embedded");
	rc = open_stats(ep);
	if (!rc)
		rc = open_near(ep);
	if (rc)
		return rc;
	ep->threaded = ep->conf.progress == EPF_CONF_PROGRESS_THREAD;
	ep->call_progress = !ep->threaded && ep->opts.progress;
	ep->run.idle = (enum epf_idle)ep->conf.core_idle;
	ep->run.idle_after_ns = ep->conf.core_idle_after_ns;
	ep->run.beat = beat;
	ep->run.beat_arg = ep;
	return 0;
}

void epf_embedded_identify(struct epf *ep, const struct epf_blob *rank0)
{
	uint8_t digest[EPF_AUTH_HASH_BYTES];

	/* No two jobs have it in common: the address of rank 0's engine and the keys of its memory are its own. */
	epf_auth_digest(rank0->data, rank0->len, digest);
	for (unsigned i = 0; i < sizeof(ep->job_id); i++)
		ep->job_id = ep->job_id << 8 | digest[i];
	epf_watch_look(ep->core);
}

static void *core_thread(void *arg)
{
	struct epf *ep = arg;

	pthread_setname_np(pthread_self(), "epf-core");
	epf_core_run(ep->core, &ep->run);
	return NULL;
}

static int pin(const struct epf *ep, pthread_attr_t *attr)
{
	const struct epf_place_bind *bind = &ep->bind;
	cpu_set_t *set = CPU_ALLOC(4096);
	int rc;

	if (!set)
		return epf_fail(EPF_R_NO_MEMORY, "cpu: no memory");
	CPU_ZERO_S(CPU_ALLOC_SIZE(4096), set);
	for (size_t i = 0; i < bind->count; i++)
		CPU_SET_S(bind->cpu[i], CPU_ALLOC_SIZE(4096), set);
	rc = bind->count ? pthread_attr_setaffinity_np(attr, CPU_ALLOC_SIZE(4096), set) : 0;
	CPU_FREE(set);
	return rc ? epf_fail_sys(EPF_R_SYSTEM, rc, "cpu: cannot pin the engine core") : 0;
}

int epf_embedded_start(struct epf *ep)
{
	pthread_attr_t attr;
	int rc;

	ep->details = epf_peers_details(ep->core->peers_page, ep->world);
	if (!ep->threaded)
		return 0;
	pthread_attr_init(&attr);
	rc = pin(ep, &attr);
	if (!rc) {
		rc = pthread_create(&ep->thread, &attr, core_thread, ep);
		if (rc)
			rc = epf_fail_sys(EPF_R_SYSTEM, rc, "join: cannot start the engine core");
	}
	pthread_attr_destroy(&attr);
	if (rc)
		return rc;
	ep->started = true;
	EPF_STORE_RELEASE(&ep->kick, ep->core->wakeup);
	/* From the first call on, requests must reach the thread. */
	while (!EPF_LOAD_ACQUIRE(&ep->core->running))
		sched_yield();
	return 0;
}

static int loss_is_notified(struct epf_core *core, void *arg)
{
	(void)arg;
	return epf_loss_is_notified(core);
}

bool epf_embedded_has_notified(struct epf *ep)
{
	return epf_engine_call(ep, loss_is_notified, NULL) != 0;
}

uint32_t epf_embedded_engine_pid(const struct epf *ep)
{
	(void)ep;
	return (uint32_t)getpid();
}
