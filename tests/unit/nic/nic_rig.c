/* SPDX-License-Identifier: Apache-2.0 */
/* Opens rigs for tests: what a rig requires and does not get fails the test of cmocka. */
#include "tests/unit/nic/nic_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void broken(const char *file, int line, const char *text)
{
	print_error("%s\n", text);
	_fail(file, line);
}

static void not_tried(const char *why)
{
	print_message("%s\n", why);
	skip();
}

static void note(const char *text)
{
	print_message("%s\n", text);
}

struct rig *rig_open(const struct nic_kind *kind, void (*tune)(struct epf_emu_opts *))
{
	struct rig *rig = calloc(1, sizeof(*rig));

	rig_verdicts = (struct rig_verdicts){ broken, not_tried, note };
	assert_non_null(rig);
	rig->opts = malloc(sizeof(*rig->opts));
	assert_non_null(rig->opts);
	epf_emu_opts_defaults(rig->opts);
	rig->kind = kind;
	rig->opts->gpu = "fake";
	rig->opts->packets = 256;
	rig->opts->mtu = 1024;
	rig->opts->lanes = 512;
	if (tune)
		tune(rig->opts);
	rig->rnr_timeout_ns = rig->opts->rnr_timeout_ns;
	rig->lost_ns = kind->real ? 3000000000 : 60000000000;
	rig_start(rig);
	return rig;
}
