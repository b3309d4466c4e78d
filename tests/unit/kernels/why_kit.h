/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of "why are calls slow" share: reports of all ranks, one cause among them, a link that is cut, a small low-latency job. */
#ifndef EPF_TESTS_WHY_KIT_H
#define EPF_TESTS_WHY_KIT_H

#include "kernels/epf_why.h"
#include "tests/unit/kernels/ll_kit.h"

enum { WHY_RANKS = 3, WHY_NOBODY = WHY_RANKS };

/* Cuts or restores the link of a rank's NIC, on the thread of its engine. */
void why_set_link(struct epf *ep, bool up);

/* why_report() - one rank's report; the caller frees it. why_read_all(), why_free_all(): those of all ranks. */
struct epf_why_report *why_report(struct epf_ll *ll, uint32_t ranks);
void why_read_all(struct ll_kit *kit, struct epf_why_report *out[WHY_RANKS]);
void why_free_all(struct epf_why_report *reports[WHY_RANKS]);

const struct epf_why_peer *why_peer(const struct epf_why_report *r, unsigned call, uint32_t peer);

/* The first cause of a kind in the reports, of one rank or of any (WHY_NOBODY). Fails the test if there is none. */
struct epf_why_cause why_first(struct epf_why_report *const *reports, uint32_t n, uint32_t kind,
			       uint32_t rank);

/* A low-latency call in which all ranks have the same number of tokens. */
struct ll_kit_case why_ll_case(void);

/* Before anything is opened: no link that a test cuts is given up, however slow the machine is. */
void why_wait_for_links(void);

#endif
