/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of libepf: struct epf and struct epf_ring, shared by lib.c (open, close, memory), ring.c, join.c (the job), command.c
 * (commands), wait.c and peers.c (waits) and the two back-ends behind backend.h: embedded.c (the engine in this process) and
 * remote.c (a daemon's). Frequent things go through shared memory only: rings, completion counters, signals, the peers page.
 */
#ifndef EPF_FABRIC_CLIENT_HANDLE_H
#define EPF_FABRIC_CLIENT_HANDLE_H

#include "bootstrap/boot.h"
#include "fabric/base/conf.h"
#include "fabric/client/backend.h"
#include "fabric/client/epf.h"
#include "fabric/engine/engine.h"
#include "fabric/place/bind.h"
#include "queues/epf_peers.h"

#include <pthread.h>
#include <stdbool.h>

enum epf_join_phase {
	EPF_JOIN_NONE = 0,
	EPF_JOIN_ROUNDS = 1, /* between the rounds of backend.h */
	EPF_JOIN_DONE = 2
};

struct epf_mapping { /* memory given out by epf_memory_alloc */
	struct epf_mapping *next;
	void *addr;
	uint64_t bytes;
	int fd; /* its memfd; -1 unless the back-end keeps them (keeps_memory) */
};

/* Memory of a closed ring that the engine of this process still touches. */
struct epf_ring_memory {
	struct epf_ring_memory *next;
	struct epf_ring_shm *shm;
	size_t bytes;
	uint32_t id;
};

struct epf_remote;      /* remote.c */
struct epf_gpu;         /* gpu_open.c */
struct epf_gpu_dev;     /* gpu/gpu.h */
struct epf_gpu_context; /* gpu/context.h */
struct epf_gpu_watch;   /* gpu_watch.c */

/*
 * Locks. A thread that takes several takes them in the order of their declaration. No lock is held while the thread waits for the engine or
 * for other ranks, except `meeting`. The hot path (pushing, looking at completion counters and signals) takes none: what it reads of struct epf
 * is set by epf_open() or by one store of the join.
 */
struct epf_locks {
	pthread_mutex_t
		meeting; /* one collective call at a time: the bootstrap handle serves one thread */
	pthread_mutex_t
		calls; /* one slow call of the back-end at a time, with the bookkeeping around it */
	pthread_mutex_t
		engine; /* embedded: held by whoever touches a core that no dedicated thread runs */
	pthread_mutex_t lists; /* rings, mappings, gpus: held for a few instructions */
};

struct epf {
	struct epf_locks locks;
	uint32_t
		engine_wanted; /* embedded: threads that wait for locks.engine; who only steps lets them pass */
	struct epf_conf conf;
	struct epf_options opts;
	const struct epf_backend_ops *be;

	/* Shared with the engine, wherever it runs. */
	struct epf_signal *signals;
	struct epf_wakeup *wakeup;   /* this rank's threads sleep on it; behind the signals */
	struct epf_wakeup *kick;     /* rung after a push; NULL while nobody can sleep on it */
	struct epf_peers_shm *peers; /* NULL before the join */
	const struct epf_peer_detail *details; /* of every rank; NULL: not known */
	uint32_t n_signals;
	uint64_t (*now)(void *arg); /* ns: what deadlines are counted in */
	void *now_arg;
	const char *nic_name;
	char mode[80]; /* "embedded", "service:INSTANCE" */

	/* The job. */
	struct epf_boot *boot; /* NULL after epf_rejoin */
	bool own_boot;
	enum epf_join_phase join_phase;
	unsigned round; /* of the join: the one whose bytes were handed in last */
	struct epf_blob *blobs;
	uint32_t rank;
	uint32_t world;
	char node[64];
	char job[EPF_BOOT_NAME_MAX + 1]; /* its name */
	uint64_t job_id;                 /* of this run, for the statistics; 0: not joined */
	uint8_t *masked;                 /* [world] ranks that this one masked */
	uint32_t mask_changes;
	struct epf_blob *
		who; /* what every rank said of its process at the join (who.c), NULL after epf_rejoin */
	uint32_t peers_seen; /* peers->changes + mask_changes when no rank was found lost */

	struct epf_ring
		*rings; /* changed under locks.calls and locks.lists: either is enough to read */
	struct epf_gpu *gpus; /* the one GPU context, or NULL */
	bool gpu_opening;     /* epf_gpu_open is making it */
	void *gpu_signals;    /* GPU memory that holds the signals; NULL: ep->signals does */
	int gpu_signals_device;
	struct epf_mapping *mappings;
	bool keeps_memory; /* mappings keep their memfds open */
	bool aborted;      /* epf_abort was called: every wait ends */
	bool has_notified; /* the peers know of the losses seen so far */
	uint32_t spins;    /* of a wait before it sleeps, learnt (wait.c); 0: nothing yet */
	uint32_t waits;    /* that did not end at once; wraps */
	bool threaded;     /* the engine works by itself: waits sleep on the wakeup */
	bool is_crowded; /* embedded: engines' threads share CPUs with those that wait for them (drive.c) */
	uint32_t
		pushes; /* that may step the engine themselves before the next wait; racy, and any value works */
	bool call_progress; /* waits call opts.progress */

	/* The engine in this process (embedded.c); tests look into it. */
	const struct epf_nic_ops *ops;
	struct epf_nic *nic;
	struct epf_core *core;
	struct epf_stats *stats;
	struct epf_stats_block *block;     /* class core: written by the core's thread */
	struct epf_stats_block *nic_block; /* class nic: the same */
	uint64_t signal_bytes;
	struct epf_ring_memory *undrained;
	struct epf_run_options run;
	pthread_t thread;
	bool started;
	struct epf_place_bind bind;         /* where the core runs and has its memory */
	struct epf_device_gpu *device_gpus; /* GPUs whose memory RDMA devices know */

	struct epf_remote *remote; /* the daemon's connection (remote.c) */
};

struct epf_ring {
	struct epf *ep;
	struct epf_ring *next;
	struct epf_ring_producer producer;
	struct epf_ring_shm *shm;
	size_t bytes;
	uint64_t start;
	uint32_t weight;
	uint32_t id;
	uint64_t failures_seen;
};

/* For what a sleeping waiter wants to be woken (enum epf_wakeup_condition in queues/epf_wakeup.h has the meanings). */
struct epf_condition {
	uint32_t what;
	uint32_t index;
	uint64_t least;
	uint64_t sleep_ns; /* at most so long at a time; 0: as long as any */
};

/*
 * wait.c: runs `ready` until it is true: 0, -ETIMEDOUT (deadline), -ECONNRESET (a rank is lost). condition: what makes it true, so that
 * nothing else wakes the sleeper; NULL: anything may.
 */
int epf_wait(struct epf *ep, bool (*ready)(const void *arg), const void *arg,
	     const struct epf_condition *condition, uint64_t timeout_ns, const char *what,
	     uint64_t number);
/* peers.c: fails with the loss from which all others follow. left: also where ranks only say that they closed because of one. 0: none. */
int epf_wait_lost(struct epf *ep, bool left);
/* peers.c: the same, at once, for what has failed already; what: its text, which the error begins with. */
int epf_fail_after_loss(const struct epf *ep, const char *what);
/* peers.c: fails with the rank whose engine has been silent longest; 0: none is. what, number: of the wait that ran into timeout_ns. */
int epf_wait_silent(const struct epf *ep, uint64_t timeout_ns, const char *what, uint64_t number);
/* who.c: how many ranks named the host of this one. */
uint32_t epf_who_here(const struct epf *ep);
/* who.c: this rank's process as bytes for the others: malloced. */
int epf_who_describe(const struct epf *ep, uint8_t **buf, size_t *len);
/* who.c: the process of a rank as text: "rank 3 on node 1 (host a, process 17)". */
void epf_who_text(const struct epf *ep, uint32_t rank, char *text, size_t size);
/* wait.c: 0, or why no wait can end well: aborted, a lost rank, a lost daemon. what, number: for the text. */
int epf_wait_why(struct epf *ep, const char *what, uint64_t number);
/* gpu_open.c: ends the waits of kernels. Under locks.lists. */
void epf_gpu_abort(struct epf *ep);
/* gpu_watch.c: a thread that ends waits of kernels for ranks that are lost. close() accepts NULL, and waits for the thread. */
int epf_gpu_watch_open(struct epf *ep, struct epf_gpu_context *context, struct epf_gpu_watch **out);
void epf_gpu_watch_close(struct epf_gpu_watch *w);
/* gpu_memory.c, where ep->gpu_signals is there: one of them, read through the driver; where kernels find them; their end. */
uint64_t epf_gpu_signal_value(struct epf *ep, uint32_t signal);
uint64_t epf_gpu_signals_for_kernels(struct epf *ep);
void epf_gpu_signals_free(struct epf *ep);
/* The device of a context (gpu_open.c). */
struct epf_gpu_dev *epf_gpu_device(const struct epf_gpu *gpu);
/* handle.c: runs the engine when no dedicated thread does; returns what it did. */
unsigned epf_progress_once(struct epf *ep);

/* handle.c: locks.calls and locks.lists. */
void epf_lock_calls(const struct epf *ep);
void epf_unlock_calls(const struct epf *ep);
void epf_lock_lists(const struct epf *ep);
void epf_unlock_lists(const struct epf *ep);

/* True if the rank has joined; then all that the join set is visible. */
static inline bool epf_joined(const struct epf *ep)
{
	return EPF_LOAD_ACQUIRE(&ep->join_phase) == EPF_JOIN_DONE;
}

/*
 * join.c: begins and ends a meeting of all ranks, of which a rank holds one at a time; epf_part returns rc. Between the two: an
 * allgather and a barrier over ep->boot, which epf_abort and the loss of this rank's daemon end early.
 */
void epf_meet(struct epf *ep);
int epf_part(struct epf *ep, int rc);
int epf_meet_allgather(struct epf *ep, const void *mine, size_t len, struct epf_blob **all);
int epf_meet_barrier(struct epf *ep);

/* lib.c: the mapping that holds [addr, addr + bytes) in whole, or NULL. Valid until that memory is freed. */
struct epf_mapping *epf_mapping_find(const struct epf *ep, const void *addr, uint64_t bytes);

#endif
