/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of copies (fabric/nic/emu/copy_queue.h) over a device that only looks: no two copies of a batch meet in their destination, all are
 * submitted in their order, each job gets its outcome once, also where the driver refuses a batch. Random spans, also across the end of the ring of jobs, with queues that are full now and
 * then, and for so long that the numbers of batches come again.
 */
#include "fabric/nic/emu/copy_queue.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = EPF_COPY_BATCH };

/* The device: what it was given, and how far it says that it is. */
static struct {
	uint64_t submitted, reached, spans, batches;
	uint64_t lag; /* batches that it is behind, until it was asked often */
	uint64_t asked;
	uint64_t met; /* copies that met another one of their batch */
	uint64_t wrong;
	unsigned refuse; /* so many of the next submits and adds */
	bool is_held;    /* reaches nothing more */
} device;

static int accept(uint64_t value)
{
	if (device.refuse) {
		device.refuse--;
		return -EIO;
	}
	device.submitted = value;
	device.batches++;
	return 0;
}

static unsigned look_batch(const struct epf_copy_queue *q)
{
	return MOST;
}

static int look_open(int index, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	*out = (struct epf_copy_queue *)&device;
	return 0;
}

static void look_close(struct epf_copy_queue *q)
{
}

static int look_submit(struct epf_copy_queue *q, const struct epf_copy_span *s, unsigned n,
		       uint64_t value)
{
	for (unsigned i = 0; i < n; i++, device.spans++) {
		for (unsigned k = 0; k < i; k++)
			device.met += s[i].dst < s[k].dst + s[k].bytes &&
				      s[k].dst < s[i].dst + s[i].bytes;
		device.wrong += s[i].src != device.spans;
	}
	return accept(value);
}

static int look_add(struct epf_copy_queue *q, const struct epf_copy_add *adds, unsigned n,
		    uint64_t value)
{
	return accept(value);
}

static uint64_t look_reached(struct epf_copy_queue *q)
{
	if (device.is_held)
		return device.reached;
	if (device.submitted - device.reached > device.lag)
		device.reached = device.submitted - device.lag;
	else if (++device.asked % 4 == 0 && device.reached < device.submitted)
		device.reached++;
	return device.reached;
}

static const struct epf_copy_ops look = {
	.name = "look",
	.queue_open = look_open,
	.queue_batch = look_batch,
	.queue_close = look_close,
	.submit = look_submit,
	.add = look_add,
	.reached = look_reached,
};

/* A NIC's side, as far as the queue looks at it. */
static struct epf_emu_copier *nic_new(void)
{
	static struct epf_wakeup wakeup;
	struct epf_emu_copier *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->entries = calloc(EPF_EMU_ENTRIES, sizeof(*c->entries));
	c->undone = calloc(EPF_EMU_COPIES, sizeof(*c->undone));
	c->outcomes = calloc(EPF_EMU_COPIES, sizeof(*c->outcomes));
	assert_true(c->entries && c->undone && c->outcomes);
	c->ops = &look;
	c->nic_wakeup = &wakeup;
	memset(&device, 0, sizeof(device));
	return c;
}

static void nic_free(struct epf_emu_copier *c)
{
	epf_emu_queues_close();
	free(c->entries);
	free(c->undone);
	free(c->outcomes);
	free(c);
}

static uint64_t next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

/* Gives a job of n spans that stand in the ring from entry `first` on, in as many pieces as it takes; its outcome comes later. */
static void give(struct epf_emu_copier *c, uint32_t slot, uint32_t first, uint32_t n)
{
	struct epf_emu_queue *q = epf_emu_queue_of(c, 0, false);
	struct epf_emu_run run = {
		.entries = c->entries, .first = first, .n = n, .to_dst = 1u << 20
	};
	bool busy;

	c->undone[slot] = n;
	while (run.n) {
		uint32_t taken = epf_emu_queue_copies(q, c, slot, &run);

		assert_true(taken <= run.n);
		run.first += taken;
		run.n -= taken;
		if (run.n)
			epf_emu_queues_pump(&busy);
	}
}

/* How many outcomes there are; each must be good, and of the slot that is next. */
static uint64_t outcomes(struct epf_emu_copier *c, uint64_t seen, uint32_t slots)
{
	struct epf_emu_outcome o;

	for (; epf_emu_copier_pop(c, &o); seen++)
		assert_true(o.status == 0 && o.slot == seen % slots);
	return seen;
}

/* n jobs of up to 64 spans of up to `bytes` bytes in `room` bytes of memory. */
static void random_jobs(uint32_t n, uint64_t bytes, uint64_t room, uint64_t lag)
{
	enum { SLOTS = 1024 };
	struct epf_emu_copier *c = nic_new();
	uint64_t random = 88172645463325252ull + bytes, spans = 0, seen = 0;
	uint32_t at = EPF_EMU_ENTRIES - 7;
	bool busy = true;

	device.lag = lag;
	for (uint32_t job = 0; job < n; job++) {
		uint32_t of = 1 + next(&random) % 64;

		for (uint32_t i = 0; i < of; i++) {
			struct epf_emu_job_span *s =
				&c->entries[(at + i) & (EPF_EMU_ENTRIES - 1)].span;

			s->bytes = 1 + (uint32_t)(next(&random) % bytes);
			s->dst = next(&random) % (room - s->bytes);
			s->src = spans++;
		}
		give(c, job % SLOTS, at, of);
		at += of;
		epf_emu_queues_pump(&busy);
		seen = outcomes(c, seen, SLOTS);
	}
	device.lag = 0;
	while (busy)
		epf_emu_queues_pump(&busy);
	seen = outcomes(c, seen, SLOTS);
	assert_int_equal(device.met, 0);
	assert_int_equal(device.wrong, 0);
	assert_int_equal(device.spans, spans);
	assert_int_equal(seen, n);
	nic_free(c);
}

static void test_scattered(void **state)
{
	random_jobs(4000, 7168, 64 << 20, 3);
	random_jobs(4000, 64, 4 << 20, 0);
	random_jobs(2000, 20000, 16 << 20, EPF_COPY_FLIGHTS);
}

static void test_crowded(void **state)
{
	random_jobs(2000, 7168, 64 << 10, 2);
	random_jobs(2000, 1, 100, 1);
}

static void test_long(void **state)
{
	random_jobs(500, 2 << 20, 256ull << 20, 2);
	random_jobs(500, 300000, 4 << 20, 2);
}

/* Neighbours share a batch to the last one: only a batch that is full ends. */
static void test_neighbours(void **state)
{
	enum { JOBS = 400, OF = 64, BYTES = 7168 };
	struct epf_emu_copier *c = nic_new();
	uint64_t spans = 0;
	bool busy = true;

	for (uint32_t job = 0; job < JOBS; job++) {
		for (uint32_t i = 0; i < OF; i++, spans++) {
			struct epf_emu_job_span *s =
				&c->entries[spans & (EPF_EMU_ENTRIES - 1)].span;

			*s = (struct epf_emu_job_span){ .dst = spans * BYTES,
							.src = spans,
							.bytes = BYTES };
		}
		give(c, job, (uint32_t)(spans - OF), OF);
	}
	while (busy)
		epf_emu_queues_pump(&busy);
	assert_int_equal(device.met + device.wrong, 0);
	assert_int_equal(device.spans, spans);
	assert_int_equal(device.batches, spans / MOST);
	nic_free(c);
}

/*
 * Batches have 16-bit numbers. Of two with the same number, the first span touches the same bytes, and all between them touch none of its
 * buckets: what the table says of it must not count.
 */
static void test_numbers_come_again(void **state)
{
	enum { NUMBERS = 65535, HERE = 4096, WIDE = 1 << 20, FAR = 1 << 30 };
	struct epf_emu_copier *c = nic_new();
	const uint64_t last[] = { HERE, HERE + FAR, HERE + 16 };
	uint32_t n = NUMBERS + 3;
	bool busy = true;

	for (uint32_t i = 0; i < n; i++) {
		bool here = i == 0 || i >= NUMBERS;
		struct epf_emu_job_span *s = &c->entries[i & (EPF_EMU_ENTRIES - 1)].span;

		*s = (struct epf_emu_job_span){ .dst = here ? HERE : 0,
						.src = i,
						.bytes = here ? 16 : WIDE };
		if (i >= NUMBERS)
			s->dst = last[i - NUMBERS];
		give(c, i % EPF_EMU_COPIES, i, 1);
	}
	while (busy)
		epf_emu_queues_pump(&busy);
	assert_int_equal(device.met + device.wrong, 0);
	assert_int_equal(device.spans, n);
	assert_int_equal(device.batches, n - 2);
	nic_free(c);
}

/* The next outcome is that of a job, with this status. */
static void ends(struct epf_emu_copier *c, uint32_t slot, uint32_t status)
{
	struct epf_emu_outcome o;

	assert_true(epf_emu_copier_pop(c, &o));
	assert_int_equal(o.slot, slot);
	assert_int_equal(o.status, status);
}

static void pump_to_the_end(void)
{
	bool busy = true;

	device.is_held = false;
	for (int i = 0; i < 1000 && busy; i++)
		epf_emu_queues_pump(&busy);
	assert_false(busy);
}

/*
 * The driver refuses submits while an earlier one is under way: their jobs fail at once, a job of which it accepts a part fails when that is over, and the
 * jobs before and after succeed.
 */
static void test_refused_copies(void **state)
{
	enum { BEFORE, REFUSED = 3, IN_PART, AFTER };
	struct epf_emu_copier *c = nic_new();
	struct epf_emu_outcome o;
	bool busy;

	for (uint32_t i = 0; i < AFTER + 2; i++)
		c->entries[i].span = (struct epf_emu_job_span){
			.dst = i <= IN_PART ? 64 * i : 64 * (i - 1), .src = i, .bytes = 64
		};
	device.is_held = true;
	for (uint32_t job = BEFORE; job <= REFUSED; job++) {
		device.refuse = job != BEFORE;
		give(c, job, job, 1);
		epf_emu_queues_pump(&busy);
		if (job != BEFORE)
			ends(c, job, EPF_S_REMOTE_ACCESS);
	}
	/* Both of its spans have the same destination, so the first one is submitted alone. */
	device.refuse = 1;
	give(c, IN_PART, IN_PART, 2);
	epf_emu_queues_pump(&busy);
	give(c, AFTER, AFTER + 1, 1);
	assert_false(epf_emu_copier_pop(c, &o));
	pump_to_the_end();
	ends(c, BEFORE, EPF_S_OK);
	ends(c, IN_PART, EPF_S_REMOTE_ACCESS);
	ends(c, AFTER, EPF_S_OK);
	assert_false(epf_emu_copier_pop(c, &o));
	assert_int_equal(device.wrong, 0);
	nic_free(c);
}

static void test_refused_additions(void **state)
{
	struct epf_emu_copier *c = nic_new();
	struct epf_emu_queue *q = epf_emu_queue_of(c, 0, true);
	struct epf_emu_outcome o;

	device.is_held = true;
	for (uint32_t job = 0; job < 3; job++) {
		device.refuse = job == 1;
		c->undone[job] = 1;
		assert_true(epf_emu_queue_add(q, c, job, 64, 1));
		epf_emu_queues_add();
	}
	ends(c, 1, EPF_S_REMOTE_ACCESS);
	pump_to_the_end();
	ends(c, 0, EPF_S_OK);
	ends(c, 2, EPF_S_OK);
	assert_false(epf_emu_copier_pop(c, &o));
	nic_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scattered),
		cmocka_unit_test(test_crowded),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_neighbours),
		cmocka_unit_test(test_numbers_come_again),
		cmocka_unit_test(test_refused_copies),
		cmocka_unit_test(test_refused_additions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
