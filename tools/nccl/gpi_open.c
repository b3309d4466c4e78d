/* SPDX-License-Identifier: Apache-2.0 */
/* See gpi.h: the memory of queues, counters and signals, and what kernels are told of it. */
#define EPF_LOG_COMP "nccl"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/gpu/copy.h"
#include "tools/nccl/gpi.h"

#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

/* Offsets in the pinned memory: queues, a word for each of what was taken, counters and signals. */
struct layout {
	uint64_t queue_bytes, taken_at, words_at, words_bytes, bytes;
};

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static struct layout layout_of(const struct epf_gpi *g)
{
	const struct epf_gpi_queue *q = &g->queue[0];
	struct layout l = { .queue_bytes = sizeof(struct epf_gpi_entry) << q->log2_slots };

	l.taken_at = g->n * l.queue_bytes;
	l.words_at = pages(l.taken_at + g->n * (uint64_t)EPF_GPI_STRIDE);
	l.words_bytes = (uint64_t)(q->n_counters + q->n_signals) * EPF_GPI_STRIDE;
	l.bytes = pages(l.words_at + g->n * l.words_bytes);
	return l;
}

/* The numbers, checked, in every context. */
static int size_queues(struct epf_gpi *g, const struct epf_gpi_wanted *w)
{
	int most = EPF_GPI_COUNTERS_MAX - (int)g->group->ranks,
	    slots = w->slots > 0 ? w->slots : EPF_GPI_SLOTS;
	uint32_t log2_slots = 1;

	if (w->counters < 0 || w->counters > most || w->signals < 0 ||
	    w->signals > EPF_GPI_SIGNALS_MAX || slots > EPF_GPI_SLOTS_MAX)
		return epf_fail(EPF_R_NCCL_LIMIT,
				"nccl: %d counters, %d signals, queues of %d; at most %d, %d, %d "
				"are possible for kernels without NCCL's proxy",
				w->counters, w->signals, slots, most, EPF_GPI_SIGNALS_MAX,
				EPF_GPI_SLOTS_MAX);
	while (1 << log2_slots < slots)
		log2_slots++;
	for (unsigned i = 0; i < g->n; i++) {
		struct epf_gpi_queue *q = &g->queue[i];

		q->log2_slots = log2_slots;
		q->n_counters = (uint32_t)w->counters + g->group->ranks;
		q->n_signals = (uint32_t)w->signals;
		q->ring = g->group->ring[g->rings->ring[i]];
		q->pending = calloc(UINT64_C(1) << log2_slots, sizeof(*q->pending));
		if (!q->pending)
			return epf_fail(EPF_R_NO_MEMORY, "nccl: a queue of kernels");
	}
	return 0;
}

/* A signal lies at the same place at every rank. */
static int compare(struct epf_group *g, const struct epf_gpi_wanted *mine)
{
	struct epf_gpi_wanted *all = calloc(g->ranks, sizeof(*all));
	int rc = all ? epf_allgather(g->ep, mine, sizeof(*mine), all)
		     : epf_fail(EPF_R_NO_MEMORY, "nccl: contexts");

	for (uint32_t r = 0; r < g->ranks && !rc; r++)
		if (memcmp(&all[r], mine, sizeof(*mine)) != 0)
			rc = epf_fail(
				EPF_R_NCCL_CALL,
				"nccl: rank %u wants %d contexts of %d signals, %d counters, %d slots, "
				"rank %u %d of %d, %d, %d; all ranks must want the same",
				r, all[r].contexts, all[r].signals, all[r].counters, all[r].slots,
				g->rank, mine->contexts, mine->signals, mine->counters,
				mine->slots);
	free(all);
	return rc;
}

static int make_memory(struct epf_gpi *g, uint64_t *device_addr)
{
	struct layout l = layout_of(g);
	uint8_t *at =
		mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: %llu bytes for queues of kernels",
				(unsigned long long)l.bytes);
	g->map_bytes = l.bytes;
	g->map = at;
	for (unsigned i = 0; i < g->n; i++) {
		struct epf_gpi_queue *q = &g->queue[i];
		struct epf_gpi_entry *entries = (void *)(at + i * l.queue_bytes);

		for (uint64_t e = 0; e < UINT64_C(1) << q->log2_slots; e++)
			for (unsigned w = 0; w < 8; w++)
				entries[e].word[w] = 1; /* not of lap 0 */
		q->entries = entries;
		q->taken_word = (void *)(at + l.taken_at + (uint64_t)i * EPF_GPI_STRIDE);
		q->counters = at + l.words_at + i * l.words_bytes;
		q->signals = q->counters + (size_t)q->n_counters * EPF_GPI_STRIDE;
		q->signals_at = (uint64_t)(q->signals - at) - l.words_at;
	}
	rc = g->dev->ops->pin(g->dev, at, l.bytes, 0, device_addr);
	if (rc) {
		munmap(at, l.bytes);
		g->map = NULL;
		return rc;
	}
	return epf_group_register(g->group, at + l.words_at, g->n * l.words_bytes, EPF_NCCL_HOST,
				  &g->words);
}

/* Writes what kernels read first into GPU memory. */
static int tell_kernels(struct epf_gpi *g, uint64_t device_addr)
{
	uint64_t stride = sizeof(struct epf_gpi_channel) + g->group->ranks * sizeof(uint64_t);
	uint8_t *image = calloc(g->n, stride);
	int rc;

	if (!image)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: contexts");
	for (unsigned i = 0; i < g->n; i++) {
		const struct epf_gpi_queue *q = &g->queue[i];
		uint64_t base = device_addr - (uintptr_t)g->map;
		struct epf_gpi_channel c = { .counters = base + (uintptr_t)q->counters,
					     .signals = base + (uintptr_t)q->signals,
					     .queue = base + (uintptr_t)q->entries,
					     .taken = base + (uintptr_t)q->taken_word,
					     .log2_slots = q->log2_slots };

		memcpy(image + i * stride, &c, sizeof(c));
	}
	rc = g->dev->ops->mem_alloc(g->dev, g->n * stride, 0, &g->channels);
	if (!rc)
		rc = g->dev->ops->copy(g->dev, g->channels.addr, (uintptr_t)image, g->n * stride);
	free(image);
	g->device = (struct epf_nccl_device_handle){ .type = EPF_NCCL_DEVICE_GIN_GPI,
						     .version = EPF_GPI_VERSION,
						     .handle = (void *)(uintptr_t)g->channels.addr,
						     .bytes = g->n * stride,
						     .needs_progress = 1 };
	return rc;
}

/* DeepEP V2's kernels read signals where NCCL's proxy has them (docs/design.md), which is another word here. Its module is loaded when it makes contexts. */
static int is_deepep_v2(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	return strstr(info->dlpi_name, "/deep_ep/_C.") != NULL;
}

/* Whose kernels would not do what they mean. */
static int refuse(const struct epf_gpi_wanted *w)
{
	if (w->kernels != EPF_GPI_KERNELS)
		return epf_fail(
			EPF_R_NCCL_CALL,
			"nccl: the program's kernels have version %d of NCCL_GIN_TYPE=4, %d is known: set "
			"NCCL_GIN_TYPE=2, or compile them with the headers of NCCL 2.30.7",
			w->kernels, EPF_GPI_KERNELS);
	if (dl_iterate_phdr(is_deepep_v2, NULL))
		return epf_fail(
			EPF_R_NCCL_CALL,
			"nccl: DeepEP V2's kernels know NCCL's proxy only: set NCCL_GIN_TYPE=2");
	return 0;
}

static int open_gpu(struct epf_gpi *g)
{
	const struct epf_gpu_ops *ops;
	int rc = epf_gpu_backend(epf_copy_gpu_name(&epf_plug.conf), &ops);

	return rc ? rc : ops->open(-1, &g->dev);
}

static int make(struct epf_gpi *g, const struct epf_gpi_wanted *w)
{
	uint64_t device_addr = 0;
	int rc = refuse(w);

	if (!rc)
		rc = compare(g->group, w);
	if (!rc)
		rc = epf_gin_context_open(g->group, w->contexts, &g->rings);
	if (!rc)
		rc = size_queues(g, w);
	if (!rc)
		rc = open_gpu(g);
	if (!rc)
		rc = make_memory(g, &device_addr);
	return rc ? rc : tell_kernels(g, device_addr);
}

int epf_gpi_open(struct epf_group *group, const struct epf_gpi_wanted *wanted, struct epf_gpi **out)
{
	unsigned n = wanted->contexts > 0 && wanted->contexts <= EPF_GIN_RINGS
			     ? (unsigned)wanted->contexts
			     : 0; /* refused by epf_gin_context_open() */
	struct epf_gpi *g = calloc(1, sizeof(*g) + n * sizeof(g->queue[0]));
	int rc;

	if (!g)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: contexts");
	g->group = group;
	g->n = n;
	rc = make(g, wanted);
	if (rc) {
		struct epf_error why;

		epf_error_get(&why);
		epf_gpi_close(g);
		epf_error_set(&why);
		return rc;
	}
	*out = g;
	return 0;
}

void epf_gpi_close(struct epf_gpi *gpi)
{
	if (!gpi)
		return;
	epf_gin_context_close(gpi->rings);
	epf_group_deregister(gpi->group, gpi->words);
	if (gpi->dev) {
		if (gpi->channels.addr)
			gpi->dev->ops->mem_free(gpi->dev, &gpi->channels);
		if (gpi->map)
			gpi->dev->ops->unpin(gpi->dev, gpi->map);
		gpi->dev->ops->close(gpi->dev);
	}
	if (gpi->map)
		munmap(gpi->map, gpi->map_bytes);
	for (unsigned i = 0; i < gpi->n; i++)
		free(gpi->queue[i].pending);
	free(gpi);
}
