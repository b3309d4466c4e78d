/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real rank processes for tests: forks them, lets them join over TCP on loopback through a separate rendezvous on a free
 * port, and gives them a page of shared memory to talk to the parent. A rank that finds a fault prints it and exits
 * with 1. Traffic: rounds in which every rank puts a page of known bytes, with a signal, to every other one.
 */
#ifndef EPF_TESTS_RANKS_H
#define EPF_TESTS_RANKS_H

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 8, PAGE_BYTES = 4096 };

/* Shared by the parent and its ranks; words are read and written with EPF_*_ACQUIRE and _RELEASE. */
struct page {
	uint64_t rounds[MOST_RANKS];  /* played by each rank */
	uint64_t killed_ns;           /* when the parent killed, 0: not yet */
	uint64_t lost_ns[MOST_RANKS]; /* when each rank got its error */
	uint64_t last_round;          /* a rank tells the others when to end */
	uint64_t done;                /* ranks that are done */
	uint64_t end;                 /* set by the parent: ranks may leave */
	uint64_t open;                /* set by the parent: the rendezvous has its address */
	char rendezvous[EPF_BOOT_ADDRESS_MAX];
	char stats_file[MOST_RANKS][256];
};

struct rank {
	int (*region0)(struct epf *ep); /* makes region 0 in place of rank_open; NULL: that does */
	struct page *page;
	const char *rendezvous;
	const char *const *settings; /* NULL-terminated, or NULL */
	const char *job;
	uint32_t me, world;
	uint64_t tag; /* makes the bytes of this job unlike those of another */
	struct epf *ep;
	struct epf_boot *boot;
	struct epf_ring *ring;
	uint8_t *mem; /* [2][world] pages received, then [2] pages sent */
	uint64_t round;
	bool sent; /* this round's puts are pushed */
	bool masked[MOST_RANKS];
};

/* Where the ranks' statistics files go: a killed rank leaves one. For cmocka's group functions. */
static char ranks_dir[] = "/tmp/epf-test-ranks-XXXXXX";

static inline int ranks_dir_make(void **state)
{
	(void)state;
	return mkdtemp(ranks_dir) ? 0 : -1;
}

static inline int ranks_dir_remove(void **state)
{
	DIR *d = opendir(ranks_dir);

	(void)state;
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	return rmdir(ranks_dir);
}

#define RANK_CHECK(r, condition)                                                                  \
 do {                                                                                             \
  if (!(condition)) {                                                                             \
   fprintf(stderr, "%s:%d: rank %u: %s is false (%s)\n", __FILE__, __LINE__, (r)->me, #condition, \
	   epf_last_error());                                                                     \
   _exit(1);                                                                                      \
  }                                                                                               \
 } while (0)

/* Opens and joins. */
static inline void rank_open(struct rank *r)
{
	static const char *const settings[] = { "progress=thread", "signals=16" };
	struct epf_boot_opts b = { .size = sizeof(b),
				   .rank = r->me,
				   .world = r->world,
				   .rendezvous = r->rendezvous,
				   .job = r->job };
	const char *all[32];
	char where[64];
	struct epf_options o;
	uint32_t region;
	void *mem;
	int n = 0;

	all[n++] = settings[0];
	all[n++] = settings[1];
	snprintf(where, sizeof(where), "stats-dir=%s", ranks_dir);
	all[n++] = where;
	for (const char *const *s = r->settings; s && *s && n < 31; s++)
		all[n++] = *s;
	all[n] = NULL;
	epf_options_init(&o);
	o.settings = all;
	RANK_CHECK(r, epf_boot_tcp_open(&b, &r->boot) == 0);
	RANK_CHECK(r, epf_open(&o, &r->ep) == 0);
	RANK_CHECK(r, epf_memory_alloc(r->ep, (2 * r->world + 2) * PAGE_BYTES, &mem) == 0);
	if (r->region0)
		RANK_CHECK(r, r->region0(r->ep) == 0);
	else
		RANK_CHECK(r, epf_region_register(r->ep, mem, (2 * r->world + 2) * PAGE_BYTES,
						  EPF_REMOTE_WRITE, &region) == 0);
	RANK_CHECK(r, epf_ring_open(r->ep, NULL, &r->ring) == 0);
	r->mem = mem;
	RANK_CHECK(r, epf_join(r->ep, r->boot) == 0);
}

static inline void rank_fill(const struct rank *r, uint32_t sender, uint64_t round, uint64_t *page)
{
	for (uint64_t i = 0; i < PAGE_BYTES / 8; i++)
		page[i] = (r->tag << 56) + ((uint64_t)sender << 48) + (round << 16) + i;
}

/*
 * One round with every rank that is not masked: 0, or the error of the wait that failed. Called again after an error
 * it goes on with the same round and sends nothing twice.
 */
static inline int rank_round(struct rank *r, uint64_t timeout_ns)
{
	uint64_t set = r->round & 1, want[PAGE_BYTES / 8];
	uint64_t sent = (2 * r->world + set) * PAGE_BYTES;
	int rc = 0;

	if (!r->sent)
		rank_fill(r, r->me, r->round, (uint64_t *)(void *)(r->mem + sent));
	for (uint32_t p = 0; p < r->world && !r->sent; p++)
		if (p != r->me && !r->masked[p])
			RANK_CHECK(r, epf_put_signal(r->ring, p, 0, sent, 0,
						     (set * r->world + r->me) * PAGE_BYTES,
						     PAGE_BYTES, r->me, 1, EPF_FENCE) == 0);
	r->sent = true;
	for (uint32_t p = 0; p < r->world && !rc; p++) {
		if (p == r->me || r->masked[p])
			continue;
		rc = epf_signal_wait(r->ep, p, r->round + 1, timeout_ns);
		if (rc)
			break;
		rank_fill(r, p, r->round, want);
		RANK_CHECK(r, memcmp(r->mem + (set * r->world + p) * PAGE_BYTES, want,
				     sizeof(want)) == 0);
	}
	if (!rc)
		rc = epf_wait_retired(r->ring, epf_ring_pushed(r->ring), timeout_ns);
	if (rc)
		return rc;
	r->sent = false;
	__atomic_store_n(&r->page->rounds[r->me], ++r->round, __ATOMIC_RELEASE);
	return 0;
}

/* A job: its server, its ranks. */
struct ranks {
	struct epf_boot_server *server;
	struct page *page;
	pid_t pid[MOST_RANKS];
	uint32_t count;
};

/*
 * Forks `count` ranks that run body() and exit with 0 when it returns; they wait for ranks_serve(). In two steps,
 * because nothing may be forked beside a running thread of ours: a sanitizer's allocator does not survive that.
 * 0 or -1.
 */
static inline int ranks_fork(struct ranks *job, const char *name, uint32_t count, uint64_t tag,
			     const char *const *settings, void (*body)(struct rank *r))
{
	memset(job, 0, sizeof(*job));
	job->count = count;
	job->page = mmap(NULL, sizeof(*job->page), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job->page == MAP_FAILED)
		return -1;
	fflush(NULL);
	for (uint32_t i = 0; i < count; i++) {
		struct rank r = { .page = job->page,
				  .rendezvous = job->page->rendezvous,
				  .settings = settings,
				  .job = name,
				  .me = i,
				  .world = count,
				  .tag = tag };

		job->pid[i] = fork();
		if (job->pid[i] != 0)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(120); /* whatever happens, nothing is left behind */
		while (!__atomic_load_n(&job->page->open, __ATOMIC_ACQUIRE))
			usleep(500);
		rank_open(&r);
		body(&r);
		epf_close(r.ep);
		epf_boot_close(r.boot);
		exit(0);
	}
	return 0;
}

/* Opens the rendezvous of the ranks that were forked. 0 or -1. */
static inline int ranks_serve(struct ranks *job, const char *name)
{
	struct epf_boot_server_opts o = {
		.size = sizeof(o), .world = job->count, .listen = "127.0.0.1:0", .job = name
	};

	if (epf_boot_server_start(&o, &job->server)) {
		fprintf(stderr, "ranks: %s\n", epf_last_error());
		return -1;
	}
	snprintf(job->page->rendezvous, sizeof(job->page->rendezvous), "%s",
		 epf_boot_server_address(job->server));
	__atomic_store_n(&job->page->open, 1, __ATOMIC_RELEASE);
	return 0;
}

/* Both steps, for a test with one job at a time. */
static inline int ranks_start(struct ranks *job, const char *name, uint32_t count, uint64_t tag,
			      const char *const *settings, void (*body)(struct rank *r))
{
	int rc = ranks_fork(job, name, count, tag, settings, body);

	return rc ? rc : ranks_serve(job, name);
}

/* Waits until every rank has played this many rounds; -1 when one ends before. */
static inline int ranks_reach(struct ranks *job, uint64_t rounds)
{
	for (;;) {
		uint32_t there = 0;

		for (uint32_t i = 0; i < job->count; i++)
			there += __atomic_load_n(&job->page->rounds[i], __ATOMIC_ACQUIRE) >= rounds;
		if (there == job->count)
			return 0;
		for (uint32_t i = 0; i < job->count; i++) {
			siginfo_t info = { .si_pid = 0 };

			if (waitid(P_PID, (id_t)job->pid[i], &info, WEXITED | WNOHANG | WNOWAIT) ||
			    info.si_pid)
				return -1;
		}
		usleep(1000);
	}
}

/* Waits for all ranks: how many did not exit with 0 (rank `killed`: did not die by SIGKILL; -1: none is to). */
static inline int ranks_wait(struct ranks *job, int killed)
{
	int bad = 0;

	for (uint32_t i = 0; i < job->count; i++) {
		int status = -1;

		waitpid(job->pid[i], &status, 0);
		if ((int)i == killed)
			bad += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
		else
			bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
	}
	return bad;
}

/* Ends the job; its ranks have ended. */
static inline void ranks_end(struct ranks *job)
{
	epf_boot_server_stop(job->server);
	munmap(job->page, sizeof(*job->page));
}

#endif
