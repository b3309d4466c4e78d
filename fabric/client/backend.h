/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam inside libepf: what differs between an engine inside this process (embedded.c) and a daemon's (remote.c). Both fill
 * the same memory words (rings, signals, wakeup, peers page) in struct epf, and everything frequent goes through those; the calls
 * here are the rest. lib.c, join.c, command.c and wait.c know nothing else of the engine.
 *
 * All return 0 or -errno with a reason, unless said otherwise. `ep` is the caller's. open, leave and close run while no other
 * thread uses ep; progress, sleep and check are called by any thread at any time; the caller of all others holds ep->locks.calls, so that
 * one runs at a time.
 */
#ifndef EPF_FABRIC_CLIENT_BACKEND_H
#define EPF_FABRIC_CLIENT_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct epf;
struct epf_copy_mem;
struct epf_ring;
struct epf_blob;

struct epf_backend_ops {
	const char *name; /* "embedded", "service" */
	bool can_rejoin;

	/* Fills ep->signals, wakeup, n_signals, mode, threaded, call_progress; after the configuration was read. */
	int (*open)(struct epf *ep);
	/* Ends the rank in order: peers see it leave. Only after the join. */
	void (*leave)(struct epf *ep);
	/* Frees everything open() and the others made but the rings' struct epf_ring. Also after a failed open. */
	void (*close)(struct epf *ep);

	int (*region_register)(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			       uint32_t *region);
	/* The same for GPU memory; the back-end takes a separate use of mem. */
	int (*region_register_gpu)(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
				   uint32_t *region);
	/* Begins a withdrawal; then asked until 1 (done), 0: not yet, *missing: a rank that has not acknowledged, or EPF_NONE. */
	int (*region_withdraw)(struct epf *ep, uint32_t region);
	int (*region_withdrawn)(struct epf *ep, uint32_t region, uint32_t *missing);

	/*
	 * Of a withdrawn region of a rank: lets its number be given out again, of this one; forgets it, of another (engine.h: epf_core_free_region()). A daemon
	 * does not: its clients' handles are not its own.
	 */
	int (*region_reuse)(struct epf *ep, uint32_t rank, uint32_t region);

	/* Makes the ring's memory (formatted, counters at start) and gives it to the engine: fills ring->shm, bytes, id. */
	int (*ring_open)(struct epf *ep, struct epf_ring *ring, unsigned log2, unsigned weight,
			 uint64_t start);
	/* Ends it: the caller frees ring and does not touch the memory any more; it is unmapped as soon as the engine does not either. */
	void (*ring_close)(struct epf_ring *ring);

	/*
	 * The join: collective rounds over the bootstrap. Round n takes what all ranks gave in round n-1 (blobs; NULL for n = 0) and
	 * returns this rank's bytes for round n (malloced, may be NULL with len 0). *last is set when no further exchange is needed: the
	 * rank has joined, ep->peers is there, and ep->kick unless nobody sleeps on it.
	 * Must not wait for other ranks.
	 */
	int (*join_round)(struct epf *ep, unsigned n, const struct epf_blob *blobs, uint8_t **buf,
			  size_t *len, bool *last);
	/* The exchange of later regions: this rank's bytes; then what all gave. */
	int (*describe)(struct epf *ep, uint8_t **buf, size_t *len);
	int (*update)(struct epf *ep, const struct epf_blob *blobs);
	/*
	 * Takes the place of a lost rank in a running job (epf_rejoin); -EAGAIN while the engines still clear up behind it. job_key: 32
	 * bytes. Where can_rejoin is false it only says so.
	 */
	int (*rejoin)(struct epf *ep, const uint8_t *job_key);

	/*
	 * One step of epf_reconnect (enum epf_reconnect_step of join/world.h): as epf_world_reconnect, and a rank that does not speak for its node gives
	 * nothing. Must not wait for other ranks; -EAGAIN: the engine is not there yet, the same call again.
	 */
	int (*reconnect)(struct epf *ep, unsigned step, const struct epf_blob *blobs, uint8_t **buf,
			 size_t *len);

	/* Whether kernels push commands, which wake nobody, so that the engine's thread stays awake. */
	int (*stay_awake)(struct epf *ep, bool on);
	int (*peer_mask)(struct epf *ep, uint32_t rank, bool masked);
	int (*counter)(const struct epf *ep, const char *name, uint64_t *value);
	const char *(*stats_file)(const struct epf *ep);
	uint64_t (*bytes_per_peer)(const struct epf *ep);

	/*
	 * Lets the engine work where this process has to; returns how much was done. 0 with a thread or a daemon, and while
	 * another thread steps the engine.
	 */
	unsigned (*progress)(struct epf *ep);
	/*
	 * progress=caller: sleeps as the engine until there may be work, at most max_ns. Returns false at once if another thread
	 * does: that one rings ep->wakeup.
	 */
	bool (*sleep)(struct epf *ep, uint64_t max_ns);
	/*
	 * progress=thread: steps the engine on this thread while its own thread sleeps (engine/drive.h). *drives: false before the first call; while it is
	 * true, undrive() must follow. Returns how much was done. A daemon's engine is never driven: its clients are other processes.
	 */
	unsigned (*drive)(struct epf *ep, bool *drives);
	void (*undrive)(struct epf *ep);
	/* Looked at by waits before they sleep: 0, or why nothing will ever come (the daemon is gone). */
	int (*check)(struct epf *ep);
	/* Asked before a loss is reported: whether the peers have been notified of it, which they would not be if this process exited. */
	bool (*has_notified)(struct epf *ep);
	/* The process that runs the engine, for people; 0: not known. */
	uint32_t (*engine_pid)(const struct epf *ep);
};

extern const struct epf_backend_ops epf_backend_embedded;
extern const struct epf_backend_ops epf_backend_service;

#endif
