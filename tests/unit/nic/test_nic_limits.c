/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of tools/prove over every kind of NIC: capabilities, lanes, regions, limits. And the stand-ins in tables of operations. */
#include "fabric/nic/fill.h"
#include "fabric/nic/nic.h"
#include "tests/unit/nic/nic_conform.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_stand_ins(void **state)
{
	struct epf_nic_ops ops = { 0 };
	struct epf_nic_counters counters;
	const char *const *names = epf_nic_names();
	void *const *at = (void *const *)&ops;
	uint64_t token;

	epf_nic_ops_fill(&ops);
	for (size_t i = 0; i < sizeof(ops) / sizeof(*at); i++)
		assert_non_null(at[i]);
	assert_int_equal(ops.post(NULL, 0, NULL, 1), -EOPNOTSUPP);
	assert_int_equal(ops.lane_create(NULL, 0, 1, &token), -EOPNOTSUPP);
	assert_int_equal(ops.set_link(NULL, 0, 0), -EOPNOTSUPP);
	assert_int_equal(ops.reap(NULL, NULL, 1), 0);
	ops.watch(NULL);
	assert_true(ops.next_event(NULL) == UINT64_MAX);
	ops.counters(NULL, &counters);
	assert_int_equal(counters.doorbells, 0);
	for (; *names; names++) {
		const struct epf_nic_ops *found = epf_nic_find(*names);

		assert_non_null(found);
		at = (void *const *)found;
		for (size_t i = 0; i < sizeof(ops) / sizeof(*at); i++)
			assert_non_null(at[i]);
	}
	assert_null(epf_nic_find("no such NIC"));
	assert_null(epf_nic_find(NULL));
}

int main(void)
{
	const struct check *const tables[] = { checks_limits, NULL };
	const struct CMUnitTest stand_ins[] = { cmocka_unit_test(test_stand_ins) };

	return cmocka_run_group_tests_name("tables", stand_ins, NULL, NULL) + nic_conform(tables);
}
