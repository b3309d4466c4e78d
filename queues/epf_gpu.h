/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank's kernels share with its host code: where rings, signals and abort words are as the GPU addresses them, which private rings are
 * free, and the record of the first failure. Made by fabric/gpu/context.c, used by kernels/epf_device.cuh; the engine and the daemon know
 * nothing of it. Everything here lies in GPU memory but struct epf_gpu_status, the abort lines and the bits of ranks that are gone, which lie in pinned host memory.
 *
 * Words that different multiprocessors poll lie in separate lines: polls of one host word, or of words closer than 32 bytes,
 * serialise at about a microsecond each. What many wait for (credit of a shared ring, its completion counters) is read from the
 * host by one elected thread at a time and copied into GPU memory, where the others look.
 *
 * Ordering within the GPU (device scope):
 *   G1 who releases a lease: release, after saving head, pushed and dequeued   G2 who takes it: acquire
 *   G3 refresher stores a copy of dequeued or retired: release, after its acquire of the host's word (A2, A3)   G4 waiter: acquire
 */
#ifndef EPF_QUEUES_GPU_H
#define EPF_QUEUES_GPU_H

#include "queues/epf_base.h"
#include "queues/epf_cmd.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_GPU_MAGIC       UINT64_C(0x3155504746504545) /* "EEPFGPU1" in memory order */
#define EPF_GPU_VERSION     1u
#define EPF_GPU_LINE        128u
#define EPF_GPU_ABORT_LINES 256u  /* waits of multiprocessor m look at line m modulo this */
#define EPF_GPU_PRIVATE_MAX 4095u /* private rings of a context */
#define EPF_GPU_SHARED_MAX  64u

/* What device calls return when they fail, and what stands in the status record. Numbers are ABI. */
enum epf_gpu_code {
	EPF_GPU_OK = 0,
	EPF_GPU_TIMEOUT =
		-1, /* the deadline passed: a ring stayed full, or what was waited for did not come */
	EPF_GPU_ABORTED = -2, /* the host said stop (epf_abort) */
	EPF_GPU_BROKEN = -3,  /* the shared ring was given up after a wait in it had failed */
	EPF_GPU_LIMIT = -4,   /* the command cannot be encoded: beyond the wide form */
	EPF_GPU_FAILED =
		-5, /* flush: commands of the ring were refused or failed; the ring's error record says which */
	EPF_GPU_SIGNAL = -6, /* a signal number this rank does not have */
	EPF_GPU_LOST = -7,   /* a rank that was waited for is lost or has closed */
};

/* What was waited for, or being done. Numbers are ABI. */
enum epf_gpu_what {
	EPF_GPU_ROOM = 1,    /* room in a ring: number is its id */
	EPF_GPU_RETIRED = 2, /* commands of a ring: number is its id */
	EPF_GPU_WAIT = 3,    /* a signal: number is the signal's */
	EPF_GPU_COMMAND = 4, /* a command that cannot be encoded: number is its operation */
	EPF_GPU_WORD = 5,    /* a word of GPU memory: number is 0 */
};

/* One ring as kernels see it. */
struct epf_gpu_ring {
	/* line 0: set by the host once */
	uint64_t slots; /* device address of slot 0 */
	uint64_t shm;   /* device address of struct epf_ring_shm */
	uint64_t
		wides; /* slots minus commands pushed before kernels got the ring: a shared ring's commands are slots minus this, minus wide ones since */
	uint32_t log2;
	uint32_t id;
	uint64_t reserved0[12];
	/*
	 * line 1, private: slots and commands written, saved when the lease ends. Shared: head is reserved by atomic adds and counts
	 * slots plus 2^40 for each wide command, modulo 2^64 (epf_gpu_head_slots()); pushed counts wide commands, each after its
	 * reservation.
	 */
	uint64_t head;
	uint64_t pushed;
	uint64_t reserved1[14];
	/* line 2: copies of the host's words, by the elected refresher; private: what its holder saw last */
	uint64_t dequeued;
	uint64_t retired;
	uint64_t failed;
	int32_t broken; /* negative enum epf_gpu_code: a slot was reserved and never written */
	uint32_t reserved2;
	uint64_t reserved3[12];
	/* line 3: who reads the host's words now: 1, else 0 */
	uint32_t refreshing_taken;
	uint32_t refreshing_retired;
	uint64_t reserved4[15];
};

EPF_STATIC_ASSERT(sizeof(struct epf_gpu_ring) == 512, "a ring's words are four lines");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_ring, head) == 128, "ring words are ABI");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_ring, dequeued) == 256, "ring words are ABI");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_ring, refreshing_taken) == 384, "ring words are ABI");

#define EPF_GPU_HEAD_SLOT_BITS 40u
#define EPF_GPU_HEAD_WIDE      ((uint64_t)1 << EPF_GPU_HEAD_SLOT_BITS)

/*
 * A shared ring's head counts slots and wide commands in one word, so that one atomic add reserves a place and says how many commands
 * are in front of it. Both counts are whole again next to any value that was right less than half a turn ago.
 */
/* Slots in `head`; near: a count of slots within 2^39 of it (what the core has dequeued). */
EPF_CMD_FN uint64_t epf_gpu_head_slots(uint64_t head, uint64_t near)
{
	unsigned shift = 64u - EPF_GPU_HEAD_SLOT_BITS;

	return near + (uint64_t)((int64_t)((head - near) << shift) >> shift);
}

/* Wide commands in it; slots: as just found; near: a count of wide ones within 2^23 of it. */
EPF_CMD_FN uint64_t epf_gpu_head_wides(uint64_t head, uint64_t slots, uint64_t near)
{
	uint64_t wides = (head - slots) >> EPF_GPU_HEAD_SLOT_BITS;

	return near + (uint64_t)((int64_t)((wides - near) << EPF_GPU_HEAD_SLOT_BITS) >>
				 EPF_GPU_HEAD_SLOT_BITS);
}

/* One word of the lease table: bit set: the private ring is free. */
struct epf_gpu_leases {
	uint64_t free;
	uint64_t reserved[15];
};

EPF_STATIC_ASSERT(sizeof(struct epf_gpu_leases) == 128, "a lease word has its own line");

/* The first failure of a kernel, in pinned host memory. `code` is stored last. */
struct epf_gpu_status {
	int32_t code;    /* enum epf_gpu_code; 0: none */
	uint32_t what;   /* enum epf_gpu_what */
	uint32_t number; /* ring id, signal or operation */
	uint32_t block;
	uint32_t thread;
	uint32_t reserved0;
	uint64_t want; /* the value waited for */
	uint64_t seen; /* the value there was */
	uint64_t reserved[11];
};

EPF_STATIC_ASSERT(sizeof(struct epf_gpu_status) == 128, "the status record has its own line");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_status, want) == 24, "status record layout is ABI");

/* An abort line: in pinned host memory. The bits of ctx.gone change before `gone`. */
struct epf_gpu_abort {
	int64_t abort; /* not 0: every wait that looks here ends */
	uint64_t gone; /* ranks that are lost or have closed: waits for one of them end */
	uint64_t lost; /* those of them that are lost */
	uint64_t
		stop; /* not 0: waits for signals and words end: a rank that is not masked is lost, or the daemon */
	uint64_t reserved[12];
};

EPF_STATIC_ASSERT(sizeof(struct epf_gpu_abort) == 128, "an abort word has its own line");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_abort, stop) == 24, "abort line layout is ABI");

/* The context: what a kernel gets as its argument. Kernels only read it. Addresses are device addresses. */
struct epf_gpu_ctx {
	uint64_t magic;
	uint32_t version;
	uint32_t rank;
	uint32_t world;
	uint32_t n_shared;    /* rings[0 .. n_shared) are shared */
	uint32_t n_private;   /* rings[n_shared .. n_shared + n_private) are leased */
	uint32_t lease_words; /* 64 private rings a word */
	uint32_t n_signals;
	uint32_t signal_stride; /* bytes from one signal to the next */
	uint32_t timer_khz;
	uint32_t reserved0;
	uint64_t deadline_ticks; /* of every wait, in ticks of the device's timer */
	uint64_t rings;          /* struct epf_gpu_ring[] */
	uint64_t leases;         /* struct epf_gpu_leases[] */
	uint64_t signals;
	uint64_t aborts; /* struct epf_gpu_abort[EPF_GPU_ABORT_LINES] */
	uint64_t status; /* struct epf_gpu_status */
	uint64_t
		failed; /* uint32_t[2] in GPU memory: 1 once a thread has claimed the writing of the status; 1 while one reports its wait */
	uint64_t
		wakeup; /* struct epf_wakeup of the rank, to which long waits are reported; 0: none */
	uint64_t
		gone; /* uint32_t[] in pinned host memory: a bit for each rank; set: it is lost or has closed */
	uint64_t reserved1;
};

EPF_STATIC_ASSERT(sizeof(struct epf_gpu_ctx) == 128, "the context is one line");
EPF_STATIC_ASSERT(offsetof(struct epf_gpu_ctx, rings) == 56, "context layout is ABI");

#endif
