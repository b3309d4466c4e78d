/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a low-latency object: options that cannot be, ranks that disagree, ranks whose kernels are of another build. */
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"
#include "kernels/ll/ll.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void opening_can_fail(void **state)
{
	const char *const settings[] = { "signals=64", NULL };
	struct epf_boot_group *group;
	struct epf_ll_options o;
	struct epf_options opts;
	struct epf_boot *boot;
	struct epf_ll *ll;
	uint64_t bytes;
	struct epf *ep;

	epf_options_init(&opts);
	opts.settings = settings;
	assert_return_code(epf_boot_local_create(1, &group), 0);
	assert_return_code(epf_boot_local_open(group, 0, &boot), 0);
	assert_return_code(epf_open(&opts, &ep), 0);
	assert_return_code(epf_join(ep, boot), 0);
	epf_ll_options_init(&o);
	assert_int_equal(epf_ll_open(ep, &o, &ll), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "epf_ll_size_hint"));
	o.bytes = epf_ll_size_hint(1, 128, 1, 1);
	o.first_signal = 64 - 2 * LL_KINDS + 1;
	assert_int_equal(epf_ll_open(ep, &o, &ll), -ENOSPC);
	assert_non_null(strstr(epf_ll_error(), "signals"));
	o.first_signal = 64 - 2 * LL_KINDS;
	o.memory = (void *)(uintptr_t)100;
	assert_int_equal(epf_ll_open(ep, &o, &ll), -EINVAL);
	o.memory = NULL;
	o.device = -2;
	assert_int_equal(epf_ll_open(ep, &o, &ll), -EINVAL);
	o.device = EPF_LL_CPU;
	o.blocks = LL_WORDS + 1;
	assert_int_equal(epf_ll_open(ep, &o, &ll), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "blocks"));
	o.blocks = LL_WORDS;
	assert_int_equal(epf_ll_open(ep, &o, &ll), 0);
	assert_non_null(epf_ll_memory(ll, &bytes));
	assert_int_equal(bytes, o.bytes);
	epf_ll_close(ll);
	epf_ll_close(NULL);
	epf_close(ep);
	epf_boot_close(boot);
	epf_boot_local_destroy(group);
}

struct opener {
	struct epf *ep;
	struct epf_boot *boot;
	uint64_t bytes;
	uint32_t first_signal;
	uint64_t
		build_id; /* 0: this library opens; else this is what another one says, with a region that nobody has */
	int rc;
	char why[512];
};

static void *open_beside(void *arg)
{
	struct opener *w = arg;
	uint8_t mine[sizeof(struct ll_hello) + 1] = { 0 }, all[2 * sizeof(mine)];
	struct ll_hello h = {
		.build_id = w->build_id, .bytes = w->bytes, .region = 99, .host = "elsewhere"
	};
	struct epf_ll_options o;
	struct epf_ll *ll;

	epf_ll_options_init(&o);
	o.bytes = w->bytes;
	o.first_signal = w->first_signal;
	memcpy(mine, &h, sizeof(h));
	if (!w->build_id)
		w->rc = epf_ll_open(w->ep, &o, &ll);
	else if (!epf_exchange(w->ep)) /* what another library does until they meet */
		w->rc = epf_allgather(w->ep, mine, sizeof(mine), all);
	snprintf(w->why, sizeof(w->why), "%s", w->rc ? epf_ll_error() : "");
	return NULL;
}

static void *join_beside(void *arg)
{
	struct opener *w = arg;

	w->rc = epf_join(w->ep, w->boot);
	return NULL;
}

static void both(struct opener w[2], void *(*fn)(void *arg))
{
	pthread_t other;

	assert_int_equal(pthread_create(&other, NULL, fn, &w[1]), 0);
	fn(&w[0]);
	pthread_join(other, NULL);
}

/* Ranks that open with different arguments name each other; a rank with different kernels is named. */
static void all_open_alike(void **state)
{
	const char *const settings[] = { "signals=64", NULL };
	uint64_t bytes = epf_ll_size_hint(1, 128, 2, 2);
	struct opener w[2] = { 0 };
	struct epf_boot_group *group;
	struct epf_options opts;
	char host[72], says[120];

	epf_options_init(&opts);
	opts.settings = settings;
	assert_return_code(epf_boot_local_create(2, &group), 0);
	for (unsigned r = 0; r < 2; r++) {
		w[r].bytes = bytes;
		assert_return_code(epf_boot_local_open(group, r, &w[r].boot), 0);
		assert_return_code(epf_open(&opts, &w[r].ep), 0);
	}
	both(w, join_beside);
	for (unsigned what = 0; what < 2; what++) {
		w[1].bytes = what ? bytes : bytes + 4096;
		w[1].first_signal = what;
		both(w, open_beside);
		for (unsigned r = 0; r < 2; r++) {
			assert_int_equal(w[r].rc, -EPROTO);
			assert_non_null(strstr(w[r].why, r ? "rank 0 opened" : "rank 1 opened"));
			assert_non_null(strstr(w[r].why, "all must be alike"));
		}
	}
	w[1].first_signal = 0;
	w[1].build_id = ll_build_id;
	both(w, open_beside);
	assert_int_equal(w[0].rc, -EPROTO);
	assert_non_null(
		strstr(w[0].why, "rank 1 opened low latency with region 99, first signal 0"));
	w[1].build_id = ll_build_id ^ 1;
	both(w, open_beside);
	assert_int_equal(w[0].rc, -EPROTO);
	assert_non_null(strstr(w[0].why, "rank 1 on host elsewhere runs different kernels"));
	assert_int_equal(gethostname(host, sizeof(host)), 0);
	snprintf(says, sizeof(says), "than rank 0 on host %s", host);
	assert_non_null(strstr(w[0].why, says));
	assert_non_null(strstr(w[0].why, "install the same ep-fabric on all nodes"));
	for (unsigned r = 0; r < 2; r++) {
		epf_close(w[r].ep);
		epf_boot_close(w[r].boot);
	}
	epf_boot_local_destroy(group);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opening_can_fail),
		cmocka_unit_test(all_open_alike),
	};

	return cmocka_run_group_tests_name("ll_open", tests, NULL, NULL);
}
