/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's setup as a file (tools/top/setup.h): where it lies, that all of it comes back, and what is said of one that is broken in any way.
 */
#include "tools/top/setup.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[160], why[300];

static int set_up(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/epf-setup-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/a/ep-fabric/top.json", dir);
	why[0] = '\0';
	return 0;
}

static int tear_down(void **state)
{
	char at[200];

	unlink(path);
	snprintf(at, sizeof(at), "%s/a/ep-fabric", dir);
	rmdir(at);
	snprintf(at, sizeof(at), "%s/a", dir);
	rmdir(at);
	return rmdir(dir);
}

static void put_file(const char *text, size_t n)
{
	struct top_setup setup;
	FILE *f;

	top_setup_default(&setup); /* makes the directories */
	assert_int_equal(top_setup_save(&setup, path, why, sizeof(why)), 0);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void assert_default(const struct top_setup *setup)
{
	assert_true(setup->delay_s > 0.99 && setup->delay_s < 1.01);
	assert_false(setup->totals);
	assert_true(setup->colours);
	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		assert_int_equal(setup->screen[s].sort, TOP_NATURAL);
		assert_int_equal(setup->screen[s].hidden, 0);
		assert_false(setup->screen[s].invert);
	}
}

static void where_it_lies(void **state)
{
	char text[64];

	setenv("HOME", "/home/x", 1);
	setenv("XDG_CONFIG_HOME", "/c", 1);
	assert_int_equal(top_setup_path(text, sizeof(text)), 0);
	assert_string_equal(text, "/c/ep-fabric/top.json");
	setenv("XDG_CONFIG_HOME", "relative", 1); /* must be ignored, says its specification */
	assert_int_equal(top_setup_path(text, sizeof(text)), 0);
	assert_string_equal(text, "/home/x/.config/ep-fabric/top.json");
	unsetenv("XDG_CONFIG_HOME");
	assert_int_equal(top_setup_path(text, 20), -ENAMETOOLONG);
	unsetenv("HOME");
	assert_int_equal(top_setup_path(text, sizeof(text)), -ENOENT);
}

static void all_of_it_comes_back(void **state)
{
	struct top_setup setup, back;
	struct stat st;

	assert_int_equal(top_setup_load(&back, path, why, sizeof(why)), 0); /* there is none */
	assert_default(&back);
	top_setup_default(&setup);
	setup.delay_s = 0.1;
	setup.totals = true;
	setup.colours = false;
	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		struct top_column column[TOP_COLUMNS_MAX];
		uint32_t n = top_columns((enum top_screen_number)s, column);

		/* Titles are names in the file: each is there once. */
		for (uint32_t c = 0; c < n; c++)
			for (uint32_t d = 0; d < c; d++)
				assert_string_not_equal(column[c].title, column[d].title);
		setup.screen[s].sort = n - 1 - s % 2;
		setup.screen[s].hidden = (UINT32_C(1) << n) - 1 - s;
		setup.screen[s].invert = s % 2;
	}
	assert_int_equal(top_setup_save(&setup, path, why, sizeof(why)), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(top_setup_load(&back, path, why, sizeof(why)), 0);
	assert_true(back.delay_s > 0.0999 && back.delay_s < 0.1001);
	assert_true(back.totals);
	assert_false(back.colours);
	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		assert_int_equal(back.screen[s].sort, setup.screen[s].sort);
		assert_int_equal(back.screen[s].hidden, setup.screen[s].hidden);
		assert_int_equal(back.screen[s].invert, setup.screen[s].invert);
	}
}

static void a_broken_file_is_a_line(void **state)
{
#define S "{\"schema\":\"epf.top.setup/1\","

	static const struct {
		const char *text, *says;
	} broken[] = {
		{ "", "line 1" },
		{ "{\n\"a\":\n", "line 3" },
		{ "[]", "\"schema\" must be" },
		{ "{\"schema\":\"epf.top.setup/2\"}", "\"schema\" must be" },
		{ S "\"totals\":1}", "\"totals\" must be true or false" },
		{ S "\"colours\":null}", "\"colours\" must be true or false" },
		{ S "\"delay_seconds\":0.05}", "0.1 to 3600" },
		{ S "\"delay_seconds\":3601}", "0.1 to 3600" },
		{ S "\"delay_seconds\":\"1\"}", "0.1 to 3600" },
		{ S "\"totals\":true,\"totals\":true}", "duplicate" },
		{ S "\"colors\":true}", "\"colors\" is not known" },
		{ S "\"a\\u001b[2J\":true}", "\"a?[2J\" is not known" },
		{ S "\"screens\":[]}", "\"screens\" must be an object" },
		{ S "\"screens\":{\"none\":{}}}", "\"none\" is not a screen" },
		{ S "\"screens\":{\"cores\":1}}", "\"cores\" must be an object" },
		{ S "\"screens\":{\"cores\":{\"sort\":\"NONE\"}}}",
		  "\"cores\" has no such column to sort by" },
		{ S "\"screens\":{\"cores\":{\"sort\":3}}}",
		  "\"cores\" has no such column to sort by" },
		{ S "\"screens\":{\"cores\":{\"hidden\":\"NUMA\"}}}", "\"hidden\" must be a list" },
		{ S "\"screens\":{\"cores\":{\"hidden\":[\"NUMA\",\"X\"]}}}",
		  "\"cores\" has no such column to hide" },
		{ S "\"screens\":{\"cores\":{\"invert\":2}}}", "\"invert\" must be true or false" },
		{ S "\"screens\":{\"cores\":{\"more\":2}}}", "\"more\" is not known" },
	};
	struct top_setup setup;
	char *large;

	for (size_t i = 0; i < sizeof(broken) / sizeof(*broken); i++) {
		put_file(broken[i].text, strlen(broken[i].text));
		assert_int_equal(top_setup_load(&setup, path, why, sizeof(why)), -EBADMSG);
		if (!strstr(why, broken[i].says) || !strstr(why, path) || strchr(why, '\n'))
			fail_msg("%s: %s", broken[i].text, why);
		assert_default(&setup);
	}
	large = calloc(1, 1 << 17);
	assert_non_null(large);
	put_file(large, 1 << 17);
	assert_int_equal(top_setup_load(&setup, path, why, sizeof(why)), -EBADMSG);
	assert_default(&setup);
	free(large);
	assert_int_equal(top_setup_load(&setup, dir, why, sizeof(why)), -EBADMSG);
}

static void what_cannot_be_kept_is_said(void **state)
{
	struct top_setup setup;
	char below[200];

	put_file("{", 1);
	snprintf(below, sizeof(below), "%s/more/top.json", path); /* a file is no directory */
	top_setup_default(&setup);
	assert_true(top_setup_save(&setup, below, why, sizeof(why)) < 0);
	assert_non_null(strstr(why, "not kept"));
	assert_non_null(strstr(why, below));
	/* What is in the way of the new one: the old one stays, and nothing else lies about. */
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_true(top_setup_save(&setup, path, why, sizeof(why)) < 0);
	assert_int_equal(rmdir(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(where_it_lies),
		cmocka_unit_test_setup_teardown(all_of_it_comes_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_broken_file_is_a_line, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_cannot_be_kept_is_said, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("ep-top's setup", tests, NULL, NULL);
}
