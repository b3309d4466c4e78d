/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics files that are cut short, damaged, hostile, newer than the reader, or no such files at
 * all: each is refused with a cause or read without a fault, never more. Every image lies in memory
 * of exactly its size, so that AddressSanitizer sees any step outside. EPF_SEED=<n> replays a run.
 */
#include "tests/unit/queues/stats_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

static uint64_t seed;

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* A small but complete file: living and free blocks of all classes. */
static uint8_t *make_image(size_t *bytes)
{
	static const struct epf_stats_label labels[][4] = {
		[EPF_STATS_CORE] = { { NULL, 0 }, { NULL, 1 } },
		[EPF_STATS_RING] = { { NULL, 0 }, { NULL, 1 }, { NULL, 2 }, { "", 0 } },
		[EPF_STATS_NIC] = { { "emu0", 0 }, { NULL, 1 }, { NULL, 0 } },
	};
	struct epf_stats *st = make(NULL, "image");
	struct epf_stats_block *b;
	const void *base;
	uint8_t *copy;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_CORE, labels[EPF_STATS_CORE], 2, &b), 0);
	epf_stat_add(b, EPF_STAT_CORE_CMDS_DEQUEUED, 11);
	epf_hist_add(epf_stat_hist(b, EPF_STAT_CORE_STEP_NS), 500);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_RING, labels[EPF_STATS_RING], 4, &b), 0);
	epf_stat_set(b, EPF_STAT_RING_OCCUPANCY, 12);
	add_peer(st, 0, 1);
	b = add_peer(st, 0, 2);
	epf_stat_state(b, EPF_STAT_PEER_STATE, EPF_STATS_PEER_MASKED, 77);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_NIC, labels[EPF_STATS_NIC], 3, &b), 0);
	epf_stat_add(b, EPF_STAT_NIC_ERRORS, 13);
	base = epf_stats_memory(st, bytes);
	copy = malloc(*bytes);
	assert_non_null(copy);
	memcpy(copy, base, *bytes);
	epf_stats_destroy(st, 0);
	return copy;
}

/* Use everything that a reader hands out. */
static uint64_t walk(struct epf_stats_reader *r)
{
	const struct epf_stats_info *info = epf_stats_reader_info(r);
	uint64_t sum = strlen(info->instance) + strlen(info->job) + epf_stats_reader_alive(r, 1, 1);
	const struct epf_stats_class *cls;
	const struct epf_stats_row *row;
	const struct epf_stats_entry *e;
	struct epf_stats_value v;
	unsigned b, i;

	for (b = 0; (e = epf_stats_reader_block(r, b)); b++) {
		cls = epf_stats_reader_class(r, e->class_index);
		for (i = 0; i < cls->label_count; i++)
			sum += strlen(cls->label[i]) + strlen(e->label[i]);
		for (i = 0; (row = epf_stats_reader_row(r, e->class_index, i)); i++) {
			epf_stats_reader_value(r, b, i, &v);
			sum += strlen(row->name) + strlen(row->unit) + v.number + strlen(v.state);
			if (v.hist)
				sum += epf_hist_quantile(v.hist, 0.5) + epf_hist_max(v.hist);
		}
	}
	assert_int_equal(b, info->block_count);
	return sum;
}

/* Read an image; what cannot be read must say why in one line. */
static int try_image(const void *image, size_t bytes)
{
	struct epf_stats_reader *r = NULL;
	int rc;

	why[0] = '\0';
	rc = epf_stats_reader_memory(image, bytes, &r, why, sizeof(why));
	if (rc) {
		assert_true(rc < 0);
		assert_null(r);
		assert_true(strlen(why) > 0);
		assert_null(strchr(why, '\n'));
		return rc;
	}
	walk(r);
	refresh(r);
	epf_stats_reader_close(r);
	return 0;
}

static void every_truncation_is_refused(void **state)
{
	uint8_t *image, *part;
	size_t bytes, n;

	image = make_image(&bytes);
	assert_int_equal(try_image(image, bytes), 0);
	for (n = 0; n < bytes; n++) {
		part = malloc(n ? n : 1);
		assert_non_null(part);
		memcpy(part, image, n);
		assert_int_equal(try_image(part, n), -ENODATA);
		free(part);
	}
	free(image);
}

/* The same where the header admits the shorter size: sections or blocks then stick out. */
static void every_shorter_total_is_refused(void **state)
{
	struct epf_stats_header *h;
	uint8_t *image, *part;
	size_t bytes, n, last;

	image = make_image(&bytes);
	/* The last block of the directory's last class is alive, so nothing may be missing. */
	last = bytes - 127;
	for (n = sizeof(*h); n < last; n += 8) {
		part = malloc(n);
		assert_non_null(part);
		memcpy(part, image, n);
		h = (void *)part;
		h->total_bytes = n;
		assert_int_equal(try_image(part, n), -EBADMSG);
		free(part);
	}
	free(image);
}

static void random_damage_harms_nobody(void **state)
{
	uint64_t rng = seed, total = 0, good = 0;
	struct epf_stats_header *h;
	uint8_t *image, *copy;
	size_t bytes, schema;
	int i, k, n;

	image = make_image(&bytes);
	h = (void *)image;
	schema = h->blocks_offset;
	copy = malloc(bytes);
	assert_non_null(copy);
	for (i = 0; i < 20000; i++) {
		memcpy(copy, image, bytes);
		n = 1 + (int)(next_random(&rng) % 8);
		for (k = 0; k < n; k++) {
			size_t at = next_random(&rng) % (next_random(&rng) % 4 ? schema : bytes);

			if (next_random(&rng) % 3 == 0)
				at %= 256; /* the fields that steer the reader */
			copy[at] ^= (uint8_t)(1u << next_random(&rng) % 8);
		}
		good += try_image(copy, bytes) == 0;
		total++;
	}
	/* Neither "refuses all" nor "takes all" would test anything. */
	assert_true(good > total / 100);
	assert_true(good < total * 99 / 100);
	free(copy);
	free(image);
}

/* Each 32-bit word of the header's layout fields, and of a class, a counter, an entry and a histogram. */
static void edge_values_harm_nobody(void **state)
{
	static const uint32_t values[] = {
		0,        1,        7,          8,          127,        128,       255,
		1024,     4095,     4096,       4104,       65535,      65536,     65537,
		1u << 26, 1u << 31, 0x7fffffff, 0xfffffff8, 0xffffff80, 0xffffffff
	};
	struct epf_stats_header h;
	uint8_t *image, *copy;
	size_t bytes, starts[5], s, at, v;

	image = make_image(&bytes);
	memcpy(&h, image, sizeof(h));
	starts[0] = 8;
	starts[1] = h.classes_offset;
	starts[2] = h.rows_offset;
	starts[3] = h.entries_offset;
	starts[4] = h.rows_offset + EPF_STATROW_CORE_STEP_NS * sizeof(struct epf_stats_row);
	copy = malloc(bytes);
	assert_non_null(copy);
	for (s = 0; s < 5; s++) {
		for (at = starts[s]; at < starts[s] + 256; at += 4) {
			for (v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
				memcpy(copy, image, bytes);
				memcpy(copy + at, &values[v], 4);
				try_image(copy, bytes);
			}
		}
	}
	free(copy);
	free(image);
}

static int with_u32(size_t at, uint32_t value)
{
	uint8_t *image;
	size_t bytes;
	int rc;

	image = make_image(&bytes);
	memcpy(image + at, &value, 4);
	rc = try_image(image, bytes);
	free(image);
	return rc;
}

static void limits_are_named(void **state)
{
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, magic), 1), -EBADMSG);
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, version_major), 2),
			 -EPROTONOSUPPORT);
	assert_non_null(strstr(why, "version 2"));
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, version_minor), 9), 0);
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, class_count), 65), -EFBIG);
	assert_non_null(strstr(why, "EPF_STATS_MAX_CLASSES"));
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, row_count), 99999), -EFBIG);
	assert_non_null(strstr(why, "EPF_STATS_MAX_ROWS"));
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, entry_count), 65537), -EFBIG);
	assert_non_null(strstr(why, "EPF_STATS_MAX_BLOCKS"));
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, total_bytes) + 4, 1), -EFBIG);
	assert_non_null(strstr(why, "EPF_STATS_MAX_BYTES"));
	assert_int_equal(with_u32(offsetof(struct epf_stats_header, instance), 0x1b5b324a),
			 -EBADMSG); /* would clear a terminal */
}

static void what_sticks_out_is_refused(void **state)
{
	const uint32_t words = EPF_STATS_BLOCK_BYTES(CORE) / 8;
	struct epf_stats_header h;
	uint8_t *image;
	size_t bytes, row;

	image = make_image(&bytes);
	memcpy(&h, image, sizeof(h));
	free(image);
	row = h.rows_offset + EPF_STATROW_CORE_STEP_NS * sizeof(struct epf_stats_row) +
	      offsetof(struct epf_stats_row, word);
	assert_int_equal(with_u32(row, words - EPF_HIST_WORDS), 0);
	assert_int_equal(with_u32(row, words - EPF_HIST_WORDS + 1), -EBADMSG);
	assert_int_equal(with_u32(row, EPF_STATS_HEADER_WORDS - 1), -EBADMSG);
	assert_int_equal(
		with_u32(offsetof(struct epf_stats_header, entries_offset), (uint32_t)bytes - 8),
		-EBADMSG);
	assert_int_equal(with_u32(h.entries_offset + offsetof(struct epf_stats_entry, offset),
				  (uint32_t)h.blocks_offset - 128),
			 -EBADMSG);
}

static void blocks_that_overlap_are_refused(void **state)
{
	struct epf_stats_header h;
	struct epf_stats_entry *e;
	uint8_t *image;
	size_t bytes;
	uint32_t i;

	image = make_image(&bytes);
	memcpy(&h, image, sizeof(h));
	e = (void *)(image + h.entries_offset);
	for (i = 0; i < h.entry_count; i++)
		e[i] = e[0];
	assert_int_equal(try_image(image, bytes), -EBADMSG);
	assert_non_null(strstr(why, "overlap"));
	free(image);
}

/* Copy records of one size into records of a larger one, filling the rest with what is to come. */
static uint64_t widen(uint8_t *to, uint64_t at, const uint8_t *from, uint32_t count,
		      uint32_t stride, uint32_t wide)
{
	uint32_t i;

	for (i = 0; i < count; i++) {
		memcpy(to + at, from + (size_t)i * stride, stride);
		memset(to + at + stride, 0xa5, wide - stride);
		at += wide;
	}
	return at;
}

/*
 * The file of a newer writer of the same major version: longer records, one more class, the ring
 * class with one more row, of a type that this reader has never heard of.
 */
static uint8_t *make_newer(size_t *bytes)
{
	struct epf_stats_header old, *h;
	struct epf_stats_class *cls;
	struct epf_stats_entry *e;
	struct epf_stats_row *row;
	uint8_t *image, *out;
	uint32_t i, ring_row;
	uint64_t at;

	image = make_image(bytes);
	memcpy(&old, image, sizeof(old));
	out = calloc(1, *bytes * 2);
	assert_non_null(out);
	h = (void *)out;
	*h = old;
	h->version_minor = 3;
	h->header_bytes = 1024 + 256;
	h->class_stride = old.class_stride + 64;
	h->row_stride = old.row_stride + 8;
	h->entry_stride = old.entry_stride + 128;
	h->class_count = old.class_count + 1;
	h->classes_offset = h->header_bytes;
	at = widen(out, h->classes_offset, image + old.classes_offset, old.class_count,
		   old.class_stride, h->class_stride);
	cls = (void *)(out + at);
	strcpy(cls->name, "gpu");
	cls->block_bytes = 128;
	h->rows_offset = at + h->class_stride;
	at = widen(out, h->rows_offset, image + old.rows_offset, old.row_count, old.row_stride,
		   h->row_stride);
	/* The ring class moves behind all others, with one more row. */
	cls = (void *)(out + h->classes_offset + EPF_STATS_RING * h->class_stride);
	ring_row = cls->first_row;
	cls->first_row = old.row_count;
	at = widen(out, at, image + old.rows_offset + (size_t)ring_row * old.row_stride,
		   cls->row_count, old.row_stride, h->row_stride);
	row = (void *)(out + at);
	strcpy(row->name, "heat");
	row->type = 77;
	row->word = EPF_STATWORDS_OF_RING;
	row->words = 1;
	cls->row_count++;
	h->row_count = old.row_count + cls->row_count;
	h->entries_offset = at + h->row_stride;
	at = widen(out, h->entries_offset, image + old.entries_offset, old.entry_count,
		   old.entry_stride, h->entry_stride);
	h->blocks_offset = (at + 127) / 128 * 128;
	for (i = 0; i < old.entry_count; i++) {
		e = (void *)(out + h->entries_offset + (uint64_t)i * h->entry_stride);
		e->offset += h->blocks_offset - old.blocks_offset;
	}
	memcpy(out + h->blocks_offset, image + old.blocks_offset,
	       old.total_bytes - old.blocks_offset);
	h->total_bytes = h->blocks_offset + old.total_bytes - old.blocks_offset;
	*bytes = h->total_bytes;
	free(image);
	image = realloc(out, *bytes);
	assert_non_null(image);
	return image;
}

static void an_older_reader_reads_a_newer_file(void **state)
{
	struct epf_stats_reader *r = NULL;
	struct epf_stats_value v;
	uint64_t *known;
	uint8_t *image;
	size_t bytes;

	image = make_newer(&bytes);
	assert_int_equal(epf_stats_reader_memory(image, bytes, &r, why, sizeof(why)), 0);
	assert_int_equal(epf_stats_reader_info(r)->block_count, 5);
	assert_int_equal(epf_stats_reader_info(r)->class_count, EPF_STATS_CLASSES + 1);
	assert_int_equal(value_of(r, 0, "cmds_dequeued").number, 11);
	assert_int_equal(value_of(r, 0, "step_ns").number, 1);
	assert_int_equal(value_of(r, 1, "occupancy").number, 12);
	assert_string_equal(epf_stats_reader_block(r, 1)->label[2], "2");
	assert_string_equal(value_of(r, 3, "state").state, "masked");
	assert_int_equal(value_of(r, 4, "errors").number, 13);
	/* What it does not know stays unknown, even where the writer knows it. */
	known = (uint64_t *)(void *)(image + epf_stats_reader_block(r, 1)->offset);
	known[0] |= (uint64_t)1 << EPF_STATROWS_RING;
	refresh(r);
	v = value_of(r, 1, "heat");
	assert_false(v.known);
	assert_int_equal(v.type, 77);
	walk(r);
	epf_stats_reader_close(r);
	free(image);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

static void a_file_that_shrinks_keeps_the_last_reading(void **state)
{
	struct epf_stats_reader *r;
	char path[128];
	uint8_t *image;
	size_t bytes;

	image = make_image(&bytes);
	snprintf(path, sizeof(path), "%s/x.stats", dir);
	write_file(path, image, bytes);
	r = open_path(path);
	assert_int_equal(truncate(path, (off_t)bytes - 200), 0);
	assert_int_equal(epf_stats_reader_refresh(r, why, sizeof(why)), -ENODATA);
	assert_non_null(strstr(why, "cut short"));
	assert_int_equal(value_of(r, 0, "cmds_dequeued").number, 11);
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(epf_stats_reader_refresh(r, NULL, 0), -ENODATA);
	assert_int_equal(value_of(r, 4, "errors").number, 13);
	write_file(path, image, bytes);
	refresh(r);
	epf_stats_reader_close(r);
	unlink(path);
	free(image);
}

static void what_is_no_such_file_is_refused(void **state)
{
	static const char text[] = "hello\n";
	struct epf_stats_reader *r = NULL;
	char path[128];

	snprintf(path, sizeof(path), "%s/x.stats", dir);
	assert_int_equal(epf_stats_reader_open(path, &r, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, path));
	assert_int_equal(epf_stats_reader_open(dir, &r, why, sizeof(why)), -EBADMSG);
	assert_int_equal(epf_stats_reader_open("/dev/zero", &r, why, sizeof(why)), -EBADMSG);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(epf_stats_reader_open(path, &r, why, sizeof(why)), -EBADMSG);
	unlink(path);
	write_file(path, text, sizeof(text));
	assert_int_equal(epf_stats_reader_open(path, &r, why, sizeof(why)), -ENODATA);
	unlink(path);
	assert_int_equal(epf_stats_reader_open("/proc/self/maps", &r, NULL, 0), -ENODATA);
	assert_null(r);
	epf_stats_reader_close(NULL);
}

int main(void)
{
	const char *env = getenv("EPF_SEED");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(every_shorter_total_is_refused),
		cmocka_unit_test(random_damage_harms_nobody),
		cmocka_unit_test(edge_values_harm_nobody),
		cmocka_unit_test(limits_are_named),
		cmocka_unit_test(what_sticks_out_is_refused),
		cmocka_unit_test(blocks_that_overlap_are_refused),
		cmocka_unit_test(an_older_reader_reads_a_newer_file),
		IN_DIR(a_file_that_shrinks_keeps_the_last_reading),
		IN_DIR(what_is_no_such_file_is_refused),
	};

	seed = env ? strtoull(env, NULL, 0) : 20;
	printf("EPF_SEED=%" PRIu64 "\n", seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
