/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 1: opening and closing, memory, regions, rings. Slow path; called by the rank's own thread. What touches the
 * core after the join goes through epf_core_call(), so that it happens between two steps.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/lib.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIN_PARKED = 1024, PARKED_PER_LIMIT = 16, REAP_BATCH = 64 };

#define STR2(x) #x
#define STR(x)  STR2(x)

const char *epf_version(void)
{
	return STR(EPF_VERSION_MAJOR) "." STR(EPF_VERSION_MINOR) ".0";
}

void epf_options_init(struct epf_options *opts)
{
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
}

/* The monotonic clock from the time-stamp counter: no system call, whatever the clock source. */
static uint64_t tsc_now(void *arg)
{
	(void)arg;
	return epf_tsc_to_ns(epf_tsc());
}

static int set_one(struct epf_conf *conf, const char *setting)
{
	const char *eq = strchr(setting, '=');
	char name[64];

	if (!eq || (size_t)(eq - setting) >= sizeof(name))
		return epf_fail(EPF_R_CONF_UNKNOWN_KEY, "setting \"%s\" is not name=value",
				setting);
	memcpy(name, setting, (size_t)(eq - setting));
	name[eq - setting] = 0;
	return epf_conf_set(conf, name, eq + 1, EPF_CONF_PROGRAM);
}

static int load_conf(struct epf *ep)
{
	struct epf_conf_places places = { .system_file = EPF_CONF_SYSTEM_FILE,
					  .named_file = ep->opts.config_file,
					  .environment = environ };
	int rc = epf_conf_init(&ep->conf);

	if (rc)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory for the configuration");
	for (const char *const *s = ep->opts.settings; s && *s && !rc; s++)
		rc = set_one(&ep->conf, *s);
	if (!rc)
		rc = epf_conf_load(&ep->conf, ep->opts.config_file ? &places : NULL);
	return rc;
}

static const char *nic_name(const struct epf *ep)
{
	return ep->conf.nic == EPF_CONF_NIC_NULL ? "null" : "emu";
}

static int open_stats(struct epf *ep)
{
	struct epf_stats_opts o = { .size = sizeof(o),
				    .tsc_hz = epf_tsc_hz(),
				    .job = ep->conf.job };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	struct epf_stats_label nic_labels[3] = { { nic_name(ep), 0 }, { NULL, 1 }, { NULL, 0 } };
	char dir[4096], reason[256] = "", name[64];
	int rc = epf_conf_stats_dir(&ep->conf, dir, sizeof(dir));

	o.blocks[EPF_STATS_CORE] = 1;
	o.blocks[EPF_STATS_NIC] = 1;
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
	epf_stat_forget(ep->block, EPF_STAT_CORE_STEP_NS);
	epf_stat_forget(ep->block, EPF_STAT_CORE_QUEUE_DELAY_NS);
	return 0;
}

static void limits_from_conf(const struct epf_conf *c, struct epf_core_limits *l)
{
	l->batch = (uint32_t)c->core_batch;
	l->reap_batch = REAP_BATCH;
	l->park_limit = (uint32_t)c->park_limit;
	l->max_parked = l->park_limit * PARKED_PER_LIMIT < MIN_PARKED
				? MIN_PARKED
				: l->park_limit * PARKED_PER_LIMIT;
	l->window = (uint32_t)c->window;
	l->ring_window = (uint32_t)c->ring_window;
	l->lane_depth = (uint32_t)c->lane_depth;
	l->lane_receives = (uint32_t)c->lane_receives;
	l->lanes_per_node = (uint32_t)c->lanes_per_peer;
	l->streams_per_node = (uint32_t)c->streams_per_peer;
	l->nic_inflight_bytes = c->nic_inflight_bytes;
	l->nic_inflight_messages = (uint32_t)c->nic_inflight_messages;
	l->rank_inflight_bytes = c->rank_inflight_bytes;
	l->rank_inflight_messages = (uint32_t)c->rank_inflight_messages;
	l->peer_timeout_ns = c->peer_timeout_ns;
	l->start_count = (uint32_t)c->start_count;
}

static int open_engine(struct epf *ep)
{
	struct epf_core_config cfg = { .max_ranks = 1,
				       .now = ep->opts.now ? ep->opts.now : tsc_now,
				       .now_arg = ep->opts.now_arg };
	const char *nic = nic_name(ep);
	int rc;

	ep->ops = epf_nic_find(nic);
	if (!ep->ops)
		return epf_fail(EPF_R_NIC_UNKNOWN, "nic: no back-end named %s", nic);
	rc = ep->ops->open(&ep->conf, cfg.now, cfg.now_arg, &ep->nic);
	if (rc)
		return rc;
	limits_from_conf(&ep->conf, &cfg.limits);
	cfg.nic = ep->nic;
	cfg.stats = ep->block;
	rc = epf_core_create(&cfg, &ep->core);
	if (rc)
		return rc;
	ep->n_signals = (uint32_t)ep->conf.signals;
	ep->signal_bytes = ((uint64_t)ep->n_signals * sizeof(struct epf_signal) + 127) / 128 * 128;
	ep->signals = mmap(NULL, ep->signal_bytes + sizeof(struct epf_bell), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ep->signals == MAP_FAILED) {
		ep->signals = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "signals: no memory for %u", ep->n_signals);
	}
	ep->bell = (struct epf_bell *)(void *)((uint8_t *)ep->signals + ep->signal_bytes);
	return epf_core_add_rank(ep->core, 0, ep->signals, ep->n_signals,
				 (uint32_t)ep->conf.regions, ep->bell);
}

/* The statistics' sign of life, on the core's thread: the NIC's counters, and the time. */
static void beat(void *arg)
{
	struct epf *ep = arg;
	struct epf_nic_counters c;

	ep->ops->counters(ep->nic, &c);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_BYTES_TX, c.bytes_tx);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_BYTES_RX, c.bytes_rx);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_MESSAGES_TX, c.messages_tx);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_MESSAGES_RX, c.messages_rx);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_PACKETS_DROPPED, c.packets_dropped);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_PACKETS_DUPLICATED, c.packets_duplicated);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_PACKETS_REORDERED, c.packets_reordered);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_RETRANSMITS, c.retransmits);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_RNR_EVENTS, c.rnr_events);
	epf_stat_set(ep->nic_block, EPF_STAT_NIC_ERRORS, c.errors);
	epf_stats_beat(ep->stats, epf_now_ns());
}

int epf_open(const struct epf_options *opts, struct epf **out)
{
	struct epf *ep = calloc(1, sizeof(*ep));
	int rc;

	if (!ep)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory");
	epf_options_init(&ep->opts);
	if (opts)
		memcpy(&ep->opts, opts, opts->size < sizeof(*opts) ? opts->size : sizeof(*opts));
	rc = load_conf(ep);
	if (!rc)
		rc = open_stats(ep);
	if (!rc)
		rc = open_engine(ep);
	if (rc) {
		epf_close(ep);
		return rc;
	}
	ep->threaded = ep->conf.progress == EPF_CONF_PROGRESS_THREAD;
	ep->run.idle = (enum epf_idle)ep->conf.core_idle;
	ep->run.idle_after_ns = ep->conf.core_idle_after_ns;
	ep->run.beat = beat;
	ep->run.beat_arg = ep;
	*out = ep;
	return 0;
}

/* Tells the peers that this rank goes on purpose, so that they do not take it for lost. */
static int say_bye(struct epf_core *core, void *arg)
{
	(void)arg;
	epf_core_say_bye(core);
	return 0;
}

static void leave(struct epf *ep)
{
	uint64_t deadline;

	if (ep->join_phase != EPF_JOIN_DONE)
		return;
	epf_core_call(ep->core, say_bye, NULL);
	if (ep->started) {
		epf_core_stop(ep->core);
		pthread_join(ep->thread, NULL);
		ep->started = false;
	}
	/* What was said must leave this machine; a peer that does not answer gets a tenth of a second. */
	deadline = epf_now_ns() + 100 * 1000 * 1000;
	while (!ep->opts.now && !ep->opts.progress && !epf_core_is_quiet(ep->core) &&
	       epf_now_ns() < deadline) {
		epf_core_step(ep->core);
		epf_core_wake(ep->core);
	}
}

void epf_close(struct epf *ep)
{
	if (!ep)
		return;
	leave(ep);
	while (ep->rings) {
		struct epf_ring *ring = ep->rings;

		ep->rings = ring->next;
		munmap(ring->shm, ring->bytes);
		free(ring);
	}
	epf_core_destroy(ep->core);
	if (ep->nic)
		ep->ops->close(ep->nic);
	while (ep->mappings)
		epf_memory_free(ep, ep->mappings->addr);
	if (ep->signals)
		munmap(ep->signals, ep->signal_bytes + sizeof(struct epf_bell));
	if (ep->own_boot)
		epf_boot_close(ep->boot);
	epf_boot_free_blobs(ep->blobs);
	epf_stats_destroy(ep->stats, 0);
	epf_conf_destroy(&ep->conf);
	free(ep->tokens);
	free(ep->places);
	free(ep);
}

int epf_memory_alloc(struct epf *ep, uint64_t bytes, void **addr)
{
	struct epf_mapping *m = calloc(1, sizeof(*m));
	int fd;

	if (!m)
		return epf_fail(EPF_R_NO_MEMORY, "epf_memory_alloc: no memory");
	m->bytes = (bytes + 4095) / 4096 * 4096;
	fd = memfd_create("epf-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, (off_t)m->bytes) < 0) {
		int err = errno;

		if (fd >= 0)
			close(fd);
		free(m);
		return epf_fail_sys(EPF_R_SYSTEM, err, "epf_memory_alloc: memfd of %llu bytes",
				    (unsigned long long)bytes);
	}
	m->addr = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (m->addr == MAP_FAILED) {
		free(m);
		return epf_fail(EPF_R_NO_MEMORY, "epf_memory_alloc: %llu bytes",
				(unsigned long long)bytes);
	}
	m->next = ep->mappings;
	ep->mappings = m;
	*addr = m->addr;
	return 0;
}

void epf_memory_free(struct epf *ep, void *addr)
{
	for (struct epf_mapping **link = &ep->mappings; *link; link = &(*link)->next) {
		struct epf_mapping *m = *link;

		if (m->addr != addr)
			continue;
		*link = m->next;
		munmap(m->addr, m->bytes);
		free(m);
		return;
	}
}

struct region_args {
	void *addr;
	uint64_t bytes;
	unsigned access;
	uint32_t region;
};

static int add_region(struct epf_core *core, void *arg)
{
	struct region_args *a = arg;

	return epf_core_add_region(core, 0, a->addr, a->bytes, a->access, &a->region);
}

int epf_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			uint32_t *region)
{
	struct region_args a = { .addr = addr, .bytes = bytes, .access = access };
	int rc = epf_core_call(ep->core, add_region, &a);

	if (!rc)
		*region = a.region;
	return rc;
}

struct ring_args {
	struct epf_ring_shm *shm;
	unsigned log2, weight;
	uint64_t start;
	uint32_t id;
};

static int add_ring(struct epf_core *core, void *arg)
{
	struct ring_args *a = arg;

	return epf_core_add_ring(core, 0, a->shm, a->log2, a->weight, a->start, &a->id);
}

int epf_ring_open(struct epf *ep, const struct epf_ring_options *opts, struct epf_ring **out)
{
	struct epf_ring_options o = { 0 };
	struct ring_args a = { 0 };
	struct epf_ring *ring;
	int rc;

	if (opts)
		memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
	o.slots = o.slots ? o.slots : (uint32_t)ep->conf.ring_slots;
	o.weight = o.weight ? o.weight : 1;
	if ((o.slots & (o.slots - 1)) || o.slots < 1u << EPF_RING_LOG2_MIN ||
	    o.slots > 1u << EPF_RING_LOG2_MAX || o.weight > 255)
		return epf_fail(EPF_R_RING_OPTION, "ring: %u slots, weight %u", o.slots, o.weight);
	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return epf_fail(EPF_R_NO_MEMORY, "ring: no memory");
	a.log2 = (unsigned)__builtin_ctz(o.slots);
	a.weight = o.weight;
	a.start = o.start;
	ring->bytes = epf_ring_bytes(a.log2);
	ring->shm =
		mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ring->shm == MAP_FAILED) {
		free(ring);
		return epf_fail(EPF_R_NO_MEMORY, "ring: no memory for %u slots", o.slots);
	}
	epf_ring_format(ring->shm, a.log2, 0, ep->rank);
	epf_ring_reset(ring->shm, o.start);
	a.shm = ring->shm;
	rc = epf_core_call(ep->core, add_ring, &a);
	if (rc) {
		munmap(ring->shm, ring->bytes);
		free(ring);
		return rc;
	}
	ring->ep = ep;
	ring->id = a.id;
	ring->shm->ring_id = a.id;
	epf_ring_producer_init(&ring->producer, ring->shm, o.start);
	ring->next = ep->rings;
	ep->rings = ring;
	*out = ring;
	return 0;
}

static int close_ring(struct epf_core *core, void *arg)
{
	epf_core_close_ring(core, *(uint32_t *)arg);
	return 0;
}

void epf_ring_close(struct epf_ring *ring)
{
	struct epf *ep;

	if (!ring)
		return;
	ep = ring->ep;
	if (epf_wait_retired(ring, epf_ring_pushed(ring), 0))
		epf_warn("ring %u: closed with commands under way: %s", ring->id, epf_last_error());
	epf_core_call(ep->core, close_ring, &ring->id);
	for (struct epf_ring **link = &ep->rings; *link; link = &(*link)->next)
		if (*link == ring) {
			*link = ring->next;
			break;
		}
	munmap(ring->shm, ring->bytes);
	free(ring);
}

/* Counters by name, from the same table as the statistics file. */
#define COUNTER_CORE(id, name) { name, EPF_STAT_CORE_##id },
#define COUNTER_RING(id, name)
#define COUNTER_LANE(id, name)
#define COUNTER_PEER(id, name)
#define COUNTER_NIC(id, name)

static const struct {
	const char *name;
	uint32_t stat;
} core_counters[] = {

#define EPF_ROW(cls, id, name, unit, type, states, help) COUNTER_##cls(id, name)
#include "queues/stats_keys.h"
};

/* Counters of the NIC: its own thread copies them, so that the numbers are whole. */
#define NIC_COUNTER(field)                                \
 {                                                        \
  "nic_" #field, offsetof(struct epf_nic_counters, field) \
 }

static const struct {
	const char *name;
	size_t offset;
} nic_counters[] = {
	NIC_COUNTER(bytes_tx),          NIC_COUNTER(bytes_rx),
	NIC_COUNTER(messages_tx),       NIC_COUNTER(messages_rx),
	NIC_COUNTER(packets_dropped),   NIC_COUNTER(packets_duplicated),
	NIC_COUNTER(packets_reordered), NIC_COUNTER(retransmits),
	NIC_COUNTER(rnr_events),        NIC_COUNTER(errors),
	NIC_COUNTER(doorbells),
};

static int read_nic(struct epf_core *core, void *arg)
{
	core->ops->counters(core->nic, arg);
	return 0;
}

int epf_counter(const struct epf *ep, const char *name, uint64_t *value)
{
	struct epf_nic_counters c;

	for (size_t i = 0; i < sizeof(core_counters) / sizeof(core_counters[0]); i++)
		if (strcmp(core_counters[i].name, name) == 0) {
			*value = epf_stat_get(ep->block, core_counters[i].stat);
			return 0;
		}
	for (size_t i = 0; i < sizeof(nic_counters) / sizeof(nic_counters[0]); i++)
		if (strcmp(nic_counters[i].name, name) == 0) {
			epf_core_call(ep->core, read_nic, &c);
			memcpy(value, (uint8_t *)&c + nic_counters[i].offset, sizeof(*value));
			return 0;
		}
	return -ENOENT;
}

const char *epf_stats_file(const struct epf *ep)
{
	const char *path = epf_stats_path(ep->stats);

	return path ? path : "";
}

uint64_t epf_bytes_per_peer(const struct epf *ep)
{
	return ep->world ? ep->core->peer_memory_bytes / ep->world : 0;
}
