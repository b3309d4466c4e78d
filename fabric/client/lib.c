/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 1: opening, closing, aborting, memory, regions. Slow path; any thread. Whatever concerns the
 * engine goes through the back-end (backend.h); this file never touches one.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/choose_nic.h"
#include "fabric/client/handle.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/losses.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static int load_conf(struct epf *ep)
{
	struct epf_conf_places places = { .system_file = EPF_CONF_SYSTEM_FILE,
					  .named_file = ep->opts.config_file,
					  .environment = environ };
	int rc = epf_conf_init(&ep->conf);

	if (rc)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory for the configuration");
	for (const char *const *s = ep->opts.settings; s && *s && !rc; s++)
		rc = epf_conf_set_text(&ep->conf, *s);
	if (!rc)
		rc = epf_conf_load(&ep->conf, ep->opts.config_file ? &places : NULL);
	return rc;
}

static void init_locks(struct epf_locks *l)
{
	pthread_mutex_init(&l->meeting, NULL);
	pthread_mutex_init(&l->calls, NULL);
	pthread_mutex_init(&l->engine, NULL);
	pthread_mutex_init(&l->lists, NULL);
}

static void destroy_locks(struct epf_locks *l)
{
	pthread_mutex_destroy(&l->meeting);
	pthread_mutex_destroy(&l->calls);
	pthread_mutex_destroy(&l->engine);
	pthread_mutex_destroy(&l->lists);
}

int epf_open(const struct epf_options *opts, struct epf **out)
{
	struct epf *ep = calloc(1, sizeof(*ep));
	int rc;

	if (!ep)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory");
	init_locks(&ep->locks);
	epf_options_init(&ep->opts);
	if (opts)
		memcpy(&ep->opts, opts, opts->size < sizeof(*opts) ? opts->size : sizeof(*opts));
	ep->be = &epf_backend_embedded;
	rc = load_conf(ep);
	if (rc) {
		epf_close(ep);
		return rc;
	}
	if (ep->conf.service[0])
		ep->be = &epf_backend_service;
	ep->now = ep->opts.now ? ep->opts.now : epf_limits_now;
	if (!ep->opts.now)
		epf_tsc_hz(); /* calibrated here, or the first wait would pay 20 ms for it */
	ep->now_arg = ep->opts.now_arg;
	rc = ep->conf.service[0] ? 0 : epf_choose_nic(&ep->conf);
	ep->nic_name = epf_limits_nic(&ep->conf);
	if (!rc)
		rc = ep->be->open(ep);
	if (rc) {
		epf_close(ep);
		return rc;
	}
	*out = ep;
	return 0;
}

void epf_close(struct epf *ep)
{
	if (!ep)
		return;
	epf_gpu_close(ep->gpus);
	if (ep->join_phase == EPF_JOIN_DONE) {
		struct epf_loss loss;

		if (ep->own_boot && ep->peers &&
		    epf_first_loss(ep->peers, ep->details, ep->world, ep->masked, ep->rank, true,
				   &loss))
			epf_boot_blame(ep->boot, loss.rank,
				       loss.cause ? loss.cause : EPF_R_PEER_DOWN);
		ep->be->leave(ep);
	}
	ep->be->close(ep);
	while (ep->rings) {
		struct epf_ring *ring = ep->rings;

		ep->rings = ring->next;
		free(ring);
	}
	while (ep->mappings)
		epf_memory_free(ep, ep->mappings->addr);
	epf_gpu_signals_free(ep);
	if (ep->own_boot)
		epf_boot_close(ep->boot);
	epf_boot_free_blobs(ep->blobs);
	epf_boot_free_blobs(ep->who);
	epf_conf_destroy(&ep->conf);
	free(ep->masked);
	destroy_locks(&ep->locks);
	free(ep);
}

void epf_abort(struct epf *ep)
{
	epf_lock_lists(ep);
	EPF_STORE_RELAXED(&ep->aborted, true);
	for (struct epf_ring *ring = ep->rings; ring; ring = ring->next)
		EPF_STORE_RELEASE(&ring->shm->abort, -ECANCELED);
	epf_gpu_abort(ep);
	epf_unlock_lists(ep);
	epf_wakeup_wake(ep->wakeup);
}

const char *epf_mode(const struct epf *ep)
{
	return ep->mode;
}

/* A memfd that nobody can make shorter under its other users. */
static int new_memfd(uint64_t bytes, int *out)
{
	int fd = memfd_create("epf-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
		*out = fd;
		return 0;
	}
	err = errno;
	if (fd >= 0)
		close(fd);
	return epf_fail_sys(EPF_R_SYSTEM, err, "epf_memory_alloc: memfd of %llu bytes",
			    (unsigned long long)bytes);
}

int epf_memory_alloc(struct epf *ep, uint64_t bytes, void **addr)
{
	struct epf_mapping *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return epf_fail(EPF_R_NO_MEMORY, "epf_memory_alloc: no memory");
	m->bytes = (bytes + 4095) / 4096 * 4096;
	rc = new_memfd(m->bytes, &m->fd);
	if (rc) {
		free(m);
		return rc;
	}
	m->addr = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->addr == MAP_FAILED || !ep->keeps_memory) {
		close(m->fd);
		m->fd = -1;
	}
	if (m->addr == MAP_FAILED) {
		free(m);
		return epf_fail(EPF_R_NO_MEMORY, "epf_memory_alloc: %llu bytes",
				(unsigned long long)bytes);
	}
	*addr = m->addr;
	epf_lock_lists(ep);
	m->next = ep->mappings;
	ep->mappings = m;
	epf_unlock_lists(ep);
	return 0;
}

/* Takes the mapping that begins at addr out of the list: NULL if there is none. */
static struct epf_mapping *take_mapping(struct epf *ep, const void *addr)
{
	struct epf_mapping **link = &ep->mappings, *m;

	epf_lock_lists(ep);
	while (*link && (*link)->addr != addr)
		link = &(*link)->next;
	m = *link;
	if (m)
		*link = m->next;
	epf_unlock_lists(ep);
	return m;
}

void epf_memory_free(struct epf *ep, void *addr)
{
	struct epf_mapping *m = take_mapping(ep, addr);

	if (!m)
		return;
	munmap(m->addr, m->bytes);
	if (m->fd >= 0)
		close(m->fd);
	free(m);
}

struct epf_mapping *epf_mapping_find(const struct epf *ep, const void *addr, uint64_t bytes)
{
	struct epf_mapping *m;

	epf_lock_lists(ep);
	for (m = ep->mappings; m; m = m->next) {
		uint64_t offset = (uint64_t)((uintptr_t)addr - (uintptr_t)m->addr);

		if ((uintptr_t)addr >= (uintptr_t)m->addr && offset <= m->bytes &&
		    bytes <= m->bytes - offset)
			break;
	}
	epf_unlock_lists(ep);
	return m;
}

int epf_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			uint32_t *region)
{
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->region_register(ep, addr, bytes, access, region);
	epf_unlock_calls(ep);
	return rc;
}

int epf_counter(const struct epf *ep, const char *name, uint64_t *value)
{
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->counter(ep, name, value);
	epf_unlock_calls(ep);
	return rc;
}

int epf_describe(const struct epf *ep, struct epf_info *out)
{
	struct epf_info info = { .size = out->size,
				 .job_id = ep->job_id,
				 .call_stats = ep->conf.call_stats };
	int rc = epf_conf_stats_dir(&ep->conf, info.stats_dir, sizeof(info.stats_dir));

	if (rc)
		return rc;
	snprintf(info.job, sizeof(info.job), "%s", ep->job);
	memcpy(out, &info, out->size < sizeof(info) ? out->size : sizeof(info));
	return 0;
}

const char *epf_stats_file(const struct epf *ep)
{
	return ep->be->stats_file(ep);
}

uint64_t epf_bytes_per_peer(const struct epf *ep)
{
	uint64_t bytes;

	epf_lock_calls(ep);
	bytes = ep->be->bytes_per_peer(ep);
	epf_unlock_calls(ep);
	return bytes;
}
