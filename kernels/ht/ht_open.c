/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a high-throughput object: kernels, the words they keep, windows. Slow path. */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	BLOCK_THREADS = 512, /* ht_kernels.cu promises it to the compiler */
	BLOCKS_CPU = 1,
	PUT_BYTES = 256 << 10,
	PART_ROWS = 256,
	CHUNK_TOKENS = 256,
	TALLY_EVERY = 16, /* on a GPU: counting a call in full takes some 3 us of it */
};

/* As C++ names them: profilers show ep_fabric::ht::dispatch, and tools that look for "dispatch" or "notify" find it. */
static const char *const names[HT_KERNELS] = {
	[HT_K_LAYOUT] = "_ZN9ep_fabric2ht6layoutE6ht_job",
	[HT_K_NOTIFY] = "_ZN9ep_fabric2ht6notifyE6ht_job",
	[HT_K_READY] = "_ZN9ep_fabric2ht13cached_notifyE6ht_job",
	[HT_K_DISPATCH] = "_ZN9ep_fabric2ht8dispatchE6ht_job",
	[HT_K_COUNTED] = "_ZN9ep_fabric2ht16counted_dispatchE6ht_job",
	[HT_K_COMBINE] = "_ZN9ep_fabric2ht7combineE6ht_job",
	[HT_K_TALLY] = "_ZN9ep_fabric2ht5tallyE6ht_job",
	[HT_K_NUMBER] = "_ZN9ep_fabric2ht6numberE6ht_job",
	[HT_K_GROUPS] = "_ZN9ep_fabric2ht6groupsE6ht_job",
	[HT_K_SPREAD] = "_ZN9ep_fabric2ht6spreadE6ht_job",
	[HT_K_FOLD] = "_ZN9ep_fabric2ht4foldE6ht_job",
};

/* ht_counts_words(), as they travel between nodes: in the control area a word is twice as long. */
static uint64_t counts_bytes(uint64_t ranks)
{
	return (2u * ranks + 2u + HT_LOCAL_MAX + 3u) / 4u * 16u;
}

uint64_t epf_ht_control_bytes(uint32_t ranks)
{
	return (uint64_t)HT_FLAGS * ranks * HT_LINE + 4u * ranks * counts_bytes(ranks);
}

static uint64_t line_up(uint64_t bytes)
{
	return (bytes + HT_LINE - 1) / HT_LINE * HT_LINE;
}

struct ht_layout ht_layout_of(const struct epf_ht_row *row, uint32_t rows)
{
	struct ht_layout l = { 0 };

	l.scales = line_up((uint64_t)rows * row->bytes);
	l.index = l.scales + line_up((uint64_t)rows * row->scale_words * 4u);
	l.weights = l.index + line_up((uint64_t)rows * row->topk * 4u);
	l.bytes = l.weights + line_up((uint64_t)rows * row->topk * 4u);
	return l;
}

uint64_t epf_ht_window_bytes(const struct epf_ht_row *row, uint32_t rows)
{
	return ht_layout_of(row, rows).bytes;
}

static int load_kernels(struct epf_ht *ht)
{
	struct epf_gpu_info info = { .size = sizeof(info) };
	int err = epf_gpu_describe(ht->ll->gpu, &info);
	const void *image;

	if (err)
		return ll_fail_fabric(err, "high-throughput kernels");
	image = strcmp(info.backend, "fake") == 0   ? ht_fake_image
		: strcmp(info.backend, "cuda") == 0 ? ht_cuda_image
						    : ht_hip_image;
	if (!image)
		return ll_fail(
			-ENOTSUP,
			"this build has no high-throughput kernels for %s: build where nvcc is for CUDA, where clang-19 and lld-19 are for HIP",
			info.backend);
	err = epf_gpu_module_load(ht->ll->gpu, image, &ht->code);
	for (int i = 0; i < HT_KERNELS && !err; i++)
		err = epf_gpu_module_kernel(ht->code, names[i], &ht->kernel[i]);
	ht->threads = info.warp > 1 ? BLOCK_THREADS : 1;
	ht->warp = info.warp > 1 ? info.warp : 1;
	ht->blocks =
		info.warp > 1 ? ll_blocks_for(info.multiprocessors, ht->ll->sharing) : BLOCKS_CPU;
	return err ? ll_fail_fabric(err, "high-throughput kernels") : 0;
}

/* Where the signals of the ranks of other nodes begin to count. */
static int find_bases(struct epf_ht *ht)
{
	struct epf_ll *ll = ht->ll;
	uint64_t end = ht->opts.first_signal + (uint64_t)EPF_HT_SIGNALS_PER_RANK * ll->ranks;

	if (ht->nodes > 1 && end > epf_signal_count(ll->ep))
		return ll_fail(-ENOSPC,
			       "%llu signals are needed, there are %u: raise the setting `signals`",
			       (unsigned long long)end, epf_signal_count(ll->ep));
	for (uint32_t r = 0; r < ll->ranks && ht->nodes > 1; r++)
		for (uint32_t k = 0; k < HT_SIGNALS; k++)
			ht->peers[r].base[k] =
				epf_signal_value(ll->ep, ht->opts.first_signal + k * ll->ranks + r);
	return 0;
}

/* State, then peers, then nodes and their members. */
static int make_words(struct epf_ht *ht)
{
	struct epf_ll *ll = ht->ll;
	uint64_t peers = ll->ranks * sizeof(struct ht_peer);
	uint64_t nodes = ll->ranks * sizeof(struct ht_node), members = ll->ranks * 4u;
	uint64_t bytes = sizeof(struct ht_state) + peers + nodes + members;
	uint8_t *words = calloc(1, bytes);
	struct ht_node *node = calloc(ll->ranks, sizeof(*node));
	uint32_t *member = calloc(ll->ranks, sizeof(*member));
	int err;

	ht->peers = calloc(ll->ranks, sizeof(*ht->peers));
	err = words && node && member && ht->peers
		      ? ht_find_nodes(ht, node, member)
		      : ll_fail(-ENOMEM, "no memory for %u ranks", ll->ranks);
	if (!err)
		err = find_bases(ht);
	if (!err)
		err = ll->dev->alloc(ll, bytes, &ht->words);
	if (!err) {
		uint8_t *at = words + sizeof(struct ht_state);

		for (uint32_t r = 0; r < ll->ranks; r++)
			ht->peers[r].control =
				(uintptr_t)(r == ll->rank ? ht->opts.control : ht->opts.peers[r]);
		memcpy(at, ht->peers, peers);
		memcpy(at + peers, node, ht->nodes * sizeof(*node));
		memcpy(at + peers + ht->nodes * sizeof(*node), member, members);
		err = ll->dev->copy(ll, ht->words, words, bytes);
	}
	free(words);
	free(node);
	free(member);
	return err;
}

static int make_scratch(struct epf_ht *ht)
{
	uint64_t bytes = HT_CHUNK_RANKS * (sizeof(uint64_t) + HT_CHUNKS * HT_CHUNK_WORDS * 4ull);
	static const uint64_t none[HT_CHUNK_RANKS];
	int err;

	if (ht->ll->ranks > HT_CHUNK_RANKS)
		return 0;
	err = ht->ll->dev->alloc(ht->ll, bytes, &ht->scratch);
	return err ? err : ht->ll->dev->copy(ht->ll, ht->scratch, none, sizeof(none));
}

static int make_counts(struct epf_ht *ht)
{
	uint64_t ranks = ht->ll->ranks;

	return ht->nodes == 1 ? 0 : ht_area_make(ht, &ht->counts, 4 * ranks * counts_bytes(ranks));
}

static int make_event(struct epf_ht *ht, void **event)
{
	int err = epf_gpu_event_make(ht->ll->gpu, event);

	return err ? ll_fail_fabric(err, "an event") : 0;
}

int epf_ht_event(struct epf_ht *ht, void **event)
{
	void **events, *made;
	int err;

	*event = NULL;
	if (ht->ll->opts.device < 0)
		return 0;
	events = realloc(ht->events, (ht->n_events + 1) * sizeof(*events));
	if (!events)
		return ll_fail(-ENOMEM, "no memory for %u events", ht->n_events + 1);
	ht->events = events;
	err = make_event(ht, &made);
	if (!err)
		*event = ht->events[ht->n_events++] = made;
	return err;
}

static void free_events(struct epf_ht *ht)
{
	while (ht->n_events)
		epf_gpu_event_free(ht->ll->gpu, ht->events[--ht->n_events]);
	epf_gpu_event_free(ht->ll->gpu, ht->between);
	free(ht->events);
}

int epf_ht_open(struct epf_ll *ll, const struct epf_ht_options *opts, struct epf_ht **out)
{
	struct epf_ht *ht;
	int err;

	if (opts->size != sizeof(*opts))
		return ll_fail(-EINVAL, "size of the options is %zu, this library knows %zu",
			       opts->size, sizeof(*opts));
	if (!opts->control || (uintptr_t)opts->control % HT_LINE || (!opts->peers && ll->ranks > 1))
		return ll_fail(-EINVAL, "control memory at %p and peers at %p: both are needed",
			       opts->control, (const void *)opts->peers);
	err = ht_check_ranks(ll->ranks, 1);
	if (err)
		return err;
	ht = calloc(1, sizeof(*ht));
	if (!ht)
		return ll_fail(-ENOMEM, "no memory for a high-throughput object");
	ht->ll = ll;
	ht->opts = *opts;
	ht->threads = 1;
	ht->warp = 1;
	ht->blocks = BLOCKS_CPU;
	ht->put_bytes = PUT_BYTES;
	ht->part_rows = PART_ROWS;
	ht->chunk_tokens = CHUNK_TOKENS;
	ht->tally_every = ll->side_by_side ? TALLY_EVERY : 1;
	err = ll->opts.device < 0 ? 0 : load_kernels(ht);
	if (!err)
		err = ll->opts.device < 0 ? 0 : make_event(ht, &ht->between);
	if (!err)
		err = make_words(ht);
	if (!err)
		err = make_scratch(ht);
	ht->opts.peers = NULL; /* the caller's */
	if (!err)
		err = make_counts(ht);
	if (!err) {
		err = epf_barrier(ll->ep);
		if (err)
			err = ll_fail_fabric(err, "meeting the other ranks");
	}
	if (err)
		epf_ht_close(ht);
	else
		*out = ht;
	return err;
}

void epf_ht_close(struct epf_ht *ht)
{
	if (!ht)
		return;
	if (ht->code)
		epf_gpu_module_unload(ht->code);
	/* Memory between nodes stays with the fabric's object: peers may still be on their way to it. */
	ht_segments_end(ht);
	if (ht->ll->opts.device >= 0)
		free_events(ht);
	ht->ll->dev->free(ht->ll, ht->words);
	ht->ll->dev->free(ht->ll, ht->scratch);
	free(ht->peers);
	free(ht);
}

int epf_ht_set_window(struct epf_ht *ht, void *window, uint64_t bytes, void *const *peers)
{
	struct epf_ll *ll = ht->ll;
	int err = 0;

	if (!window || (uintptr_t)window % HT_LINE)
		return ll_fail(-EINVAL, "window at %p: an address is needed, a multiple of %u",
			       window, HT_LINE);
	for (uint32_t r = 0; r < ll->ranks && !err; r++) {
		uint8_t *words = (uint8_t *)ht->words + sizeof(struct ht_state);
		uint64_t at = (uintptr_t)(r == ll->rank ? window : peers[r]);

		if (ht->peers[r].node != ht->node)
			continue;
		if (!at)
			return ll_fail(-EINVAL, "rank %u cannot store to the window of rank %u",
				       ll->rank, r);
		/* Kernels change the peer's other words. */
		err = ll->dev->copy(
			ll, words + r * sizeof(struct ht_peer) + offsetof(struct ht_peer, window),
			&at, sizeof(at));
	}
	ht->window_bytes = bytes;
	return err;
}
