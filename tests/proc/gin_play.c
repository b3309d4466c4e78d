/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A game of test_gin.c: rank processes that put, signal, flush and get through the table of one version, and a second thread of each that plays the kernel which
 * waits for signals: whatever a signal covers must be there, to the last byte.
 */
#include "tests/proc/gin_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

const char *plugin;
uint64_t seed = 1;

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* ---- what goes where ---- */

static unsigned contexts_of(const struct game *g)
{
	return g->version == 11 ? 1 : g->contexts;
}

static uint64_t slot_at(const struct game *g, unsigned from, unsigned c, unsigned k, unsigned i)
{
	return (((((uint64_t)from * CONTEXTS + c) * (g->messages + 1)) + k) * (PUTS + 1) + i) *
	       g->bytes;
}

static uint64_t key_of(unsigned from, unsigned to, unsigned c, unsigned k, unsigned i)
{
	return mix(seed * 1000003 + ((((from * 8ull + to) * 8 + c) * 100000 + k) * 8 + i));
}

static void fill(uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t v = mix(key + i);

		memcpy(at + i, &v, 8);
	}
}

static bool is_right(const uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t v = mix(key + i);

		if (memcmp(at + i, &v, 8) != 0)
			return false;
	}
	return true;
}

/* As is_right(), for bytes that another process says are there: ThreadSanitizer knows only what orders the threads of one process. */
__attribute__((no_sanitize("thread"))) static bool is_right_by_word(const uint8_t *at,
								    uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t v;

		__builtin_memcpy(&v, at + i, 8); /* inline: memcmp() would be checked */
		if (v != mix(key + i))
			return false;
	}
	return true;
}

static uint64_t add_of(unsigned c, unsigned k)
{
	return (c + k) % 3 == 0 ? 1 : 1 + (c + k) % 5;
}

/* The kernel that waits: a signal's value says how many messages must be complete. */
static void *watch(void *arg)
{
	struct rank *r = arg;
	const struct game *g = r->g;
	unsigned n = contexts_of(g), left = g->ranks * n;
	unsigned seen[RANKS][CONTEXTS] = { { 0 } };
	uint64_t sum[RANKS][CONTEXTS] = { { 0 } };
	time_t last = now_s();

	while (left) {
		bool moved = false;

		/* The load ends when this kernel does, so whatever waits for it waits for ever. */
		if (g->loads && play_blocked())
			quit(r, "a driver call waits for the load of a kernel");
		for (unsigned i = 0; i < g->ranks * n; i++) {
			unsigned from = i / n, c = i % n;
			uint64_t value = signal_value(r, from, c);

			if (seen[from][c] == g->messages)
				continue;
			while (seen[from][c] < g->messages &&
			       sum[from][c] + add_of(c, seen[from][c]) <= value) {
				unsigned k = seen[from][c]++;

				sum[from][c] += add_of(c, k);
				moved = true;
				for (unsigned p = 0; p <= k % PUTS; p++)
					if (!is_right(r->window + slot_at(g, from, c, k, p),
						      g->bytes, key_of(from, r->me, c, k, p)))
						quit(r, "a signal before its data");
			}
			if (value > sum[from][c] && seen[from][c] == g->messages)
				quit(r, "a signal was added twice");
			left -= seen[from][c] == g->messages;
		}
		if (g->killed >= 0 && now_s() - last > 1)
			return NULL; /* the rest does not come */
		pause_for(&last, r, moved);
	}
	return NULL;
}

struct window_of { /* requests under way to one rank by one context */
	void *request[32];
	unsigned next, over;
};

static int poll_one(struct rank *r, struct window_of *w, bool *moved)
{
	int done, rc;

	if (w->over == w->next)
		return 0;
	rc = test(r, w->request[w->over % 32], &done);
	w->over += !rc && done;
	*moved |= !rc && done;
	return rc;
}

static int send_one(struct rank *r, struct window_of *w, unsigned c, unsigned to, unsigned k)
{
	const struct game *g = r->g;
	unsigned parts = k % PUTS;
	int rc = 0;

	for (unsigned i = 0; i <= parts && !rc; i++) {
		/* Sources are one for each put, so that nothing is overwritten before it has left. */
		uint64_t src = slot_at(g, to, c, k, i), dst = slot_at(g, r->me, c, k, i);
		void **q = &w->request[w->next % 32];

		fill(r->source + src, g->bytes, key_of(r->me, to, c, k, i));
		*q = NULL;
		if (i < parts || k % 2)
			rc = put(r, (int)c, src, g->bytes, dst, to, q);
		else
			rc = put_signal(r, (int)c, src, g->bytes, dst, to,
					(r->me * CONTEXTS + c) * 8, add_of(c, k), q);
		if (!rc && !*q)
			quit(r, "an operation without a request");
		w->next += !rc;
	}
	if (!rc && k % 2) {
		rc = put_signal(r, (int)c, 0, 0, 0, to, (r->me * CONTEXTS + c) * 8, add_of(c, k),
				&w->request[w->next % 32]);
		w->next += !rc;
	}
	return rc;
}

/* NCCL's proxy thread: looks at its queues in turn, polls what is under way. */
static int proxy(struct rank *r)
{
	const struct game *g = r->g;
	static struct window_of all[CONTEXTS][RANKS];
	unsigned sent[CONTEXTS][RANKS] = { { 0 } }, left = 1;
	time_t last = now_s();
	int rc = 0;

	memset(all, 0, sizeof(all));
	while (left && !rc) {
		bool moved = false;
		/* Half of them first: what follows goes to a process that has ended. */
		unsigned limit =
			g->killed < 0 || __atomic_load_n(&r->board->is_dead, __ATOMIC_ACQUIRE)
				? g->messages
				: g->messages / 2;

		left = 0;
		for (unsigned i = 0; i < contexts_of(g) * g->ranks && !rc; i++) {
			unsigned c = i / g->ranks, to = i % g->ranks;
			struct window_of *w = &all[c][to];

			rc = poll_one(r, w, &moved);
			if (!rc && sent[c][to] < limit && w->next - w->over <= 24) {
				rc = send_one(r, w, c, to, sent[c][to]++);
				moved = true;
			}
			if (g->killed == (int)r->me && sent[c][to] == g->messages / 2)
				raise(SIGKILL);
			left += sent[c][to] < g->messages || w->over < w->next;
		}
		pause_for(&last, r, moved);
	}
	return rc;
}

static int wait_for(struct rank *r, void *request)
{
	time_t last = now_s();
	int done = 0, rc = 0;

	while (!rc && !done) {
		rc = test(r, request, &done);
		pause_for(&last, r, false);
	}
	return rc;
}

/* Puts without signals and a flush: when that is over the bytes are at the other rank, which hears of it by other means. */
static int flush_and_get(struct rank *r)
{
	const struct game *g = r->g;
	unsigned to = (r->me + 1) % g->ranks, from = (r->me + g->ranks - 1) % g->ranks;
	unsigned last = g->messages; /* slots that nothing else uses */
	void *q;
	int rc = 0;

	for (unsigned i = 0; i <= PUTS && !rc; i++) {
		uint64_t src = slot_at(g, to, 0, last, i);

		fill(r->source + src, g->bytes, key_of(r->me, to, 0, last, i));
		rc = put(r, 0, src, g->bytes, slot_at(g, r->me, 0, last, i), to, &q);
	}
	if (!rc)
		rc = flush(r, 0, to, &q);
	if (!rc)
		rc = wait_for(r, q);
	if (rc)
		return rc;
	__atomic_store_n(&r->board->flushed[r->me][to], 1, __ATOMIC_RELEASE);
	for (time_t t = now_s();
	     !__atomic_load_n(&r->board->flushed[from][r->me], __ATOMIC_ACQUIRE);)
		pause_for(&t, r, false);
	for (unsigned i = 0; i <= PUTS; i++)
		if (!is_right_by_word(r->window + slot_at(g, from, 0, last, i), g->bytes,
				      key_of(from, r->me, 0, last, i)))
			quit(r, "a flush was over before its puts");
	/* What the next rank just got from this one, read back. */
	for (unsigned i = 0; i <= PUTS && !rc; i++) {
		uint64_t remote = slot_at(g, r->me, 0, last, i), local = slot_at(g, r->me, 0, 0, i);

		rc = get(r, 0, remote, g->bytes, local, to, &q);
		if (!rc)
			rc = wait_for(r, q);
		if (!rc && !is_right(r->source + local, g->bytes, key_of(r->me, to, 0, last, i)))
			quit(r, "a get brought something else");
	}
	return rc;
}

static void close_gpi(struct rank *r, void *const *mrs)
{
	if (r->ctx)
		G14(r)->destroy_context(r->ctx);
	for (unsigned i = 0; i < 3 && r->coll; i++)
		if (mrs[i])
			G14(r)->dereg_mr_sym(r->coll, mrs[i]);
	if (r->coll)
		G14(r)->close_coll(r->coll);
	G14(r)->finalize(r->context);
}

static void close_group(struct rank *r, bool all_live)
{
	const struct game *g = r->g;
	void *mrs[] = { r->window_mr, r->source_mr, r->signals_mr };

	if (all_live)
		meet(r, 2);
	if (g->version == GPI) {
		gpi_stop(r);
		close_gpi(r, mrs);
		return;
	}
	if (r->ctx)
		V13(r)->destroy_context(r->ctx); /* at the same place in 13 and RMA 14 */
	for (unsigned i = 0; i < 3 && r->coll; i++)
		if (mrs[i])
			V13(r)->dereg_mr_sym(r->coll, mrs[i]);
	if (r->coll)
		V13(r)->close_coll(r->coll);
	if (r->g->version < 13)
		V12(r)->finalize(r->context);
	else
		V13(r)->finalize(r->context);
}

static int play(struct rank *r)
{
	const struct game *g = r->g;
	size_t bytes = slot_at(g, RANKS, 0, 0, 0);
	pthread_t kernel;
	uint8_t *signals;
	int rc;

	if (play_memory(bytes, &r->memory[0], &r->window) ||
	    play_memory(bytes, &r->memory[1], &r->source) ||
	    play_memory(4096, &r->memory[2], &signals))
		return -1;
	r->signals = (uint64_t *)(void *)signals;
	rc = open_group(r);
	play_private(true);
	if (!rc)
		rc = reg(r, r->memory[2], 4096, &r->signals_mr);
	play_private(false);
	if (!rc)
		rc = open_contexts(r);
	if (!rc)
		rc = reg(r, r->memory[0], bytes, &r->window_mr);
	if (!rc)
		rc = reg(r, r->memory[1], bytes, &r->source_mr);
	if (!rc && g->loads) {
		meet(r, 1);
		play_load(true);
	}
	if (r->refused)
		close_group(r, false); /* what was made before is given back, as NCCL does */
	if (rc || pthread_create(&kernel, NULL, watch, r))
		return rc ? rc : -1;
	rc = proxy(r);
	pthread_join(kernel, NULL);
	play_load(false);
	if (!rc && has_get(r) && g->killed < 0)
		rc = flush_and_get(r);
	if (!rc && g->version == GPI && g->killed < 0)
		rc = gpi_values(r, slot_at(g, RANKS - 1, CONTEXTS - 1, g->messages, 0));
	if (!rc && g->refused)
		rc = gpi_refusals(r);
	close_group(r, !rc && g->killed < 0);
	return rc;
}

/* A busy machine runs a rank late: nobody is lost for that, nor is a connection. */
static const char *const patient[] = { "EPF_PEER_TIMEOUT", "EPF_PEER_SILENCE",
				       "EPF_EMU_RETRY_TIMEOUT", "EPF_EMU_STALL_TIMEOUT",
				       "EPF_TCP_TIMEOUT" };

static void load_like_v2(const struct rank *r)
{
	const char *tmp = getenv("TMPDIR");
	char folder[2048], path[2100], command[8192];
	bool loaded;

	snprintf(folder, sizeof(folder), "%s/epf-test-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(folder))
		quit(r, "no folder");
	snprintf(path, sizeof(path), "%s/deep_ep/_C.test.so", folder);
	snprintf(command, sizeof(command), "mkdir '%s/deep_ep' && cp '%s' '%s'", folder, plugin,
		 path);
	loaded = system(command) == 0 && dlopen(path, RTLD_NOW);
	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	if (system(command) != 0 || !loaded)
		quit(r, "no module, or it remains");
}

static int rank_main(const struct game *g, struct board *board, unsigned me)
{
	struct rank r = { .g = g, .board = board, .me = me };
	char symbol[32];

	for (unsigned i = 0; g->env && g->env[i]; i++)
		putenv((char *)(uintptr_t)g->env[i]);
	play_device(me);
	for (unsigned i = 0; i < sizeof(patient) / sizeof(patient[0]); i++)
		setenv(patient[i], "1h", 1);
	if (g->like_v2)
		load_like_v2(&r);
	if (g->version == GPI) {
		setenv("NCCL_GIN_TYPE", "4", 1);
		setenv("EPF_GPU_BACKEND", "fake", 1);
	}
	snprintf(symbol, sizeof(symbol),
		 g->version == 14 ? "ncclRmaPlugin_v14" : "ncclGinPlugin_v%u",
		 g->version == GPI ? 14 : g->version);
	r.table = play_table(plugin, symbol);
	if (!r.table)
		quit(&r, "no table");
	if (play(&r) == 0)
		return 0;
	if (r.refused)
		return REFUSED;
	return g->killed >= 0 ? ERROR_SEEN : 1;
}

void run(struct game g, int expected)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[RANKS];

	assert_true(board != MAP_FAILED);
	print_message("# version %u%s, EPF_SEED=%llu\n", g.version == GPI ? 14 : g.version,
		      g.version == GPI ? ", without the proxy" : "", (unsigned long long)seed);
	for (unsigned r = 0; r < g.ranks; r++) {
		pid[r] = fork();
		assert_true(pid[r] >= 0);
		if (pid[r] == 0)
			exit(rank_main(&g, board, r));
	}
	if (g.killed >= 0) {
		int s = 0;

		assert_int_equal(waitpid(pid[g.killed], &s, 0), pid[g.killed]);
		assert_true(WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL);
		__atomic_store_n(&board->is_dead, 1, __ATOMIC_RELEASE);
	}
	for (unsigned r = 0; r < g.ranks; r++) {
		int s = 0;

		if (g.killed == (int)r)
			continue;
		assert_int_equal(waitpid(pid[r], &s, 0), pid[r]);
		assert_true(WIFEXITED(s) && WEXITSTATUS(s) == expected);
	}
	munmap(board, sizeof(*board));
}
