/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of ep-top on statistics files of its own making: numbers, rates, tables with their order and filter, details, metrics, JSON and
 * back; recordings, also cut short at every place and with bytes changed; files that go wrong.
 */
#include "tests/unit/stats_kit.h"
#include "tools/top_source.h"
#include "tools/top_view.h"

#include <errno.h>
#include <inttypes.h>

#define SECOND UINT64_C(1000000000)

struct rig {
	struct epf_stats *st;
	struct epf_stats_block *core, *ring[2], *rank[2], *peer, *nic;
	struct top_schema *schema;
	struct top_source *source;
	struct top_shot *now, *before;
	struct top_table table;
	struct top_look look;
};

static struct epf_stats_block *add(struct epf_stats *st, unsigned cls,
				   const struct epf_stats_label *labels, unsigned n)
{
	struct epf_stats_block *b = NULL;

	assert_int_equal(epf_stats_add_block(st, cls, labels, n, &b), 0);
	return b;
}

static void add_ring(struct rig *r, unsigned i)
{
	const struct epf_stats_label ring[] = {
		{ NULL, 0 }, { NULL, i }, EPF_STATS_NO_LABEL, { NULL, i }
	};
	const struct epf_stats_label rank[] = { { NULL, 0 }, { NULL, i } };

	r->ring[i] = add(r->st, EPF_STATS_RING, ring, 4);
	epf_stat_set(r->ring[i], EPF_STAT_RING_SLOTS, 64);
	epf_stat_set(r->ring[i], EPF_STAT_RING_OCCUPANCY, 16 * i);
	epf_stat_add(r->ring[i], EPF_STAT_RING_CMDS_TAKEN, 100 + i);
	epf_stat_state(r->ring[i], EPF_STAT_RING_WAIT, EPF_STATS_WAIT_NONE, 1);
	r->rank[i] = add(r->st, EPF_STATS_RANK, rank, 2);
	epf_stat_state(r->rank[i], EPF_STAT_RANK_STATE, EPF_STATS_PEER_UP, 1);
	epf_stat_set(r->rank[i], EPF_STAT_RANK_PID, (uint64_t)getpid());
	epf_stat_state(r->rank[i], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_NONE, 1);
}

static void read_more(struct rig *r)
{
	top_shot_free(r->before);
	r->before = r->now;
	r->now = NULL;
	if (top_source_next(r->source, &r->now, why, sizeof(why)))
		fail_msg("%s", why);
}

static struct rig open_rig(void)
{
	static const struct epf_stats_label core[] = { { NULL, 0 }, { NULL, 1 } },
					    job[] = { { NULL, 0 }, { "train", 0 } },
					    nic[] = { { "mlx\"5\\0", 0 },
						      { NULL, 1 },
						      { NULL, 0 } };
	struct epf_stats_opts opts = opts_of(dir, "one");
	struct rig r = { .look = { .sort = TOP_NATURAL } };
	struct epf_stats_block *b;

	opts.tsc_hz = 1000000000;
	opts.blocks[EPF_STATS_JOB] = 1;
	opts.blocks[EPF_STATS_RANK] = 2;
	assert_int_equal(epf_stats_create(&opts, &r.st, why, sizeof(why)), 0);
	r.core = add(r.st, EPF_STATS_CORE, core, 2);
	epf_stat_add(r.core, EPF_STAT_CORE_CMDS_TAKEN, 1000);
	epf_stat_add(r.core, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE, UINT64_C(9007199254740993));
	epf_hist_add_n(epf_stat_hist(r.core, EPF_STAT_CORE_STEP_NS), 7, 3);
	b = add(r.st, EPF_STATS_JOB, job, 2);
	epf_stat_set(b, EPF_STAT_JOB_ID, 77);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, 2);
	epf_stat_set(b, EPF_STAT_JOB_NODES, 1);
	epf_stat_set(b, EPF_STAT_JOB_RINGS, 2);
	for (unsigned i = 0; i < 2; i++)
		add_ring(&r, i);
	r.nic = add(r.st, EPF_STATS_NIC, nic, 3);
	epf_stat_state(r.nic, EPF_STAT_NIC_LINK, EPF_STATS_LINK_UP, 1);
	r.schema = top_schema_new();
	assert_non_null(r.schema);
	assert_int_equal(top_source_live(&r.source, r.schema, dir, NULL, 0, WAITS_LEAST_NS, why,
					 sizeof(why)),
			 0);
	read_more(&r);
	return r;
}

static void close_rig(struct rig *r)
{
	top_table_free(&r->table);
	top_shot_free(r->now);
	top_shot_free(r->before);
	top_source_close(r->source);
	top_schema_free(r->schema);
	epf_stats_destroy(r->st, 0);
}

static void table(struct rig *r, enum top_screen_number screen)
{
	r->look.screen = screen;
	assert_int_equal(top_table_make(&r->table, r->schema, r->now, r->before, &r->look), 0);
}

/* The cell under a title. */
static const struct top_cell *cell(const struct rig *r, uint32_t line, const char *title)
{
	assert_true(line < r->table.n_lines);
	for (uint32_t c = 0; c < r->table.n_columns; c++)
		if (!strcmp(r->table.column[c].title, title))
			return &r->table.line[line].cell[c];
	fail_msg("no column %s", title);
	return NULL;
}

static void is(const struct rig *r, uint32_t line, const char *title, const char *text)
{
	assert_string_equal(cell(r, line, title)->text, text);
}

static uint32_t column(const struct rig *r, const char *title)
{
	return (uint32_t)(cell(r, 0, title) - r->table.line[0].cell);
}

/* ---- tables ---- */

static void totals_are_whole(void **state)
{
	struct rig r = open_rig();

	table(&r, TOP_CORES);
	assert_int_equal(r.table.n_lines, 1);
	assert_false(r.table.has_rates);
	is(&r, 0, "INSTANCE", "one");
	is(&r, 0, "COMMANDS", "1000");
	is(&r, 0, "PUT-REMOTE", "9007199254740993"); /* a floating-point number has no such */
	is(&r, 0, "STEP-P99", "7ns");
	is(&r, 0, "BUSY", "-");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 2);
	is(&r, 1, "TAKEN", "101");
	is(&r, 1, "FILL", "16/64");
	is(&r, 0, "GPU", "-");
	is(&r, 0, "WAIT", "");
	table(&r, TOP_JOBS);
	is(&r, 0, "JOB", "train");
	is(&r, 0, "COMMANDS", "1000");
	is(&r, 0, "SEEN", "2");
	table(&r, TOP_INSTANCES);
	is(&r, 0, "WRITER", "alive");
	is(&r, 0, "FILE", "one.stats");
	table(&r, TOP_WAITING);
	assert_int_equal(r.table.n_lines, 0);
	close_rig(&r);
}

static void rates_are_of_the_time_between(void **state)
{
	struct rig r = open_rig();
	struct top_sums s;

	epf_stat_add(r.core, EPF_STAT_CORE_CMDS_TAKEN, 5000);
	epf_stat_add(r.core, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE, 3000000);
	epf_stat_add(r.core, EPF_STAT_CORE_BUSY_TSC, SECOND);
	read_more(&r);
	r.now->now_ns = r.before->now_ns + 2 * SECOND;
	table(&r, TOP_CORES);
	assert_true(r.table.has_rates);
	is(&r, 0, "COMMANDS", "2.50k/s");
	is(&r, 0, "PUT-REMOTE", "1.50MB/s");
	is(&r, 0, "BUSY", "50.0%");
	is(&r, 0, "", "[|||||     ]");
	table(&r, TOP_JOBS);
	is(&r, 0, "COMMANDS", "2.50k/s");
	top_sum(r.schema, r.now, r.before, &s);
	assert_true(s.commands == 2500 && s.bytes == 1500000 && s.busy == 0.5);
	r.look.totals = true;
	table(&r, TOP_CORES);
	is(&r, 0, "COMMANDS", "6000");
	close_rig(&r);
}

/* A ring that was closed and opened again counts from zero: its rate must not be that of 2^64. */
static void what_began_anew_has_a_small_rate(void **state)
{
	struct rig r = open_rig();

	epf_stats_remove_block(r.st, r.ring[0]);
	epf_stats_remove_block(r.st, r.rank[0]);
	add_ring(&r, 0);
	epf_stat_add(r.ring[0], EPF_STAT_RING_CMDS_TAKEN, (uint64_t)-50);
	read_more(&r);
	r.now->now_ns = r.before->now_ns + SECOND;
	table(&r, TOP_RINGS);
	for (uint32_t i = 0; i < 2; i++)
		if (!strcmp(cell(&r, i, "RING")->text, "0"))
			is(&r, i, "TAKEN", "50.0/s");
	close_rig(&r);
}

static void sorted_and_filtered(void **state)
{
	struct rig r = open_rig();

	epf_stat_forget(r.ring[0], EPF_STAT_RING_CMDS_TAKEN);
	read_more(&r);
	r.look.totals = true;
	table(&r, TOP_RINGS);
	is(&r, 0, "TAKEN", "-");
	for (unsigned invert = 0; invert < 2; invert++) {
		/* The largest first; what is not known last, whichever the way. */
		r.look.invert = invert;
		r.look.sort = column(&r, "TAKEN");
		table(&r, TOP_RINGS);
		is(&r, 0, "TAKEN", "101");
		is(&r, 1, "TAKEN", "-");
		r.look.sort = column(&r, "FILL");
		table(&r, TOP_RINGS);
		is(&r, 0, "FILL", invert ? "0/64" : "16/64");
		r.look.sort = column(&r, "RING");
		table(&r, TOP_RINGS);
		is(&r, 0, "RING", invert ? "1" : "0"); /* names go upwards */
	}
	r.look.invert = false;
	strcpy(r.look.filter, "16/6");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 1);
	assert_int_equal(r.table.n_all, 2);
	is(&r, 0, "RING", "1");
	strcpy(r.look.filter, "ONE"); /* any case */
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 2);
	strcpy(r.look.filter, "nowhere");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 0);
	close_rig(&r);
}

struct found {
	const char *name;
	char value[256];
};

static void find_detail(void *arg, const char *name, const char *value, const char *help)
{
	struct found *f = arg;

	if (!strcmp(name, f->name) && !*f->value)
		snprintf(f->value, sizeof(f->value), "%s", value);
}

static void waiting_is_told(void **state)
{
	struct found because = { .name = "because" };
	struct rig r = open_rig();
	uint64_t since = r.now->now_ns - 3 * SECOND;

	/* Rank 0 waits for rank 1, which waits for room in its ring, which waits for credit of rank 0's engine. */
	epf_stat_state(r.rank[0], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL, since);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_NUMBER, 5);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_VALUE, 6);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_LEAST, 7);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_RANK, 1);
	epf_stat_state(r.ring[1], EPF_STAT_RING_WAIT, EPF_STATS_WAIT_CREDIT, since - SECOND);
	epf_stat_set(r.ring[1], EPF_STAT_RING_WAIT_RANK, 0);
	epf_stat_set(r.ring[1], EPF_STAT_RING_WAIT_STREAM, 12);
	read_more(&r);
	table(&r, TOP_WAITING);
	assert_int_equal(r.table.n_lines, 2);
	is(&r, 0, "WHAT", "CAUSE");
	is(&r, 0, "WHO", "ring");
	is(&r, 0, "RANK", "1");
	is(&r, 0, "PEER", "0");
	is(&r, 0, "STREAM", "12");
	is(&r, 0, "REASON", "no-credit");
	is(&r, 0, "BEHIND", "1");
	is(&r, 0, "JOB", "train");
	is(&r, 1, "WHAT", "follows");
	is(&r, 1, "PEER", "1");
	is(&r, 1, "REASON", "signal-missing");
	assert_true(cell(&r, 0, "SINCE")->key >= 4e9 && cell(&r, 0, "SINCE")->key < 60e9);
	assert_true(strstr(r.table.line[1].tail, "signal 5"));
	top_details(r.schema, r.now, NULL, &r.table.line[1], find_detail, &because);
	assert_string_equal(because.value, r.now->wait[0].text);
	table(&r, TOP_RINGS);
	assert_true(strstr(cell(&r, 1, "WAIT")->text, "credit 4."));
	is(&r, 1, "FOR-RANK", "0");
	close_rig(&r);
}

static void details_have_every_row(void **state)
{
	struct found taken = { .name = "cmds_taken" }, hist = { .name = "step_ns" };
	struct rig r = open_rig();
	uint32_t n;

	table(&r, TOP_CORES);
	n = top_details(r.schema, r.now, NULL, &r.table.line[0], find_detail, &taken);
	top_details(r.schema, r.now, NULL, &r.table.line[0], find_detail, &hist);
	assert_true(n >= EPF_STATROWS_CORE + 2);
	assert_string_equal(taken.value, "1000 commands");
	assert_string_equal(hist.value, "n 3 p50 7 p99 7 p99.9 7 max 7 ns");
	close_rig(&r);
}

/* ---- metrics ---- */

static char *metrics(const struct rig *r, bool peer_labels)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	assert_int_equal(top_prometheus(f, r->schema, r->now, peer_labels), 0);
	fclose(f);
	return text;
}

static void metrics_are_named_as_prometheus_wants(void **state)
{
	static const char *const lines[] = {
		"\n# TYPE ep_fabric_core_commands_taken_total counter\nep_fabric_core_commands_taken_total{instance=\"one\",core=\"0\",numa=\"1\"} 1000\n",
		"put_bytes_remote_node_total{instance=\"one\",core=\"0\",numa=\"1\"} 9007199254740993\n",
		"\n# TYPE ep_fabric_core_step_seconds summary\n",
		"\nep_fabric_core_step_seconds{instance=\"one\",core=\"0\",numa=\"1\",quantile=\"0.99\"} 7e-09\n",
		"\nep_fabric_core_step_seconds_sum{instance=\"one\",core=\"0\",numa=\"1\"} 2.1e-08\n",
		"\nep_fabric_core_step_seconds_count{instance=\"one\",core=\"0\",numa=\"1\"} 3\n",
		"\nep_fabric_core_busy_seconds_total{instance=\"one\",core=\"0\",numa=\"1\"} 0\n",
		"\nep_fabric_nic_link{instance=\"one\",device=\"mlx\\\"5\\\\0\",port=\"1\",core=\"0\",state=\"up\"} 1\n",
		"\nep_fabric_nic_link{instance=\"one\",device=\"mlx\\\"5\\\\0\",port=\"1\",core=\"0\",state=\"down\"} 0\n",
		"\nep_fabric_up{instance=\"one\"} 1\n",
		"\nep_fabric_blocks_left_out{class=\"peer\"} 0\n",
	};
	struct rig r = open_rig();
	char *text = metrics(&r, false);

	for (unsigned i = 0; i < sizeof(lines) / sizeof(*lines); i++)
		if (!strstr(text, lines[i]))
			fail_msg("missing: %s", lines[i]);
	/* What has no value has no line, and no head either. */
	assert_null(strstr(text, "failover_max"));
	free(text);
	close_rig(&r);
}

static void peers_are_left_out_where_there_are_many(void **state)
{
	struct epf_stats_opts opts = opts_of(dir, "many");
	struct rig r = { .look = { .sort = TOP_NATURAL } };
	char *text;

	opts.blocks[EPF_STATS_PEER] = TOP_LABELS_MAX + 1;
	assert_int_equal(epf_stats_create(&opts, &r.st, why, sizeof(why)), 0);
	for (unsigned i = 0; i <= TOP_LABELS_MAX; i++)
		add_peer(r.st, 0, i);
	r.schema = top_schema_new();
	assert_int_equal(top_source_live(&r.source, r.schema, dir, NULL, 0, 0, why, sizeof(why)),
			 0);
	read_more(&r);
	text = metrics(&r, false);
	assert_null(strstr(text, "ep_fabric_peer_"));
	assert_non_null(strstr(text, "blocks_left_out{class=\"peer\"} 1025\n"));
	free(text);
	text = metrics(&r, true);
	assert_non_null(strstr(
		text,
		"ep_fabric_peer_commands_total{instance=\"many\",core=\"0\",peer=\"1024\"} 0\n"));
	free(text);
	close_rig(&r);
}

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
		epf_stat_add(r->core, EPF_STAT_CORE_CMDS_TAKEN, 10);
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
		IN_DIR(totals_are_whole),
		IN_DIR(rates_are_of_the_time_between),
		IN_DIR(what_began_anew_has_a_small_rate),
		IN_DIR(sorted_and_filtered),
		IN_DIR(waiting_is_told),
		IN_DIR(details_have_every_row),
		IN_DIR(metrics_are_named_as_prometheus_wants),
		IN_DIR(peers_are_left_out_where_there_are_many),
		IN_DIR(json_and_back),
		IN_DIR(recordings_are_played),
		IN_DIR(cut_recordings_are_played_so_far),
		IN_DIR(damaged_recordings_harm_nobody),
		cmocka_unit_test(hostile_json_is_made_harmless),
		IN_DIR(nothing_else_is_overwritten),
		IN_DIR(files_come_and_go),
	};

	return cmocka_run_group_tests_name("ep-top's model", tests, NULL, NULL);
}
