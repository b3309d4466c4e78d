/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench ring --gpu: commands from kernels to a CPU. Two processes: this one, which takes and checks commands and never loads a driver's
 * library (gpu_main.c, gpu_take.c), and a child that owns the GPU (gpu_child.c, gpu_engine.c). They share one mapping, made
 * before the fork: rings, words, and a mailbox with one request at a time. Included by these files only.
 */
#ifndef EPF_BENCH_RING_GPU_H
#define EPF_BENCH_RING_GPU_H

#include "bench/common/bench.h"
#include "fabric/gpu/fake.h"
#include "kernels/bench/ring.h"
#include "queues/epf_ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RING_GPU_TEXT       512
#define RING_GPU_PRIVATE    2048u /* private rings at most */
#define RING_GPU_SHARED     8u
#define RING_GPU_SLOTS      1024u  /* of a private ring at most */
#define RING_GPU_SLOTS_MANY 16384u /* of a shared ring at most */
#define RING_GPU_CORES      8u

enum ring_gpu_op {
	RING_GPU_OPEN,  /* opens the device */
	RING_GPU_PUSH,  /* test commands into raw rings */
	RING_GPU_FLAG,  /* the bare round trip */
	RING_GPU_RATE,  /* puts through an engine on the null NIC */
	RING_GPU_ROUND, /* round trips through it */
	RING_GPU_BUSY,  /* writes over NVLink begin (on) or end */
	RING_GPU_HANG,  /* a kernel that waits for what never comes */
	RING_GPU_QUIT,
};

struct ring_gpu_request {
	enum ring_gpu_op op;
	uint32_t n_shared, n_private; /* rings of the context */
	uint32_t shared_log2, private_log2;
	uint32_t grid, block;
	uint64_t timeout_ns;     /* of waits in the kernel */
	uint64_t abort_after_ns; /* HANG: the context is aborted then; 0: never */
	bool on;
	bool sum; /* PUSH: the consumers add up in place of looking at each command; the sums are compared afterwards */
	struct ring_bench_args args; /* addresses are filled in by the child */
};

struct ring_gpu_counts {
	uint64_t dequeued;
	uint64_t refused;
	uint64_t bytes; /* of puts */
};

struct ring_gpu_reply {
	int rc;                        /* 0 or -errno; text says why */
	int code;                      /* worst result of any warp: enum epf_gpu_code */
	char text[RING_GPU_TEXT];      /* the sentence for rc or code; OPEN: the device */
	uint64_t pushed;               /* commands, all warps */
	uint64_t wall_ns;              /* from launch to the end of the kernel */
	struct ring_gpu_counts engine; /* the engine's own counters: what this request added */
	double inside_cycles;          /* per push call, mean over warps */
	double median_ns, p99_ns;      /* round trips; p99 is NAN of too few */
	double issue_ns;               /* of a batch: payload, fence and pushes, without the wait */
	uint32_t on_shared;            /* warps that got no private ring */
	uint32_t devices, multiprocessors, warp;
};

/* Everything the processes share. */
struct ring_gpu_shared {
	uint32_t asked; /* requests written; release, and acquire by the other side */
	uint32_t done;  /* requests answered; likewise */
	uint32_t stop_takers;
	struct ring_gpu_request request;
	struct ring_gpu_reply reply;
	/* Pinned words, on a separate page: `flag`, then 128 bytes on `ack`, then `stop`. */
	uint8_t *words;
	uint8_t *rings; /* shared ones first */
	size_t bytes;   /* of the whole mapping */
};

enum { RING_GPU_FLAG_AT = 0, RING_GPU_ACK_AT = 128, RING_GPU_STOP_AT = 256, RING_GPU_PAGE = 4096 };

/* Maps what both processes share, before any fork; NULL without memory. */
struct ring_gpu_shared *ring_gpu_map(void);

/* Ring i of the arena: the first RING_GPU_SHARED are the shared ones. */
struct epf_ring_shm *ring_gpu_ring(const struct ring_gpu_shared *s, uint32_t i);

/* How many rings a request uses, the i-th of them, and all of them made empty. */
uint32_t ring_gpu_rings(const struct ring_gpu_request *r);
struct epf_ring_shm *ring_gpu_ring_of(const struct ring_gpu_shared *s,
				      const struct ring_gpu_request *r, uint32_t i);
void ring_gpu_format(struct ring_gpu_shared *s, const struct ring_gpu_request *r);

/* gpu_child.c: forks the process that owns the GPU. backend: as gpu-backend. Returns its number or -errno. */
pid_t ring_gpu_fork(struct ring_gpu_shared *s, const char *backend, int device,
		    const char *const *settings);

/* Puts a request into the mailbox; collects the answer: 1 when it is there, 0 not yet, -ECHILD when the child has ended. */
void ring_gpu_ask(struct ring_gpu_shared *s, const struct ring_gpu_request *r);
int ring_gpu_answer(struct ring_gpu_shared *s, pid_t child, struct ring_gpu_reply *out);

/* gpu_take.c: what consumers found. */
struct ring_gpu_taken {
	uint64_t commands;
	uint64_t wrong;   /* torn, lost, twice or out of order */
	uint64_t missing; /* pushed, by the expectation, and never seen */
	double per_second;
};

/*
 * Takes the test commands of one request on `cores` threads, pinned to CPUs first_cpu and on, checks every one, and returns when all
 * `producers` x `each` have come, or the child has answered and nothing more comes, or after timeout_ns. The answer is *reply.
 */
int ring_gpu_take(struct ring_gpu_shared *s, pid_t child, const struct ring_gpu_request *r,
		  uint32_t cores, uint32_t producers, uint64_t each, uint64_t timeout_ns,
		  struct ring_gpu_taken *out, struct ring_gpu_reply *reply);

/*
 * Number, as bench_pin() counts, of the CPU of busy thread `i` of this bench; 0 is the thread that launches kernels and spins until they end.
 * Every other CPU while there are such: neighbours may be two threads of one core, and a virtual machine need not say so.
 */
static inline unsigned ring_gpu_cpu(unsigned i)
{
	if (bench_cpus() <= RING_GPU_CORES)
		return i;
	return i <= RING_GPU_CORES / 2 ? 2 * i : 2 * i - RING_GPU_CORES - 1;
}

/* Answers bare round trips until *stop. */
void ring_gpu_echo(struct ring_gpu_shared *s);

/* gpu_engine.c: in the child, a rank with an engine on the null NIC and its GPU context. */
struct ring_gpu_engine;
int ring_gpu_engine_open(const char *backend, int device, const char *const *settings,
			 const struct ring_gpu_request *r, struct ring_gpu_engine **out);
void ring_gpu_engine_close(struct ring_gpu_engine *e);
uint64_t ring_gpu_engine_ctx(const struct ring_gpu_engine *e);
/* So far. */
struct ring_gpu_counts ring_gpu_engine_counts(const struct ring_gpu_engine *e);
/* 0, or the sentence of what a kernel reported. */
int ring_gpu_engine_check(struct ring_gpu_engine *e);

/* Made by kernels/embed.py, or gpu_image.c: the kernels as a fat binary, NULL where this build has none; the same as C functions for the fake back-end. */
extern const void *const ring_gpu_image;
extern const struct epf_gpu_fake_kernel ring_gpu_fake_kernels[];

#endif
