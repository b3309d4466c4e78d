/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane of the TCP NIC puts into one call of the kernel: short payloads copied together, long ones from their place, and few acknowledgements. */
#include "tests/unit/nic/tcp/duo_kit.h"

#include <sys/ioctl.h>

enum { BYTES = 1 << 20, STRIDE = 512, MANY = EPF_TCP_TRAIN };

static struct epf_tcp_lane *lane_of(struct epf_nic *nic)
{
	return epf_tcp_lane_at(epf_tcp_of(nic), 0);
}

/* With both lanes up, and the first BYTES of a's memory filled. */
static struct duo *begin(void)
{
	struct duo *d = duo_open();

	while (lane_of(d->a)->fd < 0 || lane_of(d->b)->fd < 0) {
		assert_int_equal(d->a->ops->reap(d->a, d->wc, 64), 0);
		assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
		usleep(100);
	}
	for (int i = 0; i < BYTES; i++)
		d->mem_a[i] = (uint8_t)(i * 7 + i / 251);
	return d;
}

/* Posts MANY writes in one call, each with an event at the target: write number i has sizes[i % n] bytes, STRIDE behind the one before. Returns all their bytes. */
static int post_many(struct duo *d, const uint32_t *sizes, uint32_t n)
{
	struct epf_wr wr[MANY];
	int bytes = 0;

	for (uint32_t i = 0; i < MANY; i++) {
		wr[i] = (struct epf_wr){
			.laddr = (uint64_t)(uintptr_t)d->mem_a + i * STRIDE,
			.raddr = d->mr_b.raddr + i * STRIDE,
			.lkey = d->mr_a.lkey,
			.rkey = d->mr_b.rkey,
			.len = sizes[i % n],
			.imm = i,
			.id = i,
			.op = EPF_WR_WRITE_IMM,
		};
		bytes += (int)wr[i].len;
	}
	assert_int_equal(d->a->ops->post(d->a, 0, wr, MANY), MANY);
	return bytes;
}

/* Waits until so much has arrived at b's socket. */
static void await_bytes(struct duo *d, int bytes)
{
	int have = 0;

	while (have < bytes) {
		assert_int_equal(ioctl(lane_of(d->b)->fd, FIONREAD, &have), 0);
		usleep(100);
	}
}

static void await_arrivals(struct duo *d, uint32_t next)
{
	while (next < MANY) {
		int n = kit_reap(d->b, d->wc, 64);

		for (int i = 0; i < n; i++)
			assert_int_equal(d->wc[i].imm, next++);
	}
}

static void check_bytes(const struct duo *d, const uint32_t *sizes, uint32_t n)
{
	for (uint32_t i = 0; i < MANY; i++) {
		const uint8_t *to = d->mem_b + i * STRIDE;

		assert_memory_equal(to, d->mem_a + i * STRIDE, sizes[i % n]);
		assert_int_equal(to[sizes[i % n]], 0);
	}
}

/* Sizes on both sides of what is copied, and none. */
static void short_and_long_payloads_mix(void **state)
{
	static const uint32_t sizes[] = {
		64, 64, EPF_TCP_SHORT + 1, 1, 500, 0, EPF_TCP_SHORT, 300
	};

	enum { N = sizeof(sizes) / sizeof(*sizes) };
	struct duo *d;

	(void)state;
	for (int round = 0; round < 2; round++) { /* the second finds what the first has left */
		d = begin();
		post_many(d, sizes, N);
		await_arrivals(d, 0);
		post_many(d, sizes, N);
		await_arrivals(d, 0);
		check_bytes(d, sizes, N);
		duo_close(d);
	}
}

/* An entry of the list that the last train was sent from. */
static const struct iovec *tx_entry(const struct duo *d, int i)
{
	return &lane_of(d->a)->tx.iov[i];
}

/* A train of short payloads: one call with two entries, or with more where they do not fit into the memory for copies. */
static void short_payloads_travel_together(void **state)
{
	static const uint32_t fits[] = { EPF_TCP_SHORT_BYTES / MANY },
			      exceeds[] = { EPF_TCP_SHORT };
	uint64_t before;
	struct duo *d;

	(void)state;
	d = begin();
	before = epf_tcp_of(d->a)->counters.doorbells;
	post_many(d, fits, 1);
	assert_int_equal(epf_tcp_of(d->a)->counters.doorbells, before + 1);
	assert_int_equal(tx_entry(d, 1)->iov_len, EPF_TCP_SHORT_BYTES);
	await_arrivals(d, 0);
	check_bytes(d, fits, 1);
	while (lane_of(d->a)->tx.acked != MANY) {
		assert_true(d->a->ops->reap(d->a, d->wc, 64) >= 0);
		assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
	}
	post_many(d, exceeds, 1);
	assert_int_equal(tx_entry(d, 1)->iov_len, EPF_TCP_SHORT_BYTES);
	assert_ptr_equal(tx_entry(d, 2)->iov_base,
			 d->mem_a + EPF_TCP_SHORT_BYTES / EPF_TCP_SHORT * STRIDE);
	await_arrivals(d, 0);
	check_bytes(d, exceeds, 1);
	duo_close(d);
}

/* While more arrives, acknowledgements travel alone only for half of a lane's depth. */
static void a_stream_is_acknowledged_rarely(void **state)
{
	enum { STEP = 16 };

	static const uint32_t sizes[] = { 8 };
	uint64_t before;
	struct duo *d;
	int bytes;

	(void)state;
	_Static_assert(MANY == DUO_DEPTH / 2 && MANY / STEP > 2 * EPF_TCP_ACK_AGE, "see below");
	d = begin();
	before = epf_tcp_of(d->b)->counters.doorbells;
	bytes = post_many(d, sizes, 1);
	await_bytes(d, bytes + EPF_TCP_HEAD_BYTES + MANY * EPF_TCP_DESC_BYTES);
	for (uint32_t i = 0; i < MANY; i += STEP) {
		assert_int_equal(epf_tcp_of(d->b)->counters.doorbells, before);
		assert_int_equal(d->b->ops->reap(d->b, d->wc, STEP), STEP);
	}
	assert_int_equal(epf_tcp_of(d->b)->counters.doorbells, before + 1);
	duo_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(short_and_long_payloads_mix),
		cmocka_unit_test(short_payloads_travel_together),
		cmocka_unit_test(a_stream_is_acknowledged_rarely),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
