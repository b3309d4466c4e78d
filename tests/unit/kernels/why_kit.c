/* SPDX-License-Identifier: Apache-2.0 */
/* See why_kit.h. */
#include "tests/unit/kernels/why_kit.h"

#include "fabric/client/handle.h"
#include "fabric/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct link {
	struct epf *ep;
	bool up;
};

static int turn_link(struct epf_core *core, void *arg)
{
	struct link *link = arg;

	(void)core;
	return link->ep->ops->set_link(link->ep->nic, 0, link->up);
}

void why_set_link(struct epf *ep, bool up)
{
	struct link link = { ep, up };

	assert_int_equal(epf_core_call(ep->core, turn_link, &link), 0);
}

struct epf_why_report *why_report(struct epf_ll *ll, uint32_t ranks)
{
	struct epf_why_report *r = malloc(epf_why_report_bytes(ranks));

	assert_non_null(r);
	assert_int_equal(epf_why_read(ll, r), 0);
	return r;
}

void why_read_all(struct ll_kit *kit, struct epf_why_report *out[WHY_RANKS])
{
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		out[r] = why_report(ll_kit_ll(kit, r), WHY_RANKS);
}

void why_free_all(struct epf_why_report *reports[WHY_RANKS])
{
	for (uint32_t r = 0; r < WHY_RANKS; r++)
		free(reports[r]);
}

const struct epf_why_peer *why_peer(const struct epf_why_report *r, unsigned call, uint32_t peer)
{
	return &r->peer[call * WHY_RANKS + peer];
}

struct epf_why_cause why_first(struct epf_why_report *const *reports, uint32_t n, uint32_t kind,
			       uint32_t rank)
{
	const struct epf_why_report *const *given = (const struct epf_why_report *const *)reports;
	struct epf_why_cause c[2 * WHY_RANKS] = { 0 };
	uint32_t found = epf_why_explain(given, n, c, 2 * WHY_RANKS), i = 0;
	char text[4096];

	assert_true(epf_why_text(given, n, text, sizeof(text)) < sizeof(text));
	printf("%s", text);
	while (i < found && (c[i].kind != kind || (rank != WHY_NOBODY && c[i].rank != rank)))
		i++;
	assert_true(i < found);
	return c[i];
}

struct ll_kit_case why_ll_case(void)
{
	struct ll_kit_case c = {
		.experts = WHY_RANKS * 4, .topk = 2, .hidden = 128, .tokens_max = 64
	};

	for (uint32_t r = 0; r < WHY_RANKS; r++)
		c.tokens[r] = 32;
	return c;
}

void why_wait_for_links(void)
{
	setenv("EPF_EMU_RETRY_TIMEOUT", "3600s", 1);
	setenv("EPF_EMU_STALL_TIMEOUT", "3600s", 1);
	setenv("EPF_PEER_TIMEOUT", "3600s", 1);
	setenv("EPF_PEER_SILENCE", "0s", 1);
}
