/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Additions by two contexts (fabric/gpu/adder.h) over sides that the test plays: it says when a launch returns and when a kernel runs. Each addition must be made once, and
 * batches in their order, whichever context is held up, has no room, or is not there.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/adder.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { USUAL, OWN, SIDES, WORDS = 8 };

/* What kernels of a side do: run at once, wait for play(), run as far as the claim and stop there. */
enum pace { AT_ONCE, WHEN_PLAYED, STOPS_AFTER_CLAIM };

struct epf_adder_side {
	struct epf_adder_batch launches[64];
	uint64_t launched, played, done;
	/* What the test says while an adder's threads look [atomic]. */
	uint32_t pace;           /* enum pace */
	uint32_t launch_waits;   /* launch() does not return */
	uint32_t refuses, fails; /* launch() and check() do */
	uint32_t is_launching;
	uint32_t made; /* batches that this side made */
};

static struct {
	pthread_mutex_t lock;
	struct epf_adder_side sides[SIDES];
	uint64_t claim, words[WORDS];
	int opens; /* what open() of the usual side returns */
	bool is_private;
} gpu = { .lock = PTHREAD_MUTEX_INITIALIZER };

static uint32_t get(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void set(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static void reset(void)
{
	memset(gpu.sides, 0, sizeof(gpu.sides));
	memset(gpu.words, 0, sizeof(gpu.words));
	gpu.claim = 0;
	gpu.opens = 0;
	gpu.is_private = false;
}

static int side_open(int device, bool is_own, struct epf_adder_side **out)
{
	if (!is_own && gpu.opens)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "no usual side");
	*out = &gpu.sides[is_own ? OWN : USUAL];
	return 0;
}

/* Runs kernel `at` as the driver's does; gpu.lock held. */
static void run_kernel(struct epf_adder_side *s, uint64_t at)
{
	const struct epf_adder_batch *b = &s->launches[at % 64];

	if (b->claim) {
		assert_ptr_equal((void *)(uintptr_t)b->claim, &gpu.claim);
		if (gpu.claim >= b->number)
			return;
		gpu.claim = b->number;
	}
	if (get(&s->pace) == STOPS_AFTER_CLAIM)
		return;
	for (unsigned i = 0; i < b->n; i++)
		__atomic_fetch_add((uint64_t *)(uintptr_t)b->adds[i].dst, b->adds[i].add,
				   __ATOMIC_RELEASE);
	set(&s->made, s->made + 1);
	__atomic_store_n(&s->done, b->number, __ATOMIC_RELEASE);
}

/* Runs what was launched on a side. */
static void play(struct epf_adder_side *s)
{
	pthread_mutex_lock(&gpu.lock);
	while (s->played < s->launched)
		run_kernel(s, s->played++);
	pthread_mutex_unlock(&gpu.lock);
}

static int side_launch(struct epf_adder_side *s, const struct epf_adder_batch *b)
{
	struct timespec pause = { .tv_nsec = 1000000 };

	set(&s->is_launching, 1);
	while (get(&s->launch_waits))
		nanosleep(&pause, NULL);
	if (get(&s->refuses))
		return epf_fail(EPF_R_GPU_CALL, "this side launches nothing");
	pthread_mutex_lock(&gpu.lock);
	assert_true(s->launched - s->played < 64);
	s->launches[s->launched++ % 64] = *b;
	pthread_mutex_unlock(&gpu.lock);
	if (get(&s->pace) != WHEN_PLAYED)
		play(s);
	set(&s->is_launching, 0);
	return 0;
}

static void side_close(struct epf_adder_side *s)
{
	if (s)
		play(s);
}

static uint64_t side_claim(const struct epf_adder_side *s)
{
	return (uint64_t)(uintptr_t)&gpu.claim;
}

static uint64_t side_done(const struct epf_adder_side *s)
{
	return __atomic_load_n(&s->done, __ATOMIC_ACQUIRE);
}

static int side_check(struct epf_adder_side *s)
{
	return get(&s->fails) ? epf_fail(EPF_R_GPU_CALL, "this side failed") : 0;
}

static bool side_is_usual(uint64_t addr)
{
	return !gpu.is_private;
}

static const struct epf_adder_ops ops = { side_open, side_close, side_claim,   side_launch,
					  side_done, side_check, side_is_usual };

static uint64_t word(unsigned i)
{
	return (uint64_t)(uintptr_t)&gpu.words[i];
}

static uint64_t value_of(unsigned i)
{
	return __atomic_load_n(&gpu.words[i], __ATOMIC_ACQUIRE);
}

static void until_reached(struct epf_adder *a, uint64_t value)
{
	while (epf_adder_reached(a) < value)
		sched_yield();
}

static void add_one(struct epf_adder *a, unsigned i, uint64_t *value)
{
	struct epf_copy_add add = { word(i), 1 };

	assert_int_equal(epf_adder_add(a, &add, 1, ++*value), 0);
}

/* Adds 1 to word i until a batch has gone to the usual side; it may be under way. */
static void until_usual(struct epf_adder *a, unsigned i, uint64_t *value)
{
	uint64_t usual = epf_adder_counts(a).usual;

	for (;;) {
		add_one(a, i, value);
		if (epf_adder_counts(a).usual != usual)
			return;
		until_reached(a, *value);
	}
}

/* Waits until all batches of the usual side were launched, so that the test can change what it does. */
static void until_idle(struct epf_adder *a)
{
	uint64_t launched;

	do {
		sched_yield();
		pthread_mutex_lock(&gpu.lock);
		launched = gpu.sides[USUAL].launched;
		pthread_mutex_unlock(&gpu.lock);
	} while (launched != epf_adder_counts(a).usual || get(&gpu.sides[USUAL].is_launching));
}

/* Opens an adder; if the usual side is to come, waits until batches go there. Adds 1 to word 7 meanwhile. */
static struct epf_adder *open_adder(uint64_t *value)
{
	struct epf_adder *a;

	assert_int_equal(epf_adder_open(&ops, 0, &a), 0);
	if (gpu.opens) {
		add_one(a, 7, value);
	} else {
		until_usual(a, 7, value);
		until_idle(a);
	}
	until_reached(a, *value);
	return a;
}

static void ms(long n)
{
	struct timespec t = { .tv_nsec = n * 1000000 };

	nanosleep(&t, NULL);
}

static void test_usual_context_makes_them(void **state)
{
	uint64_t value = 0;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	do { /* it may be late on a busy CPU */
		add_one(a, 0, &value);
		until_reached(a, value);
	} while (get(&gpu.sides[USUAL].made) < 20);
	epf_adder_close(a);
	assert_int_equal(value_of(0) + value_of(7), value);
}

/* A load holds up the launch: the other context makes the batch and those after it, and the launch, when it returns, adds nothing. */
static void test_launch_is_held_up(void **state)
{
	uint64_t value = 0, usual;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	set(&gpu.sides[USUAL].launch_waits, 1);
	usual = epf_adder_counts(a).usual;
	until_usual(a, 0, &value);
	until_reached(a, value);
	while (!get(&gpu.sides[USUAL].is_launching))
		sched_yield();
	for (unsigned i = 0; i < 10; i++) {
		add_one(a, 1, &value);
		until_reached(a, value);
	}
	assert_int_equal(value_of(1), 10);
	assert_int_equal(epf_adder_counts(a).usual, usual + 1);
	assert_true(epf_adder_counts(a).late >= 1);
	set(&gpu.sides[USUAL].launch_waits, 0);
	while (epf_adder_counts(a).usual < usual + 3) { /* it is used again */
		add_one(a, 2, &value);
		until_reached(a, value);
	}
	epf_adder_close(a);
	assert_int_equal(value_of(0) + value_of(1) + value_of(2) + value_of(7), value);
}

/* Kernels of the usual context get no room: the same, and they run later. */
static void test_kernel_finds_no_room(void **state)
{
	uint64_t value = 0;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	set(&gpu.sides[USUAL].pace, WHEN_PLAYED);
	for (unsigned i = 0; i < 20; i++) {
		add_one(a, 0, &value);
		until_reached(a, value);
	}
	assert_int_equal(value_of(0), 20);
	assert_true(epf_adder_counts(a).late > 0);
	play(&gpu.sides[USUAL]);
	assert_int_equal(value_of(0), 20);
	epf_adder_close(a);
	assert_int_equal(value_of(0) + value_of(7), value);
}

/* Adds 1 to word 0 until the usual side has claimed a batch, where it stops; the other side, which got it late, found it claimed. */
static void until_claimed(struct epf_adder *a, uint64_t *value)
{
	struct epf_adder_counts before = epf_adder_counts(a);

	set(&gpu.sides[USUAL].pace, STOPS_AFTER_CLAIM);
	set(&gpu.sides[OWN].pace, WHEN_PLAYED);
	for (;;) {
		add_one(a, 0, value);
		if (epf_adder_counts(a).usual != before.usual)
			break;
		while (epf_adder_reached(a) < *value)
			play(&gpu.sides[OWN]);
	}
	until_idle(a);
	while (epf_adder_counts(a).late == before.late) {
		epf_adder_reached(a);
		sched_yield();
	}
	play(&gpu.sides[OWN]);
}

/* The usual kernel has claimed its batch and is slow: the batch ends with it, and none begins before. */
static void test_claimed_batch_is_awaited(void **state)
{
	uint64_t value = 0, last, before;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	until_claimed(a, &value);
	last = value_of(0);
	add_one(a, 1, &value);
	before = epf_adder_reached(a);
	for (unsigned i = 0; i < 50; i++) {
		assert_int_equal(epf_adder_reached(a), before);
		ms(1);
	}
	assert_int_equal(value_of(0), last);
	assert_int_equal(value_of(1), 0);
	set(&gpu.sides[USUAL].pace, AT_ONCE);
	set(&gpu.sides[OWN].pace, AT_ONCE);
	pthread_mutex_lock(&gpu.lock);
	gpu.claim--; /* goes on where it stopped */
	run_kernel(&gpu.sides[USUAL], gpu.sides[USUAL].launched - 1);
	pthread_mutex_unlock(&gpu.lock);
	until_reached(a, value);
	assert_int_equal(value_of(0), last + 1);
	assert_int_equal(value_of(1), 1);
	epf_adder_close(a);
}

static void test_no_usual_side(void **state)
{
	uint64_t value = 0;
	struct epf_adder *a;

	reset();
	gpu.opens = -ENOTSUP;
	a = open_adder(&value);
	for (unsigned i = 0; i < 100; i++)
		add_one(a, 0, &value), until_reached(a, value);
	assert_int_equal(value_of(0), 100);
	assert_int_equal(epf_adder_counts(a).usual, 0);
	epf_adder_close(a);
}

static void test_usual_launch_fails(void **state)
{
	uint64_t value = 0, usual;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	set(&gpu.sides[USUAL].refuses, 1);
	until_usual(a, 0, &value);
	until_reached(a, value);
	usual = epf_adder_counts(a).usual;
	for (unsigned i = 0; i < 100; i++)
		add_one(a, 0, &value), until_reached(a, value);
	assert_int_equal(epf_adder_counts(a).usual, usual);
	epf_adder_close(a);
	assert_int_equal(value_of(0) + value_of(7), value);
}

static void test_own_side_fails(void **state)
{
	struct epf_copy_add add = { word(0), 1 };
	uint64_t value = 0;
	struct epf_adder *a;

	reset();
	gpu.opens = -ENOTSUP;
	a = open_adder(&value);
	set(&gpu.sides[OWN].pace, WHEN_PLAYED);
	set(&gpu.sides[OWN].fails, 1);
	add_one(a, 0, &value);
	assert_true(epf_adder_reached(a) == UINT64_MAX);
	assert_true(epf_adder_add(a, &add, 1, ++value) < 0);
	epf_adder_close(a);
}

/* The program's context fails after a claim: nobody will make the batch. */
static void test_claimed_batch_is_lost(void **state)
{
	uint64_t value = 0;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	until_claimed(a, &value);
	set(&gpu.sides[USUAL].fails, 1);
	until_reached(a, UINT64_MAX);
	epf_adder_close(a);
}

static void test_memory_of_our_context_only(void **state)
{
	uint64_t value = 0, usual;
	struct epf_adder *a;

	reset();
	a = open_adder(&value);
	usual = epf_adder_counts(a).usual;
	gpu.is_private = true;
	for (unsigned i = 0; i < 10; i++)
		add_one(a, 0, &value), until_reached(a, value);
	assert_int_equal(epf_adder_counts(a).usual, usual);
	assert_int_equal(value_of(0), 10);
	epf_adder_close(a);
}

static uint64_t next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static uint32_t player_stops;

/* Plays both sides at random times. */
static void *player(void *arg)
{
	uint64_t random = 88172645463325252ull;

	while (!get(&player_stops)) {
		struct timespec t = { .tv_nsec = (long)(next(&random) % 600000) };

		nanosleep(&t, NULL);
		play(&gpu.sides[next(&random) % SIDES]);
	}
	return NULL;
}

/* Every call adds 1 to word 0, random numbers to others, and 1 to word 1: word 1 is never ahead of word 0. */
static uint64_t add_list(struct epf_adder *a, uint64_t *random, uint64_t *value, uint64_t *sum)
{
	struct epf_copy_add adds[EPF_COPY_ADDS];
	unsigned n = 2 + (unsigned)(next(random) % (EPF_COPY_ADDS - 1));
	uint64_t second = value_of(1), first = value_of(0);

	assert_true(second <= first);
	adds[0] = (struct epf_copy_add){ word(0), 1 };
	for (unsigned i = 1; i < n - 1; i++) {
		adds[i] = (struct epf_copy_add){ word(2 + i % 4), next(random) % 1000 };
		*sum += adds[i].add;
	}
	adds[n - 1] = (struct epf_copy_add){ word(1), 1 };
	assert_int_equal(epf_adder_add(a, adds, n, ++*value), 0);
	return n;
}

static void test_random_order(void **state)
{
	uint64_t value = 0, random = 1, sum = 0, before, reached, calls = 0;
	struct epf_adder *a;
	pthread_t thread;

	reset();
	a = open_adder(&value);
	before = value;
	set(&gpu.sides[USUAL].pace, WHEN_PLAYED);
	set(&gpu.sides[OWN].pace, WHEN_PLAYED);
	assert_int_equal(pthread_create(&thread, NULL, player, NULL), 0);
	for (; calls < 2000; calls++) {
		add_list(a, &random, &value, &sum);
		until_reached(a, value < EPF_COPY_FLIGHTS ? 0 : value - EPF_COPY_FLIGHTS + 1);
		/* Asked for first: more is made meanwhile. */
		reached = epf_adder_reached(a);
		assert_true(reached < before || value_of(1) >= reached - before);
	}
	epf_adder_close(a); /* makes the rest */
	set(&player_stops, 1);
	pthread_join(thread, NULL);
	assert_int_equal(value_of(0), calls);
	assert_int_equal(value_of(1), calls);
	assert_int_equal(value_of(2) + value_of(3) + value_of(4) + value_of(5), sum);
	assert_true(gpu.sides[USUAL].made && gpu.sides[OWN].made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usual_context_makes_them),
		cmocka_unit_test(test_launch_is_held_up),
		cmocka_unit_test(test_kernel_finds_no_room),
		cmocka_unit_test(test_claimed_batch_is_awaited),
		cmocka_unit_test(test_no_usual_side),
		cmocka_unit_test(test_usual_launch_fails),
		cmocka_unit_test(test_own_side_fails),
		cmocka_unit_test(test_claimed_batch_is_lost),
		cmocka_unit_test(test_memory_of_our_context_only),
		cmocka_unit_test(test_random_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
