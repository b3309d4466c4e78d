/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics --prove` as a library: over the software NIC every assumption is held; over a NIC that lies about one thing (liar.h) the
 * matching line says broken. Every check has a lie, or stands in the list of those that cannot be tried here.
 */
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"
#include "tests/unit/nic/liar.h"
#include "tools/prove/far.h"
#include "tools/prove/far_wire.h"
#include "tools/prove/prove.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct case_ {
	const char *key; /* the line that must be broken */
	enum lie lie;
};

static const struct case_ cases[] = {
	{ "writes", LIE_CUTS_WRITES },
	{ "writes", LIE_WRITES_BEYOND },
	{ "reads", LIE_CUTS_READS },
	{ "inline", LIE_INLINE_LATE },
	{ "immediates", LIE_IMM_31_BITS },
	{ "immediates", LIE_IMM_LOST },
	{ "lengths", LIE_WRONG_LENGTH },
	{ "messages", LIE_CUTS_MESSAGES },
	{ "many-messages", LIE_LOSES_MESSAGE },
	{ "data-before-immediate", LIE_IMM_FIRST },
	{ "sent-means-landed", LIE_SENT_EARLY },
	{ "order", LIE_REORDERS },
	{ "order", LIE_IMM_LOST },
	{ "order-of-writes", LIE_REORDERS_WRITES },
	{ "completions", LIE_COMPLETES_TWICE },
	{ "completions", LIE_LOSES_WRITE },
	{ "both-ways", LIE_B_SENDS_NOTHING },
	{ "loopback", LIE_OTHER_LANES },
	{ "lanes", LIE_WRONG_LANE },
	{ "memory-private", LIE_REGISTERS_ONE },
	{ "memory-shared", LIE_REGISTERS_ONE },
	{ "memory-gpu", LIE_CUTS_WRITES },
	{ "additions", LIE_ADDS_ONE_MORE },
	{ "bounds", LIE_MOVES_INTO_BOUNDS },
	{ "rights", LIE_ALL_RIGHTS },
	{ "keys", LIE_KEEPS_KEYS },
	{ "own-side", LIE_MENDS_OWN_KEY },
	{ "flush-after-error", LIE_FLUSHED_IS_OK },
	{ "isolation", LIE_FENCES_NEIGHBOUR },
	{ "missing-receives", LIE_OWN_RECEIVES },
	{ "no-receives", LIE_RNR_IS_OK },
	{ "fence-at-target", LIE_NO_FENCE },
	{ "fence-at-sender", LIE_LOSES_FLUSHED },
	{ "made-again", LIE_STALE_COMPLETION },
	{ "lost-peer", LIE_HIDES_ERRORS },
	{ "link-cut", LIE_LINK_STAYS_UP },
	{ "capabilities", LIE_SMALL_MESSAGES },
	{ "watch", LIE_LIVE_PEER_DOWN },
	{ "wakeup", LIE_NEVER_WAKES },
	{ "connect-late", LIE_OTHER_LANES },
	{ "arguments", LIE_TAKES_DEPTH_0 },
	{ "outstanding", LIE_LOSES_LAST },
	{ "long-messages", LIE_CUTS_WRITES },
	{ "message-size", LIE_CUTS_LONG_WRITES },
	{ "completion-queue", LIE_OVERFLOWS },
	{ "regions", LIE_ONE_KEY_FOR_ALL },
};

enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* The first shares every line of its check with memory-shared; the other needs a NIC that takes a dma-buf of a GPU. */
static const char *const without_lie[] = { "memory-huge", "memory-dmabuf" };

static struct epf_conf conf;
static struct prove_report report;

static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static int setup(void **state)
{
	static const char *const settings[][2] = {
		{ "nic", "emu" },
		{ "gpu-backend", "fake" },
		{ "emu-retry-timeout", "1s" },
		{ "emu-rnr-timeout", "700ms" },
	};

	assert_int_equal(epf_conf_init(&conf), 0);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		assert_int_equal(
			epf_conf_set(&conf, settings[i][0], settings[i][1], EPF_CONF_PROGRAM), 0);
	return 0;
}

static int teardown(void **state)
{
	epf_conf_destroy(&conf);
	return 0;
}

static void prove(const char *only, enum lie lie)
{
	struct prove_opts opts = { .conf = &conf, .only = only, .wrap = liar_wrap };

	liar_lie = lie;
	if (prove_run(&opts, &report))
		fail_msg("%s", epf_last_error());
}

static int is_without_lie(const char *key)
{
	return !strcmp(key, without_lie[0]) || !strcmp(key, without_lie[1]);
}

static void test_honest(void **state)
{
	prove(NULL, LIE_NONE);
	for (unsigned i = 0; i < report.n; i++) {
		const struct prove_row *row = &report.rows[i];

		if (row->verdict != PROVE_HELD && !is_without_lie(row->check->key))
			fail_msg("%s: %s", row->check->key, row->detail);
		assert_int_not_equal(row->verdict, PROVE_BROKEN);
	}
	assert_int_equal(report.broken, 0);
	assert_int_equal(report.held + report.not_tried, report.n);
}

/* A GPU that takes longer than the NIC waits for an answer, as one does whose driver begins. */
static void test_slow_gpu(void **state)
{
	assert_int_equal(epf_conf_set(&conf, "emu-retry-timeout", "50ms", EPF_CONF_PROGRAM), 0);
	epf_copy_fake_pause(300000000);
	prove("memory-gpu", LIE_NONE);
	epf_copy_fake_pause(0);
	assert_int_equal(epf_conf_set(&conf, "emu-retry-timeout", "1s", EPF_CONF_PROGRAM), 0);
	if (report.rows[0].verdict != PROVE_HELD)
		fail_msg("%s", report.rows[0].detail);
}

/* The emulated NIC times out before the check looks, as it does when its process is not scheduled for a while. */
static void test_impatient(void **state)
{
	static const char *const names[2] = { "emu-rnr-timeout", "emu-retry-timeout" };
	static const char *const shorter[2] = { "1ms", "2ms" }, *const usual[2] = { "700ms", "1s" };

	for (int i = 0; i < 2; i++)
		assert_int_equal(epf_conf_set(&conf, names[i], shorter[i], EPF_CONF_PROGRAM), 0);
	prove("missing-receives", LIE_NONE);
	for (int i = 0; i < 2; i++)
		assert_int_equal(epf_conf_set(&conf, names[i], usual[i], EPF_CONF_PROGRAM), 0);
	if (report.rows[0].verdict != PROVE_HELD)
		fail_msg("%s", report.rows[0].detail);
}

static void test_lies(void **state)
{
	unsigned wrong = 0;

	for (unsigned i = 0; i < CASES; i++) {
		prove(cases[i].key, cases[i].lie);
		assert_int_equal(report.n, 1);
		if (report.rows[0].verdict == PROVE_BROKEN && report.broken == 1)
			continue;
		print_error("lie %d: %s is not broken: %s\n", (int)cases[i].lie, cases[i].key,
			    report.rows[0].detail);
		wrong++;
	}
	assert_int_equal(wrong, 0);
}

struct asking {
	struct epf_boot *boot;
	int rc;
};

/* The host that waits, with the settings of this test. */
static int open_far(void *arg, unsigned flags, struct epf_nic **out)
{
	return epf_nic_find("emu")->open(&conf, now, NULL, out);
}

static void *serve(void *arg)
{
	struct asking *a = arg;

	a->rc = far_serve(a->boot, open_far, NULL);
	return NULL;
}

/* One request as another program might send it. Returns rc of the answer. */
static int ask(struct epf_boot *boot, struct far_head h, const void *data, size_t len)
{
	unsigned char request[sizeof(h) + 256];
	struct epf_blob *all;
	int rc;

	memcpy(request, &h, sizeof(h));
	if (len)
		memcpy(request + sizeof(h), data, len);
	assert_int_equal(epf_boot_allgather(boot, request, sizeof(h) + len, &all), 0);
	epf_boot_free_blobs(all);
	assert_int_equal(epf_boot_allgather(boot, NULL, 0, &all), 0);
	assert_true(all[1].len >= sizeof(h));
	memcpy(&h, all[1].data, sizeof(h));
	rc = h.rc;
	epf_boot_free_blobs(all);
	return rc;
}

/* The host that waits believes no number: the last valid one, then the first that is not. */
static void test_far_host_checks_what_it_is_asked(void **state)
{
	struct epf_wr wr = { .op = EPF_WR_SEND, .flags = EPF_WR_INLINE, .len = 16 };
	struct epf_boot_group *group;
	struct epf_boot *boot;
	struct asking a;
	pthread_t thread;

	assert_int_equal(epf_boot_local_create(2, &group), 0);
	assert_int_equal(epf_boot_local_open(group, 0, &boot), 0);
	assert_int_equal(epf_boot_local_open(group, 1, &a.boot), 0);
	assert_int_equal(pthread_create(&thread, NULL, serve, &a), 0);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_REAP, .n = 1 }, NULL, 0), -EINVAL);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_OPEN }, NULL, 0), 0);
	for (uint64_t over = 0; over < 2; over++) {
		int want = over ? -EINVAL : 0;
		struct far_head load = { .op = FAR_LOAD, .a = RIG_BYTES - 8, .b = 8 + over };
		struct far_head store = { .op = FAR_STORE, .a = RIG_BYTES - 8, .b = 8 + over };
		struct far_head reg = { .op = FAR_REGISTER, .b = RIG_BYTES + over, .n = 1 };

		assert_int_equal(ask(boot, load, NULL, 0), want);
		assert_int_equal(ask(boot, store, "012345678", 8 + over), want);
		assert_int_equal(ask(boot, reg, NULL, 0), want);
	}
	assert_int_equal(
		ask(boot, (struct far_head){ .op = FAR_LOAD, .a = UINT64_MAX, .b = 2 }, NULL, 0),
		-EINVAL);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_STORE, .b = 8 }, "1", 1), -EINVAL);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_DEREGISTER, .a = 1 }, NULL, 0),
			 -EINVAL);
	assert_int_equal(
		ask(boot, (struct far_head){ .op = FAR_DEREGISTER, .a = FAR_REGIONS }, NULL, 0),
		-EINVAL);
	/* Payload that did not come along; a request that is not whole; one that does not exist. */
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_POST }, &wr, sizeof(wr)), -EINVAL);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_POST }, &wr, sizeof(wr) - 1),
			 -EINVAL);
	assert_int_equal(ask(boot, (struct far_head){ .op = 999 }, NULL, 0), -ENOSYS);
	assert_int_equal(ask(boot, (struct far_head){ .op = FAR_END }, NULL, 0), 0);
	pthread_join(thread, NULL);
	assert_int_equal(a.rc, 0);
	epf_boot_close(boot);
	epf_boot_close(a.boot);
	epf_boot_local_destroy(group);
}

/* A check that is added needs a lie, too. */
static void test_every_check_has_a_lie(void **state)
{
	for (const struct check *const *table = check_tables; *table; table++)
		for (const struct check *c = *table; c->key; c++) {
			unsigned n = is_without_lie(c->key) ? 1 : 0;

			for (unsigned i = 0; i < CASES; i++)
				n += !strcmp(cases[i].key, c->key);
			if (!n)
				fail_msg("%s has no lie", c->key);
			assert_true(strlen(c->consequence) > 10 && strlen(c->assumption) > 10);
		}
}

static void test_report(void **state)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	json_t *json, *rows, *row;

	assert_non_null(out);
	prove("immediates", LIE_IMM_31_BITS);
	prove_text(&report, out);
	fclose(out);
	assert_non_null(strstr(text, "broken     Immediates of every value"));
	assert_non_null(strstr(text, "EPF loses or confuses notifications"));
	assert_non_null(strstr(text, "0 held, 1 broken, 0 not tried"));
	free(text);
	json = prove_json(&report);
	assert_non_null(json);
	assert_string_equal(json_string_value(json_object_get(json, "schema")), "epf.prove/1");
	assert_int_equal(json_integer_value(json_object_get(json, "broken")), 1);
	rows = json_object_get(json, "assumptions");
	assert_int_equal(json_array_size(rows), 1);
	row = json_array_get(rows, 0);
	assert_string_equal(json_string_value(json_object_get(row, "verdict")), "broken");
	assert_string_equal(json_string_value(json_object_get(row, "key")), "immediates");
	assert_true(strlen(json_string_value(json_object_get(row, "consequence"))) > 0);
	assert_true(strlen(json_string_value(json_object_get(row, "detail"))) > 0);
	json_decref(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_honest),
		cmocka_unit_test(test_slow_gpu),
		cmocka_unit_test(test_impatient),
		cmocka_unit_test(test_lies),
		cmocka_unit_test(test_every_check_has_a_lie),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_far_host_checks_what_it_is_asked),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
