/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine assumes of a NIC, one row for each assumption: a function that requires it of a rig (rig.h), and what follows where it
 * does not hold. The unit tests run the rows over every NIC (tests/unit/nic/test_nic*.c), `ep-fabric nics --prove` over the user's (prove.h).
 *
 * A check that returns has held. Otherwise it ends in rig_broken() or rig_not_tried(). It leaves the rig to be closed.
 */
#ifndef EPF_TOOLS_PROVE_CHECK_H
#define EPF_TOOLS_PROVE_CHECK_H

#include <stddef.h>

struct rig;

enum {
	CHECK_ARRIVALS = 1, /* of NICs at which something arrives */
	CHECK_GPU = 2,      /* a rig whose memory is a GPU's */
	CHECK_FEW = 4,      /* better with a small completion queue */
	CHECK_PATIENT =
		8, /* with times after which a NIC gives up that are longer than the check looks */
};

struct check {
	const char *key;         /* in reports */
	const char *assumption;  /* a sentence */
	const char *consequence; /* where it is broken: a sentence */
	unsigned flags;
	void (*run)(struct rig *rig);
};

/* Tables; each ends with a row without a key. */
extern const struct check checks_data[], checks_limits[], checks_refusals[], checks_failures[],
	checks_memory[];
/* All of these, ends with NULL. */
extern const struct check *const check_tables[];

#endif
