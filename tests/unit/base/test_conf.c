/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the configuration's types, ranges, error texts, defaults and printing, row by row and
 * with rows made for the test. Sources and precedence are in test_conf_load.c. Run by meson.
 */
#include "fabric/base/conf_priv.h"

#include "fabric/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const fruit[] = { "apple", "pear", NULL };

/* One row of each type, with ranges that are easy to step over. */
static const struct epf_conf_key rows[] = {
	[EPF_CONF_BOOL] = { .name = "a-bool", .def = "no", .min = 0, .max = 1 },
	[EPF_CONF_UINT] = { .name = "a-uint", .def = "5", .min = 2, .max = 100 },
	[EPF_CONF_POW2] = { .name = "a-pow2", .def = "8", .min = 4, .max = 64 },
	[EPF_CONF_AUTO] = { .name = "an-auto", .def = "auto", .min = 1, .max = 9 },
	[EPF_CONF_SIZE] = { .name = "a-size", .def = "4096", .min = 0, .max = 1ull << 41 },
	[EPF_CONF_TIME] = { .name = "a-time", .def = "1s", .min = 0, .max = 3600000000000 },
	[EPF_CONF_PROB] = { .name = "a-prob", .def = "0", .min = 0, .max = 1 },
	[EPF_CONF_ENUM] = { .name = "an-enum", .def = "pear", .words = fruit },
	[EPF_CONF_STRING] = { .name = "a-string", .def = "", .min = 2, .max = 8 },
	[EPF_CONF_PATH] = { .name = "a-path", .def = "/", .min = 1, .max = 8 },
	[EPF_CONF_SECRET] = { .name = "a-secret", .def = "", .min = 4, .max = 16 },
	[EPF_CONF_LIST] = { .name = "a-list", .def = "", .min = 0, .max = 3 },
	[EPF_CONF_CPUS] = { .name = "a-cpus", .def = "", .min = 0, .max = 200 },
};

/* The row of a type; the table above does not repeat its index. */
static struct epf_conf_key row_of(enum epf_conf_type type)
{
	struct epf_conf_key key = rows[type];

	key.type = type;
	key.aliases = "";
	key.doc = "";
	return key;
}

/* Parses and prints again: the text must come back as given, or as the second text. */
static void takes(enum epf_conf_type type, const char *text, const char *canonical)
{
	struct epf_conf_key key = row_of(type);
	union epf_conf_value value;
	char *back, *again;

	if (epf_conf_parse(&key, "test", text, &value))
		fail_msg("%s refused: %s", text, epf_last_error());
	back = epf_conf_format(&key, &value);
	assert_string_equal(back, canonical);
	epf_conf_release(&key, &value);
	if (type != EPF_CONF_SECRET) {
		assert_int_equal(epf_conf_parse(&key, "test", back, &value), 0);
		again = epf_conf_format(&key, &value);
		assert_string_equal(again, canonical);
		epf_conf_release(&key, &value);
		free(again);
	}
	free(back);
}

/* The text must be refused with this number, and the message must hold this part. */
static void refuses(enum epf_conf_type type, const char *text, int rc, const char *part)
{
	struct epf_conf_key key = row_of(type);
	union epf_conf_value value;

	memset(&value, 0x5a, sizeof(value));
	if (epf_conf_parse(&key, "here:1", text, &value) != rc)
		fail_msg("'%s' for %s: wanted %d, last error: %s", text, key.name, rc,
			 epf_last_error());
	if (!strstr(epf_last_error(), part) || strncmp(epf_last_error(), "here:1: ", 8))
		fail_msg("'%s': message '%s' lacks '%s'", text, epf_last_error(), part);
}

static void type_bool(void **state)
{
	takes(EPF_CONF_BOOL, "yes", "yes");
	takes(EPF_CONF_BOOL, "on", "yes");
	takes(EPF_CONF_BOOL, "true", "yes");
	takes(EPF_CONF_BOOL, "1", "yes");
	takes(EPF_CONF_BOOL, "0", "no");
	takes(EPF_CONF_BOOL, "off", "no");
	refuses(EPF_CONF_BOOL, "", -EINVAL, "neither yes nor no");
	refuses(EPF_CONF_BOOL, "YES", -EINVAL, "a-bool = 'YES'");
}

static void type_uint(void **state)
{
	takes(EPF_CONF_UINT, "2", "2");
	takes(EPF_CONF_UINT, "100", "100");
	takes(EPF_CONF_UINT, "0x1F", "31");
	takes(EPF_CONF_UINT, "007", "7");
	refuses(EPF_CONF_UINT, "", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "0x", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "1f", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "-5", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "+5", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, " 5", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "5 ", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "1.5", -EINVAL, "not a whole number");
	refuses(EPF_CONF_UINT, "1", -ERANGE, "outside 2 .. 100");
	refuses(EPF_CONF_UINT, "101", -ERANGE, "outside 2 .. 100");
	refuses(EPF_CONF_UINT, "18446744073709551618", -ERANGE, "outside 2 .. 100");
}

static void type_pow2_and_auto(void **state)
{
	takes(EPF_CONF_POW2, "4", "4");
	takes(EPF_CONF_POW2, "64", "64");
	refuses(EPF_CONF_POW2, "12", -ERANGE, "outside 4 .. 64, a power of two");
	refuses(EPF_CONF_POW2, "128", -ERANGE, "outside 4 .. 64, a power of two");
	refuses(EPF_CONF_POW2, "x", -EINVAL, "not a whole number");
	takes(EPF_CONF_AUTO, "auto", "auto");
	takes(EPF_CONF_AUTO, "-1", "auto");
	takes(EPF_CONF_AUTO, "9", "9");
	refuses(EPF_CONF_AUTO, "", -EINVAL, "neither auto nor");
	refuses(EPF_CONF_AUTO, "-2", -EINVAL, "neither auto nor");
	refuses(EPF_CONF_AUTO, "0", -ERANGE, "outside 1 .. 9 or auto");
}

static void type_size(void **state)
{
	takes(EPF_CONF_SIZE, "0", "0");
	takes(EPF_CONF_SIZE, "1000", "1000");
	takes(EPF_CONF_SIZE, "1000B", "1000");
	takes(EPF_CONF_SIZE, "4096", "4KiB");
	takes(EPF_CONF_SIZE, "64k", "64KiB");
	takes(EPF_CONF_SIZE, "64K", "64KiB");
	takes(EPF_CONF_SIZE, "2MiB", "2MiB");
	takes(EPF_CONF_SIZE, "1.5G", "1536MiB");
	takes(EPF_CONF_SIZE, "2T", "2TiB");
	takes(EPF_CONF_SIZE, "0.5k", "512");
	refuses(EPF_CONF_SIZE, "64MB", -EINVAL, "powers of 1024");
	refuses(EPF_CONF_SIZE, "64 k", -EINVAL, "not a size");
	refuses(EPF_CONF_SIZE, "k", -EINVAL, "not a size");
	refuses(EPF_CONF_SIZE, "1.", -EINVAL, "not a size");
	refuses(EPF_CONF_SIZE, "1.5", -EINVAL, "finer than its smallest unit");
	refuses(EPF_CONF_SIZE, "1.0001k", -EINVAL, "not a whole number of its smallest");
	refuses(EPF_CONF_SIZE, "3TiB", -ERANGE, "outside 0 .. 2TiB");
	refuses(EPF_CONF_SIZE, "18446744073709551615T", -ERANGE, "outside 0 .. 2TiB");
	refuses(EPF_CONF_SIZE, "16777217T", -ERANGE, "outside 0 .. 2TiB"); /* 2^64 + 1T */
	refuses(EPF_CONF_SIZE, "99999999999999999999", -EINVAL, "more digits");
	refuses(EPF_CONF_SIZE, "1.0000000000k", -EINVAL, "more digits");
}

static void type_time(void **state)
{
	takes(EPF_CONF_TIME, "0", "0");
	takes(EPF_CONF_TIME, "0.0", "0");
	takes(EPF_CONF_TIME, "1.5ms", "1500us");
	takes(EPF_CONF_TIME, "100us", "100us");
	takes(EPF_CONF_TIME, "2s", "2s");
	takes(EPF_CONF_TIME, "60s", "60s");
	takes(EPF_CONF_TIME, "1.5min", "90s");
	takes(EPF_CONF_TIME, "1h", "1h");
	takes(EPF_CONF_TIME, "0.000000001s", "1ns");
	refuses(EPF_CONF_TIME, "5", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "5 s", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "5S", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "-5s", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "1.5ns", -EINVAL, "finer than its smallest unit");
	refuses(EPF_CONF_TIME, "1.1h1", -EINVAL, "with its unit");
	refuses(EPF_CONF_TIME, "61min", -ERANGE, "outside 0 .. 1h");
	refuses(EPF_CONF_TIME, "18446744073709551615h", -ERANGE, "outside 0 .. 1h");
}

static void type_prob(void **state)
{
	takes(EPF_CONF_PROB, "0", "0");
	takes(EPF_CONF_PROB, "1", "1");
	takes(EPF_CONF_PROB, "1.000", "1");
	takes(EPF_CONF_PROB, "0.1", "0.1");
	takes(EPF_CONF_PROB, "0.05", "0.05");
	takes(EPF_CONF_PROB, "0.123456789", "0.123456789");
	takes(EPF_CONF_PROB, "0.000000001", "0.000000001");
	refuses(EPF_CONF_PROB, "1.000000001", -ERANGE, "outside 0 .. 1");
	refuses(EPF_CONF_PROB, "2", -ERANGE, "outside 0 .. 1");
	refuses(EPF_CONF_PROB, "0.0000000001", -EINVAL, "more than 9 decimals");
	refuses(EPF_CONF_PROB, "0,1", -EINVAL, "not a decimal number");
	refuses(EPF_CONF_PROB, ".5", -EINVAL, "not a decimal number");
	refuses(EPF_CONF_PROB, "nan", -EINVAL, "not a decimal number");
	refuses(EPF_CONF_PROB, "1e-3", -EINVAL, "not a decimal number");
}

static void type_enum(void **state)
{
	takes(EPF_CONF_ENUM, "apple", "apple");
	takes(EPF_CONF_ENUM, "pear", "pear");
	refuses(EPF_CONF_ENUM, "app", -EINVAL, "is none of apple, pear");
	refuses(EPF_CONF_ENUM, "", -EINVAL, "is none of apple, pear");
}

static void type_text(void **state)
{
	takes(EPF_CONF_STRING, "", "");
	takes(EPF_CONF_STRING, "ab", "ab");
	takes(EPF_CONF_STRING, "\xc3\xa4\xe2\x82\xac", "\xc3\xa4\xe2\x82\xac");
	takes(EPF_CONF_STRING, "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
	refuses(EPF_CONF_STRING, "a", -ERANGE, "outside 2 .. 8 bytes or empty");
	refuses(EPF_CONF_STRING, "123456789", -ERANGE, "outside 2 .. 8 bytes or empty");
	refuses(EPF_CONF_STRING, "a\nb", -EINVAL, "control character");
	refuses(EPF_CONF_STRING, "a\x7f", -EINVAL, "control character");
	refuses(EPF_CONF_STRING, "a\xff", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "a\xc3", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xc0\x80", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xe0\x80\x80", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xe2\x82", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xed\xa0\x80", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xf0\x80\x80\x80", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xf4\x90\x80\x80", -EINVAL, "not UTF-8");
	refuses(EPF_CONF_STRING, "\xf0\x9f\x98", -EINVAL, "not UTF-8");
	takes(EPF_CONF_PATH, "/tmp", "/tmp");
	refuses(EPF_CONF_PATH, "", -ERANGE, "outside 1 .. 8 bytes");
}

static void type_list_and_cpus(void **state)
{
	takes(EPF_CONF_LIST, "", "");
	takes(EPF_CONF_LIST, "a", "a");
	takes(EPF_CONF_LIST, "a,bb,c", "a,bb,c");
	refuses(EPF_CONF_LIST, "a,b,c,d", -ERANGE, "outside 0 .. 3 items");
	refuses(EPF_CONF_LIST, "a,,c", -EINVAL, "empty item");
	refuses(EPF_CONF_LIST, ",", -EINVAL, "empty item");
	refuses(EPF_CONF_LIST, "a,", -EINVAL, "empty item");
	takes(EPF_CONF_CPUS, "", "");
	takes(EPF_CONF_CPUS, "0", "0");
	takes(EPF_CONF_CPUS, "3,1", "1,3");
	takes(EPF_CONF_CPUS, "0-3,2-5,9,10", "0-5,9,10");
	takes(EPF_CONF_CPUS, "200", "200");
	refuses(EPF_CONF_CPUS, "201", -ERANGE, "outside CPU 0 .. 200");
	refuses(EPF_CONF_CPUS, "0-18446744073709551615", -ERANGE, "outside CPU 0 .. 200");
	refuses(EPF_CONF_CPUS, "5-2", -EINVAL, "list of CPU numbers");
	refuses(EPF_CONF_CPUS, "1,", -EINVAL, "list of CPU numbers");
	refuses(EPF_CONF_CPUS, "1-", -EINVAL, "list of CPU numbers");
	refuses(EPF_CONF_CPUS, "1;2", -EINVAL, "list of CPU numbers");
	refuses(EPF_CONF_CPUS, "all", -EINVAL, "list of CPU numbers");
}

static void a_long_value_is_shown_shortened(void **state)
{
	char text[300];

	memset(text, 'z', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	refuses(EPF_CONF_UINT, text, -EINVAL, "zzz...' is not a whole number");
}

static void a_secret_is_not_in_its_errors(void **state)
{
	takes(EPF_CONF_SECRET, "hunter2hunter2", "(set)");
	takes(EPF_CONF_SECRET, "", "");
	refuses(EPF_CONF_SECRET, "h2!", -ERANGE, "outside 4 .. 16 bytes");
	assert_null(strstr(epf_last_error(), "h2!"));
	refuses(EPF_CONF_SECRET, "hunter2hunter2hunter2", -ERANGE, "(hidden)");
	assert_null(strstr(epf_last_error(), "hunter2"));
}

static void defaults_are_the_documented_ones(void **state)
{
	struct epf_conf conf;

	assert_int_equal(epf_conf_init(&conf), 0);
	assert_int_equal(conf.ring_slots, 4096);
	assert_int_equal(conf.rank, -1);
	assert_int_equal(conf.bootstrap_timeout_ns, 60000000000);
	assert_int_equal(conf.nic, EPF_CONF_NIC_AUTO);
	assert_int_equal(conf.core_idle, EPF_CONF_IDLE_SLEEP);
	assert_int_equal(conf.progress, EPF_CONF_PROGRESS_THREAD);
	assert_int_equal(conf.emu_order, EPF_CONF_ORDER_ORDERED);
	assert_int_equal(conf.nic_inflight_bytes, 64 << 20);
	assert_int_equal(conf.emu_retransmit_ns, 200000);
	assert_true(conf.emu_drop == 0.0);
	assert_string_equal(conf.job, "");
	assert_int_equal(conf.cpu.count, 0);
	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		assert_string_equal(epf_conf_origin(&conf, (enum epf_conf_id)i), "default");
		assert_true(strlen(epf_conf_key((enum epf_conf_id)i)->doc) > 10);
	}
	epf_conf_destroy(&conf);
	epf_conf_destroy(&conf); /* empty now */
	epf_conf_destroy(NULL);
	assert_null(epf_conf_key(EPF_CONF_KEYS));
	assert_null(epf_conf_group_title(EPF_CONF_GROUPS));
	assert_int_equal(epf_conf_group_of(EPF_CONF_ID_job), EPF_CONF_GROUP_JOB);
	assert_int_equal(epf_conf_group_of(EPF_CONF_ID_emu_seed), EPF_CONF_GROUP_EMU);
}

static void set_stores_typed_values(void **state)
{
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(epf_conf_set(&conf, "ring_slots", "128", EPF_CONF_PROGRAM), 0);
	assert_int_equal(conf.ring_slots, 128);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_ring_slots), "program");
	assert_int_equal(epf_conf_set(&conf, "emu-drop", "0.25", EPF_CONF_PROGRAM), 0);
	assert_true(conf.emu_drop == 0.25);
	assert_int_equal(epf_conf_set(&conf, "nic", "null", EPF_CONF_PROGRAM), 0);
	assert_int_equal(conf.nic, EPF_CONF_NIC_NULL);
	assert_int_equal(epf_conf_set(&conf, "cpu", "1,0", EPF_CONF_PROGRAM), 0);
	assert_int_equal(conf.cpu.count, 2);
	assert_int_equal(conf.cpu.cpu[0], 0);
	assert_int_equal(epf_conf_set(&conf, "nic-device", "mlx5_0,mlx5_1", EPF_CONF_PROGRAM), 0);
	assert_int_equal(conf.nic_device.count, 2);
	assert_string_equal(conf.nic_device.item[1], "mlx5_1");
	assert_int_equal(epf_conf_set(&conf, "ring-slots", "100", EPF_CONF_PROGRAM), -ERANGE);
	assert_string_equal(epf_last_error(),
			    "program: ring-slots = '100' is outside 64 .. 65536, a power of two: "
			    "choose a value inside the range [EPF-102]");
	assert_int_equal(conf.ring_slots, 128);
	assert_int_equal(epf_conf_set(&conf, "ring-slot", "128", EPF_CONF_PROGRAM), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "'ring-slot' is not a setting, the nearest is "
						 "ring-slots"));
	assert_int_equal(epf_conf_set(&conf, "ring-slots", "64", (enum epf_conf_source)77),
			 -EINVAL);
	epf_conf_destroy(&conf);
}

static void the_statistics_directory_has_three_places(void **state)
{
	struct epf_conf conf;
	char dir[128], tiny[4];

	epf_conf_init(&conf);
	unsetenv("XDG_RUNTIME_DIR");
	assert_int_equal(epf_conf_stats_dir(&conf, dir, sizeof(dir)), 0);
	assert_memory_equal(dir, "/tmp/ep-fabric-", 15);
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	assert_int_equal(epf_conf_stats_dir(&conf, dir, sizeof(dir)), 0);
	assert_string_equal(dir, "/run/user/7/ep-fabric");
	epf_conf_set(&conf, "stats-dir", "/x", EPF_CONF_PROGRAM);
	assert_int_equal(epf_conf_stats_dir(&conf, dir, sizeof(dir)), 0);
	assert_string_equal(dir, "/x");
	epf_conf_set(&conf, "stats-dir", "/long", EPF_CONF_PROGRAM);
	assert_int_equal(epf_conf_stats_dir(&conf, tiny, sizeof(tiny)), -ERANGE);
	epf_conf_destroy(&conf);
}

/* What epf_conf_print() writes, to be freed. */
static char *printed(const struct epf_conf *conf, unsigned int flags, bool json)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	assert_non_null(out);
	assert_int_equal(epf_conf_print(out, conf, flags, json), 0);
	fclose(out);
	return text;
}

static void print_shows_values_and_origins(void **state)
{
	struct epf_conf conf;
	char *text;

	epf_conf_init(&conf);
	epf_conf_set(&conf, "rank", "3", EPF_CONF_ENVIRONMENT);
	epf_conf_set(&conf, "secret", "correct horse battery", EPF_CONF_ENVIRONMENT);
	text = printed(&conf, 0, false);
	assert_non_null(strstr(text, "(environment EPF_RANK)"));
	assert_non_null(strstr(text, "(set)"));
	assert_non_null(strstr(text, "ring-slots             = 4096             (default)"));
	free(text);
	text = printed(&conf, EPF_CONF_PRINT_CHANGED, false);
	assert_null(strstr(text, "ring-slots"));
	assert_non_null(strstr(text, "rank "));
	free(text);
	text = printed(&conf, EPF_CONF_PRINT_DOCS, false);
	assert_non_null(strstr(text, "variable: EPF_GID_INDEX, else NCCL_IB_GID_INDEX"));
	assert_null(strstr(text, "horse"));
	free(text);
	text = printed(&conf, EPF_CONF_PRINT_DOCS, true);
	assert_null(strstr(text, "horse"));
	free(text);
	epf_conf_destroy(&conf);
}

/* The row of a name in the printed JSON. */
static json_t *json_setting(json_t *top, const char *name)
{
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(top, "settings"), i, row)
	{
		if (!strcmp(json_string_value(json_object_get(row, "name")), name))
			return row;
	}
	fail_msg("no setting %s in the JSON", name);
	return NULL;
}

static void json_has_numbers_as_numbers(void **state)
{
	struct epf_conf conf;
	json_t *top, *row;
	char *text;

	epf_conf_init(&conf);
	epf_conf_set(&conf, "emu-drop", "0.125", EPF_CONF_PROGRAM);
	epf_conf_set(&conf, "cpu", "2,3", EPF_CONF_PROGRAM);
	epf_conf_set(&conf, "secret", "correct horse battery", EPF_CONF_PROGRAM);
	text = printed(&conf, EPF_CONF_PRINT_DOCS, true);
	top = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(top);
	assert_string_equal(json_string_value(json_object_get(top, "schema")), "epf.config/1");
	assert_int_equal(json_array_size(json_object_get(top, "settings")), EPF_CONF_KEYS);
	row = json_setting(top, "peer-timeout");
	assert_int_equal(json_integer_value(json_object_get(row, "value")), 10000000000);
	assert_string_equal(json_string_value(json_object_get(row, "unit")), "ns");
	assert_string_equal(json_string_value(json_object_get(row, "text")), "10s");
	assert_true(json_is_true(json_object_get(row, "is_default")));
	row = json_setting(top, "emu-drop");
	assert_true(json_real_value(json_object_get(row, "value")) == 0.125);
	assert_string_equal(json_string_value(json_object_get(row, "origin")), "program");
	assert_true(json_is_null(json_object_get(json_setting(top, "rank"), "value")));
	assert_true(json_is_null(json_object_get(json_setting(top, "secret"), "value")));
	assert_int_equal(json_array_size(json_object_get(json_setting(top, "cpu"), "value")), 2);
	json_decref(top);
	free(text);
	epf_conf_destroy(&conf);
}

static void print_reports_a_full_disk(void **state)
{
	struct epf_conf conf;
	FILE *full = fopen("/dev/full", "w");

	if (!full)
		skip();
	epf_conf_init(&conf);
	assert_int_equal(epf_conf_print(full, &conf, 0, false), -EIO);
	fclose(full);
	full = fopen("/dev/full", "w");
	assert_non_null(full);
	setvbuf(full, NULL, _IONBF, 0); /* now writing fails, and flushing does not */
	assert_int_equal(epf_conf_print(full, &conf, 0, false), -EIO);
	fclose(full);
	epf_conf_destroy(&conf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(type_bool),
		cmocka_unit_test(type_uint),
		cmocka_unit_test(type_pow2_and_auto),
		cmocka_unit_test(type_size),
		cmocka_unit_test(type_time),
		cmocka_unit_test(type_prob),
		cmocka_unit_test(type_enum),
		cmocka_unit_test(type_text),
		cmocka_unit_test(type_list_and_cpus),
		cmocka_unit_test(a_long_value_is_shown_shortened),
		cmocka_unit_test(a_secret_is_not_in_its_errors),
		cmocka_unit_test(defaults_are_the_documented_ones),
		cmocka_unit_test(set_stores_typed_values),
		cmocka_unit_test(the_statistics_directory_has_three_places),
		cmocka_unit_test(print_shows_values_and_origins),
		cmocka_unit_test(json_has_numbers_as_numbers),
		cmocka_unit_test(print_reports_a_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
