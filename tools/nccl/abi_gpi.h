/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels and a plug-in of GIN type 4 ("GPI", NCCL 2.30.5 and later) agree on. A kernel's request is 64 bytes in a queue that the plug-in made; NCCL's
 * device code writes it, and no thread of NCCL reads it. Our own declarations; the assertions hold their layout, and tools/frameworks/nccl_clients.py layouts
 * compares them with NCCL's headers. Nothing here is ours to change.
 */
#ifndef EPF_TOOLS_NCCL_ABI_GPI_H
#define EPF_TOOLS_NCCL_ABI_GPI_H

#include <stddef.h>
#include <stdint.h>

enum {
	EPF_GPI_VERSION = 100, /* of the handle */
	EPF_GPI_KERNELS =
		1, /* version of the device code, as createContext names it; 0: from before there was this type */
	EPF_GPI_STRIDE = 64, /* of counters and signals */
};

/*
 * A request: 8 words, each written whole. Bit 0 of each is the parity of the lap: a request has come when all eight say the queue's lap. Zeroed memory is of lap 0.
 */
struct epf_gpi_entry {
	uint64_t word[8];
} __attribute__((aligned(64)));

enum epf_gpi_word {
	EPF_GPI_HEADER = 0,     /* 16: operation, 24: flags, 32: counter, 48: signal */
	EPF_GPI_TARGET = 1,     /* 1: rank, 32: bytes */
	EPF_GPI_DST = 2,        /* 16: window, 32: low half of what a signal adds */
	EPF_GPI_SRC = 3,        /* 16: window, 32: high half */
	EPF_GPI_DST_OFFSET = 4, /* 1: offset */
	EPF_GPI_SRC_OFFSET = 5, /* 1: offset */
	EPF_GPI_INLINE_LOW = 6, /* 32: low half of the value */
	EPF_GPI_INLINE_HIGH = 7,
};

enum epf_gpi_op {
	EPF_GPI_READ = 0, /* from the window dst of the target into the window src here */
	EPF_GPI_WRITE = 1,
	EPF_GPI_WRITE_ADD = 2, /* with a signal, which the value is added to */
	EPF_GPI_WRITE_INC = 3, /* with a signal, which 1 is added to */
	EPF_GPI_INLINE = 4,    /* the same with the value in the request */
	EPF_GPI_INLINE_ADD = 5,
	EPF_GPI_INLINE_INC = 6,
	EPF_GPI_ADD = 7,   /* the inline value to a word of the window dst */
	EPF_GPI_FLUSH = 8, /* counts once everything before it to that rank is over */

	EPF_GPI_CONTROL = 128, /* with one of these */
	EPF_GPI_COUNTER_RESET = 128,
	EPF_GPI_COUNTER_RESET_QUIET = 129,
	EPF_GPI_COUNTER_WRITE = 130,
	EPF_GPI_SIGNAL_RESET = 131,
};

enum { EPF_GPI_COUNTS = 2 }; /* flag: the counter grows by 1 when the operation is over */

/* Of a counter's value: an operation has failed. More than any number of operations, so whoever waits for one goes on. */
#define EPF_GPI_COUNTER_ERROR (UINT64_C(1) << 62)

/* A context in GPU memory, followed by a word for each rank: flushes that kernels have asked for. Addresses are the GPU's. */
struct epf_gpi_channel {
	uint64_t counters; /* the program's, then one for flushes of each rank; signals follow */
	uint64_t signals;
	uint64_t queue;
	uint64_t pushed; /* kernels add to it */
	uint64_t taken;  /* of the word that we count taken requests in */
	uint64_t taken_seen;
	uint32_t log2_slots;
	uint32_t reserved;
};

_Static_assert(sizeof(struct epf_gpi_entry) == 64, "a request");
_Static_assert(sizeof(struct epf_gpi_channel) == 56 &&
		       offsetof(struct epf_gpi_channel, log2_slots) == 48,
	       "a context");

#endif
