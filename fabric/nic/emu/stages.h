/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the emulated NIC and the copier's thread spend their time: for benchmarks. A NIC counts only where somebody asked before it was
 * opened; the stages of one turn of EPF_EMU_TIMED (a post, or a reap that found something) are timed and count for all. Included by emu.h.
 */
#ifndef EPF_FABRIC_NIC_EMU_STAGES_H
#define EPF_FABRIC_NIC_EMU_STAGES_H

#include <stdint.h>

/* Of the engine's core, inside the NIC. */
enum epf_emu_stage {
	EPF_EMU_FILL,     /* post: packets are filled */
	EPF_EMU_PUSH,     /* post: given to the peer */
	EPF_EMU_MAIL,     /* reap: inboxes and returned packets */
	EPF_EMU_OUTCOMES, /* reap: what the copier has done */
	EPF_EMU_LAND,     /* reap: packets of peers, as far as jobs for the copier */
	EPF_EMU_RETURN,   /* reap: packets go back to peers */
	EPF_EMU_EMIT,     /* reap: completions are handed out */
	EPF_EMU_STAGES,
};

enum epf_emu_tally {
	EPF_EMU_POSTS,
	EPF_EMU_PACKETS, /* posted */
	EPF_EMU_BACK,    /* returned packets */
	EPF_EMU_INBOXES, /* dequeued inboxes that held something */
	EPF_EMU_JOBS,    /* outcomes of the copier */
	EPF_EMU_TALLIES,
};

enum { EPF_EMU_TIMED = 7 };

struct epf_emu_stages {
	uint64_t tsc[EPF_EMU_STAGES];
	uint64_t tally[EPF_EMU_TALLIES];
	/* Of the turn under way: when its stage began (0: it is not timed), what its stages took, and the tallies when it began. */
	uint64_t at, part[EPF_EMU_STAGES], found, before;
	uint32_t turn;
};

/* NICs of this process that are opened from now on count into it; NULL: into nothing. Not for several cores at once. Slow. */
void epf_emu_stages_want(struct epf_emu_stages *into);

/* The copier's thread, since it was made: cycles and numbers. */
struct epf_emu_copier_stages {
	uint64_t
		dequeue_tsc; /* jobs are dequeued, batches gathered; with the submits of full batches */
	uint64_t pump_tsc;   /* completions are looked for, batches submitted */
	uint64_t submit_tsc; /* of both: calls of the driver for batches */
	uint64_t copies, batches, turns;
};

/* As they were after the last turn that did something; any thread. */
void epf_emu_copier_stages(struct epf_emu_copier_stages *out);

#endif
