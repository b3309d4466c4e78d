/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports copies that stall, which the thread that waits in a driver call cannot: the thread notes since when it has copies and which driver call it is in; any other thread compares
 * that with the clock. For the copiers of nic/emu and nic/tcp, one object each. Cheap but for watch().
 */
#ifndef EPF_FABRIC_GPU_COPY_STALL_H
#define EPF_FABRIC_GPU_COPY_STALL_H

#include <stdbool.h>
#include <stdint.h>

struct epf_copy_stall {
	uint64_t
		since; /* epf_now_ns() since when there are copies and nothing has moved; 0: there are none */
	uint64_t said;      /* the `since` that was reported */
	const char *doing;  /* the driver call that the thread is in; NULL: none */
	uint64_t doing_tsc; /* since when */
};

/* The copier's thread enters a driver call, or (NULL) has left it. */
void epf_copy_stall_enters(struct epf_copy_stall *stall, const char *call);
/* Copies moved, and more are outstanding or not. */
void epf_copy_stall_moved(struct epf_copy_stall *stall, bool more);
/* True while copies are outstanding. */
bool epf_copy_stall_is_timed(const struct epf_copy_stall *stall);

/* Logs EPF-472 once when copies have stalled for a second. Any thread but the copier's. */
void epf_copy_stall_watch(struct epf_copy_stall *stall);

#endif
