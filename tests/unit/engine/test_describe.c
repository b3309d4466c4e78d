/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of itself at the join: literal bytes, round trips, and everything that is not a description:
 * cut short at every length, each byte changed, every number out of range. Seeded: EPF_SEED=<n> replays a run.
 */
#include "fabric/base/err.h"
#include "fabric/join/describe.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 2000, FLIPS = 20000, TOKENS = 3, REGIONS = 2 };

/* Places of fields in the bytes, as docs/abi.md has them. */
enum {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_RANK = 8,
	AT_SIGNALS = 12,
	AT_STREAMS = 16,
	AT_RECEIVES = 20,
	AT_DEPTH = 24,
	AT_LANES = 28,
	AT_ORDERED = 32,
	AT_NODE = 48,
	AT_NIC = 112,
	AT_ADDR_LEN = 128,
	AT_ADDR = 132,
};

static uint64_t rng = 1;

static uint64_t next_random(void) /* splitmix64 */
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static struct epf_description sample(uint64_t *tokens, struct epf_region_remote *regions)
{
	struct epf_description d = { .rank = 0x01020304,
				     .n_signals = 4096,
				     .streams = 512,
				     .receives = 256,
				     .depth = 64,
				     .lanes = 2,
				     .ordered = 1,
				     .keys = 2,
				     .ctl_rkeys = { 0x11223344, 0x55 },
				     .ctl_raddr = 0x8877665544332211,
				     .node = "node-a",
				     .nic = "emu",
				     .nic_addr_len = 5,
				     .nic_addr = "addr",
				     .n_tokens = TOKENS,
				     .tokens = tokens,
				     .n_regions = REGIONS,
				     .regions = regions };

	for (uint64_t i = 0; i < TOKENS; i++)
		tokens[i] = 0xa0a1a2a3a4a5a6a0 + i;
	regions[0] = (struct epf_region_remote){ .raddr = 0x1000,
						 .bytes = 0x2000,
						 .rkeys = { 7, 8 },
						 .state = EPF_REGION_LIVE,
						 .access = 3 };
	regions[1] = (struct epf_region_remote){ .state = EPF_REGION_FREE };
	return d;
}

static void encode(const struct epf_description *d, uint8_t **buf, size_t *len)
{
	assert_int_equal(epf_description_encode(d, buf, len), 0);
}

/* Decodes from memory of exactly that size, so that the sanitizer sees a byte too far. */
static int decode(const uint8_t *buf, size_t len, struct epf_description *d)
{
	uint8_t *exact = malloc(len ? len : 1);
	int rc;

	assert_non_null(exact);
	memcpy(exact, buf, len);
	rc = epf_description_decode(exact, len, d);
	free(exact);
	return rc;
}

static void refused(const uint8_t *buf, size_t len)
{
	static const struct epf_description nothing;
	struct epf_description d;

	epf_clear_error();
	assert_int_equal(decode(buf, len, &d), -EPROTO);
	assert_int_equal(epf_last_reason(), EPF_R_PEER_ANSWER);
	assert_memory_equal(&d, &nothing, sizeof(d)); /* nothing to free, nothing half filled */
}

static void same(const struct epf_description *a, const struct epf_description *b)
{
	assert_int_equal(a->rank, b->rank);
	assert_int_equal(a->n_signals, b->n_signals);
	assert_int_equal(a->streams, b->streams);
	assert_int_equal(a->receives, b->receives);
	assert_int_equal(a->depth, b->depth);
	assert_int_equal(a->lanes, b->lanes);
	assert_int_equal(a->ordered, b->ordered);
	assert_int_equal(a->keys, b->keys);
	assert_memory_equal(a->ctl_rkeys, b->ctl_rkeys, sizeof(a->ctl_rkeys));
	assert_int_equal(a->ctl_raddr, b->ctl_raddr);
	assert_memory_equal(a->node, b->node, sizeof(a->node));
	assert_memory_equal(a->nic, b->nic, sizeof(a->nic));
	assert_int_equal(a->nic_addr_len, b->nic_addr_len);
	assert_memory_equal(a->nic_addr, b->nic_addr, a->nic_addr_len);
	assert_int_equal(a->n_tokens, b->n_tokens);
	assert_int_equal(a->n_regions, b->n_regions);
	for (uint32_t i = 0; i < a->n_tokens; i++)
		assert_int_equal(a->tokens[i], b->tokens[i]);
	for (uint32_t i = 0; i < a->n_regions; i++)
		assert_memory_equal(&a->regions[i], &b->regions[i], sizeof(a->regions[i]));
}

static void bytes_are_as_documented(void **state)
{
	/* clang-format off */
	static const uint8_t want[] = {
		'E', 'P', 'F', 'J', 3, 0, 0, 0, 4, 3, 2, 1, 0, 16, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0, 2, 0, 0, 0,
		1, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
		'n', 'o', 'd', 'e', '-', 'a' };
	static const uint8_t tail[] = {
		5, 0, 0, 0, 'a', 'd', 'd', 'r', 0, 2, 0, 0, 0, 0x55, 0, 0, 0, 3, 0, 0, 0,
		0xa0, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 0xa0, 0xa1, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 0xa0,
		0xa2, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 0xa0, 2, 0, 0, 0,
		0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
	/* clang-format on */
	struct epf_region_remote regions[REGIONS];
	uint64_t tokens[TOKENS];
	struct epf_description d = sample(tokens, regions), back;
	uint8_t *buf;
	size_t len;

	encode(&d, &buf, &len);
	assert_int_equal(len, AT_ADDR_LEN + sizeof(tail));
	assert_memory_equal(buf, want, sizeof(want));
	assert_string_equal((char *)buf + AT_NIC, "emu");
	assert_memory_equal(buf + AT_ADDR_LEN, tail, sizeof(tail));
	assert_int_equal(decode(buf, len, &back), 0);
	same(&d, &back);
	epf_description_free(&back);
	epf_description_free(&back); /* twice is harmless */
	free(buf);
}

static void random_ones_survive(void **state)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct epf_region_remote regions[40];
		uint64_t tokens[60];
		struct epf_description d = sample(tokens, regions), back;
		uint8_t *buf;
		size_t len;

		d.rank = (uint32_t)next_random();
		d.n_signals = (uint32_t)(next_random() % (EPF_WIDE_SIGNALS + 1));
		d.streams = (uint32_t)(next_random() % (EPF_MAX_STREAMS_PER_NODE + 1));
		d.receives = (uint32_t)(next_random() % (EPF_MAX_WINDOW + 1));
		d.depth = 1 + (uint32_t)(next_random() % EPF_MAX_WINDOW);
		d.lanes = 1 + (uint32_t)(next_random() % EPF_MAX_LANES_PER_NODE);
		d.ordered = next_random() & 1;
		d.ctl_raddr = next_random();
		d.nic_addr_len = next_random() % (EPF_NIC_ADDR_BYTES + 1);
		d.keys = 1 + (uint32_t)(next_random() % EPF_NIC_LINKS);
		memset(d.ctl_rkeys, 0, sizeof(d.ctl_rkeys));
		for (uint32_t k = 0; k < d.keys; k++)
			d.ctl_rkeys[k] = (uint32_t)next_random();
		for (size_t i = 0; i < d.nic_addr_len; i++)
			d.nic_addr[i] = (uint8_t)next_random();
		memset(d.node, 'n', next_random() % sizeof(d.node));
		memset(d.nic, 'c', next_random() % sizeof(d.nic));
		d.n_tokens = (uint32_t)(next_random() % 60);
		d.n_regions = (uint32_t)(next_random() % 40);
		for (uint32_t i = 0; i < d.n_tokens; i++)
			tokens[i] = next_random();
		for (uint32_t i = 0; i < d.n_regions; i++)
			regions[i] = (struct epf_region_remote){
				.raddr = next_random() >> 1,
				.bytes = next_random() % 3 ? EPF_WIDE_REGION_BYTES : 0,
				.access = (uint16_t)(next_random() % 4),
			};
		for (uint32_t i = 0; i < d.n_regions; i++)
			for (uint32_t k = 0; k < d.keys; k++)
				regions[i].rkeys[k] = (uint32_t)next_random();
		for (uint32_t i = 0; i < d.n_regions; i++)
			regions[i].state = regions[i].bytes ? EPF_REGION_LIVE : EPF_REGION_FREE;
		encode(&d, &buf, &len);
		assert_int_equal(decode(buf, len, &back), 0);
		same(&d, &back);
		epf_description_free(&back);
		free(buf);
	}
}

static void every_truncation_is_refused(void **state)
{
	struct epf_region_remote regions[REGIONS];
	uint64_t tokens[TOKENS];
	struct epf_description d = sample(tokens, regions);
	uint8_t *buf, *longer;
	size_t len;

	encode(&d, &buf, &len);
	for (size_t cut = 0; cut < len; cut++)
		refused(buf, cut);
	longer = calloc(1, len + 24);
	assert_non_null(longer);
	memcpy(longer, buf, len);
	for (size_t more = 1; more <= 24; more++)
		refused(longer, len + more);
	free(longer);
	free(buf);
}

/* Whatever changes: refused, or a description that says the changed bytes again. */
static void flips_harm_nobody(void **state)
{
	struct epf_region_remote regions[REGIONS];
	uint64_t tokens[TOKENS];
	struct epf_description d = sample(tokens, regions), back;
	size_t len, again_len, good = 0;
	uint8_t *buf, *again;

	encode(&d, &buf, &len);
	for (int i = 0; i < FLIPS; i++) {
		size_t at[3];
		uint8_t was[3];
		unsigned n = 1 + (unsigned)(next_random() % 3);

		for (unsigned k = 0; k < n; k++) {
			at[k] = next_random() % len;
			was[k] = buf[at[k]];
			buf[at[k]] = (uint8_t)next_random();
		}
		if (decode(buf, len, &back) == 0) {
			encode(&back, &again, &again_len);
			assert_int_equal(again_len, len);
			assert_memory_equal(again, buf, len);
			epf_description_free(&back);
			free(again);
			good++;
		}
		while (n--)
			buf[at[n]] = was[n];
	}
	assert_true(good > FLIPS / 10 && good < FLIPS - FLIPS / 100);
	free(buf);
}

struct lie {
	size_t at, bytes;
	uint64_t value;
};

static void lies_are_refused(void **state)
{
	enum {
		KEYS_AT = AT_ADDR + 5,
		TOKENS_AT = KEYS_AT + 4 + 4,
		REGIONS_AT = TOKENS_AT + 4 + 8 * TOKENS
	};
	static const struct lie lies[] = {
		{ AT_MAGIC, 4, 0x4a465044 },
		{ AT_VERSION, 4, 0 },
		{ AT_VERSION, 4, EPF_DESCRIBE_VERSION + 1 },
		{ AT_SIGNALS, 4, EPF_WIDE_SIGNALS + 1 },
		{ AT_STREAMS, 4, EPF_MAX_STREAMS_PER_NODE + 1 },
		{ AT_RECEIVES, 4, EPF_MAX_WINDOW + 1 },
		{ AT_DEPTH, 4, 0 },
		{ AT_DEPTH, 4, EPF_MAX_WINDOW + 1 },
		{ AT_LANES, 4, 0 },
		{ AT_LANES, 4, EPF_MAX_LANES_PER_NODE + 1 },
		{ AT_ORDERED, 4, 2 },
		{ AT_ADDR_LEN, 4, EPF_NIC_ADDR_BYTES + 1 },
		{ AT_ADDR_LEN, 4, 0xffffffff },
		{ AT_ADDR_LEN, 4, 4 },
		{ KEYS_AT, 4, 0 },
		{ KEYS_AT, 4, 1 },
		{ KEYS_AT, 4, 3 },
		{ KEYS_AT, 4, EPF_NIC_LINKS + 1 },
		{ TOKENS_AT, 4, 0xffffffff },
		{ TOKENS_AT, 4, TOKENS + 1 },
		{ TOKENS_AT, 4, 0 },
		{ REGIONS_AT, 4, 0xffffffff },
		{ REGIONS_AT, 4, REGIONS + 1 },
		{ REGIONS_AT, 4, REGIONS - 1 },
		{ REGIONS_AT + 4, 8, UINT64_MAX - 0x1fff }, /* the end of the region wraps */
		{ REGIONS_AT + 12, 8, EPF_WIDE_REGION_BYTES + 1 },
		{ REGIONS_AT + 24, 4, 4 },
		{ REGIONS_AT + 24, 4, 0x10003 },
	};
	struct epf_region_remote regions[REGIONS];
	uint64_t tokens[TOKENS];
	struct epf_description d = sample(tokens, regions);
	uint8_t copy[512], *buf;
	size_t len;

	encode(&d, &buf, &len);
	assert_in_range(len, AT_ADDR, sizeof(copy));
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		memcpy(copy, buf, len);
		memcpy(copy + lies[i].at, &lies[i].value, lies[i].bytes);
		refused(copy, len);
	}
	memcpy(copy, buf, len);
	memset(copy + AT_NODE, 'x', 64); /* a text without an end */
	refused(copy, len);
	memcpy(copy, buf, len);
	memset(copy + AT_NIC, 'x', 16);
	refused(copy, len);
	free(buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_are_as_documented),
		cmocka_unit_test(random_ones_survive),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(flips_harm_nobody),
		cmocka_unit_test(lies_are_refused),
	};

	if (getenv("EPF_SEED"))
		rng = strtoull(getenv("EPF_SEED"), NULL, 0);
	printf("# EPF_SEED=%llu\n", (unsigned long long)rng);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
