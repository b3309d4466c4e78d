/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays a kernel of NCCL's device API with GIN type 4: writes requests of 64 bytes into the plug-in's queue, word by word, as that code does, and reads counters and
 * signals. Another thread is NCCL's, which calls the table's progress function. See gin_calls.h.
 */
#include "tests/proc/gin_calls.h"
#include "tools/nccl/abi_gpi.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SLOTS = 16,          /* so few that queues are full, and lap after lap */
	COUNTERS = RANKS + 1 /* one for each target, and one that is left over */
};

static struct {
	pthread_t thread;
	bool stop;
	uint64_t asked[CONTEXTS][COUNTERS]; /* operations that count */
} k;

static void *progress(void *arg)
{
	struct rank *r = arg;

	while (!__atomic_load_n(&k.stop, __ATOMIC_ACQUIRE)) {
		if (G14(r)->progress(r->ctx))
			quit(r, "progress fails");
		usleep(5);
	}
	return NULL;
}

static struct epf_gpi_channel *channel(const struct rank *r, int c)
{
	size_t stride = sizeof(struct epf_gpi_channel) + r->g->ranks * sizeof(uint64_t);

	return (void *)((uint8_t *)r->channel + (size_t)c * stride);
}

static uint64_t *word(uint64_t base, unsigned i)
{
	return (uint64_t *)(uintptr_t)(base + (uint64_t)i * EPF_GPI_STRIDE);
}

/* The number of the first counter of flushes, as kernels find it. */
static unsigned flushes(const struct rank *r, int c)
{
	const struct epf_gpi_channel *ch = channel(r, c);

	return (unsigned)((ch->signals - ch->counters) / EPF_GPI_STRIDE) - r->g->ranks;
}

int gpi_open(struct rank *r)
{
	struct epf_nccl_gin_config_v14 config = { .contexts = (int)r->g->contexts,
						  .signals = (int)r->g->ranks,
						  .counters = COUNTERS,
						  .queue_depth = SLOTS - 3,
						  .backend_version =
							  EPF_GPI_KERNELS + r->g->newer };
	struct epf_nccl_properties_v12 p;
	struct epf_nccl_device_handle *device = NULL;
	int rc = G14(r)->get_properties(0, &p);

	memset(&k, 0, sizeof(k));
	if (!rc)
		rc = p.device_type == EPF_NCCL_DEVICE_GIN_GPI
			     ? G14(r)->create_context(r->coll, &config, &r->ctx, &device)
			     : -1;
	r->refused = rc == EPF_NCCL_ARGUMENT;
	if (r->refused)
		meet(r, 5); /* a rank that ends earlier is lost to those that still come */
	if (rc)
		return rc;
	if (device->type != EPF_NCCL_DEVICE_GIN_GPI || !device->needs_progress)
		quit(r, "a handle of another kind");
	r->channel = device->handle;
	if (channel(r, 0)->log2_slots != 4 || flushes(r, 0) != COUNTERS)
		quit(r, "another queue than NCCL wants");
	return pthread_create(&k.thread, NULL, progress, r);
}

void gpi_stop(struct rank *r)
{
	if (!r->channel)
		return;
	__atomic_store_n(&k.stop, true, __ATOMIC_RELEASE);
	pthread_join(k.thread, NULL);
}

static void push(struct rank *r, int c, const struct epf_gpi_entry *e)
{
	struct epf_gpi_channel *ch = channel(r, c);
	uint64_t slots = UINT64_C(1) << ch->log2_slots, at = ch->pushed++;
	struct epf_gpi_entry *to = (void *)(uintptr_t)(ch->queue + at % slots * sizeof(*to));
	time_t last = now_s();

	while (at + 1 - __atomic_load_n(word(ch->taken, 0), __ATOMIC_ACQUIRE) > slots)
		pause_for(&last, r, false);
	/* From either end, with a pause: a request that has come in part must not be taken. */
	for (unsigned i = 0; i < 8; i++) {
		unsigned w = at % 2 ? i : 7 - i;

		__atomic_store_n(&to->word[w], (e->word[w] & ~UINT64_C(1)) | (at / slots & 1),
				 __ATOMIC_RELEASE);
		if (i == 3 && at % 7 < 2)
			usleep(20);
	}
}

static struct epf_gpi_entry entry(unsigned op, unsigned flags, unsigned counter, unsigned signal,
				  unsigned rank, size_t bytes)
{
	struct epf_gpi_entry e;

	memset(&e, 0xa5, sizeof(e)); /* what a kernel does not set is what was there */
	e.word[EPF_GPI_HEADER] = (uint64_t)op << 16 | (uint64_t)flags << 24 |
				 (uint64_t)counter << 32 | (uint64_t)signal << 48;
	e.word[EPF_GPI_TARGET] = (uint64_t)rank << 1 | (uint64_t)bytes << 32;
	return e;
}

static void add_windows(struct epf_gpi_entry *e, uintptr_t dst, uint64_t dst_at, uintptr_t src,
			uint64_t src_at, uint64_t add)
{
	e->word[EPF_GPI_DST] = (uint64_t)dst << 16 | add << 32;
	e->word[EPF_GPI_SRC] = (uint64_t)src << 16 | add >> 32 << 32;
	e->word[EPF_GPI_DST_OFFSET] = dst_at << 1;
	e->word[EPF_GPI_SRC_OFFSET] = src_at << 1;
}

static void add_value(struct epf_gpi_entry *e, uint64_t value)
{
	e->word[EPF_GPI_INLINE_LOW] = value << 32;
	e->word[EPF_GPI_INLINE_HIGH] = value >> 32 << 32;
}

/* A request: context, counter, what its value is then. */
static void *ask(int c, unsigned counter, uint64_t value)
{
	return (void *)(uintptr_t)((uint64_t)(c + 1) << 56 | (uint64_t)counter << 40 | value);
}

static void *counted(int c, unsigned counter)
{
	return ask(c, counter, ++k.asked[c][counter]);
}

int gpi_put(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to,
	    unsigned signal, uint64_t add, void **q)
{
	unsigned op = add == 0 ? EPF_GPI_WRITE : add == 1 ? EPF_GPI_WRITE_INC : EPF_GPI_WRITE_ADD;
	struct epf_gpi_entry e = entry(op, EPF_GPI_COUNTS | 4, to, signal, to, bytes);

	/* A signal alone names no window. */
	add_windows(&e, bytes ? r->window_number : 0, dst, bytes ? r->source_number : 0, src, add);
	push(r, c, &e);
	*q = counted(c, to);
	return 0;
}

int gpi_get(struct rank *r, int c, uint64_t remote, size_t bytes, uint64_t local, unsigned to,
	    void **q)
{
	struct epf_gpi_entry e = entry(EPF_GPI_READ, 0, 0, 0, to, bytes);

	add_windows(&e, r->window_number, remote, r->source_number, local, 0);
	push(r, c, &e);
	return gpi_flush(r, c, to, q);
}

int gpi_flush(struct rank *r, int c, unsigned to, void **q)
{
	struct epf_gpi_channel *ch = channel(r, c);
	uint64_t *tickets = (uint64_t *)(void *)(ch + 1);
	unsigned counter = flushes(r, c) + to;
	struct epf_gpi_entry e = entry(EPF_GPI_FLUSH, EPF_GPI_COUNTS | 4, counter, 0, to, 0);

	push(r, c, &e);
	*q = ask(c, counter, ++tickets[to]);
	return 0;
}

int gpi_test(struct rank *r, void *request, int *done)
{
	uint64_t v = (uint64_t)(uintptr_t)request, has;
	int c = (int)(v >> 56) - 1;

	has = __atomic_load_n(word(channel(r, c)->counters, (unsigned)(v >> 40 & 0xffff)),
			      __ATOMIC_ACQUIRE);
	*done = has >= (v & 0xffffffffff);
	return has & EPF_GPI_COUNTER_ERROR ? -1 : 0;
}

uint64_t gpi_signal(const struct rank *r, unsigned c, unsigned signal)
{
	return __atomic_load_n(word(channel(r, (int)c)->signals, signal), __ATOMIC_ACQUIRE);
}

static int wait_request(struct rank *r, void *request)
{
	time_t last = now_s();
	int done = 0, rc = 0;

	while (!done && !rc) {
		rc = gpi_test(r, request, &done);
		pause_for(&last, r, false);
	}
	return rc;
}

static void wait_signal(struct rank *r, unsigned signal, uint64_t value)
{
	time_t last = now_s();

	while (gpi_signal(r, 0, signal) < value)
		pause_for(&last, r, false);
	if (gpi_signal(r, 0, signal) != value)
		quit(r, "a signal has another value");
}

static uint64_t value_of(unsigned from, unsigned bytes)
{
	return UINT64_C(0x8877665544332211) * (from + 1) + bytes;
}

/* Values in the request, with a signal that grows by more than 32 bits can say; additions to a window; what kernels reset. */
int gpi_values(struct rank *r, uint64_t at)
{
	const uint64_t much = UINT64_C(0x100000001);
	unsigned to = (r->me + 1) % r->g->ranks, from = (r->me + r->g->ranks - 1) % r->g->ranks;
	uint64_t before = gpi_signal(r, 0, from), *sum = (uint64_t *)(void *)(r->window + at + 64);
	struct epf_gpi_entry e;
	void *q;

	meet(r, 3);
	for (unsigned bytes = 1; bytes <= 8; bytes++) {
		e = entry(bytes == 1   ? EPF_GPI_INLINE
			  : bytes == 2 ? EPF_GPI_INLINE_ADD
				       : EPF_GPI_INLINE_INC,
			  0, 0, r->me, to, bytes);
		add_windows(&e, r->window_number, at + 8ull * (bytes - 1), 0, 0, much);
		add_value(&e, value_of(r->me, bytes));
		push(r, 0, &e);
	}
	for (unsigned i = 0; i < 3; i++) {
		e = entry(EPF_GPI_ADD, EPF_GPI_COUNTS | 4, COUNTERS - 1, 0, to, 8);
		add_windows(&e, r->window_number, at + 64, 0, 0, 0);
		add_value(&e, much);
		push(r, 0, &e);
	}
	gpi_flush(r, 0, to, &q);
	if (wait_request(r, q) || wait_request(r, ask(0, COUNTERS - 1, 3)))
		return -1;
	wait_signal(r, from, before + much + 6);
	meet(r, 4);
	for (unsigned bytes = 1; bytes <= 8; bytes++) {
		uint64_t v = value_of(from, bytes);

		if (memcmp(r->window + at + 8ull * (bytes - 1), &v, bytes) != 0)
			quit(r, "a value has not come as it was");
	}
	for (time_t last = now_s(); __atomic_load_n(sum, __ATOMIC_ACQUIRE) < 3 * much;)
		pause_for(&last, r, false);
	if (__atomic_load_n(sum, __ATOMIC_ACQUIRE) != 3 * much)
		quit(r, "additions to a window make another sum");
	e = entry(EPF_GPI_CONTROL | EPF_GPI_COUNTER_RESET, 0, COUNTERS - 1, 0, 0, 0);
	push(r, 0, &e);
	e = entry(EPF_GPI_SIGNAL_RESET, 0, 0, from, 0, 0);
	push(r, 0, &e);
	for (time_t last = now_s(); gpi_signal(r, 0, from) != 0;)
		pause_for(&last, r, false);
	if (__atomic_load_n(word(channel(r, 0)->counters, COUNTERS - 1), __ATOMIC_ACQUIRE) != 0)
		quit(r, "a counter keeps its value");
	return 0;
}

int gpi_refusals(struct rank *r)
{
	enum {
		DST = 1,
		SRC,
		RANK,
		RANK_OF_VALUE,
		OP,
		SIGNAL,
		SIZE,
		BEYOND,
		SHORT,
		LONG,
		NOWHERE,
		COUNTER,
		ALL
	};

	unsigned to = (r->me + 1) % r->g->ranks, spare = COUNTERS - 1;
	uint64_t *counter = word(channel(r, 0)->counters, spare), first = gpi_signal(r, 0, 0);
	bool has_error = true;
	void *q;

	if (G14(r)->query_last_error(r->ctx, &has_error) || has_error)
		quit(r, "an error before there is one");
	for (int i = DST; i < ALL; i++) {
		bool value = i == SHORT || i == LONG || i == NOWHERE || i == RANK_OF_VALUE;
		unsigned op = value         ? EPF_GPI_INLINE
			      : i == OP     ? EPF_GPI_FLUSH + 1
			      : i == SIGNAL ? EPF_GPI_WRITE_INC
					    : EPF_GPI_WRITE;
		/* Signals follow counters. */
		unsigned number = i == COUNTER ? flushes(r, 0) + r->g->ranks : spare;
		unsigned rank = i == RANK || i == RANK_OF_VALUE ? r->g->ranks : to;
		size_t bytes = i == SHORT  ? 0
			       : i == LONG ? 9
			       : value     ? 8
			       : i == SIZE ? UINT32_MAX
					   : 64;
		struct epf_gpi_entry e = entry(op, EPF_GPI_COUNTS | 4, number,
					       i == SIGNAL ? r->g->ranks : 0, rank, bytes);

		add_windows(&e, i == DST || i == NOWHERE ? 77 : r->window_number, 0,
			    i == SRC ? 0xffff : r->source_number,
			    i == BEYOND ? UINT64_C(1) << 40 : 0, 0);
		add_value(&e, 5);
		__atomic_store_n(counter, 0, __ATOMIC_RELAXED);
		push(r, 0, &e);
		gpi_flush(r, 0, to, &q);
		if (wait_request(r, q))
			quit(r, "a refused request harms others");
		if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) !=
		    (i == COUNTER ? 0 : EPF_GPI_COUNTER_ERROR))
			quit(r, "a request that must be refused was not");
	}
	if (gpi_signal(r, 0, 0) != first)
		quit(r, "a counter that does not exist was counted");
	return G14(r)->query_last_error(r->ctx, &has_error) || !has_error;
}
