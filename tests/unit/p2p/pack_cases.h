/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds of compressed transfers between memory of the host and between memory of the fake GPU alike: pack_gpu (pack_kit.h) says which. Each is
 * a test of cmocka's, but for the deadline, where each kind stalls in a way of its own.
 */
#ifndef EPF_TESTS_PACK_CASES_H
#define EPF_TESTS_PACK_CASES_H

#include "tests/unit/p2p/pack_kit.h"

/* Odd blocks, apart and shuffled, and a long one, of every type and both ways, compressed and not: what is between the blocks stays. */
void pack_case_blocks(void **state);
/* The peer checks rights, range and that this peer has imported the export, whatever it is asked for. */
void pack_case_rights(void **state);
/* Chunks end with an export: by its time, and by its withdrawal, which waits for one that is being expanded and names its peer. */
void pack_case_life(void **state);
/* Disconnecting, or closing, in the middle: transfers end, nothing hangs, slots do not keep what is freed. */
void pack_case_disconnect(void **state);
/* Several threads at once, each with its own part, while the measurement switches as it likes. */
void pack_case_threads(void **state);
/* The death of the target, by a write and by a read. */
void pack_case_killed(void **state);

/* The killed one comes first: its target is forked. */
#define PACK_CASES                                                             \
 cmocka_unit_test(pack_case_killed), cmocka_unit_test(pack_case_blocks),       \
	 cmocka_unit_test(pack_case_rights), cmocka_unit_test(pack_case_life), \
	 cmocka_unit_test(pack_case_disconnect), cmocka_unit_test(pack_case_threads)

/*
 * A transfer fails at its deadline although the peer does not answer; what it may still write there does not overwrite what a later transfer
 * writes, which therefore waits. stall: keeps the peer from expanding, or no longer.
 */
void pack_case_deadline(void (*stall)(struct pair *p, bool on));

#endif
