/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread safety of the client API: two ranks of one process, and eight threads on each struct epf that open rings, push through them,
 * wait, and close them while the others do the same. With an engine thread, with an engine that the waiting threads step themselves,
 * and with a daemon (on a thread of this process, so that ThreadSanitizer sees both ends).
 */
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "tests/unit/service/svc_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum {
	RANKS = 2,
	THREADS = 8, /* of each rank */
	ROUNDS = 40,
	REGION_EVERY = 20, /* rounds */
	MISC_EVERY = 5,
	SLOT = 512,
	/* Memory of a rank: two slots of each thread that the peer writes, then two that it sends from. */
	SOURCE = 2 * THREADS * SLOT,
	BYTES = 2 * SOURCE,
	NEVER = THREADS, /* a signal to which nobody adds */
};

#define WAIT_NS KIT_WAIT_NS

struct rank {
	struct epf *ep;
	struct epf_boot *boot;
	uint8_t *mem;
	uint32_t me;
	int rc;
};

struct worker {
	struct rank *rank;
	uint32_t number;
	char why[600]; /* "" if all went well */
};

static struct {
	struct rank rank[RANKS];
	struct worker worker[RANKS * THREADS];
	uint32_t left; /* workers that have rounds to do */
} t;

/* Ends a worker with the line that failed. */
#define CHECK(w, what)                                                                           \
 do {                                                                                            \
  if (!(what)) {                                                                                 \
   snprintf((w)->why, sizeof((w)->why), "rank %u thread %u: %s: %s", (w)->rank->me, (w)->number, \
	    #what, epf_last_error());                                                            \
   return -1;                                                                                    \
  }                                                                                              \
 } while (0)

static uint8_t pattern(uint32_t rank, uint32_t thread, uint32_t round)
{
	return (uint8_t)(1 + rank * 101 + thread * 17 + round);
}

/* Puts a slot to the same thread of the peer and takes what that thread puts here. */
static int swap(struct worker *w, struct epf_ring *ring, uint32_t round)
{
	uint32_t peer = 1 - w->rank->me;
	uint64_t slot = (uint64_t)(2 * w->number + round % 2) * SLOT;
	const uint8_t *in = w->rank->mem + slot;
	uint8_t *out = w->rank->mem + SOURCE + slot;

	memset(out, pattern(w->rank->me, w->number, round), SLOT);
	CHECK(w, epf_put(ring, peer, 0, SOURCE + slot, 0, slot, SLOT, 0) == 0);
	CHECK(w, epf_signal_send(ring, peer, w->number, 1, 0) == 0);
	CHECK(w, epf_flush(ring, 0, WAIT_NS) == 0);
	CHECK(w, epf_signal_wait(w->rank->ep, w->number, round + 1, WAIT_NS) == 0);
	for (int i = 0; i < SLOT; i++)
		CHECK(w, in[i] == pattern(peer, w->number, round));
	return 0;
}

/* Every thread of both ranks does so as often: the exchanges of a rank wait for each other, and pair with the peer's in any order. */
static int use_region(struct worker *w)
{
	uint32_t region;
	void *mem;

	CHECK(w, epf_memory_alloc(w->rank->ep, 4096, &mem) == 0);
	CHECK(w, epf_region_register(w->rank->ep, mem, 4096, EPF_REMOTE_WRITE, &region) == 0);
	CHECK(w, epf_exchange(w->rank->ep) == 0);
	CHECK(w, epf_region_withdraw(w->rank->ep, region, WAIT_NS) == 0);
	epf_memory_free(w->rank->ep, mem);
	return 0;
}

/* Calls beside the traffic. A wait that times out looks at all rings of the rank. */
static int misc(struct worker *w)
{
	struct epf *ep = w->rank->ep;
	uint64_t value;

	CHECK(w, epf_signal_wait(ep, NEVER, 1, 1000) == -ETIMEDOUT);
	CHECK(w, epf_counter(ep, "cmds_dequeued", &value) == 0 && value > 0);
	CHECK(w, epf_peer_unmask(ep, 1 - w->rank->me) == 0);
	CHECK(w, epf_peer_state(ep, 1 - w->rank->me) == 1);
	CHECK(w, epf_progress(ep) >= 0);
	return 0;
}

static int rounds(struct worker *w)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct epf_ring *ring = NULL;

		CHECK(w, epf_ring_open(w->rank->ep, NULL, &ring) == 0);
		if (swap(w, ring, round))
			return -1;
		if ((round + w->number) % REGION_EVERY == 0 && use_region(w))
			return -1;
		if ((round + w->number) % MISC_EVERY == 0 && misc(w))
			return -1;
		epf_ring_close(ring);
	}
	return 0;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	int rc = rounds(w);

	/* Nobody waits for a thread that has given up. */
	for (uint32_t r = 0; r < RANKS && rc; r++)
		epf_abort(t.rank[r].ep);
	__atomic_sub_fetch(&t.left, 1, __ATOMIC_ACQ_REL);
	if (rc == 0 && epf_signal_wait(w->rank->ep, NEVER, 1, WAIT_NS) != -ECANCELED)
		snprintf(w->why, sizeof(w->why), "rank %u thread %u: epf_abort: %s", w->rank->me,
			 w->number, epf_last_error());
	return NULL;
}

static void *join(void *arg)
{
	struct rank *r = arg;

	r->rc = epf_join(r->ep, r->boot);
	if (r->rc)
		fprintf(stderr, "rank %u: %s\n", r->me, epf_last_error());
	return NULL;
}

/* Two ranks close at the same time: without an engine thread each answers the other only inside a call. */
static void *leave(void *arg)
{
	struct rank *r = arg;

	epf_close(r->ep);
	epf_boot_close(r->boot);
	return NULL;
}

static void open_ranks(struct epf_boot_group *group, const char *const *settings)
{
	pthread_t thread[RANKS];
	struct epf_options o;

	epf_options_init(&o);
	o.settings = settings;
	for (uint32_t r = 0; r < RANKS; r++) {
		struct rank *rank = &t.rank[r];
		uint32_t region;
		void *mem;

		*rank = (struct rank){ .me = r };
		assert_int_equal(epf_open(&o, &rank->ep), 0);
		assert_int_equal(epf_memory_alloc(rank->ep, BYTES, &mem), 0);
		rank->mem = mem;
		assert_int_equal(
			epf_region_register(rank->ep, mem, BYTES, EPF_REMOTE_WRITE, &region), 0);
		assert_int_equal(region, 0);
		assert_int_equal(epf_boot_local_open(group, r, &rank->boot), 0);
		assert_int_equal(pthread_create(&thread[r], NULL, join, rank), 0);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(t.rank[r].rc, 0);
}

static void run(const char *const *settings)
{
	pthread_t thread[RANKS * THREADS];
	struct epf_boot_group *group;
	const char *why = NULL;

	assert_int_equal(epf_boot_local_create(RANKS, &group), 0);
	open_ranks(group, settings);
	t.left = RANKS * THREADS;
	for (uint32_t i = 0; i < RANKS * THREADS; i++) {
		t.worker[i] = (struct worker){ &t.rank[i % RANKS], i / RANKS, "" };
		assert_int_equal(pthread_create(&thread[i], NULL, work, &t.worker[i]), 0);
	}
	/* progress=caller: a rank whose threads are through still has to answer its peer. */
	while (__atomic_load_n(&t.left, __ATOMIC_ACQUIRE)) {
		for (uint32_t r = 0; r < RANKS; r++)
			(void)epf_progress(t.rank[r].ep);
		usleep(100);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		epf_abort(t.rank[r].ep);
	for (uint32_t i = 0; i < RANKS * THREADS; i++) {
		pthread_join(thread[i], NULL);
		if (t.worker[i].why[0] && (!why || strstr(why, "aborted")))
			why = t.worker[i].why;
	}
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(pthread_create(&thread[r], NULL, leave, &t.rank[r]), 0);
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(thread[r], NULL);
	epf_boot_local_destroy(group);
	if (why)
		fail_msg("%s", why);
}

static void engine_thread(void **state)
{
	run(NULL);
}

static void stepped_by_callers(void **state)
{
	static const char *const settings[] = { "progress=caller", NULL };

	run(settings);
}

static void daemon_of_this_node(void **state)
{
	static struct kit k;
	char service[160];
	const char *settings[] = { service, NULL };

	kit_make(&k);
	kit_set(&k, "client-rings", "16"); /* a closed ring must not count for long */
	assert_int_equal(kit_run(&k), 0);
	snprintf(service, sizeof(service), "service=%s", epf_svc_socket(k.svc));
	run(settings);
	kit_remove(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engine_thread),
		cmocka_unit_test(stepped_by_callers),
		cmocka_unit_test(daemon_of_this_node),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
