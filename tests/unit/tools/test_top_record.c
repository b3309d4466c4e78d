/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's JSON and back; recordings, also cut short at every place and with bytes changed; files that come, go and break.
 */
#include "tests/unit/tools/top_kit.h"

#include <errno.h>

/* ---- JSON and recordings ---- */

static void json_and_back(void **state)
{
	struct top_schema *schema = top_schema_new();
	struct rig r = open_rig();
	struct top_shot *again;
	json_t *a, *b;

	epf_stat_set(r.core, EPF_STAT_CORE_BUSY_TSC, INT64_MAX);
	epf_stat_forget(r.core, EPF_STAT_CORE_RING_FULL_SEEN);
	epf_stat_state(r.rank[0], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL, 1);
	read_more(&r);
	a = top_json(r.schema, r.now, true);
	assert_int_equal(top_load(schema, a, &again, why, sizeof(why)), 0);
	b = top_json(schema, again, true);
	if (!json_equal(a, b)) {
		print_error("%s\n%s\n", json_dumps(a, 0), json_dumps(b, 0));
		fail();
	}
	json_decref(a);
	json_decref(b);
	top_shot_free(again);
	top_schema_free(schema);
	close_rig(&r);
}

/* Everything that can be done with a shot, without a look at what comes out. */
static void use(const struct top_schema *schema, const struct top_shot *now,
		const struct top_shot *before)
{
	struct top_look look = { .sort = TOP_NATURAL };
	struct found none = { .name = "" };
	struct top_table t = { 0 };
	FILE *out = fopen("/dev/null", "w");

	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		look.screen = (enum top_screen_number)s;
		for (look.sort = 0; look.sort < 3; look.sort++)
			assert_int_equal(top_table_make(&t, schema, now, before, &look), 0);
		for (uint32_t i = 0; i < t.n_lines; i++)
			top_details(schema, now, before, &t.line[i], find_detail, &none);
	}
	look = (struct top_look){ .screen = TOP_SCREENS, .sort = TOP_NATURAL };
	assert_int_equal(top_print(out, schema, now, before, &look), 0);
	assert_int_equal(top_prometheus(out, schema, now, true), 0);
	json_decref(top_json(schema, now, true));
	top_table_free(&t);
	fclose(out);
}

/* Records of a file that could be shown; 0: it is none. */
static uint32_t play(const char *path, bool thorough)
{
	struct top_schema *schema = top_schema_new();
	struct top_shot *now = NULL, *before = NULL;
	struct top_source *source = NULL;
	uint32_t n = 0;

	if (!top_source_replay(&source, schema, path, why, sizeof(why)))
		while (!top_source_next(source, &now, why, sizeof(why))) {
			if (thorough)
				use(schema, now, before);
			n++;
			top_shot_free(before);
			before = now;
			now = NULL;
		}
	top_shot_free(before);
	top_source_close(source);
	top_schema_free(schema);
	return n;
}

enum { RECORDS = 3 };

static char *record(struct rig *r, char *path, size_t size)
{
	struct top_record *rec;
	char *text = NULL;
	size_t bytes = 0;
	FILE *f;

	snprintf(path, size, "%s/x.top", dir);
	epf_stat_state(r->rank[0], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL, 1);
	assert_int_equal(top_record_open(path, &rec, why, sizeof(why)), 0);
	for (unsigned i = 0; i < RECORDS; i++) {
		epf_stat_add(r->core, EPF_STAT_CORE_CMDS_DEQUEUED, 10);
		read_more(r);
		assert_int_equal(top_record_add(rec, r->schema, r->now, why, sizeof(why)), 0);
	}
	assert_int_equal(top_record_close(rec), 0);
	f = fopen(path, "r");
	assert_true(getdelim(&text, &bytes, '\0', f) > 0);
	fclose(f);
	return text;
}

static void put_file(const char *path, const char *text, size_t n)
{
	FILE *f = fopen(path, "w");

	assert_int_equal(fwrite(text, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void recordings_are_played(void **state)
{
	struct rig r = open_rig();
	struct top_schema *schema = top_schema_new();
	struct top_source *source;
	struct top_shot *shot;
	char path[96], *text = record(&r, path, sizeof(path));
	json_t *a = top_json(r.schema, r.now, false), *b;

	assert_int_equal(play(path, true), RECORDS);
	assert_int_equal(top_source_replay(&source, schema, path, why, sizeof(why)), 0);
	assert_int_equal(top_source_records(source), RECORDS);
	/* The last one alone: what it means stands in the first. */
	top_source_seek(source, RECORDS);
	assert_int_equal(top_source_next(source, &shot, why, sizeof(why)), 0);
	b = top_json(schema, shot, false);
	assert_true(json_equal(a, b));
	assert_int_equal(top_source_next(source, &r.before, why, sizeof(why)), -ENODATA);
	json_decref(a);
	json_decref(b);
	top_shot_free(shot);
	top_source_close(source);
	top_schema_free(schema);
	free(text);
	unlink(path);
	close_rig(&r);
}

/* Lines of which all is there, whether or not their end is. */
static uint32_t whole_lines(const char *text, size_t cut)
{
	uint32_t n = 0;

	for (size_t i = 0; text[i]; i++)
		n += text[i] == '\n' && i <= cut;
	return n;
}

static void cut_recordings_are_played_so_far(void **state)
{
	struct rig r = open_rig();
	char path[96], *text = record(&r, path, sizeof(path));
	size_t n = strlen(text);
	struct top_record *rec;

	for (size_t cut = 0; cut < n; cut += 1 + cut / 50) {
		put_file(path, text, cut);
		assert_int_equal(play(path, true), whole_lines(text, cut));
	}
	/* Recording goes on behind the cut, and only the line that was cut is lost. */
	put_file(path, text, n - 10);
	assert_int_equal(top_record_open(path, &rec, why, sizeof(why)), 0);
	assert_int_equal(top_record_add(rec, r.schema, r.now, why, sizeof(why)), 0);
	assert_int_equal(top_record_close(rec), 0);
	assert_int_equal(play(path, true), RECORDS);
	unlink(path);
	free(text);
	close_rig(&r);
}

static void damaged_recordings_harm_nobody(void **state)
{
	struct rig r = open_rig();
	char path[96], *text = record(&r, path, sizeof(path)), *bad;
	size_t n = strlen(text);
	uint64_t x = 1;
	unsigned rounds = getenv("EPF_TEST_LONG") ? 20000 : 300;

	bad = malloc(n);
	for (unsigned i = 0; i < rounds; i++) {
		memcpy(bad, text, n);
		for (unsigned k = 0; k <= i % 7; k++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			/* Digits, which stay JSON, and anything else. */
			if (i % 2 && bad[(x >> 20) % n] >= '0' && bad[(x >> 20) % n] <= '9')
				bad[(x >> 20) % n] = (char)('0' + (x >> 55) % 10);
			else
				bad[(x >> 20) % n] = (char)(x >> 55);
		}
		put_file(path, bad, n);
		assert_true(play(path, true) <= RECORDS + 7);
	}
	free(bad);
	unlink(path);
	free(text);
	close_rig(&r);
}

static void hostile_json_is_made_harmless(void **state)
{
	static const char text[] =
		"{\"schema\":\"epf.top/1\",\"host\":\"a\\u001b[2Jb\",\"now_ns\":1e300,\"waits\":["
		"{\"who\":\"rank\",\"reason\":\"\\u001b]0;x\\u0007\",\"cause\":true,\"job_number\":99,\"instance_number\":-1,"
		"\"follows\":1,\"consequences\":-5,\"text\":\"t\"},"
		"{\"who\":\"a name that is far too long for it\",\"follows\":0},{\"follows\":77},7,null],"
		"\"jobs\":[{\"job\":5},{}],\"instances\":[{},3,{\"path\":\"/x\",\"blocks\":[{\"class\":\"core\","
		"\"labels\":[],\"values\":{\"n\":-1}},{\"class\":\"core\",\"values\":{\"n\":1e300}},"
		"{\"class\":\"core\",\"values\":{\"h\":{\"count\":\"x\"},\"s\":{\"number\":99}}},{\"class\":\"none\"}]}],"
		"\"classes\":[{\"class\":\"core\",\"labels\":[{\"name\":\"core\"}],\"rows\":[{\"name\":\"n\",\"type\":1},"
		"{\"name\":\"Bad name\",\"type\":1},{\"name\":\"h\",\"type\":4},{\"name\":\"s\",\"type\":3,\"states\":\"a|b\"},"
		"{\"name\":\"new\",\"type\":4000000000}]}]}";
	struct top_schema *schema = top_schema_new();
	struct top_shot *shot;
	json_t *top = json_loads(text, 0, NULL);

	assert_non_null(top);
	assert_int_equal(top_load(schema, top, &shot, why, sizeof(why)), 0);
	assert_string_equal(shot->host, "a?[2Jb");
	assert_string_equal(shot->wait[0].reason, "?]0;x?");
	assert_int_equal(shot->wait[0].job, TOP_NONE);
	assert_int_equal(shot->wait[0].instance, TOP_NONE);
	assert_int_equal(shot->wait[2].follows, TOP_NONE);
	assert_int_equal(shot->n_blocks, 3);
	assert_int_equal(schema->cls[0].n_rows, 4);
	use(schema, shot, NULL);
	json_decref(top);
	top = json_pack("{s:s}", "schema", "epf.top/2");
	assert_int_equal(top_load(schema, top, &shot, why, sizeof(why)), -EBADMSG);
	json_decref(top);
	top_shot_free(shot);
	top_schema_free(schema);
}

static void nothing_else_is_overwritten(void **state)
{
	struct rig r = open_rig();
	struct top_record *rec = NULL;
	char path[96];

	snprintf(path, sizeof(path), "%s/one.stats", dir);
	assert_int_equal(top_record_open(path, &rec, why, sizeof(why)), -EEXIST);
	assert_non_null(strstr(why, "is no recording"));
	assert_int_equal(top_source_replay(&r.source, r.schema, path, why, sizeof(why)), -EBADMSG);
	assert_int_equal(top_source_replay(&r.source, r.schema, dir, why, sizeof(why)), -EBADMSG);
	assert_int_equal(top_source_replay(&r.source, r.schema, "/nowhere", why, sizeof(why)),
			 -ENOENT);
	read_more(&r);
	close_rig(&r);
}

/* ---- files that come, go and break ---- */

static void files_come_and_go(void **state)
{
	struct rig r = open_rig();
	struct epf_stats *second = make(dir, "two");
	char path[96];

	read_more(&r);
	table(&r, TOP_INSTANCES);
	assert_int_equal(r.table.n_lines, 2);
	epf_stats_destroy(second, 0);
	snprintf(path, sizeof(path), "%s/bad.stats", dir);
	put_file(path, "EPFSTATS and nothing", 20);
	read_more(&r);
	table(&r, TOP_INSTANCES);
	assert_int_equal(r.table.n_lines, 2);
	for (uint32_t i = 0; i < 2; i++)
		if (!strcmp(cell(&r, i, "FILE")->text, "bad.stats"))
			is(&r, i, "WRITER", "unreadable");
	use(r.schema, r.now, r.before);
	unlink(path);
	read_more(&r);
	table(&r, TOP_INSTANCES);
	assert_int_equal(r.table.n_lines, 1);
	close_rig(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(json_and_back),
		IN_DIR(recordings_are_played),
		IN_DIR(cut_recordings_are_played_so_far),
		IN_DIR(damaged_recordings_harm_nobody),
		cmocka_unit_test(hostile_json_is_made_harmless),
		IN_DIR(nothing_else_is_overwritten),
		IN_DIR(files_come_and_go),
	};

	return cmocka_run_group_tests_name("ep-top's recordings and files", tests, NULL, NULL);
}
