/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of the emulated NIC: one thread a process that moves bytes to and from GPU memory for all NICs of the process, because
 * the CPU cannot (and a step of an engine core must not call a driver). Each NIC has two rings with it: jobs out, outcomes back.
 * Whoever reads memory of another process maps it here; nobody ever writes another process's memory.
 *
 * A job is one entry and one for each of its spans, because what costs is the entry: writes of a packet are one job and one outcome.
 * Order: spans are submitted in the order of their ring, gathered in batches; copies of one batch never overlap in their destination, so
 * of two to the same bytes the later one wins. Labels: C1 jobs, C2 outcomes, C3 the region table of a segment, C4 the device's
 * completion word, C5 the state of imported memory, C6 entries released.
 */
#ifndef EPF_FABRIC_NIC_EMU_COPIER_H
#define EPF_FABRIC_NIC_EMU_COPIER_H

#include "fabric/gpu/copy.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_emu_seg;

enum {
	EPF_EMU_COPIES = 4096, /* jobs under way of one NIC */
	EPF_EMU_ENTRIES =
		16384, /* of its ring of jobs; a power of two, and above twice EPF_EMU_COPIES */
};

/* Copies. The spans are the entries behind it. */
struct epf_emu_job {
	struct epf_emu_seg *peer; /* whose memory is read; stays mapped until the job is back */
	uint32_t slot;            /* comes back; below EPF_EMU_COPIES */
	uint32_t spans;
};

/*
 * An addition to a word of memory of the NIC's. They come when what they must follow has landed, and a kernel waits for them: so they have a ring of
 * their own and never stand behind copies.
 */
struct epf_emu_add_job {
	struct epf_copy_mem *dst_mem;
	uint64_t dst; /* offset in it */
	uint64_t value;
	uint32_t slot; /* as a job's */
	uint32_t reserved;
};

struct epf_emu_job_span {
	uint64_t dst; /* in dst_mem: offset; else a host address */
	uint64_t
		src; /* src_key: an address in the peer's region; else a host address (in the wire segment of peer) */
	struct epf_copy_mem *dst_mem;
	uint32_t src_key;
	uint32_t bytes;
};

union epf_emu_entry {
	struct epf_emu_job job;
	struct epf_emu_job_span span;
};

_Static_assert(sizeof(union epf_emu_entry) == 32, "two entries a line");

struct epf_emu_outcome {
	uint32_t slot;
	uint32_t status; /* enum epf_status */
};

/* A region of a peer as the copier found it last: the next span is likely to lie there too. */
struct epf_emu_window {
	const struct epf_emu_seg *seg; /* NULL: nothing */
	uint32_t key, generation;
	int want, device; /* asked for, and whose copies it is mapped for */
	uint64_t base, len, at;
};

/* A NIC's side of the copier. One producer and one consumer a ring; there are never more jobs than outcomes, so these cannot overflow. */
struct epf_emu_copier {
	union epf_emu_entry *entries;
	struct epf_emu_outcome *outcomes;
	struct epf_emu_add_job *adds; /* [EPF_EMU_COPIES] */
	uint32_t adds_out;            /* written by the NIC [C1, release] */
	uint32_t entries_out;         /* written by the NIC [C1, release] */
	uint32_t entries_end;         /* the NIC's own: what it may fill up to */
	uint32_t outcomes_in;         /* the NIC's own */
	uint32_t pad0[22];
	uint32_t entries_in;   /* written by the copier [C6, release] */
	uint32_t outcomes_out; /* written by the copier [C2, release] */
	uint32_t pad1[30];
	struct epf_wakeup *nic_wakeup; /* woken for outcomes when the core sleeps */
	const struct epf_copy_ops *ops;
	int kernel; /* copies by a kernel */
	struct epf_emu_copier *next;
	/* The copier's own: the job being dequeued, its spans still to be dequeued, and of each job those not done. */
	struct epf_emu_job job;
	uint32_t job_left;
	uint32_t *undone;
	uint32_t adds_in;
	struct epf_emu_window window;
};

/* Joins the copier, making the thread if it is the first. The driver is loaded by the thread, with the first region or job. Slow. */
int epf_emu_copier_open(const struct epf_copy_ops *ops, int kernel, struct epf_wakeup *nic_wakeup,
			struct epf_emu_copier **out);
/* Leaves it; no job may be under way. Accepts NULL. Slow. */
void epf_emu_copier_close(struct epf_emu_copier *copier);

/* A region of a NIC of this process, found by its segment's nonce and its key: how NICs of one process read each other. Slow. */
int epf_emu_copier_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem);
/* It is no more. Every region is disowned before its copier is closed. */
void epf_emu_copier_disown(uint64_t nonce, uint32_t key);
/*
 * True while copies of another NIC of this process, begun before the region was disowned, may still read it: until then its memory must stay. The copier's own
 * mappings stay by themselves. Slow.
 */
bool epf_emu_copier_may_read(uint64_t nonce, uint32_t key);
/* Forgets what is mapped of a segment that is about to be unmapped. No job on it may be under way. Slow. */
void epf_emu_copier_forget(const struct epf_emu_seg *seg);

/* Logs EPF-472 once when copies have stalled for a second. Called now and then by any thread but the copier's. Slow. */
void epf_emu_copier_watch(void);

/* 1: the copier sleeps and must be woken for the jobs pushed last. No system call. */
bool epf_emu_copier_sleeps(void);
void epf_emu_copier_ring(void);

/* Hot: true when a job of n spans finds room. [C6] */
static inline bool epf_emu_copier_has_room(struct epf_emu_copier *c, uint32_t n)
{
	if (c->entries_end - c->entries_out > n)
		return true;
	c->entries_end =
		__atomic_load_n(&c->entries_in, __ATOMIC_ACQUIRE) + EPF_EMU_ENTRIES; /* C6 */
	return c->entries_end - c->entries_out > n;
}

/* Hot: span number k of the job to be pushed next. */
static inline struct epf_emu_job_span *epf_emu_copier_span(struct epf_emu_copier *c, uint32_t k)
{
	return &c->entries[(c->entries_out + 1 + k) & (EPF_EMU_ENTRIES - 1)].span;
}

/* Hot: pushes a job whose spans are filled in [C1]; the caller has found room. */
static inline void epf_emu_copier_push(struct epf_emu_copier *c, const struct epf_emu_job *job)
{
	c->entries[c->entries_out & (EPF_EMU_ENTRIES - 1)].job = *job;
	__atomic_store_n(&c->entries_out, c->entries_out + 1 + job->spans,
			 __ATOMIC_RELEASE); /* C1 */
}

/* Hot: pushes an addition [C1]. There is room: as many slots as jobs. */
static inline void epf_emu_copier_push_add(struct epf_emu_copier *c,
					   const struct epf_emu_add_job *job)
{
	c->adds[c->adds_out & (EPF_EMU_COPIES - 1)] = *job;
	__atomic_store_n(&c->adds_out, c->adds_out + 1, __ATOMIC_RELEASE); /* C1 */
}

/* Hot: takes one outcome [C2]; false: there is none. */
static inline bool epf_emu_copier_pop(struct epf_emu_copier *c, struct epf_emu_outcome *out)
{
	if (__atomic_load_n(&c->outcomes_out, __ATOMIC_ACQUIRE) == c->outcomes_in) /* C2 */
		return false;
	*out = c->outcomes[c->outcomes_in++ & (EPF_EMU_COPIES - 1)];
	return true;
}

#endif
