/* SPDX-License-Identifier: Apache-2.0 */
/* A check is a test of cmocka, once for each kind of NIC. It must not contain a requirement: those are in tools/prove. */
#include "tests/unit/nic/nic_conform.h"

#include "tests/unit/nic/nic_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHECKS = 64 };

static const struct nic_kind *kind;

struct test {
	const struct check *check;
	struct rig *rig;
};

static int setup(void **state)
{
	struct test *t = *state;

	t->rig = rig_open(kind, NULL);
	return 0;
}

static int teardown(void **state)
{
	struct test *t = *state;

	rig_close(t->rig);
	t->rig = NULL;
	return 0;
}

static void run(void **state)
{
	struct test *t = *state;

	if (t->check->flags & CHECK_ARRIVALS && !kind->carries)
		skip();
	t->check->run(t->rig);
}

int nic_conform(const struct check *const *tables)
{
	static struct CMUnitTest tests[CHECKS];
	static struct test states[CHECKS];
	const char *only = getenv("EPF_TEST_CHECK");
	size_t n = 0, kinds;
	int failed = 0;

	for (; *tables; tables++)
		for (const struct check *c = *tables; c->key && n < CHECKS; c++) {
			if (only && strcmp(only, c->key) != 0)
				continue;
			states[n].check = c;
			tests[n] = (struct CMUnitTest){ c->key, run, setup, teardown, &states[n] };
			n++;
		}
	kind = nic_rig_kinds(&kinds);
	for (; kinds; kinds--, kind++)
		failed += _cmocka_run_group_tests(kind->name, tests, n, NULL, NULL);
	return failed != 0;
}
