/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier's thread (copier.h): takes jobs from the rings of all NICs of the process in turn, finds where their bytes are, and
 * gives them to the queue of a device (copy_queue.h). Made when the first NIC meets GPU memory, ends with the last. All drivers are
 * called on this thread; it must never run under an engine core's step.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/nic/emu/copier.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copy_queue.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	TURN_ENTRIES = 1024,   /* of one NIC before the next one's turn */
	PREFETCH_ENTRIES = 64, /* 32 lines: as long as it takes to read them out of another core */
	SPIN_NS =
		500000, /* quiet time before the thread sleeps: to wake it takes as long as some hundred copies */
	SLEEP_NS = 100000000,
	STUCK_NS = 1000000000, /* copies that take so long wait for something */
};

/*
 * The lock is held for moments only, never over a call of a driver: an engine's thread may join, and name its regions, while another
 * job's memory is being mapped. Who leaves, or unmaps a segment, waits until the thread has let go of it.
 */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t let_go;
	pthread_t thread;
	unsigned users;
	bool stop;
	uint32_t asked;                  /* something of the following is to be looked at */
	struct epf_emu_copier *joining;  /* have come */
	struct epf_emu_copier *leaving;  /* wants to go; NULL: gone */
	const struct epf_emu_seg *unmap; /* is to be forgotten; NULL: it is */
	struct epf_emu_copier *copiers;  /* the thread's own, and: */
	uint64_t turns, dequeue_tsc,
		pump_tsc; /* that took jobs; cycles for that, and for the batches */
	struct epf_emu_copier_stages stages; /* for others to read */
	uint64_t since;     /* of epf_now_ns(): jobs are there and nothing has moved; 0: none are */
	uint64_t said;      /* the `since` that epf_emu_copier_watch() told of */
	const char *doing;  /* the call of a driver that the thread is in; NULL: none */
	uint64_t doing_tsc; /* since when */
	struct epf_wakeup wakeup;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .let_go = PTHREAD_COND_INITIALIZER };

/* Taken around the beginning and the end of the thread, and by those who wait for it; before work.lock. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;

/* With the lock held: makes the thread look. */
static void ask(void)
{
	__atomic_store_n(&work.asked, 1, __ATOMIC_RELEASE);
	if (epf_wakeup_is_needed(&work.wakeup))
		epf_wakeup_wake(&work.wakeup);
}

void epf_emu_copier_does(const char *call)
{
	if (call) {
		/* A job that came after run() had looked for some is taken all the same, and its first call may be the one that does not come back. */
		if (!work.since)
			__atomic_store_n(&work.since, epf_now_ns(), __ATOMIC_RELAXED);
		__atomic_store_n(&work.doing_tsc, epf_tsc(), __ATOMIC_RELAXED);
	}
	__atomic_store_n(&work.doing, call, __ATOMIC_RELEASE);
}

/* True when the region that was found last is the one that a span's source lies in, and is still there. */
static bool is_in_window(const struct epf_emu_copier *c, const struct epf_emu_job_span *s,
			 int device)
{
	const struct epf_emu_window *w = &c->window;

	return w->seg == c->job.peer && w->key == s->src_key && w->want == device &&
	       w->generation == epf_emu_import_generation() &&
	       epf_emu_is_gpu_key(c->job.peer, s->src_key);
}

static inline bool window_covers(const struct epf_emu_window *w, const struct epf_emu_job_span *s)
{
	return s->src >= w->base && s->bytes <= w->len && s->src - w->base <= w->len - s->bytes;
}

/* Where the bytes of a peer's region are: as the last time, or again. *device: whose copies it is for, -1 if that is open. */
static int find_source(struct epf_emu_copier *c, const struct epf_emu_job_span *s, uint64_t *src,
		       int *device)
{
	struct epf_emu_window *w = &c->window;
	struct epf_emu_seg *peer = c->job.peer;
	int rc;

	if (!is_in_window(c, s, *device)) {
		w->seg = NULL;
		rc = epf_emu_import_peer(c->ops, peer, s->src_key, *device, c->kernel, w);
		if (rc)
			return rc;
	}
	if (!window_covers(w, s))
		return epf_fail(EPF_R_GPU_PEER,
				"GPU region %#x of process %d: %u bytes are not inside", s->src_key,
				(int)peer->pid, s->bytes);
	*src = w->at + (s->src - w->base);
	*device = w->device;
	return 0;
}

/* Where the bytes of a span are, and which device copies them. */
static int resolve(struct epf_emu_copier *c, const struct epf_emu_job_span *s,
		   struct epf_copy_span *span, int *device)
{
	int rc = 0;

	*device = -1;
	span->dst = s->dst;
	span->src = s->src;
	span->bytes = s->bytes;
	span->host = !s->dst_mem || !s->src_key;
	if (s->dst_mem) {
		rc = epf_emu_import_own(s->dst_mem);
		if (rc)
			return rc;
		span->dst += s->dst_mem->device_addr;
		*device = s->dst_mem->device;
	}
	if (s->src_key)
		rc = find_source(c, s, &span->src, device);
	else
		epf_emu_import_host(c->ops, c->job.peer);
	return rc;
}

static const struct epf_emu_job_span *span_at(const struct epf_emu_copier *c, uint32_t number)
{
	return &c->entries[number & (EPF_EMU_ENTRIES - 1)].span;
}

/* Takes entry `in`, a span of the NIC's job, into a batch; false: the queue is full, try again later. */
static bool take(struct epf_emu_copier *c, uint32_t in)
{
	const struct epf_emu_job_span *s = span_at(c, in);
	struct epf_emu_run run = { .entries = c->entries, .first = in, .n = 1 };
	struct epf_emu_queue *q = NULL;
	struct epf_copy_span span;
	int device;

	epf_emu_copier_does("mapping memory");
	if (resolve(c, s, &span, &device) ||
	    !(q = epf_emu_queue_of(c, device < 0 ? 0 : device, false))) {
		epf_emu_copier_does(NULL);
		if (epf_last_reason() ==
		    EPF_R_NIC_PEER_GONE) /* its outcome tells who needs to know */
			epf_dbg("a copy: %s", epf_last_error());
		else
			epf_warn_ratelimited("a copy to or from GPU memory: %s", epf_last_error());
		epf_emu_job_done(c, c->job.slot, 1, EPF_S_REMOTE_ACCESS);
		return true;
	}
	epf_emu_copier_does(NULL);
	if (!s->bytes) {
		epf_emu_job_done(c, c->job.slot, 1, EPF_S_OK);
		return true;
	}
	run.to_dst = span.dst - s->dst;
	run.to_src = span.src - s->src;
	run.host = span.host;
	return epf_emu_queue_copies(q, c, c->job.slot, &run) == 1;
}

/*
 * Brings the line of an entry near, if it has been pushed. Not before: the NIC's core is about to write it, and would have to fetch it
 * back.
 */
static inline void fetch(const struct epf_emu_copier *c, uint32_t number, uint32_t out)
{
	if (!(number & 1) && (int32_t)(out - number) > 0)
		__builtin_prefetch(span_at(c, number));
}

/*
 * Takes spans from entry `in` on, at most n of those before `out`, that go from the region found last to one memory of ours: most of all spans, so what they share is
 * asked once. Returns how many; 0: the first one is another, or finds no room.
 */
static uint32_t take_run(struct epf_emu_copier *c, uint32_t in, uint32_t n, uint32_t out)
{
	const struct epf_emu_window *w = &c->window;
	const struct epf_emu_job_span *s = span_at(c, in);
	const struct epf_copy_mem *mem = s->dst_mem;
	struct epf_emu_run run = { .entries = c->entries, .first = in };
	struct epf_emu_queue *q;

	if (!mem || !s->src_key || mem->state != 1 || !is_in_window(c, s, mem->device))
		return 0;
	for (; run.n < n; run.n++) {
		s = span_at(c, in + run.n);
		fetch(c, in + run.n + PREFETCH_ENTRIES, out);
		if (s->dst_mem != mem || s->src_key != w->key || !s->bytes || !window_covers(w, s))
			break;
	}
	q = run.n ? epf_emu_queue_of(c, w->device, false) : NULL;
	if (!q)
		return 0;
	run.to_dst = mem->device_addr;
	run.to_src = w->at - w->base;
	return epf_emu_queue_copies(q, c, c->job.slot, &run);
}

/* Takes one addition; false: the queue is full, try again later. */
static bool take_add(struct epf_emu_copier *c, const struct epf_emu_add_job *add)
{
	struct epf_emu_queue *q = NULL;

	c->undone[add->slot] = 1;
	if (epf_emu_import_own(add->dst_mem) ||
	    !(q = epf_emu_queue_of(c, add->dst_mem->device, true))) {
		epf_warn_ratelimited("an addition to GPU memory: %s", epf_last_error());
		epf_emu_job_done(c, add->slot, 1, EPF_S_REMOTE_ACCESS);
		return true;
	}
	return epf_emu_queue_add(q, c, add->slot, add->dst + add->dst_mem->device_addr, add->value);
}

/* Takes the additions that a NIC has pushed; returns how many. [C1] */
static unsigned take_adds(struct epf_emu_copier *c)
{
	uint32_t out = __atomic_load_n(&c->adds_out, __ATOMIC_ACQUIRE); /* C1 */
	unsigned n = 0;

	for (; c->adds_in != out; c->adds_in++, n++)
		if (!take_add(c, &c->adds[c->adds_in & (EPF_EMU_COPIES - 1)]))
			break;
	return n;
}

/*
 * Takes the copies that a NIC has pushed, up to the first call of the driver: it takes as long as some twenty copies, and what has landed
 * meanwhile, or is to be added, comes first. Returns how many entries. [C1, C6]
 */
static unsigned take_entries(struct epf_emu_copier *c)
{
	uint64_t calls = epf_emu_queues_calls();
	uint32_t out = __atomic_load_n(&c->entries_out, __ATOMIC_ACQUIRE),
		 in = c->entries_in; /* C1 */
	unsigned n = 0;

	for (uint32_t i = 0; i < PREFETCH_ENTRIES; i++)
		fetch(c, in + i, out);
	while (in != out && n < TURN_ENTRIES && epf_emu_queues_calls() == calls) {
		uint32_t left = out - in < c->job_left ? out - in : c->job_left, taken = 1;

		if (c->job_left == 0) {
			c->job = c->entries[in & (EPF_EMU_ENTRIES - 1)].job;
			c->job_left = c->undone[c->job.slot] = c->job.spans;
		} else {
			taken = take_run(c, in, left, out);
			if (!taken)
				taken = take(c, in);
			c->job_left -= taken;
		}
		if (!taken)
			break;
		in += taken;
		n += taken;
	}
	if (n)
		__atomic_store_n(&c->entries_in, in, __ATOMIC_RELEASE); /* C6 */
	return n;
}

/* For epf_emu_copier_stages(). */
static void tell_stages(void)
{
	struct epf_emu_copier_stages now = { .dequeue_tsc = work.dequeue_tsc,
					     .pump_tsc = work.pump_tsc,
					     .turns = work.turns };
	const uint64_t *from = (const uint64_t *)&now;
	uint64_t *to = (uint64_t *)&work.stages;

	epf_emu_queues_stages(&now);
	for (unsigned i = 0; i < sizeof(now) / sizeof(*to); i++)
		__atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
}

/* One turn over all NICs and queues; *busy: copies are under way. Returns how much was done. */
static unsigned turn(bool *busy)
{
	uint64_t t0 = epf_tsc(), t1;
	unsigned taken = 0, done;

	for (struct epf_emu_copier *c = work.copiers; c; c = c->next)
		taken += take_adds(c);
	if (taken)
		epf_emu_queues_add();
	for (struct epf_emu_copier *c = work.copiers; c; c = c->next)
		taken += take_entries(c);
	t1 = epf_tsc();
	done = epf_emu_queues_pump(busy);
	work.turns += taken != 0;
	work.dequeue_tsc += taken ? t1 - t0 : 0;
	work.pump_tsc += taken || done || *busy ? epf_tsc() - t1 : 0;
	if (taken || done)
		tell_stages();
	return taken + done;
}

static bool has_jobs(void)
{
	for (const struct epf_emu_copier *c = work.copiers; c; c = c->next)
		if (__atomic_load_n(&c->entries_out, __ATOMIC_ACQUIRE) != c->entries_in ||
		    __atomic_load_n(&c->adds_out, __ATOMIC_ACQUIRE) != c->adds_in) /* C1 */
			return true;
	return __atomic_load_n(&work.asked, __ATOMIC_ACQUIRE);
}

/* Memory of this process has come: what copies to it need is there before the first one. */
static void prepare(const struct epf_copy_mem *mem)
{
	for (const struct epf_emu_copier *c = work.copiers; c; c = c->next)
		if (c->ops == mem->ops && (!epf_emu_queue_of(c, mem->device, false) ||
					   !epf_emu_queue_of(c, mem->device, true)))
			epf_warn_ratelimited("copies to GPU %d: %s", mem->device, epf_last_error());
}

/* What others ask of the thread. */
static void serve_requests(void)
{
	struct epf_emu_copier **at = &work.copiers, *c;
	const struct epf_emu_seg *unmap;

	__atomic_store_n(&work.asked, 0, __ATOMIC_RELAXED);
	pthread_mutex_lock(&work.lock);
	while ((c = work.joining)) {
		work.joining = c->next;
		c->next = work.copiers;
		work.copiers = c;
	}
	while (work.leaving && *at && *at != work.leaving)
		at = &(*at)->next;
	if (work.leaving && *at)
		*at = work.leaving->next;
	work.leaving = NULL;
	unmap = work.unmap;
	pthread_mutex_unlock(&work.lock);
	epf_emu_copier_does("mapping memory");
	if (unmap)
		epf_emu_import_drop(unmap);
	epf_emu_import_owns(prepare);
	epf_emu_copier_does(NULL);
	pthread_mutex_lock(&work.lock);
	if (unmap) /* not one that was asked for meanwhile */
		work.unmap = NULL;
	pthread_cond_broadcast(&work.let_go);
	pthread_mutex_unlock(&work.lock);
}

static bool is_stopped(void)
{
	return __atomic_load_n(&work.stop, __ATOMIC_ACQUIRE);
}

/* Something moves: from now on again, or, with nothing more to do, no longer. */
static void moved(bool more)
{
	uint64_t since = work.since, now = epf_now_ns();

	if (since && since == __atomic_load_n(&work.said, __ATOMIC_RELAXED))
		epf_note("copies to or from GPU memory go on, after %.1f s",
			 (double)(now - since) / 1e9);
	__atomic_store_n(&work.since, more ? now : 0, __ATOMIC_RELAXED);
}

void epf_emu_copier_watch(void)
{
	uint64_t since = __atomic_load_n(&work.since, __ATOMIC_RELAXED), now = epf_now_ns();
	uint64_t said = __atomic_load_n(&work.said, __ATOMIC_RELAXED);
	const char *doing = __atomic_load_n(&work.doing, __ATOMIC_ACQUIRE);
	uint64_t call_tsc = __atomic_load_n(&work.doing_tsc, __ATOMIC_RELAXED);

	if (!since || since == said || now < since + STUCK_NS ||
	    !__atomic_compare_exchange_n(&work.said, &said, since, 0, __ATOMIC_RELAXED,
					 __ATOMIC_RELAXED))
		return;
	/*
	 * Which of the two it is tells a lock of the driver's from a queue of the device. Who only asks again and again is in a call
	 * most of the time, too, but in none for long.
	 */
	if (doing && epf_tsc_to_ns(epf_tsc() - call_tsc) > STUCK_NS / 2)
		(void)epf_fail(
			EPF_R_GPU_STUCK,
			"for %.1f s now: the driver does not come back from %s, most likely because of another thread's call that waits for a kernel which waits for these copies",
			(double)(now - since) / 1e9, doing);
	else
		(void)epf_fail(
			EPF_R_GPU_STUCK,
			"for %.1f s now: the driver has taken them and they do not end, most likely behind something that waits for a kernel which waits for them",
			(double)(now - since) / 1e9);
	epf_err("copies to or from GPU memory stall: %s", epf_last_error());
}

static void *run(void *arg)
{
	uint64_t quiet_since = 0;
	bool busy = false;

	(void)arg;
	(void)pthread_setname_np(pthread_self(), "epf-copier");
	while (!is_stopped()) {
		unsigned done;

		if (!work.since && (busy || has_jobs()))
			moved(true);
		done = turn(&busy);
		if (work.since && (done || !busy))
			moved(busy);

		if (__atomic_load_n(&work.asked, __ATOMIC_ACQUIRE))
			serve_requests();
		if (done || busy) {
			quiet_since = 0;
			if (!done)
				sched_yield();
			continue;
		}
		if (!quiet_since)
			quiet_since = epf_now_ns();
		if (epf_now_ns() - quiet_since < SPIN_NS) {
			sched_yield();
			continue;
		}
		quiet_since = 0;
		epf_emu_import_sweep();
		epf_wakeup_arm(&work.wakeup);
		if (!has_jobs() && !is_stopped())
			epf_wakeup_sleep(&work.wakeup, SLEEP_NS);
		epf_wakeup_disarm(&work.wakeup);
	}
	serve_requests();
	epf_dbg("GPU copies: %llu ms in taking jobs, %llu ms in their batches",
		(unsigned long long)(epf_tsc_to_ns(work.dequeue_tsc) / 1000000),
		(unsigned long long)(epf_tsc_to_ns(work.pump_tsc) / 1000000));
	return NULL;
}

static void free_copier(struct epf_emu_copier *c)
{
	free(c->entries);
	free(c->undone);
	free(c->outcomes);
	free(c->adds);
	free(c);
}

/* Who made the thread may be an engine's core with a CPU to itself: the copier runs wherever the process's first thread may. */
static void free_from_cpu(pthread_t thread)
{
	cpu_set_t cpus;

	if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0)
		(void)pthread_setaffinity_np(thread, sizeof(cpus), &cpus);
}

/* Zeroed memory that begins at a line (and its neighbour): what two threads share lies in as few as it seems to. */
static void *lines(size_t bytes)
{
	void *at = aligned_alloc(128, (bytes + 127) & ~(size_t)127);

	return at ? memset(at, 0, bytes) : NULL;
}

int epf_emu_copier_open(const struct epf_copy_ops *ops, int kernel, struct epf_wakeup *nic_wakeup,
			struct epf_emu_copier **out)
{
	struct epf_emu_copier *c = lines(sizeof(*c));
	int rc = 0;

	if (c) {
		c->entries = lines(EPF_EMU_ENTRIES * sizeof(*c->entries));
		c->undone = calloc(EPF_EMU_COPIES, sizeof(*c->undone));
		c->outcomes = lines(EPF_EMU_COPIES * sizeof(*c->outcomes));
		c->adds = calloc(EPF_EMU_COPIES, sizeof(*c->adds));
	}
	if (!c || !c->entries || !c->undone || !c->outcomes || !c->adds) {
		if (c)
			free_copier(c);
		return epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
	}
	c->ops = ops;
	c->kernel = kernel;
	c->nic_wakeup = nic_wakeup;
	c->entries_end = EPF_EMU_ENTRIES;
	pthread_mutex_lock(&life);
	if (work.users == 0) {
		work.stop = false;
		if (pthread_create(&work.thread, NULL, run, NULL))
			rc = epf_fail(EPF_R_NO_MEMORY, "GPU copies: no thread");
		else
			free_from_cpu(work.thread);
	}
	if (!rc) {
		__atomic_fetch_add(&work.users, 1, __ATOMIC_RELEASE);
		pthread_mutex_lock(&work.lock);
		c->next = work.joining;
		work.joining = c;
		ask();
		pthread_mutex_unlock(&work.lock);
	}
	pthread_mutex_unlock(&life);
	if (rc)
		free_copier(c);
	else
		*out = c;
	return rc;
}

/* After the last one has left. */
static void end_thread(void)
{
	__atomic_store_n(&work.stop, true, __ATOMIC_RELEASE);
	epf_emu_copier_ring();
	pthread_join(work.thread, NULL);
	epf_emu_import_drop(NULL);
	epf_emu_queues_close();
}

void epf_emu_copier_close(struct epf_emu_copier *copier)
{
	if (!copier)
		return;
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&work.lock);
	work.leaving = copier;
	ask();
	while (work.leaving)
		pthread_cond_wait(&work.let_go, &work.lock);
	pthread_mutex_unlock(&work.lock);
	free_copier(copier);
	if (__atomic_sub_fetch(&work.users, 1, __ATOMIC_RELEASE) == 0)
		end_thread();
	pthread_mutex_unlock(&life);
}

int epf_emu_copier_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem)
{
	int rc;

	pthread_mutex_lock(&work.lock);
	rc = epf_emu_import_add_own(nonce, key, mem);
	ask();
	pthread_mutex_unlock(&work.lock);
	return rc;
}

void epf_emu_copier_disown(uint64_t nonce, uint32_t key)
{
	pthread_mutex_lock(&work.lock);
	epf_emu_import_remove_own(nonce, key);
	ask();
	pthread_mutex_unlock(&work.lock);
}

void epf_emu_copier_forget(const struct epf_emu_seg *seg)
{
	if (__atomic_load_n(&work.users, __ATOMIC_ACQUIRE) == 0)
		return;
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&work.lock);
	work.unmap = work.users ? seg : NULL;
	ask();
	while (work.unmap)
		pthread_cond_wait(&work.let_go, &work.lock);
	pthread_mutex_unlock(&work.lock);
	pthread_mutex_unlock(&life);
}

void epf_emu_copier_stages(struct epf_emu_copier_stages *out)
{
	const uint64_t *from = (const uint64_t *)&work.stages;
	uint64_t *to = (uint64_t *)out;

	for (unsigned i = 0; i < sizeof(*out) / sizeof(*to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void epf_emu_copier_lock(void)
{
	pthread_mutex_lock(&work.lock);
}

void epf_emu_copier_unlock(void)
{
	pthread_mutex_unlock(&work.lock);
}

bool epf_emu_copier_sleeps(void)
{
	return epf_wakeup_is_needed(&work.wakeup);
}

void epf_emu_copier_ring(void)
{
	epf_wakeup_wake(&work.wakeup);
}
