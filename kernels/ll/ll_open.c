/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a low-latency object: memory, registration, what ranks tell each other, rings and kernels. Slow path, collective. Holds no protocol:
 * that is in the kernels; the calls are in ll_call.c.
 */
#include "kernels/ll/ll.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PRIVATE_RINGS = 8 }; /* one producer a call, two kinds of calls, streams that overlap */

void epf_ll_options_init(struct epf_ll_options *opts)
{
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->device = EPF_LL_CPU;
}

static int check_options(struct epf *ep, const struct epf_ll_options *o)
{
	uint64_t flags = 2ull * LL_KINDS * epf_world(ep) * LL_FLAG_BYTES;
	uint64_t signals = (uint64_t)o->first_signal + 2ull * LL_KINDS * epf_world(ep);

	if (o->device < EPF_LL_CPU)
		return ll_fail(-EINVAL, "device is %d: -1 (CPU) or the number of a GPU is possible",
			       o->device);
	if (o->blocks > LL_WORDS)
		return ll_fail(-EINVAL, "%u blocks: at most %u are possible; 0 chooses", o->blocks,
			       LL_WORDS);
	if (o->bytes < flags)
		return ll_fail(
			-EINVAL,
			"%llu bytes of communication memory: at least epf_ll_size_hint() is needed",
			(unsigned long long)o->bytes);
	if ((uintptr_t)o->memory % 4096)
		return ll_fail(-EINVAL, "communication memory at %p does not begin at a page",
			       o->memory);
	if (!epf_world(ep) || epf_world(ep) > EPF_LL_RANKS_MAX)
		return ll_fail(-EINVAL, "%u ranks: 1 to %u are possible; join first", epf_world(ep),
			       EPF_LL_RANKS_MAX);
	if (signals > epf_signal_count(ep))
		return ll_fail(-ENOSPC,
			       "%llu signals are needed, there are %u: raise the setting `signals`",
			       (unsigned long long)signals, epf_signal_count(ep));
	return 0;
}

/* Communication memory, zeroed as far as anybody looks at it before it is written. */
static int make_memory(struct epf_ll *ll)
{
	uint64_t flags = 2ull * LL_KINDS * ll->ranks * LL_FLAG_BYTES;
	int err = 0;
	void *zeros;

	ll->memory = ll->opts.memory;
	if (!ll->memory)
		err = ll->dev->alloc(ll, ll->opts.bytes, &ll->memory);
	if (err)
		return err;
	zeros = calloc(1, flags);
	if (!zeros)
		return ll_fail(-ENOMEM, "no memory for %llu bytes", (unsigned long long)flags);
	err = ll->dev->copy(ll, ll->memory, zeros, flags);
	free(zeros);
	if (!err)
		err = ll->dev->expose(ll, ll->memory, ll->opts.bytes, &ll->region);
	return err;
}

static int agree(const struct epf_ll *ll, const struct ll_hello *mine, const uint8_t *all,
		 size_t each)
{
	for (uint32_t r = 0; r < ll->ranks; r++) {
		struct ll_hello h;

		memcpy(&h, all + r * each, sizeof(h));
		h.host[sizeof(h.host) - 1] = 0;
		if (h.build_id != mine->build_id)
			return ll_fail(
				-EPROTO,
				"rank %u on host %s runs different kernels (build %016llx) than rank %u on host %s (build %016llx): install the same ep-fabric on all nodes",
				r, h.host, (unsigned long long)h.build_id, ll->rank, mine->host,
				(unsigned long long)mine->build_id);
		if (h.bytes != mine->bytes || h.region != mine->region ||
		    h.first_signal != mine->first_signal)
			return ll_fail(
				-EPROTO,
				"rank %u opened low latency with region %u, first signal %u and %llu bytes, this rank with %u, %u and %llu: all must be alike",
				r, h.region, h.first_signal, (unsigned long long)h.bytes,
				mine->region, mine->first_signal, (unsigned long long)mine->bytes);
	}
	return 0;
}

uint32_t ll_blocks_for(uint32_t multiprocessors, uint32_t sharing)
{
	uint32_t blocks = sharing > 1 ? multiprocessors / (2 * sharing) : multiprocessors;

	blocks = blocks < LL_WORDS ? blocks : LL_WORDS;
	return blocks ? blocks : 1;
}

static int identity_of(const struct epf_ll *ll, uint64_t *out)
{
	struct epf_gpu_info info = { .size = sizeof(info) };
	int err = ll->opts.device < 0 ? 0 : epf_gpu_describe(ll->gpu, &info);

	*out = info.identity;
	return err ? ll_fail_fabric(err, "low-latency kernels") : 0;
}

static bool bit_of(const uint8_t *bits, uint32_t r)
{
	return bits[r / 8] >> (r % 8) & 1;
}

/* Exchanges what the ranks have, checks that they agree, and finds who is reached by plain stores: both ways or not at all. */
static int meet(struct epf_ll *ll, struct ll_peer *peers)
{
	size_t bits = sizeof(struct ll_hello), each = bits + (ll->ranks + 7) / 8;
	uint8_t *mine = calloc(1, each), *all = calloc(ll->ranks, each);
	struct ll_hello h = { .build_id = ll_build_id,
			      .bytes = ll->opts.bytes,
			      .region = ll->region,
			      .first_signal = ll->opts.first_signal };
	int err = mine && all ? 0 : ll_fail(-ENOMEM, "no memory for %u ranks", ll->ranks);

	for (uint32_t r = 0; r < ll->ranks && !err && ll->opts.peers; r++)
		if (ll->opts.peers[r])
			mine[bits + r / 8] |= (uint8_t)(1u << (r % 8));
	if (gethostname(h.host, sizeof(h.host) - 1))
		memcpy(h.host, "?", 2);
	if (!err)
		err = identity_of(ll, &h.identity);
	if (!err) {
		memcpy(mine, &h, sizeof(h));
		err = epf_allgather(ll->ep, mine, each, all);
		if (err)
			err = ll_fail_fabric(err, "meeting the other ranks");
	}
	if (!err)
		err = agree(ll, &h, all, each);
	for (uint32_t r = 0; r < ll->ranks && !err; r++) {
		const uint8_t *reach = all + r * each + bits;
		struct ll_hello theirs;

		memcpy(&theirs, all + r * each, sizeof(theirs));
		ll->sharing += h.identity && theirs.identity == h.identity;
		if (r == ll->rank)
			peers[r].direct = (uintptr_t)ll->memory;
		else if (bit_of(mine + bits, r) && bit_of(reach, ll->rank))
			peers[r].direct = (uintptr_t)ll->opts.peers[r];
		ll->commands |= !peers[r].direct;
	}
	free(mine);
	free(all);
	return err;
}

/* Rings for kernels, and the words that kernels keep. */
static int make_words(struct epf_ll *ll, struct ll_peer *peers)
{
	uint64_t bytes = sizeof(struct ll_state) + (uint64_t)ll->ranks * sizeof(struct ll_peer);
	struct ll_state state = { 0 };
	int err = ll->dev->alloc(ll, bytes, &ll->words);

	for (uint32_t r = 0; r < ll->ranks; r++)
		for (uint32_t i = 0; i < LL_KINDS * 2; i++)
			peers[r].seen[i / 2][i % 2] =
				peers[r].direct
					? 0
					: epf_signal_value(ll->ep, ll->opts.first_signal +
									   i * ll->ranks + r);
	if (!err)
		err = ll->dev->copy(ll, ll->words, &state, sizeof(state));
	if (!err)
		err = ll->dev->copy(ll, (uint8_t *)ll->words + sizeof(state), peers,
				    ll->ranks * sizeof(*peers));
	return err;
}

static int open_rings(struct epf_ll *ll)
{
	struct epf_gpu_options o;
	int err;

	epf_gpu_options_init(&o);
	o.backend = ll->dev->backend;
	o.device = ll->opts.device < 0 ? 0 : ll->opts.device;
	o.private_rings = PRIVATE_RINGS;
	err = epf_gpu_open(ll->ep, &o, &ll->gpu);
	if (!err)
		err = epf_ring_open(ll->ep, NULL, &ll->ring);
	return err ? ll_fail_fabric(err, "rings of the low-latency kernels") : 0;
}

/* Signals are read before the last barrier, behind which peers may send. */
static int open_all(struct epf_ll *ll, struct ll_peer *peers)
{
	int err = make_memory(ll);

	if (!err) {
		err = epf_exchange(ll->ep);
		if (err)
			err = ll_fail_fabric(err, "publishing the low-latency memory");
	}
	if (!err)
		err = open_rings(ll);
	if (!err)
		err = meet(ll, peers);
	if (!err && (!ll->commands || ll->opts.device == EPF_LL_CPU)) {
		err = epf_gpu_pushes(ll->gpu, 0);
		if (err)
			err = ll_fail_fabric(err, "low-latency kernels");
	}
	if (!err)
		err = make_words(ll, peers);
	if (!err)
		err = ll->dev->open(ll);
	if (!err)
		err = ll_tally_open(ll); /* its thread copies through the device */
	if (!err) {
		err = epf_barrier(ll->ep);
		if (err)
			err = ll_fail_fabric(err, "meeting the other ranks");
	}
	return err;
}

int epf_ll_open(struct epf *ep, const struct epf_ll_options *opts, struct epf_ll **out)
{
	struct epf_ll_options o;
	struct ll_peer *peers;
	struct epf_ll *ll;
	int err;

	epf_ll_options_init(&o);
	if (opts)
		memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
	err = check_options(ep, &o);
	if (err)
		return err;
	ll = calloc(1, sizeof(*ll));
	peers = calloc(epf_world(ep), sizeof(*peers));
	if (!ll || !peers) {
		free(ll);
		free(peers);
		return ll_fail(-ENOMEM, "no memory for a low-latency object");
	}
	ll->ep = ep;
	ll->opts = o;
	ll->rank = epf_rank(ep);
	ll->ranks = epf_world(ep);
	ll->dev = o.device == EPF_LL_CPU ? &ll_cpu : &ll_gpu;
	err = open_all(ll, peers);
	ll->opts.peers = NULL; /* the caller's; the words have what is used */
	free(peers);
	if (err)
		epf_ll_close(ll);
	else
		*out = ll;
	return err;
}

void epf_ll_close(struct epf_ll *ll)
{
	if (!ll)
		return;
	ll_tally_close(ll);
	ll->dev->close(ll);
	epf_gpu_close(ll->gpu);
	epf_ring_close(ll->ring);
	ll->dev->free(ll, ll->words);
	/* Communication memory stays with ep: peers may still be on their way to it. */
	free(ll);
}

void *epf_ll_memory(const struct epf_ll *ll, uint64_t *bytes)
{
	if (bytes)
		*bytes = ll->opts.bytes;
	return ll->memory;
}
