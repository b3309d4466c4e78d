/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child of test_seccomp.c: sets up its engines, loads the filter, arms the traps in malloc and pthread_mutex_lock, runs load for a time
 * by the time-stamp counter and leaves its results in shared memory. One thread pushes commands into the rings and steps the engines. Once
 * armed, nothing here may call the C library except memcpy and the like.
 */
#include "tests/proc/seccomp_child.h"

#include "tests/unit/client/job.h"

#include "fabric/base/clock.h"
#include "fabric/engine/bench_core.h"

#include <pthread.h>
#include <seccomp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINK_TURN_MS = 15 };

enum { REGION_BYTES = 1 << 18, CHECK_BYTES = 1 << 14, SIGNALS = 64, NULL_PEERS = 64 };

static struct report *armed_report;

/* ---- traps: definitions in the program precede the C library's ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

static inline void trap(const char *what)
{
	if (armed_report && armed_report->armed) {
		armed_report->trapped = what;
		__builtin_trap();
	}
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
	trap("malloc");
	return __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t size)
{
	trap("calloc");
	return __libc_calloc(n, size);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t size)
{
	trap("realloc");
	return __libc_realloc(p, size);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t align, size_t size)
{
	trap("aligned_alloc");
	return __libc_memalign(align, size);
}

__attribute__((visibility("default"))) void free(void *p)
{
	trap("free");
	__libc_free(p);
}

/* The linker redirects every call of the engine here (--wrap). */
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	trap("pthread_mutex_lock");
	return __real_pthread_mutex_lock(mutex);
}

/* ---- the child ---- */

/* xorshift64* (Vigna, 2016, arXiv:1402.6246): no library call, the same everywhere. */
static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

int load_filter(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
	int rc = filter ? seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(exit_group), 0)
			: -ENOMEM;

	return rc ? rc : seccomp_load(filter);
}

_Noreturn void leave(void)
{
	for (;;)
		syscall(SYS_exit_group, 0);
}

static _Noreturn void give_up(struct report *r, const char *wrong)
{
	r->wrong = wrong;
	leave();
}

static void arm(struct report *r)
{
	if (load_filter())
		give_up(r, "the seccomp filter cannot be loaded");
	armed_report = r;
	r->armed = 1;
}

static void commit(enum violation violation)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	void *volatile p;

	if (violation == VIOLATION_SYSCALL)
		syscall(SYS_getpid);
	if (violation == VIOLATION_MALLOC) {
		p = malloc(16);
		free(p);
	}
	if (violation == VIOLATION_LOCK)
		pthread_mutex_lock(&mutex);
}

/* One rank of the load on the software NIC. */
struct talker {
	struct epf_ring *ring[2];
	uint8_t *mem;
	uint64_t random;
	uint64_t flushes;
};

static struct talker talkers[2];

static void setup_rank(struct job *job, uint32_t rank)
{
	struct talker *t = &talkers[rank];
	uint32_t region;
	void *mem;

	if (epf_memory_alloc(job->ep[rank], REGION_BYTES, &mem) ||
	    epf_region_register(job->ep[rank], mem, REGION_BYTES,
				EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region) ||
	    epf_ring_open(job->ep[rank], NULL, &t->ring[0]) ||
	    epf_ring_open(job->ep[rank], NULL, &t->ring[1]))
		fprintf(stderr, "set-up: %s\n", epf_last_error());
	t->mem = mem;
	t->random = rank * 7919 + 1;
}

static void push(struct epf_ring *ring, const struct epf_op *op)
{
	struct epf_cmd wide[2];

	if (epf_op_is_narrow(op)) {
		epf_ring_push(&ring->producer, epf_op_pack_narrow(op));
	} else {
		epf_op_pack_wide(op, wide);
		epf_ring_push_wide(&ring->producer, wide);
	}
}

/* A random transfer, narrow or wide, of up to 8 KiB, outside the area of the last check. */
static struct epf_op random_op(struct talker *t, unsigned op)
{
	uint64_t r = next_random(&t->random);
	uint32_t bytes = 1 + (uint32_t)(r % 8192);
	uint64_t room = REGION_BYTES - CHECK_BYTES - bytes;
	struct epf_op o = { .op = (uint8_t)op,
			    .rank = (r >> 16) % 8 ? 1u - (uint32_t)(t - talkers)
						  : (uint32_t)(t - talkers),
			    .signal = (uint32_t)(r >> 20) % SIGNALS,
			    .add = 1,
			    .length = bytes,
			    .local_offset = next_random(&t->random) % room,
			    .remote_offset = next_random(&t->random) % room,
			    .flags = (r >> 40) & 1 ? EPF_F_BULK : 0 };

	if ((r >> 41) & 1) { /* the narrow form */
		o.length = (bytes + 15) / 16 * 16;
		o.local_offset &= ~UINT64_C(15);
		o.remote_offset &= ~UINT64_C(15);
	}
	return o;
}

/* A group: the counted signal first, then its puts. */
static void push_group(struct talker *t)
{
	struct epf_op put = random_op(t, EPF_OP_PUT);
	struct epf_op signal = { .op = EPF_OP_SIGNAL,
				 .flags = EPF_F_COUNTED,
				 .rank = put.rank,
				 .signal = put.signal,
				 .value = 1,
				 .count = 3 };

	push(t->ring[0], &signal);
	put.flags = EPF_F_COUNTED;
	put.add = 0;
	for (unsigned i = 0; i < signal.count; i++)
		push(t->ring[0], &put);
}

static void push_random(struct talker *t)
{
	uint64_t r = next_random(&t->random);
	struct epf_ring *ring = t->ring[r & 1];
	unsigned what = (unsigned)(r >> 8) % 32;
	struct epf_op o = random_op(t, EPF_OP_PUT);

	if (epf_ring_room(&t->ring[0]->producer, 16) < 16 ||
	    epf_ring_room(&t->ring[1]->producer, 16) < 16)
		return;
	if (what < 4) {
		push_group(t);
		return;
	}
	if (what < 12) {
		o.op = EPF_OP_PUT_SIGNAL;
		o.flags |= r >> 20 & EPF_F_FENCE;
		o.add = 1 + (uint32_t)(r >> 30) % 40;
	} else if (what < 15) {
		o = (struct epf_op){
			.op = EPF_OP_SIGNAL, .rank = o.rank, .signal = o.signal, .value = r >> 3
		};
	} else if (what < 18) {
		o.op = EPF_OP_GET;
		o.signal = o.add = 0;
	} else if (what < 20) {
		o.op = EPF_OP_PUT_INLINE;
		o.length = 1 + (uint32_t)(r >> 30) % 8;
		o.value = r;
		o.local_offset = o.signal = 0;
	} else if (what == 20) {
		o = (struct epf_op){ .op = EPF_OP_ADD,
				     .rank = o.rank,
				     .remote_offset = o.remote_offset & ~7ull,
				     .value = 3,
				     .length = 8 };
	} else if (what == 21) {
		o = (struct epf_op){ .op = EPF_OP_FLUSH, .flags = (r >> 20) & 1 ? EPF_F_ALL : 0 };
		t->flushes++;
	} else if (what == 22) {
		o = (struct epf_op){ .op = EPF_OP_NOP };
	} else if (what == 23) { /* no such rank, or past the end of the region */
		o.rank = r >> 20 & 1 ? 77 : o.rank;
		o.remote_offset = REGION_BYTES - 8;
		o.length = 64;
	}
	if (o.op == EPF_OP_PUT)
		o.signal = o.add = 0;
	push(ring, &o);
}

static void step_both(struct job *job)
{
	for (unsigned i = 0; i < 2; i++) {
		epf_core_step(job->ep[i]->core);
		job->ep[i]->core->wakes = 0;
	}
}

static int all_retired(void)
{
	for (unsigned i = 0; i < 4; i++) {
		const struct epf_ring_producer *p = &talkers[i / 2].ring[i % 2]->producer;

		if (epf_ring_retired(p) != p->pushed)
			return 0;
	}
	return 1;
}

static void drain(struct report *r, struct job *job)
{
	uint64_t end = epf_tsc() + 20 * epf_tsc_hz();

	while (!all_retired()) {
		if (epf_tsc() > end)
			give_up(r, "commands are not retired 20 s after the last push");
		step_both(job);
	}
}

/* After the load, one put of known bytes must arrive. */
static void check_last_put(struct report *r, struct job *job)
{
	uint64_t at = REGION_BYTES - CHECK_BYTES;
	struct epf_op o = { .op = EPF_OP_PUT_SIGNAL,
			    .rank = 1,
			    .add = 1,
			    .length = CHECK_BYTES,
			    .local_offset = at,
			    .remote_offset = at };

	for (unsigned i = 0; i < CHECK_BYTES; i++)
		talkers[0].mem[at + i] = (uint8_t)(i * 7 + (i >> 8));
	push(talkers[0].ring[0], &o);
	drain(r, job);
	if (memcmp(talkers[0].mem + at, talkers[1].mem + at, CHECK_BYTES) != 0)
		give_up(r, "the last put has not arrived");
}

/* Cuts or restores a link of rank 0's NIC, alternating links: its lanes fail, their work moves, they are opened again. */
static void turn_link(struct report *r, struct job *job)
{
	struct epf *ep = job->ep[0];

	if (!(r->cuts & 1) && (ep->core->recovering || job->ep[1]->core->recovering))
		return;
	if (ep->ops->set_link(ep->nic, r->cuts / 2 & 1, (int)(r->cuts & 1)))
		give_up(r, "a link cannot be cut");
	r->cuts++;
}

static uint64_t counter(const struct job *job, unsigned stat)
{
	return epf_stat_get(job->ep[0]->block, stat) + epf_stat_get(job->ep[1]->block, stat);
}

static void note(struct report *r, const struct job *job)
{
	for (unsigned i = 0; i < 4; i++) {
		const struct epf_ring *ring = talkers[i / 2].ring[i % 2];

		r->pushed += ring->producer.pushed;
		r->retired += epf_ring_retired(&ring->producer);
		r->failed += ring->shm->done.failed;
	}
	r->flushes = talkers[0].flushes + talkers[1].flushes;
	r->dequeued = counter(job, EPF_STAT_CORE_CMDS_DEQUEUED);
	r->deferred = counter(job, EPF_STAT_CORE_CMDS_DEFERRED);
	r->stalls = counter(job, EPF_STAT_CORE_CREDIT_STALLS);
	r->refused = counter(job, EPF_STAT_CORE_CMDS_REFUSED);
	r->bytes = counter(job, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE) +
		   counter(job, EPF_STAT_CORE_PUT_BYTES_SAME_NODE);
	r->gets = counter(job, EPF_STAT_CORE_GET_BYTES);
	r->signals = counter(job, EPF_STAT_CORE_SIGNALS_APPLIED);
	r->waited = counter(job, EPF_STAT_CORE_SIGNALS_WAITED);
	r->lane_errors = counter(job, EPF_STAT_CORE_LANE_ERRORS);
	r->recoveries = counter(job, EPF_STAT_CORE_RECOVERIES);
	r->duplicates = counter(job, EPF_STAT_CORE_DUPLICATES_DROPPED);
}

static _Noreturn void emu_child(struct report *r, int ordered, enum violation violation,
				uint64_t ms)
{
	const char *settings[] = {
		"lanes-per-peer=2", "lane-depth=8", "lane-receives=8", "defer-limit=8",
		"ring-slots=256", "ring-window=128", "window=64", "signals=64",
		"streams-per-peer=256",
		/* Lanes fail only when their link is cut, never because a busy machine is silent. */
		"emu-links=2", "emu-link-timeout=2ms", "peer-timeout=10min",
		"emu-retry-timeout=10min", "emu-rnr-timeout=10min", "emu-packets=64",
		"emu-mtu=1024", ordered ? "emu-order=ordered" : "emu-order=unordered",
		ordered ? NULL : "emu-delay=20us", "emu-reorder=0.05", "emu-duplicate=0.05",
		"emu-drop=0.02", NULL
	};
	struct job job;
	uint64_t end;

	memset(&job, 0, sizeof(job));
	if (job_open(&job, 2, 2, settings, 0, setup_rank))
		give_up(r, "the job cannot be set up");
	end = epf_tsc_hz(); /* calibrates the clock before arming */
	arm(r);
	end = epf_tsc() + end / 1000 * ms;
	for (uint64_t turn = epf_tsc(); epf_tsc() < end;) {
		for (unsigned i = 0; i < 64; i++) {
			push_random(&talkers[0]);
			push_random(&talkers[1]);
			step_both(&job);
		}
		if (epf_tsc() - turn > epf_tsc_hz() / 1000 * LINK_TURN_MS) {
			turn_link(r, &job);
			turn = epf_tsc();
		}
	}
	if (r->cuts & 1)
		turn_link(r, &job);
	commit(violation);
	drain(r, &job);
	check_last_put(r, &job);
	note(r, &job);
	r->finished = 1;
	leave();
}

/* The null NIC moves nothing and carries no events: puts, inline puts, gets, and bad commands. */
static void push_null(struct epf_ring_producer *p, uint64_t *random)
{
	uint64_t r = next_random(random);
	uint32_t bytes = 16u + (uint32_t)(r % 64) * 16;
	unsigned what = (unsigned)(r >> 8) % 16;
	struct epf_op o = { .op = EPF_OP_PUT,
			    .rank = (uint32_t)(r >> 16) % NULL_PEERS,
			    .local_region = (r >> 24) % 8,
			    .remote_region = (r >> 28) % 8,
			    .add = 1,
			    .length = bytes,
			    .local_offset = (r >> 32) % 1024 * 16,
			    .remote_offset = (r >> 42) % 1024 * 16 };

	if (what == 0) {
		o.op = EPF_OP_GET;
	} else if (what == 1) {
		o.op = EPF_OP_PUT_INLINE;
		o.length = 8;
		o.value = r;
		o.local_offset = 0;
		o.local_region = 0;
	} else if (what == 2) {
		o.rank = NULL_PEERS;
	} else if (what == 3) {
		o = (struct epf_op){ .op = EPF_OP_NOP };
	}
	epf_ring_push(p, epf_op_pack_narrow(&o));
}

static _Noreturn void null_child(struct report *r, enum violation violation, uint64_t ms)
{
	struct epf_bench_core_options o = { .nic = "null",
					    .peers = NULL_PEERS,
					    .regions = 8,
					    .region_bytes = 1 << 20,
					    .signals = SIGNALS,
					    .ring_slots = 4096,
					    .batch = 32 };
	struct epf_ring_producer p;
	struct epf_bench_core *bc;
	uint64_t end, random = 3;

	if (epf_bench_core_create(&o, &bc))
		give_up(r, "the core cannot be set up");
	epf_ring_producer_init(&p, epf_bench_core_ring(bc, 0), 0);
	end = epf_tsc_hz();
	arm(r);
	end = epf_tsc() + end / 1000 * ms;
	while (epf_tsc() < end) {
		for (unsigned i = 0; i < 64 && epf_ring_room(&p, 1); i++)
			push_null(&p, &random);
		epf_core_step(epf_bench_core_of(bc));
	}
	commit(violation);
	for (end = epf_tsc() + 20 * epf_tsc_hz(); epf_ring_retired(&p) != p.pushed;) {
		epf_core_step(epf_bench_core_of(bc));
		if (epf_tsc() > end)
			give_up(r, "commands are not retired 20 s after the last push");
	}
	r->pushed = p.pushed;
	r->retired = epf_ring_retired(&p);
	r->failed = p.shm->done.failed;
	r->dequeued = epf_bench_core_counter(bc, EPF_STAT_CORE_CMDS_DEQUEUED);
	r->refused = epf_bench_core_counter(bc, EPF_STAT_CORE_CMDS_REFUSED);
	r->bytes = epf_bench_core_counter(bc, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE) +
		   epf_bench_core_counter(bc, EPF_STAT_CORE_PUT_BYTES_SAME_NODE);
	r->gets = epf_bench_core_counter(bc, EPF_STAT_CORE_GET_BYTES);
	r->finished = 1;
	leave();
}

_Noreturn void run_load(struct report *r, enum load load, enum violation violation, uint64_t ms)
{
	if (load == LOAD_NULL)
		null_child(r, violation, ms);
	emu_child(r, load == LOAD_ORDERED, violation, ms);
}
