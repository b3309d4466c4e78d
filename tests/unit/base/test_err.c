/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the error table, the log and the clock of fabric/base: stable numbers, one line with a
 * remedy, per-thread texts, levels, lines that cannot be forged. Run by meson.
 */
#define EPF_LOG_COMP "unit"
#include "fabric/base/log.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int saved_stderr = -1;
static FILE *captured;

static void capture_start(void)
{
	captured = tmpfile();
	assert_non_null(captured);
	fflush(stderr);
	saved_stderr = dup(STDERR_FILENO);
	assert_true(dup2(fileno(captured), STDERR_FILENO) >= 0);
}

/* Ends the capture; text gets what was written to stderr. */
static void capture_end(char *text, size_t size)
{
	size_t n;

	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	rewind(captured);
	n = fread(text, 1, size - 1, captured);
	text[n] = '\0';
	fclose(captured);
}

static void table_is_sorted_and_complete(void **state)
{
	size_t count;
	const struct epf_reason_info *row = epf_reason_table(&count);

	assert_true(count > 8);
	for (size_t i = 0; i < count; i++) {
		if (i)
			assert_true(row[i].reason > row[i - 1].reason);
		assert_true(row[i].err > 0);
		assert_true(strlen(row[i].cause) > 10 && strlen(row[i].remedy) > 5);
		assert_int_equal(row[i].cause[strlen(row[i].cause) - 1], '.');
		assert_int_not_equal(row[i].remedy[strlen(row[i].remedy) - 1], '.');
		assert_ptr_equal(epf_reason_info(row[i].reason), &row[i]);
	}
	assert_null(epf_reason_info(EPF_R_NONE));
	assert_null(epf_reason_info((enum epf_reason)99999));
}

static void numbers_stay(void **state)
{
	assert_int_equal(EPF_R_CONF_UNKNOWN_KEY, 100);
	assert_int_equal(EPF_R_CONF_RANGE, 102);
	assert_int_equal(EPF_R_CONF_SECRET_PLACE, 107);
	assert_int_equal(EPF_R_NO_MEMORY, 500);
	assert_int_equal(EPF_R_SYSTEM, 501);
}

static void fail_records_detail_remedy_and_number(void **state)
{
	epf_clear_error();
	assert_string_equal(epf_last_error(), "");
	assert_int_equal(epf_last_reason(), EPF_R_NONE);
	errno = EXDEV;
	assert_int_equal(epf_fail(EPF_R_CONF_RANGE, "rank = '%d' is outside %s", 7, "0 .. 3"),
			 -ERANGE);
	assert_int_equal(errno, EXDEV);
	assert_string_equal(
		epf_last_error(),
		"rank = '7' is outside 0 .. 3: choose a value inside the range [EPF-102]");
	assert_int_equal(epf_last_reason(), EPF_R_CONF_RANGE);
	epf_clear_error();
	assert_string_equal(epf_last_error(), "");
}

static void fail_sys_says_what_the_system_said(void **state)
{
	assert_int_equal(epf_fail_sys(EPF_R_SYSTEM, EACCES, "open %s", "/x"), -EACCES);
	assert_non_null(strstr(epf_last_error(), "open /x: Permission denied: "));
	assert_non_null(strstr(epf_last_error(), "[EPF-501]"));
	assert_int_equal(epf_fail_sys(EPF_R_SYSTEM, 0, "nothing"), -EIO);
	assert_null(strstr(epf_last_error(), "Success"));
}

static void a_long_detail_keeps_the_remedy(void **state)
{
	char detail[4000];

	memset(detail, 'x', sizeof(detail) - 1);
	detail[sizeof(detail) - 1] = '\0';
	epf_fail(EPF_R_CONF_RANGE, "%s", detail);
	assert_true(strlen(epf_last_error()) <= 511);
	assert_non_null(strstr(epf_last_error(), "x...: choose a value inside"));
	epf_fail_sys(EPF_R_SYSTEM, EACCES, "%s", detail);
	assert_non_null(strstr(epf_last_error(), "x...: Permission denied: "));
	assert_non_null(strstr(epf_last_error(), "[EPF-501]"));
}

static void an_error_is_one_line_and_may_quote_the_last(void **state)
{
	epf_fail(EPF_R_CONF_RANGE, "a\nb\x1b[31m");
	assert_null(strchr(epf_last_error(), '\n'));
	assert_null(strchr(epf_last_error(), '\x1b'));
	epf_fail(EPF_R_SYSTEM, "outer (%s)", epf_last_error());
	assert_non_null(strstr(epf_last_error(), "outer (a?b?[31m: choose"));
	assert_int_equal(epf_fail((enum epf_reason)99998, "odd"), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "[EPF-99998]"));
}

static void *other_thread(void *arg)
{
	bool *fresh = arg;

	*fresh = !*epf_last_error() && epf_last_reason() == EPF_R_NONE;
	epf_fail(EPF_R_SYSTEM, "other");
	return NULL;
}

static void each_thread_has_its_own_error(void **state)
{
	bool fresh = false;
	pthread_t t;

	epf_fail(EPF_R_CONF_RANGE, "mine");
	assert_int_equal(pthread_create(&t, NULL, other_thread, &fresh), 0);
	pthread_join(t, NULL);
	assert_true(fresh);
	assert_int_equal(epf_last_reason(), EPF_R_CONF_RANGE);
}

static void levels_by_component(void **state)
{
	assert_int_equal(epf_log_configure("info,boot=debug,nic=error"), 0);
	assert_true(epf_log_enabled("unit", EPF_LOG_INFO));
	assert_false(epf_log_enabled("unit", EPF_LOG_DEBUG));
	assert_true(epf_log_enabled("boot", EPF_LOG_DEBUG));
	assert_true(epf_log_enabled("nic", EPF_LOG_ERR));
	assert_false(epf_log_enabled("nic", EPF_LOG_WARN));
	assert_int_equal(epf_log_configure("loud"), -EINVAL);
	assert_int_equal(epf_log_configure("boot=loud"), -EINVAL);
	assert_int_equal(epf_log_configure("=info"), -EINVAL);
	assert_int_equal(epf_log_configure("a=info,b=info,c=info,d=info,e=info,f=info,g=info,"
					   "h=info,i=info,j=info,k=info,l=info,m=info,n=info,"
					   "o=info,p=info,q=info"),
			 -EINVAL);
	assert_true(epf_log_enabled("boot", EPF_LOG_DEBUG)); /* a bad text changed nothing */
	assert_int_equal(epf_log_configure(NULL), 0);
	assert_true(epf_log_enabled("boot", EPF_LOG_NOTE));
	assert_false(epf_log_enabled("boot", EPF_LOG_INFO));
}

static void a_line_cannot_be_forged(void **state)
{
	char text[4096], *line;

	epf_log_configure(NULL);
	capture_start();
	errno = EXDEV;
	epf_warn("peer 3: said %s", "x\n<0>ep-fabric error: \x1b[2J");
	assert_int_equal(errno, EXDEV);
	epf_info("not shown");
	epf_dbg("not shown");
	epf_err("%02000d", 0);
	capture_end(text, sizeof(text));
	line = strchr(text, '\n');
	assert_non_null(line);
	*line++ = '\0';
	assert_non_null(strstr(text, "] unit warning: peer 3: said x?<0>ep-fabric"));
	assert_null(strchr(text, '\x1b'));
	assert_null(strstr(line, "not shown"));
	assert_non_null(strstr(line, "unit error: 000"));
	assert_int_equal(strlen(line), 1023);
	assert_string_equal(line + 1023 - 4, "...\n");
}

static void a_daemon_says_when_and_where(void **state)
{
	char text[4096], want[512], host[65] = "";
	struct tm utc;

	epf_log_configure(NULL);
	epf_log_name("node7");
	capture_start();
	epf_warn("one");
	epf_log_name(NULL);
	epf_warn("two");
	capture_end(text, sizeof(text));
	assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
	assert_non_null(strptime(text, "%Y-%m-%dT%H:%M:%S.", &utc));
	snprintf(want, sizeof(want),
		 "Z %s ep-fabric/node7[%d] unit warning: one\nep-fabric[%d] unit warning: two\n",
		 host, (int)getpid(), (int)getpid());
	assert_string_equal(strchr(text, 'Z'), want);
}

static void a_flood_is_held_back(void **state)
{
	char text[8192];
	unsigned int lines = 0;

	capture_start();
	for (int i = 0; i < 100; i++)
		epf_warn_ratelimited("flood %d", i);
	capture_end(text, sizeof(text));
	for (char *p = text; (p = strstr(p, "flood")); p++)
		lines++;
	assert_int_equal(lines, 5);
}

static void the_held_back_are_counted(void **state)
{
	struct epf_log_limit limit = { 0 };
	uint32_t swallowed = 99;

	for (int i = 0; i < 5; i++)
		assert_true(epf_log_limit_pass(&limit, &swallowed));
	assert_int_equal(swallowed, 0);
	for (int i = 0; i < 3; i++)
		assert_false(epf_log_limit_pass(&limit, &swallowed));
	limit.window_start_ns -= 6000000000ull;
	assert_true(epf_log_limit_pass(&limit, &swallowed));
	assert_int_equal(swallowed, 3);
}

/* What the counter says of 50 ms, against what the clock says. */
static double ratio_of_clocks(void)
{
	struct timespec rest = { .tv_nsec = 50000000 };
	uint64_t ns0, ns1, tsc0, tsc1;

	ns0 = epf_now_ns();
	tsc0 = epf_tsc();
	nanosleep(&rest, NULL);
	tsc1 = epf_tsc();
	ns1 = epf_now_ns();
	assert_true(ns1 - ns0 >= 50000000);
	return (double)epf_tsc_to_ns(tsc1 - tsc0) / (double)(ns1 - ns0);
}

static void the_two_clocks_agree(void **state)
{
	uint64_t hz = epf_tsc_hz();
	double ratio = 0;

	assert_true(hz > 1000000 && hz == epf_tsc_hz());
	/* Wide, and more than one try: between the two reads the test may lose the CPU. */
	for (int i = 0; i < 20 && !(ratio > 0.8 && ratio < 1.2); i++)
		ratio = ratio_of_clocks();
	assert_true(ratio > 0.8 && ratio < 1.2);
}

static void conversions_do_not_overflow(void **state)
{
	uint64_t year_s = 365ull * 86400, year_ns = year_s * 1000000000;
	uint64_t back = epf_tsc_to_ns(year_s * epf_tsc_hz());

	assert_true(back <= year_ns && year_ns - back < 1000);
	assert_int_equal(epf_tsc_to_ns(0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(table_is_sorted_and_complete),
		cmocka_unit_test(numbers_stay),
		cmocka_unit_test(fail_records_detail_remedy_and_number),
		cmocka_unit_test(fail_sys_says_what_the_system_said),
		cmocka_unit_test(a_long_detail_keeps_the_remedy),
		cmocka_unit_test(an_error_is_one_line_and_may_quote_the_last),
		cmocka_unit_test(each_thread_has_its_own_error),
		cmocka_unit_test(levels_by_component),
		cmocka_unit_test(a_line_cannot_be_forged),
		cmocka_unit_test(a_daemon_says_when_and_where),
		cmocka_unit_test(a_flood_is_held_back),
		cmocka_unit_test(the_held_back_are_counted),
		cmocka_unit_test(the_two_clocks_agree),
		cmocka_unit_test(conversions_do_not_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
