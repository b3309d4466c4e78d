/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client API over the whole engine and the emulated NIC, in one process and one thread: every command, order,
 * flush, errors, withdrawal, lost ranks, counter wrap. Runs for an ordered and an unordered NIC.
 */
#include "tests/unit/client/job.h"

#include "fabric/base/err.h"
#include "fabric/nic/nic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 20 };

struct fixture {
	struct job job;
	uint8_t *mem[8];
	uint32_t region[8];
	struct epf_ring *ring[8];
};

static struct fixture *current;
static const char *order = "emu-order=ordered";

static void setup_rank(struct job *job, uint32_t rank)
{
	struct fixture *f = current;
	void *mem;

	assert_return_code(epf_memory_alloc(job->ep[rank], BYTES, &mem), 0);
	f->mem[rank] = mem;
	assert_return_code(epf_region_register(job->ep[rank], mem, BYTES,
					       EPF_REMOTE_WRITE | EPF_REMOTE_READ,
					       &f->region[rank]),
			   0);
	assert_return_code(epf_ring_open(job->ep[rank], NULL, &f->ring[rank]), 0);
}

static void open_job(struct fixture *f, uint32_t ranks, const char *extra)
{
	const char *settings[] = { order, "signals=64", "emu-packets=256", extra, NULL };

	memset(f, 0, sizeof(*f));
	current = f;
	assert_return_code(job_open(&f->job, ranks, ranks, settings, 1000, setup_rank), 0);
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static void put_and_signal(void **state)
{
	struct fixture f;

	open_job(&f, 2, NULL);
	fill(f.mem[0], 65536, 1);
	assert_return_code(epf_put(f.ring[0], 1, 0, 0, 0, 4096, 65536, 0), 0);
	assert_return_code(epf_signal_send(f.ring[0], 1, 5, 3, 0), 0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 5, 3, 0), 0);
	assert_memory_equal(f.mem[0], f.mem[1] + 4096, 65536);
	assert_int_equal(epf_signal_value(f.job.ep[1], 5), 3);
	assert_return_code(epf_wait_retired(f.ring[0], 2, 0), 0);
	/* Counters wrap: what lies behind is compared by its distance. */
	assert_return_code(epf_signal_wait(f.job.ep[1], 5, UINT64_MAX, 1000000), 0);
	assert_return_code(epf_wait_retired(f.ring[0], UINT64_MAX, 1000000), 0);
	job_close(&f.job);
}

static void every_command(void **state)
{
	struct fixture f;
	uint64_t word;

	open_job(&f, 3, NULL);
	fill(f.mem[0], BYTES, 2);
	fill(f.mem[2], BYTES, 9);
	/* Byte-granular, to oneself, over a megabyte, inline, add, get. */
	assert_return_code(epf_put(f.ring[0], 1, 0, 3, 0, 17, 1001, EPF_BULK), 0);
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 8192, 0, 8192, 100000, 1, 7, EPF_FENCE),
			   0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 1, 7, 0), 0);
	assert_memory_equal(f.mem[0] + 3, f.mem[1] + 17, 1001);
	assert_memory_equal(f.mem[0] + 8192, f.mem[1] + 8192, 100000);
	assert_return_code(epf_put_inline(f.ring[0], 1, 0, 5, 0x1122334455667788ull, 7, 0), 0);
	memset(f.mem[1] + 4096, 0, 8);
	assert_return_code(epf_add(f.ring[0], 1, 0, 4096, 40, 0), 0);
	assert_return_code(epf_add(f.ring[0], 1, 0, 4096, 2, 0), 0);
	assert_return_code(epf_flush(f.ring[0], 0, 0), 0);
	memcpy(&word, f.mem[1] + 4096, 8);
	assert_int_equal(word, 42);
	assert_memory_equal(f.mem[1] + 5, "\x88\x77\x66\x55\x44\x33\x22", 7);
	assert_return_code(epf_get(f.ring[0], 2, 0, 512 << 10, 0, 100, 300001, 0), 0);
	assert_return_code(epf_wait_retired(f.ring[0], epf_ring_pushed(f.ring[0]), 0), 0);
	assert_memory_equal(f.mem[2] + 100, f.mem[0] + (512 << 10), 300001);
	/* Oneself. */
	assert_return_code(epf_put_signal(f.ring[0], 0, 0, 0, 0, 65536, 64, 2, 1, 0), 0);
	assert_return_code(epf_signal_wait(f.job.ep[0], 2, 1, 0), 0);
	assert_memory_equal(f.mem[0], f.mem[0] + 65536, 64);
	job_close(&f.job);
}

static void counted_signals_wait_for_their_puts(void **state)
{
	struct fixture f;
	struct epf_ring *second;

	open_job(&f, 2, NULL);
	assert_return_code(epf_ring_open(f.job.ep[0], NULL, &second), 0);
	fill(f.mem[0], BYTES, 3);
	/* The signal is pushed first, on another ring: it must wait for three puts of two rings. */
	assert_return_code(epf_signal_counted(second, 1, 9, 1000, 3, 0), 0);
	for (int i = 0; i < 200; i++)
		job_step(&f.job);
	assert_int_equal(epf_signal_value(f.job.ep[1], 9), 0);
	assert_return_code(epf_put_group(f.ring[0], 1, 0, 0, 0, 0, 4096, 9, 0), 0);
	assert_return_code(epf_put_group(second, 1, 0, 4096, 0, 4096, 4096, 9, 0), 0);
	for (int i = 0; i < 200; i++)
		job_step(&f.job);
	assert_int_equal(epf_signal_value(f.job.ep[1], 9), 0);
	assert_return_code(epf_put_group(f.ring[0], 1, 0, 8192, 0, 8192, 4096, 9, 0), 0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 9, 1000, 0), 0);
	assert_memory_equal(f.mem[0], f.mem[1], 12288);
	assert_return_code(epf_flush(second, EPF_ALL_RINGS, 0), 0);
	job_close(&f.job);
}

static void signals_ride_in_immediates(void **state)
{
	struct fixture f;
	uint64_t posted, before;

	open_job(&f, 2, NULL);
	fill(f.mem[0], BYTES, 6);
	/* The first one defines the handle, by a separate message. */
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 64, 7, 2, 0), 0);
	assert_return_code(epf_flush(f.ring[0], 0, 0), 0);
	assert_return_code(epf_counter(f.job.ep[0], "wrs_posted", &before), 0);
	/* A name of the release before is an alias. */
	assert_return_code(epf_counter(f.job.ep[0], "cmds_parked", &posted), 0);
	for (unsigned i = 0; i < 100; i++)
		assert_return_code(epf_put_signal(f.ring[0], 1, 0, i * 64, 0, i * 64, 64, 7, 2, 0),
				   0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 7, 202, 0), 0);
	assert_memory_equal(f.mem[0], f.mem[1], 6400);
	assert_int_equal(epf_signal_value(f.job.ep[1], 7), 202);
	assert_return_code(epf_counter(f.job.ep[0], "wrs_posted", &posted), 0);
	assert_true(posted - before < 110); /* one work request each, and a few grants */
	job_close(&f.job);
}

static void many_commands_with_little_room(void **state)
{
	struct fixture f;
	uint64_t value = 0;

	open_job(&f, 4, "lane-depth=8");
	fill(f.mem[0], BYTES, 4);
	for (unsigned i = 0; i < 3000; i++) {
		uint32_t to = 1 + i % 3;

		assert_return_code(
			epf_put(f.ring[0], to, 0, (i % 64) * 4096, 0, (i % 64) * 4096, 4096, 0), 0);
		if (i % 5 == 0)
			assert_return_code(epf_signal_send(f.ring[0], to, 0, 1, 0), 0);
	}
	assert_return_code(epf_flush(f.ring[0], 0, 0), 0);
	for (unsigned r = 1; r < 4; r++) {
		value += epf_signal_value(f.job.ep[r], 0);
		for (unsigned i = 0; i < 64; i++)
			if (i % 3 == 0)
				assert_memory_equal(f.mem[0] + i * 4096, f.mem[r] + i * 4096, 4096);
	}
	assert_int_equal(value, 600);
	assert_int_equal(epf_ring_done(f.ring[0]), epf_ring_pushed(f.ring[0]));
	job_close(&f.job);
}

static void bad_commands_are_refused_and_named(void **state)
{
	static const struct {
		unsigned reason;
		uint32_t rank, lregion, rregion, signal;
		uint64_t loffset, roffset, bytes;
	} bad[] = {
		{ EPF_R_CMD_RANK, 2, 0, 0, 0, 0, 0, 64 },
		{ EPF_R_CMD_LOCAL_REGION, 1, 1, 0, 0, 0, 0, 64 },
		{ EPF_R_CMD_REMOTE_REGION, 1, 0, 3, 0, 0, 0, 64 },
		{ EPF_R_CMD_LOCAL_RANGE, 1, 0, 0, 0, BYTES - 32, 0, 64 },
		{ EPF_R_CMD_REMOTE_RANGE, 1, 0, 0, 0, 0, BYTES - 48, 64 },
		{ EPF_R_CMD_SIGNAL, 1, 0, 0, 64, 0, 0, 64 },
	};
	struct epf_ring_failure failure;
	struct fixture f;
	uint64_t refused;

	open_job(&f, 2, NULL);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_return_code(epf_put_signal(f.ring[0], bad[i].rank, bad[i].lregion,
						  bad[i].loffset, bad[i].rregion, bad[i].roffset,
						  bad[i].bytes, bad[i].signal, 1, 0),
				   0);
		assert_return_code(epf_wait_retired(f.ring[0], i + 1, 0), 0);
		assert_int_equal(epf_ring_error(f.ring[0], &failure), 1);
		assert_int_equal(failure.failed, i + 1);
		if (i == 0) {
			assert_int_equal(failure.reason, bad[i].reason);
			assert_int_equal(failure.status, EPF_S_REFUSED);
			assert_int_equal(failure.rank, 2);
			assert_int_equal(failure.index, 0);
			assert_non_null(strstr(epf_last_error(), "first number 0 to rank 2"));
		}
	}
	/* Garbage: refused or harmless, and the ring goes on. */
	assert_return_code(epf_ring_push_raw(f.ring[0], (uint64_t)-1 << 1, (uint64_t)-1 << 1), 0);
	fill(f.mem[0], 64, 5);
	assert_return_code(epf_put(f.ring[0], 1, 0, 0, 0, 0, 64, 0), 0);
	assert_int_equal(epf_flush(f.ring[0], 0, 0), -EIO);
	assert_memory_equal(f.mem[0], f.mem[1], 64);
	assert_return_code(epf_counter(f.job.ep[0], "cmds_refused", &refused), 0);
	assert_int_equal(refused, 7);
	assert_int_equal(epf_put(f.ring[0], 1, 0, 0, 0, 0, (1ull << 31) + 1, 0), -E2BIG);
	job_close(&f.job);
}

/* 8,192 groups between two engines and no more: what would need another one is refused by name, the rest goes on. */
static void groups_beyond_the_limit_are_named(void **state)
{
	enum { EXTRA = 10, GROUPS = 8192 + EXTRA };

	const char *settings[] = { order, "signals=16384", "streams-per-peer=8192", NULL };
	struct epf_ring_failure failure;
	struct fixture f;
	uint64_t pushed = 0;

	memset(&f, 0, sizeof(f));
	current = &f;
	assert_return_code(job_open(&f.job, 2, 2, settings, 1000, setup_rank), 0);
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 16, 0, 1, 0), 0);
	assert_return_code(epf_wait_retired(f.ring[0], ++pushed, 0), 0);
	for (uint32_t i = 0; i < GROUPS; i++) {
		assert_return_code(epf_put_group(f.ring[0], 1, 0, 0, 0, 0, 16, 1 + i, 0), 0);
		assert_return_code(epf_wait_retired(f.ring[0], ++pushed, 0), 0);
	}
	assert_int_equal(epf_ring_error(f.ring[0], &failure), 1);
	assert_int_equal(failure.failed, EXTRA);
	assert_int_equal(failure.reason, EPF_R_STREAM_LIMIT);
	assert_int_equal(failure.status, EPF_S_REFUSED);
	assert_int_equal(failure.rank, 1);
	assert_int_equal(failure.index, 1 + GROUPS - EXTRA);
	/* Who waits for what was refused reads why. */
	assert_int_equal(epf_signal_wait(f.job.ep[0], 5, 1, 1000000), -ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "10 commands of ring"));
	assert_non_null(strstr(epf_last_error(), "More streams to one peer than it accepts"));
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 16, 0, 1, 0), 0);
	assert_return_code(epf_put_group(f.ring[0], 1, 0, 0, 0, 0, 16, 1, 0), 0);
	assert_return_code(epf_wait_retired(f.ring[0], pushed + 2, 0), 0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 0, 2, 0), 0);
	assert_int_equal(epf_ring_error(f.ring[0], &failure), 0); /* nothing new */
	job_close(&f.job);
}

static void withdrawn_regions_are_left_alone(void **state)
{
	struct epf_ring_failure failure;
	struct fixture f;

	open_job(&f, 3, NULL);
	for (int i = 0; i < 50; i++)
		assert_return_code(epf_put(f.ring[0], 1, 0, 0, 0, 0, 65536, 0), 0);
	assert_return_code(epf_region_withdraw(f.job.ep[1], 0, 0), 0);
	memset(f.mem[1], 0x5a, BYTES);
	assert_return_code(epf_put(f.ring[0], 1, 0, 0, 0, 0, 65536, 0), 0);
	assert_return_code(epf_wait_retired(f.ring[0], epf_ring_pushed(f.ring[0]), 0), 0);
	assert_int_equal(epf_ring_error(f.ring[0], &failure), 1);
	assert_int_equal(failure.status, EPF_S_REVOKED);
	for (int i = 0; i < 100; i++)
		job_step(&f.job);
	for (int i = 0; i < 65536; i++)
		assert_int_equal(f.mem[1][i], 0x5a);
	assert_int_equal(epf_peer_state(f.job.ep[0], 1), 1);
	job_close(&f.job);
}

static void counters_wrap(void **state)
{
	/* Lane and stream counts cross 2^32, immediates cross 2^16 many times, the ring crosses its own start. */
	static const char *const starts[] = { "start-count=4294967200", "start-count=65500",
					      "start-count=2147483600" };
	struct fixture f;

	for (unsigned k = 0; k < 3; k++) {
		struct epf_ring_options o = { .size = sizeof(o),
					      .slots = 64,
					      .start = UINT64_MAX - 100 };
		struct epf_ring *ring;

		open_job(&f, 2, starts[k]);
		assert_return_code(epf_ring_open(f.job.ep[0], &o, &ring), 0);
		fill(f.mem[0], BYTES, k);
		for (unsigned i = 0; i < 500; i++) {
			assert_return_code(
				epf_put(ring, 1, 0, (i % 100) * 64, 0, (i % 100) * 64, 64, 0), 0);
			assert_return_code(epf_signal_send(ring, 1, 3, 1, 0), 0);
		}
		assert_return_code(epf_signal_wait(f.job.ep[1], 3, 500, 0), 0);
		assert_return_code(epf_flush(ring, 0, 0), 0);
		assert_memory_equal(f.mem[0], f.mem[1], 6400);
		job_close(&f.job);
	}
}

static void a_lost_rank_is_named(void **state)
{
	struct fixture f;
	int rc;

	open_job(&f, 3, "emu-stall-timeout=0"); /* being silent is enough */
	/* Rank 2 stops taking part. */
	f.job.ranks = 2;
	assert_return_code(epf_put(f.ring[0], 2, 0, 0, 0, 0, 4096, 0), 0);
	rc = epf_signal_wait(f.job.ep[0], 1, 1, 20000000000ull);
	assert_int_equal(rc, -ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "rank 2"));
	assert_int_equal(epf_peer_state(f.job.ep[0], 2), -ECONNRESET);
	/* Commands to it end at once, others go on; masked, nobody waits for it. */
	assert_return_code(epf_put(f.ring[0], 2, 0, 0, 0, 0, 4096, 0), 0);
	/* A flush that is through before it looks has failed commands: it names the rank, too. */
	while (epf_ring_done(f.ring[0]) < 2)
		epf_progress(f.job.ep[0]);
	f.ring[0]->shm->done.retired = 3;
	assert_int_equal(epf_flush(f.ring[0], 0, 0), -ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "rank 2 on node"));
	assert_return_code(epf_peer_mask(f.job.ep[0], 2), 0);
	assert_return_code(epf_put_signal(f.ring[0], 1, 0, 0, 0, 0, 4096, 1, 1, 0), 0);
	assert_return_code(epf_wait_retired(f.ring[0], 4, 0), 0);
	assert_int_equal(epf_flush(f.ring[0], 0, 0), -EIO);
	f.job.ranks = 3;
	job_close(&f.job);
}

static void an_abort_ends_waits(void **state)
{
	struct fixture f;

	open_job(&f, 2, NULL);
	epf_abort(f.job.ep[0]);
	assert_int_equal(epf_signal_wait(f.job.ep[0], 1, 1, 0), -ECANCELED);
	assert_int_equal(f.ring[0]->shm->abort, -ECANCELED);
	assert_return_code(epf_put_signal(f.ring[1], 1, 0, 0, 0, 64, 64, 1, 1, 0), 0);
	assert_return_code(epf_signal_wait(f.job.ep[1], 1, 1, 0), 0);
	job_close(&f.job);
}

#define BOTH(fn) cmocka_unit_test(fn)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(put_and_signal),
		BOTH(every_command),
		BOTH(counted_signals_wait_for_their_puts),
		BOTH(signals_ride_in_immediates),
		BOTH(many_commands_with_little_room),
		BOTH(bad_commands_are_refused_and_named),
		BOTH(groups_beyond_the_limit_are_named),
		BOTH(withdrawn_regions_are_left_alone),
		BOTH(counters_wrap),
		BOTH(a_lost_rank_is_named),
		BOTH(an_abort_ends_waits),
	};
	int failed = cmocka_run_group_tests_name("ordered", tests, NULL, NULL);

	order = "emu-order=unordered";
	return failed + cmocka_run_group_tests_name("unordered", tests, NULL, NULL);
}
