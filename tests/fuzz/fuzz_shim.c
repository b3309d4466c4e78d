/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what a kernel that is not DeepEP's, or a broken one, can write into a work-request ring or the proxy channel. Byte 0 chooses
 * which; then come actions: raw slots or words, requests of the right shape with a byte changed, doorbells, words left out. It aborts when a
 * request is taken that does not lie inside the heaps, or that, written again from what was understood, gives other bytes than stood there.
 */
#include "tests/unit/tools/shim/shim_kit.h"
#include "tools/shim/channel.h"

#include <stdbool.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SLOTS = 8, RING = 0x010203, HEAP = 1 << 16, PES = 5 };

#define BASE (UINT64_C(0x7f1200000000))

static const struct epf_wr_space space = {
	.heap_base = BASE, .heap_bytes = HEAP, .pes = PES, .region = 1
};

struct input {
	const uint8_t *data;
	size_t size;
};

static void must(bool rule)
{
	if (!rule)
		abort();
}

static void take(struct input *in, void *out, size_t bytes)
{
	size_t n = in->size < bytes ? in->size : bytes;

	memset(out, 0, bytes);
	memcpy(out, in->data, n);
	in->data += n;
	in->size -= n;
}

static void known_op(const struct epf_op *o)
{
	must(o->op == EPF_OP_NOP || epf_op_fits_wide(o));
	must(o->op == EPF_OP_NOP || o->rank < PES);
	must(o->op == EPF_OP_NOP ||
	     (o->remote_offset < HEAP && o->length <= HEAP - o->remote_offset));
	must(o->op != EPF_OP_PUT ||
	     (o->local_offset < HEAP && o->length <= HEAP - o->local_offset));
	must(o->op != EPF_OP_ADD || o->remote_offset % 8 == 0);
}

/* Written again it is the same. */
static void same_request(const struct epf_wr *w, uint64_t index, const uint8_t was[64])
{
	uint32_t again[16], before[16];
	unsigned need;
	uint8_t wr[64];

	if (w->kind == EPF_WR_PUT)
		kit_put(wr, index, RING, w->pe, w->remote_offset, BASE + w->local_offset, w->bytes);
	else if (w->kind == EPF_WR_INLINE)
		kit_inline(wr, index, RING, w->pe, w->remote_offset, w->value);
	else
		kit_add(wr, index, RING, w->pe, w->remote_offset, w->value);
	need = kit_words(wr);
	memcpy(again, wr, 64);
	memcpy(before, was, 64);
	for (unsigned i = 0; i < 16; i++)
		must(!(need & 1u << i) || again[i] == before[i]);
}

/* One request: raw, or of a shape with a byte changed. */
static void make_request(struct input *in, unsigned action, uint64_t index, uint8_t wr[64])
{
	uint16_t a[5];
	uint8_t change[2];

	if (action < 4) {
		take(in, wr, 64);
		return;
	}
	take(in, a, sizeof(a));
	if (action % 3 == 0)
		kit_put(wr, index, RING, a[0] % 8, a[1], BASE + a[2], a[3]);
	else if (action % 3 == 1)
		kit_inline(wr, index, RING, a[0] % 8, a[1], a[2] | (uint32_t)a[3] << 16);
	else
		kit_add(wr, index, RING, a[0] % 8, a[1], a[2] | (uint32_t)a[3] << 16);
	take(in, change, 2);
	if (change[0] < 64)
		wr[change[0]] = change[1];
}

static void requests(struct input *in)
{
	static _Alignas(64) uint32_t slots[SLOTS][EPF_WR_WORDS];
	static _Alignas(64) uint8_t cqe[EPF_WR_CQE_BYTES];
	struct epf_wr_ring ring;
	uint64_t wakeup, produced = 0;

	must(epf_wr_ring_init(&ring, slots, SLOTS, &wakeup, cqe, RING, 5) == 0);
	while (in->size) {
		uint8_t action, wr[64], was[64];
		uint16_t leave_out = 0;
		struct epf_wr w;

		take(in, &action, 1);
		if (action >= 240) {
			take(in, &wakeup, 8);
		} else {
			make_request(in, action & 15, produced, wr);
			if (action & 16)
				take(in, &leave_out, 2);
			for (unsigned i = 0; i < 16; i++)
				if (!(leave_out & 1u << i))
					memcpy(&slots[produced % SLOTS][i], wr + 4 * i, 4);
			wakeup = kit_wakeup(++produced, RING);
		}
		memcpy(was, slots[ring.dequeued % SLOTS], 64);
		while (epf_wr_take(&ring, &space, &w)) {
			struct epf_op op;

			same_request(&w, ring.dequeued - 1, was);
			epf_wr_op(&w, &space, &op);
			known_op(&op);
			must(op.op != EPF_OP_NOP);
			epf_wr_complete(&ring, ring.dequeued);
			memcpy(was, slots[ring.dequeued % SLOTS], 64);
		}
		must(ring.refusal < EPF_WR_REFUSALS && epf_wr_refusal_text(ring.refusal));
		must(ring.dequeued <= ring.rung && ring.rung - ring.dequeued <= SLOTS);
		if (ring.refusal || ring.dequeued != produced)
			return;
	}
}

/* Of the same words again, but for bits that mean nothing. */
static void same_words(const struct epf_channel_req *r, const uint64_t *was)
{
	unsigned op = was[0] >> 16 & 0xff, n = 1;
	uint64_t w[6] = { 0 };

	must((r->kind == EPF_CHANNEL_FENCE) == (op % 100 == 6));
	if (r->kind == EPF_CHANNEL_FENCE)
		return;
	if (r->kind == EPF_CHANNEL_PUT)
		n = kit_channel_put(w, op, r->pe, r->remote_offset, BASE + r->local_offset,
				    r->bytes);
	else if (op % 100 == 2)
		n = kit_channel_value(w, op, r->pe, r->remote_offset, r->value, (unsigned)r->bytes);
	else
		n = kit_channel_amo(w, op, was[1] >> 8 & 0xff, r->pe, r->remote_offset, r->value,
				    (unsigned)r->bytes);
	must((w[0] ^ was[0]) >> 8 == 0 && ((w[1] ^ was[1]) & 0xffff0000) == 0 && n >= 3);
	must(((w[2] ^ was[2]) & 0xffff0000) == 0);
	must(r->bytes != 8 || r->kind == EPF_CHANNEL_PUT ||
	     (w[1] >> 32 == was[1] >> 32 && w[2] >> 32 == was[2] >> 32));
}

static void channel(struct input *in)
{
	static uint64_t words[EPF_CHANNEL_BYTES / 8];
	struct epf_channel c = { .words = words };
	struct epf_channel_req r;
	uint64_t from;
	uint8_t start;

	take(in, &start, 1);
	c.processed = from = (uint64_t)start * EPF_CHANNEL_BYTES / 2 - (start ? 16 : 0);
	memset(words, from / EPF_CHANNEL_BYTES % 2,
	       sizeof(words)); /* neither half means anything yet */
	for (uint64_t i = 0; i < 64; i++)
		words[(from / 8 + i) % (EPF_CHANNEL_BYTES / 8)] =
			(from + 8 * i) / EPF_CHANNEL_BYTES % 2;
	for (unsigned i = 0; i < 64 && in->size; i++) {
		uint64_t word;

		take(in, &word, 8);
		words[(from / 8 + i) % (EPF_CHANNEL_BYTES / 8)] = word;
	}
	for (;;) {
		uint64_t was[6];
		struct epf_op op;

		for (unsigned i = 0; i < 6; i++)
			was[i] = words[(c.processed / 8 + i) % (EPF_CHANNEL_BYTES / 8)];
		if (c.processed - from >= 60 * 8 || !epf_channel_take(&c, &space, &r))
			break;
		same_words(&r, was);
		epf_channel_op(&r, &space, &op);
		known_op(&op);
	}
	must(c.refusal < EPF_CHANNEL_REFUSALS && epf_channel_refusal_text(c.refusal));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t which;

	take(&in, &which, 1);
	if (which & 1)
		channel(&in);
	else
		requests(&in);
	return 0;
}
