/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a high-throughput object: kernels, the words they keep, windows. Slow path. */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_THREADS = 512 /* ht_kernels.cu promises it to the compiler */, BLOCKS_CPU = 1 };

/* As C++ names them: profilers show ep_fabric::ht::dispatch, and tools that look for "dispatch" find it. */
static const char *const names[HT_KERNELS] = {
	[HT_K_LAYOUT] = "_ZN9ep_fabric2ht6layoutE6ht_job",
	[HT_K_NOTIFY] = "_ZN9ep_fabric2ht6notifyE6ht_job",
	[HT_K_DISPATCH] = "_ZN9ep_fabric2ht8dispatchE6ht_job",
	[HT_K_COMBINE] = "_ZN9ep_fabric2ht7combineE6ht_job",
};

uint64_t epf_ht_control_bytes(uint32_t ranks)
{
	uint64_t counts = ((uint64_t)ranks + HT_LOCAL_MAX) * 4u;

	return (uint64_t)HT_FLAGS * ranks * HT_LINE + 2u * ranks * counts;
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
	ht->blocks =
		info.warp > 1 ? ll_blocks_for(info.multiprocessors, ht->ll->sharing) : BLOCKS_CPU;
	return err ? ll_fail_fabric(err, "high-throughput kernels") : 0;
}

static int make_words(struct epf_ht *ht)
{
	struct epf_ll *ll = ht->ll;
	uint64_t bytes = sizeof(struct ht_state) + ll->ranks * sizeof(struct ht_peer);
	struct ht_state state = { 0 };
	int err;

	ht->peers = calloc(ll->ranks, sizeof(*ht->peers));
	if (!ht->peers)
		return ll_fail(-ENOMEM, "no memory for %u ranks", ll->ranks);
	for (uint32_t r = 0; r < ll->ranks; r++) {
		void *at = r == ll->rank ? ht->opts.control : ht->opts.peers[r];

		if (!at)
			return ll_fail(
				-EINVAL,
				"rank %u cannot store to the memory of rank %u, which high throughput needs",
				ll->rank, r);
		ht->peers[r].control = (uintptr_t)at;
	}
	err = ll->dev->alloc(ll, bytes, &ht->words);
	if (!err)
		err = ll->dev->copy(ll, ht->words, &state, sizeof(state));
	if (!err)
		err = ll->dev->copy(ll, (uint8_t *)ht->words + sizeof(state), ht->peers,
				    ll->ranks * sizeof(*ht->peers));
	return err;
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
	if (ll->ranks > EPF_HT_RANKS_MAX)
		return ll_fail(-EINVAL, "%u ranks: high throughput serves at most %u", ll->ranks,
			       EPF_HT_RANKS_MAX);
	ht = calloc(1, sizeof(*ht));
	if (!ht)
		return ll_fail(-ENOMEM, "no memory for a high-throughput object");
	ht->ll = ll;
	ht->opts = *opts;
	ht->threads = 1;
	ht->blocks = BLOCKS_CPU;
	err = ll->opts.device < 0 ? 0 : load_kernels(ht);
	if (!err)
		err = make_words(ht);
	ht->opts.peers = NULL; /* the caller's */
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
	ht->ll->dev->free(ht->ll, ht->words);
	free(ht->peers);
	free(ht);
}

int epf_ht_set_window(struct epf_ht *ht, void *window, uint64_t bytes, void *const *peers)
{
	struct epf_ll *ll = ht->ll;

	if (!window || (uintptr_t)window % HT_LINE)
		return ll_fail(-EINVAL, "window at %p: an address is needed, a multiple of %u",
			       window, HT_LINE);
	for (uint32_t r = 0; r < ll->ranks; r++) {
		if (r != ll->rank && !peers[r])
			return ll_fail(-EINVAL, "rank %u cannot store to the window of rank %u",
				       ll->rank, r);
		ht->peers[r].window = r == ll->rank ? (uintptr_t)window : (uintptr_t)peers[r];
	}
	ht->window = window;
	ht->window_bytes = bytes;
	return ll->dev->copy(ll, (uint8_t *)ht->words + sizeof(struct ht_state), ht->peers,
			     ll->ranks * sizeof(*ht->peers));
}
