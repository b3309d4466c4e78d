/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: the client library of EP fabric. A rank opens the fabric, joins its job, registers memory, and from then
 * on talks by 16-byte commands in rings: put, get, signal, flush. Usable from C, C++ and by ctypes.
 *
 * Conventions of every function here:
 *  - Returns 0 or a count on success, a negative errno on failure; epf_last_error() then holds one line with cause and
 *    remedy. Output arguments are written only on success. close and free functions accept NULL.
 *  - A struct epf and all its rings belong to one thread at a time, unless a function says otherwise; each ring may be
 *    handed to a thread of its own (one producer a ring).
 *  - Timeouts are in nanoseconds; 0 means the configured default (wait-timeout). No wait is endless: past the deadline it
 *    returns -ETIMEDOUT, when a rank of the job is lost -ECONNRESET, and the text says which rank and why.
 *
 * Order (the contract): a SIGNAL, or a PUT_SIGNAL with EPF_FENCE, becomes visible at the peer only after every
 * earlier command of the same stream (same ring, same peer) is visible there. A PUT_SIGNAL without EPF_FENCE covers at
 * least its own data. Grouped puts (epf_put_group) belong to their group, not to the ring's stream: a counted
 * signal covers them, and so does a flush. Nothing else is ordered. See docs/design.md.
 */
#ifndef EPF_H
#define EPF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define EPF_VERSION_MAJOR 0
#define EPF_VERSION_MINOR 1

struct epf;            /* one rank's access to the fabric */
struct epf_ring;       /* one ring of commands, one producer */
struct epf_boot;       /* how the ranks of a job find each other: bootstrap/boot.h */
struct epf_gpu;        /* rings, signals and completion counters in the hands of a GPU's kernels */
struct epf_gpu_ctx;    /* the same, as kernels see it: kernels/epf_device.cuh */
struct epf_gpu_module; /* device code that was brought to a GPU */

/* Flags of commands. */
enum {
	EPF_FENCE = 1,     /* put_signal: the signal covers everything earlier in the stream */
	EPF_BULK = 2,      /* throughput class; without it: latency class */
	EPF_ALL_RINGS = 4, /* flush: all rings of the rank */
};

/* Access of a region by peers. Local use as a source or as the target of a get is always allowed. */
enum {
	EPF_REMOTE_WRITE = 1,
	EPF_REMOTE_READ = 2,
};

struct epf_options {
	size_t size;             /* sizeof(struct epf_options): lets the struct grow */
	const char *config_file; /* NULL: EPF_CONFIG, /etc/ep-fabric.conf */
	const char *const *
		settings; /* NULL or a NULL-terminated list of "option-name=value"; strongest origin */
	/*
	 * NULL, or called instead of epf_progress() inside every wait when progress=caller: for programs that drive
	 * several ranks from one thread. Returns how much was done (0: nothing).
	 */
	int (*progress)(void *arg);
	void *progress_arg;
	uint64_t (*now)(
		void *arg); /* NULL: the monotonic clock; else a clock in ns (simulations) */
	void *now_arg;
};

/* Fills *opts with defaults. */
void epf_options_init(struct epf_options *opts);

/*
 * Opens the fabric for this rank: reads the configuration, then opens the NIC and makes the engine core inside this process (embedded
 * mode), or connects to the ep-fabric daemon that the setting `service` (EPF_SERVICE) names (service mode). Nothing else differs for the caller, but:
 * in service mode only memory of epf_memory_alloc can be registered, and epf_rejoin is possible. A daemon that is restarted before the join is
 * connected to again; after the join its loss ends every wait with -ECONNRESET, and the rank can only be closed.
 */
int epf_open(const struct epf_options *opts, struct epf **out);

/* "embedded" or "service:INSTANCE". */
const char *epf_mode(const struct epf *ep);

/* Ends it: rings, regions, NIC. Peers see the rank leave. Not collective. */
void epf_close(struct epf *ep);

/* The last error of this thread: one line with cause and remedy, or "". Valid until the next failing call in this thread. */
const char *epf_last_error(void);

/*
 * Joins the job: collective over all ranks. boot gives rank and world and carries the exchange; NULL: TCP as configured
 * (rendezvous, secret, rank discovery from the environment). boot stays the caller's and must outlive ep; NULL's is owned by ep.
 * Regions registered before are published to the peers.
 */
int epf_join(struct epf *ep, struct epf_boot *boot);

/*
 * The same in two halves for one thread that drives several ranks: epf_join_post() for each rank, then
 * epf_join_finish() for each (-EAGAIN while some rank has not posted).
 */
int epf_join_post(struct epf *ep, struct epf_boot *boot);
int epf_join_finish(struct epf *ep);

/*
 * Instead of epf_join, in a new process: takes the place of a lost rank of a job that still runs (service mode only, else -EOPNOTSUPP).
 * Rank, world, job and secret come from the configuration and the launcher as for epf_join, but nobody is met: no rendezvous is needed, and
 * afterwards there is none (epf_barrier, epf_allgather and epf_exchange fail). Signals begin at 0; regions registered before are published
 * to the peers, who see this rank up again with its epoch one higher (epf_peer_epoch). Waits while the engines still clear up behind the
 * lost process, at most bootstrap-timeout.
 */
int epf_rejoin(struct epf *ep);

uint32_t epf_rank(const struct epf *ep);
uint32_t epf_world(const struct epf *ep);
/* Node number of a rank: nodes are numbered by their lowest rank, ascending. UINT32_MAX for a rank out of range. */
uint32_t epf_node_of(const struct epf *ep, uint32_t rank);
uint32_t epf_nodes(const struct epf *ep);

/* Collective helpers over the bootstrap: every rank gives `bytes` bytes, all gets world * bytes in rank order. Blocking; the wait ends
 * with the bootstrap's deadline, by epf_abort, or when this rank's daemon is lost, and then the bootstrap is of no more use. */
int epf_allgather(struct epf *ep, const void *mine, size_t bytes, void *all);
int epf_barrier(struct epf *ep);

/* Allocates zeroed, page-aligned memory that can be registered (memfd; committed when touched). Freed by epf_memory_free. */
int epf_memory_alloc(struct epf *ep, uint64_t bytes, void **addr);
void epf_memory_free(struct epf *ep, void *addr);

/*
 * Registers [addr, addr + bytes) and returns the region's number: 0, 1, 2, ... in order of registration, so that ranks
 * registering in the same order agree on numbers. The memory stays the caller's and must stay mapped until
 * withdrawal or close. Peers see it after the next epf_join or epf_exchange. -ENOSPC past the `regions` limit.
 */
int epf_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			uint32_t *region);

/*
 * Memory of a GPU, on the software NIC (nic=emu): copied by the GPU's copy engines, on this host only. epf_gpu_alloc gives zeroed memory of
 * device `device` that a daemon can be given too; epf_gpu_free frees it, after the withdrawal of its regions or epf_close.
 * epf_gpu_copy copies between it and ordinary memory, and waits. The setting gpu-backend names the driver; -ENODEV or -ENOENT where there is none.
 */
int epf_gpu_alloc(struct epf *ep, int device, uint64_t bytes, void **addr);
void epf_gpu_free(struct epf *ep, void *addr);
int epf_gpu_copy(struct epf *ep, void *dst, const void *src, uint64_t bytes);

/*
 * epf_region_register for a device pointer: memory of epf_gpu_alloc, or of the driver's own allocator (cudaMalloc). Otherwise the same,
 * but: a get of it is not ordered with later writes to it by the same peer, not even where the NIC is ordered.
 */
int epf_region_register_gpu(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			    uint32_t *region);

/* Where the signals of a rank lie. */
enum epf_signals_where {
	EPF_SIGNALS_HOST =
		0, /* in host memory, to which the engine adds: for the host, and for one thread of a kernel that waits */
	EPF_SIGNALS_GPU =
		1, /* in memory of a GPU, to which the NIC adds: for kernels many threads of which wait */
};

/*
 * Chooses where this rank's signals lie; host memory if it is never called. Once, before the join. GPU: memory of `device`, whose kernels will wait
 * (epf_gpu_open on the same device), zeroed, and a region: it takes the next number. Everything else is the same in both places: peers and kernels
 * use the same calls and know nothing of it, the order is the same (an addition is seen after the data that it covers, R4 and A4), counts are exact. Other
 * are the costs: the NIC makes one addition after the other, each takes as long as a copy, and nothing that arrives behind it takes effect before;
 * epf_signal_value and epf_signal_wait on the host read through the GPU's driver, so not on a thread for which a kernel waits there.
 *
 * Return: 0; -EINVAL: not a place, chosen already, or the join has begun; -ENOTSUP or like: no GPU, or a NIC that cannot add to its memory (RDMA
 * devices: only nic=emu can).
 */
int epf_signals_place(struct epf *ep, enum epf_signals_where where, int device);

/* Collective: publishes regions registered since the join. */
int epf_exchange(struct epf *ep);

/*
 * Withdraws a region: new commands that name it fail (EPF_S_REVOKED), peers acknowledge that nothing of theirs is in flight
 * to it, then it is deregistered and its memory is free for other use. Not collective. Lost peers are not waited for.
 */
int epf_region_withdraw(struct epf *ep, uint32_t region, uint64_t timeout_ns);

struct epf_ring_options {
	size_t size;
	uint32_t slots;  /* 0: configured ring-slots; a power of two */
	uint32_t weight; /* share against other rings of the core, 1..255; 0: 1 */
	uint64_t start;  /* tests of counter wrap: first value of the counters; 0 otherwise */
};

/* Opens a ring. May be called before or after the join. -ENOSPC past 4,096 rings. */
int epf_ring_open(struct epf *ep, const struct epf_ring_options *opts, struct epf_ring **out);

/* Waits until the ring's commands are retired (default deadline), then frees it. */
void epf_ring_close(struct epf_ring *ring);

/*
 * Commands. Each pushes one command; when the ring is full it waits for room (default deadline). Offsets and lengths
 * in bytes, any alignment (16-byte multiples are one slot, others two). 1 <= bytes <= 2 GiB.
 * A return of 0 means pushed, not done: the source may be reused when the command is retired (epf_wait_retired);
 * commands the engine refuses or fails are counted in the ring's error record (epf_ring_error).
 */
int epf_put(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags);

/* A put that counts towards group `signal` at `rank` (see epf_signal_counted). */
int epf_put_group(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		  uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		  uint64_t bytes, uint32_t signal, unsigned flags);

/* Put, then add `add` (1 .. 2^30-1) to the peer's signal. */
int epf_put_signal(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		   uint64_t bytes, uint32_t signal, uint32_t add, unsigned flags);

/* Puts 1 to 8 bytes from `value` (little-endian) without a source region. */
int epf_put_inline(struct epf_ring *ring, uint32_t rank, uint32_t remote_region,
		   uint64_t remote_offset, uint64_t value, uint32_t bytes, unsigned flags);

/* Adds to a signal of `rank` after everything earlier in the stream. */
int epf_signal_send(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		    unsigned flags);

/*
 * Adds to a signal of `rank` once `count` (>= 1) more puts of group `signal` from this rank, by any of its rings, have been
 * delivered there: the n-th counted signal of a group waits for the sum of all counts so far. It may be pushed before its puts,
 * but not further before them than ring-window commands of a ring.
 */
int epf_signal_counted(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		       uint32_t count, unsigned flags);

/* Adds `value` to the 8-byte aligned word at the peer's region + offset, after everything earlier in the stream. */
int epf_add(struct epf_ring *ring, uint32_t rank, uint32_t remote_region, uint64_t remote_offset,
	    uint64_t value, unsigned flags);

/* Remote memory to local memory; retired when the local memory is written. Not ordered with puts. */
int epf_get(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags);

/*
 * Pushes a FLUSH (retired when everything earlier of the ring, or with EPF_ALL_RINGS of the rank, is visible at its target).
 * A ring goes on behind a flush; the next flush waits for it. EPF_ALL_RINGS covers of the other rings what was pushed before
 * it, except counted signals that still lack puts, and what stands behind the second of two flushes of such a ring of which
 * the first is under way, or more than ring-window commands behind the first.
 */
int epf_flush_post(struct epf_ring *ring, unsigned flags);

/* epf_flush_post, then waits for it. -EIO when a command of the ring failed since the last call of epf_ring_error. */
int epf_flush(struct epf_ring *ring, unsigned flags, uint64_t timeout_ns);

/* Pushes a raw 16-byte command (queues/epf_cmd.h) as it is, parity 0: for tests and benchmarks of bad input. */
int epf_ring_push_raw(struct epf_ring *ring, uint64_t lo, uint64_t hi);

/* Commands pushed so far: a ticket for epf_wait_retired. */
uint64_t epf_ring_pushed(const struct epf_ring *ring);
/* Commands retired so far. */
uint64_t epf_ring_done(const struct epf_ring *ring);
/* Waits until at least `pushed` commands of the ring are retired. */
int epf_wait_retired(struct epf_ring *ring, uint64_t pushed, uint64_t timeout_ns);

/* What failed in a ring: the first failure since the ring was opened (index counted from 0) and how many in all. */
struct epf_ring_failure {
	uint64_t failed; /* commands failed since the ring was opened */
	uint64_t index;  /* of the first one */
	uint32_t rank;   /* the rank it named */
	uint32_t status; /* enum epf_status */
	uint32_t reason; /* stable code, docs/errors.md; 0: none */
};

/* 1 and *out filled if commands of the ring failed since the last call, else 0. */
int epf_ring_error(struct epf_ring *ring, struct epf_ring_failure *out);

/* Signals of this rank: value (acquire: data it covers is visible), and waiting for value >= at_least (compared modulo 2^64). */
uint64_t epf_signal_value(const struct epf *ep, uint32_t signal);
int epf_signal_wait(struct epf *ep, uint32_t signal, uint64_t at_least, uint64_t timeout_ns);
uint32_t epf_signal_count(const struct epf *ep);

/*
 * Collective: reconnects nodes that were lost although their ranks live: all links between two nodes were down, or an engine was silent for too
 * long. Every rank of the job calls it, when it has been told (a call ended with -ECONNRESET) and no other thread of it waits for peers or pushes commands to
 * them. The ranks meet over the bootstrap, at most bootstrap-timeout; where that is lost too, because a rank has died or came by epf_rejoin, a job
 * cannot be reconnected.
 * What was under way to a lost node has failed with a status, although some of it may have taken effect before: nothing of it does any more when
 * this returns, and signals keep the values they have then. Counted signals count puts from now on.
 * Returns the same at every rank: 0: all ranks reach each other again, those that were lost are up with an epoch one higher
 * (epf_peer_epoch); masks stay (epf_peer_unmask). -ENETUNREACH: some nodes stay lost, links between them are still down; the others are back. It may be
 * called again by all.
 */
int epf_reconnect(struct epf *ep);

/* State of a peer rank: 1 up, 0 unknown yet, or a negative errno (-ECONNRESET: lost, -EPIPE: it has closed). */
int epf_peer_state(const struct epf *ep, uint32_t rank);
/* Masks a rank: waits no longer fail because of it; commands to it retire at once as failed. Only for this rank. */
int epf_peer_mask(struct epf *ep, uint32_t rank);
/* The contrary: for a rank that has come back. Waits fail again when it is lost. */
int epf_peer_unmask(struct epf *ep, uint32_t rank);
/* How often a rank has come back to this one by epf_rejoin or epf_reconnect: 0 at first. UINT32_MAX for a rank out of range, or before the join. */
uint32_t epf_peer_epoch(const struct epf *ep, uint32_t rank);

/*
 * Ends every wait of this rank, now and from now on, with -ECANCELED, and sets the abort word of its rings, which waits in device
 * code look at. Any thread. The rank can still be closed.
 */
void epf_abort(struct epf *ep);

/* Number of private rings that means none at all: 0 means the configured number. */
#define EPF_GPU_NO_PRIVATE UINT32_MAX

struct epf_gpu_options {
	size_t size;
	const char *backend; /* "cuda", "hip", "fake" or "auto"; NULL: configured gpu-backend */
	int device; /* -1: configured gpu-device, by default the calling thread's current one */
	uint32_t private_rings; /* 0: configured gpu-rings */
	uint32_t shared_rings;  /* 0: configured gpu-shared-rings */
	uint32_t ring_slots;    /* of a private ring; 0: configured gpu-ring-slots */
	uint32_t shared_slots;  /* of a shared ring; 0: configured gpu-shared-slots */
	uint64_t timeout_ns;    /* deadline of every wait in a kernel; 0: configured gpu-timeout */
};

/* Fills *opts with defaults. */
void epf_gpu_options_init(struct epf_gpu_options *opts);

/*
 * Gives kernels of a GPU access to this rank: opens rings for them, pins those and the signals, and makes the context that device calls
 * take (epf_gpu_context). After the join; one a rank. Kernels launched by any API of the same process and device may use it, in any stream,
 * many at a time. An embedded engine should not sleep (core-idle): a kernel cannot wake it. -ENODEV without a GPU.
 */
int epf_gpu_open(struct epf *ep, const struct epf_gpu_options *opts, struct epf_gpu **out);

/* The context, a device address: pass it to kernels, never read it on the host. Valid until epf_gpu_close. */
const struct epf_gpu_ctx *epf_gpu_context(const struct epf_gpu *gpu);

/*
 * What kernels reported: 0, or the first failure since the last call (which it clears) as -ETIMEDOUT (a deadline), -ECONNRESET (a rank or the
 * daemon is lost), -ECANCELED (epf_abort), -EIO (commands failed), -E2BIG or -ERANGE (a call that cannot be), -EPIPE (a shared
 * ring was given up), with a sentence. Look when a kernel has ended, or said that a call failed.
 */
int epf_gpu_check(struct epf_gpu *gpu);

/*
 * Ends it, when no kernel that uses it runs any more: waits until what they pushed is retired, unpins, closes the rings. epf_close does
 * it too.
 */
void epf_gpu_close(struct epf_gpu *gpu);

struct epf_gpu_info {
	size_t size;         /* set by the caller: sizeof(struct epf_gpu_info) */
	const char *backend; /* "cuda", "hip" or "fake"; static */
	int device;
	uint32_t multiprocessors;
	uint32_t warp; /* lanes: 32 or 64; fake: 1 */
};

/* What the GPU of a context is. Only out->size bytes are written. */
int epf_gpu_describe(const struct epf_gpu *gpu, struct epf_gpu_info *out);

/*
 * Device code on the GPU of a context, for libraries of kernels that link no vendor's library. image: a fat binary, cubin or PTX text (cuda),
 * a code object (hip), a table of C functions (fake: fabric/gpu/fake.h). Loading waits for the device, and so never while kernels
 * run that wait for what this thread is to do. Unload when no kernel of it runs, before epf_gpu_close().
 */
int epf_gpu_module_load(struct epf_gpu *gpu, const void *image, struct epf_gpu_module **out);
void epf_gpu_module_unload(struct epf_gpu_module *code);

/* A kernel by its name, valid as long as the code. */
int epf_gpu_module_kernel(struct epf_gpu_module *code, const char *name, void **kernel);

/*
 * Launches a kernel: grid blocks of `block` threads, args: a pointer to the value of each parameter, copied before the call returns. stream: the
 * vendor's stream handle; NULL: the default stream. May be captured into a graph. Any thread.
 */
int epf_gpu_module_launch(struct epf_gpu_module *code, void *kernel, void *stream, uint32_t grid,
			  uint32_t block, void **args);

/* Waits until a stream has run everything that was put into it. */
int epf_gpu_stream_sync(struct epf_gpu *gpu, void *stream);

/* progress=caller: runs one step of the engine; returns how much was done. With progress=thread: returns 0. */
int epf_progress(struct epf *ep);

/*
 * Counters by name: of class core in queues/stats_keys.h ("cmds_dequeued"), else of struct epf_nic_counters ("retransmits").
 * For benchmarks and tests. -ENOENT: no such counter.
 */
int epf_counter(const struct epf *ep, const char *name, uint64_t *value);
/* Path of the statistics file, or "" when it is in memory only. */
const char *epf_stats_file(const struct epf *ep);

/* Bytes the engine keeps per peer rank (its state, its lanes, its streams), without registered memory. */
uint64_t epf_bytes_per_peer(const struct epf *ep);

/* "0.1.0" */
const char *epf_version(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
