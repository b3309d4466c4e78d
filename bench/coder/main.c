/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coder of GPU memory by itself (fabric/gpu/coder.h), without endpoints: opens nvCOMP, then compresses and expands chunks of every type and of odd
 * sizes and compares every byte, damages chunks, and prints rates of split and full in alternating runs. Says what it does before it does it, so that a
 * crash shows where.
 *
 *   bench-coder [--backend cuda] [--device 0] [--rounds 200]
 *
 * Exit 0: all was right; 1: something was wrong; 77: no GPU, or no nvCOMP. Rates are printed, never judged.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/coder.h"
#include "fabric/gpu/gpu.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { KINDS = 6, SAMPLES = 1000 };

static struct {
	struct epf_gpu_dev *dev;
	struct epf_coder *coder;
	struct epf_gpu_mem from, to;
	struct epf_coder_buffer chunk;
	uint8_t values[EPF_CODER_BYTES], back[EPF_CODER_BYTES];
	unsigned wrong;
} b;

static const struct {
	const char *name;
	uint32_t size;
} kinds[KINDS] = { { "bf16 normal", 2 }, { "fp16 normal", 2 }, { "fp8 e4m3 normal", 1 },
		   { "fp32 normal", 4 }, { "any bytes", 2 },   { "NaN, Inf, zeros", 2 } };

static uint64_t seed = 88172645463325252ull;

static uint64_t any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static float normal(void)
{
	double u = ((double)(any() >> 11) + 1) / 9007199254740994.0;
	double v = (double)(any() >> 11) / 9007199254740992.0;

	return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v) * 0.02);
}

/* A normal value in so few exponent and mantissa bits, by truncation; what is too small is 0. */
static uint32_t narrow(float f, int bias, int mantissa)
{
	uint32_t bits, exponent;

	memcpy(&bits, &f, sizeof(bits));
	exponent = bits >> 23 & 0xff;
	if ((int)exponent - 127 + bias <= 0)
		return 0;
	return bits >> 31 << (mantissa == 3 ? 7 : 15) |
	       (exponent - 127 + (uint32_t)bias) << mantissa | (bits & 0x7fffff) >> (23 - mantissa);
}

static void fill(int kind)
{
	static const uint16_t odd[] = { 0x7fc0, 0xffff, 0x7f80, 0xff80, 0, 0x8000, 1, 0x7f81 };

	for (uint32_t i = 0; i < EPF_CODER_BYTES / kinds[kind].size; i++) {
		float f = kind < 4 ? normal() * (kind == 2 ? 20 : 1) : 0;
		uint32_t v;

		memcpy(&v, &f, sizeof(v));
		if (kind == 0)
			v >>= 16;
		else if (kind == 1)
			v = narrow(f, 15, 10);
		else if (kind == 2)
			v = narrow(f, 7, 3);
		else if (kind == 4)
			v = (uint32_t)any();
		else if (kind == 5)
			v = odd[any() % 8];
		memcpy(b.values + (size_t)i * kinds[kind].size, &v, kinds[kind].size);
	}
}

static int fail(const char *what)
{
	printf("WRONG: %s: %s\n", what, epf_last_error());
	b.wrong++;
	return -1;
}

/* Pieces of odd lengths that make up `bytes` bytes of a memory, in another order than they lie there. */
static uint32_t cut(uint64_t addr, uint32_t bytes, uint32_t pieces, struct iovec *iov)
{
	uint32_t each = bytes / pieces, n = 0;

	for (uint32_t i = pieces; i-- > 0;) {
		uint32_t at = i * each, end = i == pieces - 1 ? bytes : at + each;

		iov[n].iov_base = (void *)(uintptr_t)(addr + at);
		iov[n++].iov_len = end - at;
	}
	return n;
}

/* Compresses and expands once, and compares. Returns the length of the chunk, or -1. */
static int once(int kind, bool full, uint32_t bytes, uint32_t pieces, uint32_t shift)
{
	struct iovec from[EPF_PACK_PIECES], to[EPF_PACK_PIECES];
	const struct epf_gpu_ops *ops = b.dev->ops;
	uint32_t packed = 0, n;
	int rc;

	cut(b.from.addr + shift, bytes, pieces, from);
	n = cut(b.to.addr + shift, bytes, pieces, to);
	rc = ops->fill(b.dev, b.to.addr, 0x5a, EPF_CODER_BYTES);
	if (!rc)
		rc = epf_coder_compress(b.coder, full, kinds[kind].size, from, n, bytes, &b.chunk,
					&packed);
	if (rc)
		return fail("compress");
	rc = epf_coder_expand(b.coder, &b.chunk, packed, kinds[kind].size, to, n, bytes);
	if (rc == -EBADMSG)
		printf("WRONG: its own chunk is damaged, it says\n");
	if (rc)
		return fail("expand");
	rc = ops->copy(b.dev, (uint64_t)(uintptr_t)b.back, b.to.addr, EPF_CODER_BYTES);
	if (rc)
		return fail("copy");
	for (uint32_t i = 0; i < EPF_CODER_BYTES; i++) {
		bool is_value = i >= shift && i < shift + bytes;

		if (b.back[i] != (is_value ? b.values[i] : 0x5a)) {
			printf("WRONG: %s, %u bytes in %u pieces at %u: byte %u is %#x, should be %#x\n",
			       kinds[kind].name, bytes, pieces, shift, i, b.back[i],
			       is_value ? b.values[i] : 0x5a);
			b.wrong++;
			return -1;
		}
	}
	return (int)packed;
}

static void correct(void)
{
	static const struct {
		uint32_t bytes, pieces, shift;
	} how[] = { { EPF_CODER_BYTES, 1, 0 },
		    { EPF_CODER_BYTES - 5, 1, 3 },
		    { 65536, 1, 0 },
		    { 65537, 7, 1 },
		    { 131072 + 6, 128, 2 },
		    { 262144 + 2, 3, 5 },
		    { 1, 1, 0 },
		    { 3, 1, 1 },
		    { 17, 2, 8 } };

	for (int kind = 0; kind < KINDS; kind++) {
		int packed[2] = { 0 };

		printf("# checking %s\n", kinds[kind].name);
		fill(kind);
		if (b.dev->ops->copy(b.dev, b.from.addr, (uint64_t)(uintptr_t)b.values,
				     EPF_CODER_BYTES))
			fail("copy");
		for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++)
			for (int full = 0; full < 2; full++) {
				int n = once(kind, full, how[i].bytes, how[i].pieces, how[i].shift);

				if (i == 0)
					packed[full] = n;
			}
		printf("# %-16s right, of 2 MiB split leaves %.3f, full %.3f\n", kinds[kind].name,
		       packed[0] / (double)EPF_CODER_BYTES, packed[1] / (double)EPF_CODER_BYTES);
	}
}

/* Chunks with a byte changed: each is refused, and nothing is written, or the byte was one that nobody reads. */
static void damaged(int kind, int samples)
{
	struct iovec from = { (void *)(uintptr_t)b.from.addr, 200001 };
	struct iovec to = { (void *)(uintptr_t)b.to.addr, 200001 };
	unsigned refused = 0, unread = 0;
	uint32_t packed = 0;

	printf("# damaging %d chunks of %s\n", samples, kinds[kind].name);
	fill(kind);
	(void)b.dev->ops->copy(b.dev, b.from.addr, (uint64_t)(uintptr_t)b.values, EPF_CODER_BYTES);
	if (epf_coder_compress(b.coder, true, 2, &from, 1, 200001, &b.chunk, &packed)) {
		fail("compress");
		return;
	}
	for (int i = 0; i < samples && !b.wrong; i++) {
		uint32_t at = (uint32_t)(i % 2 ? (unsigned)i / 2 : any()) % packed;
		uint8_t flip = (uint8_t)(1u << any() % 8);
		int rc;

		(void)b.dev->ops->fill(b.dev, b.to.addr, 0x5a, 200001);
		b.chunk.host[at] ^= flip;
		rc = epf_coder_expand(b.coder, &b.chunk, packed, 2, &to, 1, 200001);
		b.chunk.host[at] ^= flip;
		if (rc && rc != -EBADMSG) {
			printf("WRONG: a chunk with byte %u changed by %#x:\n", at, flip);
			fail("expand");
			return;
		}
		(void)b.dev->ops->copy(b.dev, (uint64_t)(uintptr_t)b.back, b.to.addr, 200001);
		for (uint32_t k = 0; k < 200001; k++)
			if (b.back[k] != (rc ? 0x5a : b.values[k])) {
				printf("WRONG: byte %u changed by %#x was %s, and value byte %u is wrong\n",
				       at, flip, rc ? "refused" : "taken", k);
				b.wrong++;
				return;
			}
		refused += rc != 0;
		unread += rc == 0;
	}
	printf("# %u damaged chunks refused without a trace, %u had damage that nothing reads\n",
	       refused, unread);
}

static int by_time(const void *a, const void *c)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)c;

	return (x > y) - (x < y);
}

static double rate(uint64_t *ns, int n)
{
	qsort(ns, (size_t)n, sizeof(*ns), by_time);
	return (double)EPF_CODER_BYTES / (double)ns[n / 2];
}

static void speed(int rounds)
{
	struct iovec from = { (void *)(uintptr_t)b.from.addr, EPF_CODER_BYTES };
	struct iovec to = { (void *)(uintptr_t)b.to.addr, EPF_CODER_BYTES };
	uint64_t *ns = calloc(4 * (size_t)rounds, sizeof(*ns));

	for (int kind = 0; kind < 4 && ns; kind++) {
		uint32_t packed = 0;

		fill(kind);
		(void)b.dev->ops->copy(b.dev, b.from.addr, (uint64_t)(uintptr_t)b.values,
				       EPF_CODER_BYTES);
		for (int i = 0; i < rounds; i++)
			for (int full = 0; full < 2; full++) {
				uint64_t t0 = epf_now_ns(), t1;

				if (epf_coder_compress(b.coder, full, kinds[kind].size, &from, 1,
						       EPF_CODER_BYTES, &b.chunk, &packed))
					fail("compress");
				t1 = epf_now_ns();
				if (epf_coder_expand(b.coder, &b.chunk, packed, kinds[kind].size,
						     &to, 1, EPF_CODER_BYTES))
					fail("expand");
				ns[2 * full * rounds + i] = t1 - t0;
				ns[(2 * full + 1) * rounds + i] = epf_now_ns() - t1;
			}
		printf("# %-16s chunks of 2 MiB, one thread: split compresses %6.2f GB/s, expands %6.2f; full %6.2f and %6.2f\n",
		       kinds[kind].name, rate(ns, rounds), rate(ns + rounds, rounds),
		       rate(ns + 2 * rounds, rounds), rate(ns + 3 * rounds, rounds));
	}
	free(ns);
}

static int open_all(const char *backend, int device)
{
	uint64_t room = (EPF_CODER_ROOM + 4095u) / 4096u * 4096u, addr = 0;
	const struct epf_gpu_ops *ops;
	char name[32];
	int rc = epf_gpu_backend(backend, &ops);

	if (!rc)
		rc = ops->open(device, &b.dev);
	printf("# opening a coder of %s device %d: nvCOMP, kernels, memory, a first chunk\n",
	       backend, device);
	if (!rc)
		rc = epf_coder_open(backend, device, &b.coder);
	if (rc)
		return rc;
	epf_coder_name(b.coder, name, sizeof(name));
	printf("# %s compresses and expands\n", name);
	b.chunk.host = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b.chunk.host == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "a chunk");
	rc = epf_coder_pin(b.coder, b.chunk.host, room, &addr);
	b.chunk.device = addr;
	if (!rc)
		rc = ops->mem_alloc(b.dev, EPF_CODER_BYTES, 0, &b.from);
	if (!rc)
		rc = ops->mem_alloc(b.dev, EPF_CODER_BYTES, 0, &b.to);
	return rc;
}

int main(int argc, char **argv)
{
	const char *backend = "cuda";
	int device = 0, rounds = 200, rc;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (value && strcmp(argv[i], "--backend") == 0) {
			backend = value;
		} else if (value && strcmp(argv[i], "--device") == 0) {
			device = atoi(value);
		} else if (value && strcmp(argv[i], "--rounds") == 0) {
			rounds = atoi(value) > 0 ? atoi(value) : 1;
		} else {
			printf("usage: bench-coder [--backend cuda|fake] [--device N] [--rounds N]\n");
			return 2;
		}
	}
	rc = open_all(backend, device);
	if (rc) {
		printf("# %s\n", epf_last_error());
		return rc == -ENODEV || rc == -ENOENT || rc == -EOPNOTSUPP ? 77 : 1;
	}
	correct();
	/* nvCOMP 6.0.0 follows a damaged chunk to an illegal address, and the process has no GPU from then on (docs/SECURITY.md). */
	if (strcmp(backend, "fake") == 0) {
		damaged(0, rounds < 10 ? SAMPLES / 10 : SAMPLES);
		damaged(KINDS - 1, rounds < 10 ? SAMPLES / 10 : SAMPLES);
	}
	if (!b.wrong)
		speed(rounds);
	epf_coder_unpin(b.coder, b.chunk.host);
	epf_coder_close(b.coder);
	printf("%s\n", b.wrong ? "WRONG" : "# all right");
	return b.wrong != 0;
}
