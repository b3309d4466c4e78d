/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: the client library of EP fabric. A rank opens the fabric, joins its job, registers memory, and then communicates by
 * 16-byte commands in rings: put, get, signal, flush. Usable from C, C++ and through ctypes.
 *
 * Conventions of every function here:
 *  - Returns 0 or a count on success and a negative errno on failure; epf_last_error() then holds one line with cause and
 *    remedy. Output arguments are written only on success. close and free functions accept NULL.
 *  - Timeouts are in nanoseconds; 0 means the configured default (wait-timeout). No wait is endless: it returns -ETIMEDOUT past the
 *    deadline, -ECONNRESET if a rank of the job or this rank's daemon is lost, -ECANCELED after epf_abort(); the text says why.
 *
 * Thread safety. The "Threads:" line of a function names one of these classes:
 *  - any: any thread, concurrently with every other call on the same struct epf. Never blocked by other threads' calls.
 *  - serialized: any thread, too, but one such call at a time; the others wait for it. Such a call never waits for another rank, and for the
 *    daemon at most service-timeout.
 *  - collective: any thread, too, but one such call at a time on one struct epf; the others wait for it, so each may take
 *    bootstrap-timeout longer. All ranks must make their collective calls in the same order: threads that make different ones agree on it.
 *  - producer: one thread at a time for one ring; different rings are independent. Handing a ring to another thread needs the usual
 *    synchronization (a mutex, pthread_join). No lock is taken.
 *  - owner: every other call on that object must have returned, and none may follow a close.
 * Several threads may wait at once, each until its own deadline. A child after fork() must not use or close what its parent opened.
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
	 * NULL, or called instead of epf_progress() inside every wait when progress=caller: for programs that drive several
	 * ranks from one thread. Returns how much was done (0: nothing). Runs on each thread that waits, so at the same time on
	 * several if several wait; may call epf_progress(), but no collective function.
	 */
	int (*progress)(void *arg);
	void *progress_arg;
	uint64_t (*now)(
		void *arg); /* NULL: the monotonic clock; else a clock in ns (simulations) */
	void *now_arg;
};

/* Fills *opts with defaults. Threads: any. */
void epf_options_init(struct epf_options *opts);

/*
 * Opens the fabric for this rank: reads the configuration, then opens the NIC and creates an engine core inside this process (embedded
 * mode), or connects to the ep-fabric daemon that the setting `service` (EPF_SERVICE) names (service mode). Nothing else differs, except: in
 * service mode only memory of epf_memory_alloc() can be registered, and epf_rejoin() is possible. If the daemon restarts before the join,
 * the library reconnects; after the join the loss of the daemon ends every wait with -ECONNRESET, and the rank can only be closed.
 * Returns 0 with *out, which the caller releases by epf_close(). Threads: any; each call makes a new object.
 */
int epf_open(const struct epf_options *opts, struct epf **out);

/* Returns "embedded" or "service:INSTANCE", valid until epf_close(). Threads: any. */
const char *epf_mode(const struct epf *ep);

/*
 * Closes the rank's GPU context, rings, regions and NIC, frees memory of epf_memory_alloc(), and frees ep. Peers see the rank leave. Not
 * collective. Threads: owner. epf_abort() makes other threads' waits return first.
 */
void epf_close(struct epf *ep);

/* Returns the calling thread's last error: one line with cause and remedy, or "". Valid until its next failing call. Threads: any. */
const char *epf_last_error(void);

/*
 * Joins the job: collective over all ranks. boot gives rank and world and carries the exchange; NULL: TCP as configured
 * (rendezvous, secret, rank discovery from the environment). The caller keeps boot and must not close it before ep; ep owns the one it
 * opens for NULL. Publishes the regions registered so far. Threads: collective.
 */
int epf_join(struct epf *ep, struct epf_boot *boot);

/*
 * epf_join() in two halves, for one thread that drives several ranks: epf_join_post() for each rank, then
 * epf_join_finish() for each. The latter returns -EAGAIN while some rank has not posted. Threads: collective.
 */
int epf_join_post(struct epf *ep, struct epf_boot *boot);
int epf_join_finish(struct epf *ep);

/*
 * Instead of epf_join(), in a new process: takes the place of a lost rank of a running job (service mode only, else -EOPNOTSUPP).
 * Rank, world, job and secret come from the configuration and the launcher as for epf_join(), but no rendezvous is needed, and afterwards
 * there is none: epf_barrier(), epf_allgather() and epf_exchange() fail. Signals begin at 0. Publishes the regions registered so far to the
 * peers, who see this rank up again with its epoch one higher (epf_peer_epoch). Waits while the engines still clean up after the
 * lost process, at most bootstrap-timeout. Threads: collective.
 */
int epf_rejoin(struct epf *ep);

/* Return this rank's number and the size of the job; 0 before the join. Threads: any. */
uint32_t epf_rank(const struct epf *ep);
uint32_t epf_world(const struct epf *ep);
/*
 * Return the node number of a rank (nodes are numbered by their lowest rank, ascending; UINT32_MAX for a rank out of range or before the
 * join), and the number of nodes. Threads: any.
 */
uint32_t epf_node_of(const struct epf *ep, uint32_t rank);
uint32_t epf_nodes(const struct epf *ep);

/*
 * Collective helpers over the bootstrap: every rank passes `bytes` bytes, and `all` receives world * bytes in rank order. They block until all
 * ranks have come, the bootstrap's deadline, epf_abort() or the loss of this rank's daemon; epf_barrier() also ends when a rank is lost that is not
 * masked. After a failure the bootstrap is unusable. Threads: collective.
 */
int epf_allgather(struct epf *ep, const void *mine, size_t bytes, void *all);
int epf_barrier(struct epf *ep);

/*
 * Allocates zeroed, page-aligned memory that can be registered (a memfd; pages are committed when touched). Released by epf_memory_free()
 * or epf_close(). -ENOMEM, or the system's errno. Threads: any.
 */
int epf_memory_alloc(struct epf *ep, uint64_t bytes, void **addr);
/* Unmaps memory of epf_memory_alloc(), after the withdrawal of its regions. Ignores other addresses. Threads: any. */
void epf_memory_free(struct epf *ep, void *addr);

/*
 * Registers [addr, addr + bytes) and returns the region's number: 0, 1, 2, ... in order of registration, so that ranks
 * registering in the same order agree on numbers (concurrent registrations get numbers in an unspecified order). The caller keeps the
 * memory, which must stay mapped until withdrawal or close. Peers see the region after the next epf_join() or epf_exchange().
 * -ENOSPC beyond the `regions` limit. Threads: serialized.
 */
int epf_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			uint32_t *region);

/*
 * Memory of a GPU, on the software NIC (nic=emu: copied by the GPU's copy engines, on this host only) or over TCP (nic=tcp: through pinned
 * memory of the host). epf_gpu_alloc() returns zeroed memory of device `device` that can also be shared with a daemon. Release it by
 * epf_gpu_free(), after the withdrawal of its regions or epf_close().
 * epf_gpu_copy() copies between it and ordinary memory, and waits. The setting gpu-backend names the driver; -ENODEV or -ENOENT without
 * one. Threads: any.
 */
int epf_gpu_alloc(struct epf *ep, int device, uint64_t bytes, void **addr);
void epf_gpu_free(struct epf *ep, void *addr);
int epf_gpu_copy(struct epf *ep, void *dst, const void *src, uint64_t bytes);

/*
 * epf_region_register() for a device pointer: memory of epf_gpu_alloc(), or of the driver's own allocator (cudaMalloc). One difference:
 * a get from it is not ordered with later writes to it by the same peer, even on an ordered NIC. Threads: serialized.
 */
int epf_region_register_gpu(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			    uint32_t *region);

/* Where the signals of a rank are stored. */
enum epf_signals_where {
	EPF_SIGNALS_HOST =
		0, /* host memory; the engine adds. For waits on the host, and by one thread of a kernel */
	EPF_SIGNALS_GPU = 1, /* GPU memory; the NIC adds. For kernels in which many threads wait */
};

/*
 * Chooses where this rank's signals are stored; the default is host memory. At most once, before the join. GPU: zeroed memory of `device`, whose
 * kernels will wait (epf_gpu_open() on the same device); it is also a region and takes the next number. Peers and kernels use the same
 * calls for both places, with the same order (an addition is visible after the data it covers, R4 and A4) and exact counts. The costs differ:
 * the NIC performs one addition after the other, each takes as long as a copy, and nothing that arrives after it takes effect before;
 * epf_signal_value() and epf_signal_wait() on the host read through the GPU's driver, so not on a thread that a kernel waits for.
 * Returns 0; -EINVAL: not a place, chosen already, or the join has begun; -ENOTSUP or similar: no GPU, or a NIC that cannot add to its
 * memory (nic=emu and nic=tcp can). Threads: serialized.
 */
int epf_signals_place(struct epf *ep, enum epf_signals_where where, int device);

/* Publishes the regions that the ranks have registered since the join. Threads: collective. */
int epf_exchange(struct epf *ep);

/*
 * Withdraws a region: new commands that name it fail (EPF_S_REVOKED), peers acknowledge that they have nothing in flight to it, then it is
 * deregistered and its memory is free for other use. Not collective. Does not wait for lost peers. -ETIMEDOUT names a peer that has not
 * acknowledged; the withdrawal goes on, and another call waits for it again. Threads: any; its steps are serialized calls, the wait between them is not.
 */
int epf_region_withdraw(struct epf *ep, uint32_t region, uint64_t timeout_ns);

struct epf_ring_options {
	size_t size;     /* sizeof(struct epf_ring_options) */
	uint32_t slots;  /* 0: configured ring-slots; a power of two */
	uint32_t weight; /* share against other rings of the core, 1..255; 0: 1 */
	uint64_t start;  /* tests of counter wrap: first value of the counters; 0 otherwise */
};

/*
 * Opens a ring, before or after the join. The caller releases it by epf_ring_close(), or leaves it to epf_close(). -ENOSPC beyond 4,096
 * rings. Threads: serialized.
 */
int epf_ring_open(struct epf *ep, const struct epf_ring_options *opts, struct epf_ring **out);

/*
 * Waits until the ring's commands are retired (default deadline), then frees it. Threads: owner for the ring; serialized, after the wait,
 * for its struct epf.
 */
void epf_ring_close(struct epf_ring *ring);

/*
 * Commands. Each pushes one command; when the ring is full it waits for room (default deadline). Offsets and lengths
 * in bytes, any alignment (16-byte multiples take one slot, others two). 1 <= bytes <= 2 GiB.
 * A return of 0 means pushed, not done: the source may be reused when the command is retired (epf_wait_retired).
 * Commands that the engine refuses or that fail are counted in the ring's error record (epf_ring_error). -E2BIG: arguments that
 * no command can carry. -ETIMEDOUT: no room. Threads: producer, for all of them.
 */
int epf_put(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags);

/* Puts bytes that count towards group `signal` at `rank` (see epf_signal_counted). Threads: producer. */
int epf_put_group(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		  uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		  uint64_t bytes, uint32_t signal, unsigned flags);

/* Puts bytes, then adds `add` (1 .. 2^30-1) to the peer's signal. Threads: producer. */
int epf_put_signal(struct epf_ring *ring, uint32_t rank, uint32_t local_region,
		   uint64_t local_offset, uint32_t remote_region, uint64_t remote_offset,
		   uint64_t bytes, uint32_t signal, uint32_t add, unsigned flags);

/* Puts 1 to 8 bytes from `value` (little-endian) without a source region. Threads: producer. */
int epf_put_inline(struct epf_ring *ring, uint32_t rank, uint32_t remote_region,
		   uint64_t remote_offset, uint64_t value, uint32_t bytes, unsigned flags);

/* Adds to a signal of `rank` after everything earlier in the stream. Threads: producer. */
int epf_signal_send(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		    unsigned flags);

/*
 * Adds to a signal of `rank` once `count` (>= 1) more puts of group `signal` from this rank, by any of its rings, have been
 * delivered there: the n-th counted signal of a group waits for the sum of all counts so far. It may be pushed before its puts,
 * by at most ring-window commands of a ring. Threads: producer.
 */
int epf_signal_counted(struct epf_ring *ring, uint32_t rank, uint32_t signal, uint64_t value,
		       uint32_t count, unsigned flags);

/* Adds `value` to the 8-byte aligned word at the peer's region + offset, after everything earlier in the stream. Threads: producer. */
int epf_add(struct epf_ring *ring, uint32_t rank, uint32_t remote_region, uint64_t remote_offset,
	    uint64_t value, unsigned flags);

/* Copies remote memory to local memory; retired when the local memory is written. Not ordered with puts. Threads: producer. */
int epf_get(struct epf_ring *ring, uint32_t rank, uint32_t local_region, uint64_t local_offset,
	    uint32_t remote_region, uint64_t remote_offset, uint64_t bytes, unsigned flags);

/*
 * Pushes a FLUSH: retired when everything earlier in the ring, or with EPF_ALL_RINGS in all rings of the rank, is visible at its target.
 * Later commands of the ring proceed meanwhile, except the next flush, which waits for it. In the other rings EPF_ALL_RINGS covers what
 * was pushed before it, except counted signals that still lack puts, and, in a ring with a flush under way, what follows a second flush or
 * is more than ring-window commands behind the first. Threads: producer.
 */
int epf_flush_post(struct epf_ring *ring, unsigned flags);

/*
 * epf_flush_post(), then waits for it. -EIO if a command of the ring has failed since the last call of epf_ring_error(), or, if a rank is lost that is
 * not masked, -ECONNRESET, which names it. Threads: producer.
 */
int epf_flush(struct epf_ring *ring, unsigned flags, uint64_t timeout_ns);

/* Pushes a raw 16-byte command (queues/epf_cmd.h) as it is, parity 0: for tests and benchmarks of bad input. Threads: producer. */
int epf_ring_push_raw(struct epf_ring *ring, uint64_t lo, uint64_t hi);

/* Returns the number of commands pushed so far: a ticket for epf_wait_retired(). Threads: producer. */
uint64_t epf_ring_pushed(const struct epf_ring *ring);
/* Returns the number of commands retired so far. Threads: any. */
uint64_t epf_ring_done(const struct epf_ring *ring);
/* Waits until at least `pushed` commands of the ring are retired. Threads: any. */
int epf_wait_retired(struct epf_ring *ring, uint64_t pushed, uint64_t timeout_ns);

/* What failed in a ring: the first failure since the ring was opened (index counted from 0) and how many in all. */
struct epf_ring_failure {
	uint64_t failed; /* commands failed since the ring was opened */
	uint64_t index;  /* of the first one */
	uint32_t rank;   /* the rank it named */
	uint32_t status; /* enum epf_status */
	uint32_t reason; /* stable code, docs/errors.md; 0: none */
};

/*
 * Returns 1 with *out filled if commands of the ring have failed since the last call, else 0. With 1, epf_last_error() says in words what
 * happened to the first one. Threads: producer.
 */
int epf_ring_error(struct epf_ring *ring, struct epf_ring_failure *out);

/* Returns the value of a signal of this rank; the data it covers is visible. 0 for a number out of range. Threads: any. */
uint64_t epf_signal_value(const struct epf *ep, uint32_t signal);
/* Waits until the value is at_least or more (compared modulo 2^64). -ERANGE: a number out of range. Threads: any. */
int epf_signal_wait(struct epf *ep, uint32_t signal, uint64_t at_least, uint64_t timeout_ns);
/* Returns the number of signals of this rank. Threads: any. */
uint32_t epf_signal_count(const struct epf *ep);

/*
 * Reconnects nodes that were lost although their ranks live: all links between two nodes were down, or an engine was silent for too
 * long. Every rank of the job calls it after a call has failed with -ECONNRESET, while no other thread of the rank waits for peers or
 * pushes commands to them. The ranks meet over the bootstrap, within bootstrap-timeout; if that is lost too, because a rank has died or came by
 * epf_rejoin(), a job cannot be reconnected.
 * Commands in flight to a lost node have failed with a status, although some may have taken effect: none does any more after the return,
 * and signals keep the values they have then. So have those to ranks of the own node where its NIC no longer completes them. Counted signals count puts from then on.
 * Returns the same value at every rank: 0 if all ranks reach each other again; those that were lost are up with an epoch one higher
 * (epf_peer_epoch), masks stay (epf_peer_unmask). -ENETUNREACH if some nodes remain lost because links between them are still down; the
 * others are back, and all may call it again. Threads: collective.
 */
int epf_reconnect(struct epf *ep);

/* Returns the state of a rank: 1 up, 0 not known yet, or a negative errno (-ECONNRESET: lost, -EPIPE: it has closed). Threads: any. */
int epf_peer_state(const struct epf *ep, uint32_t rank);
/*
 * Masks a rank, for this rank only: its loss no longer fails waits; commands to it retire at once as failed. epf_close() of a rank that has masked
 * all others waits for none of them. Threads: serialized.
 */
int epf_peer_mask(struct epf *ep, uint32_t rank);
/* Ends epf_peer_mask(), for a rank that has rejoined: its loss fails waits again. Threads: serialized. */
int epf_peer_unmask(struct epf *ep, uint32_t rank);
/*
 * Returns how often a rank has returned to this one by epf_rejoin() or epf_reconnect(). UINT32_MAX for a rank out of range, or before the
 * join. Threads: any.
 */
uint32_t epf_peer_epoch(const struct epf *ep, uint32_t rank);

/*
 * Ends every wait of this rank, now and from now on, with -ECANCELED, and sets the abort word of its rings, which waits in device
 * code check. The rank can still be closed. Threads: any, but not a signal handler.
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

/* Fills *opts with defaults. Threads: any. */
void epf_gpu_options_init(struct epf_gpu_options *opts);

/*
 * Gives kernels of a GPU access to this rank: opens rings for them, pins those and the signals, and creates the context that device calls
 * take (epf_gpu_context). After the join; one per rank. Kernels launched by any API of the same process and device may use it, in any stream,
 * many at a time. A kernel cannot wake an engine, so one with core-idle=sleep, embedded or in a daemon, pauses instead until
 * epf_gpu_close() or epf_gpu_pushes(). A daemon of control protocol 1.4 does not: it looks every 20 ms, and the log says so. -ENODEV
 * without a GPU. The caller releases *out by epf_gpu_close(), or leaves it to epf_close(). Threads: serialized.
 */
int epf_gpu_open(struct epf *ep, const struct epf_gpu_options *opts, struct epf_gpu **out);

/*
 * Says whether (1, 0) kernels of the context push commands that nobody else wakes the engine for: 1 after epf_gpu_open(). 0 where they
 * store to all peers directly, or where the caller pushes to a ring of the host behind them: the engine may sleep then, and takes no CPU.
 * A daemon's engine sleeps when no rank that its thread serves has kernels that push. Threads: serialized. Returns 0, or a negative errno.
 */
int epf_gpu_pushes(struct epf_gpu *gpu, int does);

/* Returns the context, a device address: pass it to kernels, never read it on the host. Valid until epf_gpu_close(). Threads: any. */
const struct epf_gpu_ctx *epf_gpu_context(const struct epf_gpu *gpu);

/*
 * Returns what kernels reported: 0, or the first failure since the last call (which it clears) as -ETIMEDOUT (a deadline), -ECONNRESET (a
 * rank or the daemon is lost), -ECANCELED (epf_abort), -EIO (commands failed), -E2BIG or -ERANGE (an impossible call), -EPIPE (a shared
 * ring was abandoned), with a text. Call it when a kernel has ended, or said that a call failed. Threads: one at a time for one GPU context.
 */
int epf_gpu_check(struct epf_gpu *gpu);

/*
 * Closes the context when no kernel that uses it runs any more: waits until what they pushed is retired, unpins, closes the rings.
 * Threads: owner for the context.
 */
void epf_gpu_close(struct epf_gpu *gpu);

struct epf_gpu_info {
	size_t size;         /* set by the caller: sizeof(struct epf_gpu_info) */
	const char *backend; /* "cuda", "hip" or "fake"; static */
	int device;
	uint32_t multiprocessors;
	uint32_t warp; /* lanes: 32 or 64; fake: 1 */
	uint64_t
		identity; /* the same in all processes of a host that use this GPU, and nowhere else */
};

/* Describes the GPU of a context. Writes only out->size bytes. Threads: one at a time for one GPU context. */
int epf_gpu_describe(const struct epf_gpu *gpu, struct epf_gpu_info *out);

/*
 * Loads device code onto the GPU of a context, for libraries of kernels that link no vendor's library. image: a fat binary, cubin or PTX text
 * (cuda), a code object (hip), a table of C functions (fake: fabric/gpu/fake.h). Waits for the device, so never call it while a kernel
 * runs that waits for this thread. Unload when no kernel of it runs, before epf_gpu_close(). Threads: one at a time for one GPU context.
 */
int epf_gpu_module_load(struct epf_gpu *gpu, const void *image, struct epf_gpu_module **out);
void epf_gpu_module_unload(struct epf_gpu_module *code);

/* Finds a kernel by name; valid as long as the code. Threads: one at a time for one GPU context. */
int epf_gpu_module_kernel(struct epf_gpu_module *code, const char *name, void **kernel);

/*
 * Launches a kernel: grid blocks of `block` threads; args: a pointer to the value of each parameter, copied before the call returns. stream: the
 * vendor's stream handle; NULL: the default stream. May be captured into a graph. Threads: any.
 */
int epf_gpu_module_launch(struct epf_gpu_module *code, void *kernel, void *stream, uint32_t grid,
			  uint32_t block, void **args);

/* Waits until a stream has run everything that was put into it. Threads: any. */
int epf_gpu_stream_sync(struct epf_gpu *gpu, void *stream);

/*
 * Events: points in the work of streams, for libraries of kernels that order streams. make: an event that nothing was recorded in; the caller frees it
 * before epf_gpu_close(). record: what the stream has to do so far; what was recorded before is forgotten, except by streams that wait for it already.
 * wait: what is put into the stream from now on waits for the last record; the caller does not wait. stream: as of epf_gpu_module_launch(). Return 0 or
 * a negative errno. Threads: any.
 */
int epf_gpu_event_make(struct epf_gpu *gpu, void **event);
void epf_gpu_event_free(struct epf_gpu *gpu, void *event);
int epf_gpu_event_record(struct epf_gpu *gpu, void *event, void *stream);
int epf_gpu_event_wait(struct epf_gpu *gpu, void *event, void *stream);

/*
 * Runs one step of the engine, for programs that poll instead of waiting. Returns how much was done; 0 if another thread is running the engine: with
 * progress=thread its own thread does unless it sleeps, and a daemon's engine is never run by a client. Threads: any.
 */
int epf_progress(struct epf *ep);

/*
 * Reads a counter by name: of class core in queues/stats_keys.h ("cmds_dequeued"), else of struct epf_nic_counters ("retransmits").
 * For benchmarks and tests. -ENOENT: no such counter. Threads: serialized.
 */
int epf_counter(const struct epf *ep, const char *name, uint64_t *value);

struct epf_info {
	size_t size;          /* set by the caller: sizeof(struct epf_info) */
	uint64_t job_id;      /* of this run of the job; 0: not joined */
	int call_stats;       /* the setting call-stats */
	char job[256];        /* name of the job */
	char stats_dir[4096]; /* where statistics files belong; it need not exist */
};

/* Describes this rank's settings and job, for libraries that publish statistics of their own. Writes only out->size bytes. Threads: any. */
int epf_describe(const struct epf *ep, struct epf_info *out);

/* Returns the path of the statistics file, or "" if it is in memory only; valid until epf_close(). Threads: any. */
const char *epf_stats_file(const struct epf *ep);

/* Returns the bytes that the engine keeps per peer rank (state, lanes, streams), without registered memory. Threads: serialized. */
uint64_t epf_bytes_per_peer(const struct epf *ep);

/* Returns "0.1.0". Threads: any. */
const char *epf_version(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
