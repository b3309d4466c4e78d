/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of the control protocol against bytes that were written by hand (by a script from docs/abi.md, not by the codec): every message as
 * 1.0 and 1.1 have it, and as a minor that appended something. All of them must stay readable forever. Every image is cut at every length, in a
 * block of its own size, so that a sanitizer sees any read behind it.
 */
#include "bootstrap/boot.h"
#include "fabric/base/err.h"
#include "fabric/protocol/proto.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NO_BYTES ((size_t)-1)
#define EMPTY    NULL, 0
#define S(name)  &name, sizeof(name)
#define ID                                                                                       \
 {                                                                                               \
  0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f \
 }
#define NODE_ID                                                                                  \
 {                                                                                               \
  0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f \
 }
#define KEY                                                                                       \
 {                                                                                                \
  0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, \
	  0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd,     \
	  0xbe, 0xbf                                                                              \
 }

static const struct epf_svc_hello hello = { 1, 1, 1, "ep-test" };
static const struct epf_svc_hello_reply hello_reply = { 1,       1,      NODE_ID, "main",
							"0.2.0", 0x1000, 0x20,    0x30 };
static const struct epf_svc_signals signals = { 0x1234 };
static const struct epf_svc_signals_reply signals_reply = { 0x1234, 0x100002000, 0x91a0 };
static const struct epf_svc_region region = { 0x1000, 0x8877665544332211, 3 };
static const struct epf_svc_region_reply region_reply = { 7 };
static const struct epf_svc_region_close region_close = { 7 };
static const struct epf_svc_region_close_reply region_close_reply = { 1, 0xffffffff };
static const struct epf_svc_ring ring = { 10, 4, 0x1122334455667788 };
static const struct epf_svc_ring_reply ring_reply = { 2, 0x6000 };
static const struct epf_svc_ring_close ring_close = { 2 };
static const struct epf_svc_attach attach = { ID,  KEY,      "train-7", 5, 0x40, EPF_SVC_REJOIN,
					      200, "fd77::9" };
static const struct epf_svc_attach_reply attach_reply = { NODE_ID, "@ABCDEFGHIJKLMNO",
							  ID,      9,
							  0x2000,  0x1000 };
static const struct epf_svc_world world = { { "table", 5 } };
static const struct epf_svc_world_reply world_reply = { 3, 1, { "sealed", 6 } };
static const struct epf_svc_connect connect = { { "all of them", 11 } };
static const struct epf_svc_connect nothing = { { NULL, 0 } };
static const struct epf_svc_describe_reply describe_reply = { { "again", 5 } };
static const struct epf_svc_reconnect reconnect = { 2, { "sealed", 6 } };
static const struct epf_svc_reconnect_reply reconnect_reply = { 1, { "again", 5 } };
static const struct epf_svc_mask mask = { 6, 1 };
static const struct epf_svc_awake awake = { 1 };
static const struct epf_svc_counter counter = { "cmds_dequeued" };
static const struct epf_svc_counter_reply counter_reply = { 0xfedcba9876543210 };
static const struct epf_svc_status status = { 2 };
static const struct epf_svc_status_reply status_reply = { { "{}", 2 } };
static const struct epf_svc_drain drain = { 1 };
static const struct epf_svc_drain_reply drain_reply = { 3 };
static const struct epf_svc_link link_ = { "", 1, 0 };
static const struct epf_svc_link_reply link_reply = { 2 };
static const struct epf_svc_gpu_region gpu_region = {
	1,
	3,
	0x1000,
	0x200000,
	0x3000,
	"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
	"0000:3b:00.0"
};

/* One message: what it says, where its variable bytes are, bytes of its body now and in 1.0, the body. */
static const struct image {
	unsigned type;
	bool answer;
	const void *msg;
	size_t size;
	size_t bytes_at;
	size_t len, len_of_1_0;
	const char *body;
} images[] = {
	/* clang-format off */
	{ EPF_SVC_HELLO, false, S(hello), NO_BYTES, 17, 17,
	  "\x01\x00" "\x01\x00" "\x01\x00\x00\x00" "\x07\x00" "ep-test" },
	{ EPF_SVC_HELLO, true, S(hello_reply), NO_BYTES, 45, 41,
	  "\x01\x00" "\x01\x00" "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f" "\x04\x00" "main"
	  "\x05\x00" "\x30\x2e\x32\x2e\x30" "\x00\x10\x00\x00" "\x20\x00\x00\x00" "\x30\x00\x00\x00" },
	{ EPF_SVC_SIGNALS, false, S(signals), NO_BYTES, 4, 4,
	  "\x34\x12\x00\x00" },
	{ EPF_SVC_SIGNALS, true, S(signals_reply), NO_BYTES, 20, 20,
	  "\x34\x12\x00\x00" "\x00\x20\x00\x00\x01\x00\x00\x00" "\xa0\x91\x00\x00\x00\x00\x00\x00" },
	{ EPF_SVC_REGION, false, S(region), NO_BYTES, 20, 20,
	  "\x00\x10\x00\x00\x00\x00\x00\x00" "\x11\x22\x33\x44\x55\x66\x77\x88" "\x03\x00\x00\x00" },
	{ EPF_SVC_REGION, true, S(region_reply), NO_BYTES, 4, 4,
	  "\x07\x00\x00\x00" },
	{ EPF_SVC_REGION_CLOSE, false, S(region_close), NO_BYTES, 4, 4,
	  "\x07\x00\x00\x00" },
	{ EPF_SVC_REGION_CLOSE, true, S(region_close_reply), NO_BYTES, 8, 8,
	  "\x01\x00\x00\x00" "\xff\xff\xff\xff" },
	{ EPF_SVC_RING, false, S(ring), NO_BYTES, 16, 16,
	  "\x0a\x00\x00\x00" "\x04\x00\x00\x00" "\x88\x77\x66\x55\x44\x33\x22\x11" },
	{ EPF_SVC_RING, true, S(ring_reply), NO_BYTES, 12, 12,
	  "\x02\x00\x00\x00" "\x00\x60\x00\x00\x00\x00\x00\x00" },
	{ EPF_SVC_RING_CLOSE, false, S(ring_close), NO_BYTES, 4, 4,
	  "\x02\x00\x00\x00" },
	{ EPF_SVC_RING_CLOSE, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_ATTACH, false, S(attach), NO_BYTES, 82, 69,
	  "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
	  "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf"
	  "\x07\x00" "train-7" "\x05\x00\x00\x00" "\x40\x00\x00\x00" "\x01\x00\x00\x00" "\xc8\x00\x00\x00"
	  "\x07\x00" "fd77::9" },
	{ EPF_SVC_ATTACH, true, S(attach_reply), NO_BYTES, 68, 68,
	  "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f" "@ABCDEFGHIJKLMNO"
	  "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f" "\x09\x00\x00\x00"
	  "\x00\x20\x00\x00\x00\x00\x00\x00" "\x00\x10\x00\x00\x00\x00\x00\x00" },
	{ EPF_SVC_WORLD, false, S(world), offsetof(struct epf_svc_world, table), 9, 9,
	  "\x05\x00\x00\x00" "table" },
	{ EPF_SVC_WORLD, true, S(world_reply), offsetof(struct epf_svc_world_reply, sealed), 18, 18,
	  "\x03\x00\x00\x00" "\x01\x00\x00\x00" "\x06\x00\x00\x00" "sealed" },
	{ EPF_SVC_CONNECT, false, S(connect), offsetof(struct epf_svc_connect, sealed), 15, 15,
	  "\x0b\x00\x00\x00" "all of them" },
	{ EPF_SVC_CONNECT, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_DESCRIBE, false, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_DESCRIBE, true, S(describe_reply), offsetof(struct epf_svc_describe_reply, sealed), 9, 9,
	  "\x05\x00\x00\x00" "again" },
	{ EPF_SVC_UPDATE, false, S(nothing), offsetof(struct epf_svc_connect, sealed), 4, 4,
	  "\x00\x00\x00\x00" },
	{ EPF_SVC_UPDATE, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_MASK, false, S(mask), NO_BYTES, 8, 8,
	  "\x06\x00\x00\x00" "\x01\x00\x00\x00" },
	{ EPF_SVC_MASK, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_COUNTER, false, S(counter), NO_BYTES, 15, 15,
	  "\x0d\x00" "cmds_dequeued" },
	{ EPF_SVC_COUNTER, true, S(counter_reply), NO_BYTES, 8, 8,
	  "\x10\x32\x54\x76\x98\xba\xdc\xfe" },
	{ EPF_SVC_LEAVE, false, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_LEAVE, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	{ EPF_SVC_STATUS, false, S(status), NO_BYTES, 4, 4,
	  "\x02\x00\x00\x00" },
	{ EPF_SVC_STATUS, true, S(status_reply), offsetof(struct epf_svc_status_reply, json), 6, 6,
	  "\x02\x00\x00\x00" "\x7b\x7d" },
	{ EPF_SVC_DRAIN, false, S(drain), NO_BYTES, 4, 4,
	  "\x01\x00\x00\x00" },
	{ EPF_SVC_DRAIN, true, S(drain_reply), NO_BYTES, 4, 4,
	  "\x03\x00\x00\x00" },
	{ EPF_SVC_LINK, false, S(link_), NO_BYTES, 10, 10,
	  "\x00\x00" "\x01\x00\x00\x00" "\x00\x00\x00\x00" },
	{ EPF_SVC_LINK, true, S(link_reply), NO_BYTES, 4, 4,
	  "\x02\x00\x00\x00" },
	{ EPF_SVC_GPU_REGION, false, S(gpu_region), NO_BYTES, 110, 110,
	  "\x01\x00\x00\x00" "\x03\x00\x00\x00" "\x00\x10\x00\x00\x00\x00\x00\x00" "\x00\x00\x20\x00\x00\x00\x00\x00"
	  "\x00\x30\x00\x00\x00\x00\x00\x00" "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	  "\x0c\x00" "0000:3b:00.0" },
	{ EPF_SVC_GPU_REGION, true, S(region_reply), NO_BYTES, 4, 4,
	  "\x07\x00\x00\x00" },
	{ EPF_SVC_RECONNECT, false, S(reconnect), offsetof(struct epf_svc_reconnect, sealed), 14, 14,
	  "\x02\x00\x00\x00" "\x06\x00\x00\x00" "sealed" },
	{ EPF_SVC_RECONNECT, true, S(reconnect_reply), offsetof(struct epf_svc_reconnect_reply, sealed), 13, 13,
	  "\x01\x00\x00\x00" "\x05\x00\x00\x00" "again" },
	{ EPF_SVC_AWAKE, false, S(awake), NO_BYTES, 4, 4,
	  "\x01\x00\x00\x00" },
	{ EPF_SVC_AWAKE, true, EMPTY, NO_BYTES, 0, 0,
	  "" },
	/* clang-format on */
};

enum { IMAGES = sizeof(images) / sizeof(images[0]), TAIL = 7 };

/* ATTACH is the only one that grew after 1.1. */
enum { ATTACH_OF_1_1 = 73, ATTACH_GREW = 4 };

static size_t len_of(const struct image *im, unsigned minor)
{
	if (!minor)
		return im->len_of_1_0;
	return im->msg == &attach && minor < ATTACH_GREW ? ATTACH_OF_1_1 : im->len;
}

/* A block that ends where the bytes end. */
static uint8_t *exactly(const void *bytes, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	assert_non_null(copy);
	memcpy(copy, bytes, len);
	/* A block of one byte stands for none: make it unlike anything. */
	if (!len)
		*copy = 0xee;
	return copy;
}

/* What a decoded message must be: the sample, whose later fields are 0 when the sender did not know them. */
static void expect(const struct image *im, unsigned minor, const uint8_t *got)
{
	uint8_t want[256] = { 0 };
	struct epf_svc_bytes a, b;

	if (im->size)
		memcpy(want, im->msg, im->size);
	if (!minor && im->msg == &hello_reply)
		((struct epf_svc_hello_reply *)(void *)want)->max_jobs = 0;
	if (!minor && im->msg == &attach)
		((struct epf_svc_attach *)(void *)want)->weight = 0;
	if (minor < ATTACH_GREW && im->msg == &attach)
		memset(((struct epf_svc_attach *)(void *)want)->route, 0, EPF_SVC_NAME);
	if (im->bytes_at != NO_BYTES) {
		memcpy(&a, want + im->bytes_at, sizeof(a));
		memcpy(&b, got + im->bytes_at, sizeof(b));
		assert_int_equal(a.len, b.len);
		if (a.len)
			assert_memory_equal(a.data, b.data, a.len);
		else
			assert_null(b.data);
		memcpy(want + im->bytes_at, &b, sizeof(b));
	}
	if (memcmp(want, got, im->size))
		fail_msg("%s %d: not what was written", epf_svc_type_name(im->type), im->answer);
}

static int decode(const struct image *im, unsigned minor, const uint8_t *body, size_t len,
		  uint64_t msg[32])
{
	memset(msg, 0xa5, 256);
	return epf_svc_decode(im->type, im->answer, minor, body, len, msg);
}

static void nothing_written(const uint64_t msg[32])
{
	for (int i = 0; i < 32; i++)
		assert_int_equal(msg[i], 0xa5a5a5a5a5a5a5a5);
}

static void every_message_has_its_image(void **state)
{
	bool seen[EPF_SVC_TYPES][2] = { { false } };

	for (unsigned i = 0; i < IMAGES; i++) {
		const struct image *im = &images[i];

		seen[im->type][im->answer] = true;
		for (unsigned minor = 0; minor <= EPF_SVC_MINOR; minor++) {
			size_t want = len_of(im, minor), len = 999;
			uint8_t *out;

			assert_int_equal(
				epf_svc_encode(im->type, im->answer, minor, im->msg, &out, &len),
				0);
			if (len != want || memcmp(out, im->body, len))
				fail_msg("%s %d as 1.%u: other bytes", epf_svc_type_name(im->type),
					 im->answer, minor);
			free(out);
		}
	}
	for (unsigned t = EPF_SVC_HELLO; t < EPF_SVC_TYPES; t++) {
		if (!seen[t][0] || !seen[t][1])
			fail_msg("%s has no image", epf_svc_type_name(t));
	}
}

static void images_of_all_minors_are_read(void **state)
{
	uint64_t msg[32];

	for (unsigned i = 0; i < IMAGES; i++) {
		const struct image *im = &images[i];
		uint8_t next[256];

		for (unsigned minor = 0; minor <= EPF_SVC_MINOR; minor++) {
			size_t len = len_of(im, minor);
			uint8_t *body = exactly(im->body, len);

			assert_int_equal(decode(im, minor, body, len, msg), 0);
			expect(im, minor, (const uint8_t *)msg);
			free(body);
		}
		/* The next minor has appended something; we speak ours with it. */
		memcpy(next, im->body, im->len);
		memset(next + im->len, 0xff, TAIL);
		assert_int_equal(
			decode(im, epf_svc_minor(EPF_SVC_MINOR + 1), next, im->len + TAIL, msg), 0);
		expect(im, EPF_SVC_MINOR, (const uint8_t *)msg);
	}
}

static void every_truncation_is_refused(void **state)
{
	uint64_t msg[32];

	for (unsigned i = 0; i < IMAGES; i++) {
		const struct image *im = &images[i];

		for (unsigned minor = 0; minor <= EPF_SVC_MINOR; minor += EPF_SVC_MINOR) {
			for (size_t len = 0; len < im->len; len++) {
				uint8_t *cut = exactly(im->body, len);
				/* HELLO is self-describing: whoever sends it may be a 1.0. */
				bool is_1_1 = len == len_of(im, 1);
				bool legal = (len == im->len_of_1_0 || is_1_1) &&
					     (minor == 0 || im->type == EPF_SVC_HELLO);
				int rc = decode(im, minor, cut, len, msg);

				if (rc != (legal ? 0 : -EBADMSG))
					fail_msg("%s %d cut to %zu as 1.%u: %d",
						 epf_svc_type_name(im->type), im->answer, len,
						 minor, rc);
				if (rc) {
					assert_int_equal(epf_last_reason(), EPF_R_SVC_MESSAGE);
					assert_non_null(strstr(epf_last_error(),
							       epf_svc_type_name(im->type)));
					nothing_written(msg);
				} else {
					expect(im, is_1_1, (const uint8_t *)msg);
				}
				free(cut);
			}
		}
	}
}

static void lengths_that_lie_are_refused(void **state)
{
	static const uint8_t long_text[] =
		"\x40\x00"
		"0123456789012345678901234567890123456789012345678901234567890123";
	static const uint8_t fits[] =
		"\x3f\x00"
		"012345678901234567890123456789012345678901234567890123456789012";
	static const uint8_t huge_bytes[] = "\xff\xff\xff\xff"
					    "x",
			     one_more[] = "\x02\x00\x00\x00"
					  "x";
	struct epf_svc_counter c;
	struct epf_svc_world w;
	char wide[sizeof(c.name)];
	uint8_t *out;
	size_t len;

	assert_int_equal(epf_svc_decode(EPF_SVC_COUNTER, false, 1, fits, sizeof(fits) - 1, &c), 0);
	assert_int_equal(strlen(c.name), EPF_SVC_NAME - 1);
	assert_int_equal(
		epf_svc_decode(EPF_SVC_COUNTER, false, 1, long_text, sizeof(long_text) - 1, &c),
		-EBADMSG);
	assert_non_null(
		strstr(epf_last_error(), "COUNTER: name is no UTF-8 text of at most 63 bytes"));
	assert_int_equal(
		epf_svc_decode(EPF_SVC_WORLD, false, 1, huge_bytes, sizeof(huge_bytes) - 1, &w),
		-EBADMSG);
	assert_non_null(strstr(epf_last_error(), "WORLD: table has 4294967295 bytes, 1 are there"));
	assert_int_equal(
		epf_svc_decode(EPF_SVC_WORLD, false, 1, one_more, sizeof(one_more) - 1, &w),
		-EBADMSG);
	/* And on the way out: a text without an end, bytes that no message can hold. */
	memset(wide, 'x', sizeof(wide));
	assert_int_equal(epf_svc_encode(EPF_SVC_COUNTER, false, 1, wide, &out, &len), -EBADMSG);
	w.table = (struct epf_svc_bytes){ "", EPF_SVC_BODY_MAX - 3 };
	assert_int_equal(epf_svc_encode(EPF_SVC_WORLD, false, 1, &w, &out, &len), -ENOSPC);
}

static void texts_are_clean(void **state)
{
	static const char *const bad[] = { "\x01",
					   "a\x1f",
					   "\x7f",
					   "a\nb",
					   "\xc2\x85",
					   "\xff",
					   "\xc0\x80",
					   "\xed\xa0\x80",
					   "\xf4\x90\x80\x80",
					   "\xf8\x88\x80\x80\x80",
					   "\xe2\x82",
					   "\x80",
					   "a\xe2(\xa1",
					   "\xe0\x80\xaf" };
	static const char *const good[] = {
		"", "a b", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\x80", "\xc2\xa0~"
	};
	static const uint8_t hidden_end[] = { 3, 0, 'a', 0, 'b' };
	struct epf_svc_counter c = { "" };
	uint8_t body[64], *out;
	size_t len;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad) + sizeof(good) / sizeof(*good); i++) {
		bool is_good = i >= sizeof(bad) / sizeof(*bad);
		const char *text = is_good ? good[i - sizeof(bad) / sizeof(*bad)] : bad[i];
		uint8_t *exact;

		body[0] = (uint8_t)strlen(text);
		body[1] = 0;
		memcpy(body + 2, text, strlen(text));
		exact = exactly(body, 2 + strlen(text));
		if (epf_svc_decode(EPF_SVC_COUNTER, false, 1, exact, 2 + strlen(text), &c) !=
		    (is_good ? 0 : -EBADMSG))
			fail_msg("text %zu", i);
		free(exact);
		memset(&c, 0, sizeof(c));
		memcpy(c.name, text, strlen(text));
		assert_int_equal(epf_svc_encode(EPF_SVC_COUNTER, false, 1, &c, &out, &len),
				 is_good ? 0 : -EBADMSG);
		if (is_good)
			free(out);
	}
	assert_int_equal(
		epf_svc_decode(EPF_SVC_COUNTER, false, 1, hidden_end, sizeof(hidden_end), &c),
		-EBADMSG);
}

static void types_are_known(void **state)
{
	uint64_t msg[32];
	uint8_t *out;
	size_t len;

	assert_string_equal(epf_svc_type_name(EPF_SVC_REGION_CLOSE), "REGION_CLOSE");
	assert_string_equal(epf_svc_type_name(0), "?");
	assert_string_equal(epf_svc_type_name(EPF_SVC_TYPES), "?");
	assert_string_equal(epf_svc_type_name(0xffffffff), "?");
	for (unsigned t = 0; t < EPF_SVC_TYPES + 1; t++) {
		bool carries = t == EPF_SVC_SIGNALS || t == EPF_SVC_RING;

		assert_int_equal(epf_svc_type_fds(t, false),
				 t == EPF_SVC_REGION || t == EPF_SVC_GPU_REGION);
		assert_int_equal(epf_svc_type_fds(t, true), t == EPF_SVC_ATTACH ? 2 : carries);
	}
	assert_int_equal(epf_svc_decode(0, false, 1, (const uint8_t *)"", 0, msg), -EBADMSG);
	assert_int_equal(epf_svc_decode(EPF_SVC_TYPES, true, 1, (const uint8_t *)"", 0, msg),
			 -EBADMSG);
	assert_int_equal(epf_svc_encode(77, false, 1, msg, &out, &len), -EBADMSG);
	assert_non_null(strstr(epf_last_error(), "type 77 is not known"));
	assert_int_equal(epf_svc_encode(EPF_SVC_RING, false, 1, NULL, &out, &len), -EBADMSG);
	/* Messages without fields need no struct. */
	assert_int_equal(epf_svc_decode(EPF_SVC_LEAVE, false, 1, (const uint8_t *)"tail", 4, NULL),
			 0);
}

static void headers(void **state)
{
	static const uint8_t bytes[] = "EPFS"
				       "\x07\x80"
				       "\x02\x00"
				       "\x44\x00\x00\x00"
				       "\x04\x03\x02\x01"
				       "\xf3\xff\xff\xff"
				       "\xc3\x02\x00\x00";
	const struct epf_svc_head h = {
		EPF_SVC_ATTACH | EPF_SVC_ANSWER, 2, 68, 0x01020304, -EACCES, 707
	};
	struct epf_svc_head got, untouched = { .seq = 9 };
	uint8_t out[EPF_SVC_HEAD_BYTES];

	assert_int_equal(sizeof(bytes) - 1, EPF_SVC_HEAD_BYTES);
	epf_svc_head_encode(&h, out);
	assert_memory_equal(out, bytes, sizeof(out));
	assert_int_equal(epf_svc_head_decode(bytes, &got), 0);
	assert_memory_equal(&got, &h, sizeof(h));
	for (int i = 0; i < 4; i++) {
		memcpy(out, bytes, sizeof(out));
		out[i] ^= 0x20;
		assert_int_equal(epf_svc_head_decode(out, &untouched), -EBADMSG);
	}
	memcpy(out, bytes, sizeof(out));
	out[6] = EPF_SVC_FDS_MAX + 1;
	assert_int_equal(epf_svc_head_decode(out, &untouched), -EBADMSG);
	assert_non_null(strstr(epf_last_error(), "announces 5 descriptors, the most is 4"));
	memcpy(out, bytes, sizeof(out));
	memcpy(out + 8, "\x01\x00\x00\x04", 4);
	assert_int_equal(epf_svc_head_decode(out, &untouched), -EBADMSG);
	assert_non_null(strstr(epf_last_error(), "announces 67108865 bytes, the most is 67108864"));
	assert_int_equal(untouched.seq, 9);
	memcpy(out + 8, "\x00\x00\x00\x04", 4);
	assert_int_equal(epf_svc_head_decode(out, &got), 0);
}

/* Of another major only the two numbers in front are read: a HELLO can always be answered with a sentence. */
static void another_major_is_named(void **state)
{
	static const uint8_t two[] = "\x02\x00"
				     "\x03\x00"
				     "\xff\xff\xff\xff\xff";
	struct epf_svc_hello h;

	assert_int_equal(epf_svc_decode(EPF_SVC_HELLO, false, 0, two, sizeof(two) - 1, &h), 0);
	assert_int_equal(h.major, 2);
	assert_int_equal(h.minor, 3);
	assert_int_equal(h.flags, 0);
	assert_int_equal(epf_svc_decode(EPF_SVC_HELLO, false, 0, two, 3, &h), -EBADMSG);
	assert_int_equal(epf_svc_version_check("the client", 1, 0), -EPROTO);
	assert_int_equal(epf_svc_version_check("the client", 1, 1), -EPROTO);
	assert_int_equal(epf_svc_version_check("the client", 1, 2), -EPROTO);
	assert_int_equal(epf_svc_version_check("the client", 1, 3), -EPROTO);
	assert_int_equal(epf_svc_version_check("the client", 1, 4), 0);
	assert_int_equal(epf_svc_version_check("the client", 1, 5), 0);
	assert_int_equal(epf_svc_version_check("the client", 1, 6), 0);
	assert_int_equal(epf_svc_version_check("the client", 1, 7), -EPROTO);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_VERSION);
	assert_non_null(
		strstr(epf_last_error(),
		       "the client speaks version 1.7 of the control protocol, this end 1.5"));
	assert_int_equal(epf_svc_version_check("the daemon", 2, 1), -EPROTO);
	assert_non_null(
		strstr(epf_last_error(),
		       "the daemon speaks version 2.1 of the control protocol, this end 1.5"));
	assert_int_equal(epf_svc_version_check("the daemon", 0, 1), -EPROTO);
	assert_int_equal(epf_svc_version_check("the daemon", 1, 65535), -EPROTO);
	assert_int_equal(epf_svc_minor(0), 0);
	assert_int_equal(epf_svc_minor(1), 1);
	assert_int_equal(epf_svc_minor(2), 2);
	assert_int_equal(epf_svc_minor(3), 3);
	assert_int_equal(epf_svc_minor(4), 4);
	assert_int_equal(epf_svc_minor(5), 5);
	assert_int_equal(epf_svc_minor(6), 5);
}

static void lists_of_descriptions(void **state)
{
	static const struct epf_blob in[3] = { { "abc", 3 }, { NULL, 0 }, { "de", 2 } };
	static const char bytes[] = "\x03\x00\x00\x00"
				    "abc"
				    "\x00\x00\x00\x00"
				    "\x02\x00\x00\x00"
				    "de";
	const struct epf_blob huge = { bytes, (size_t)EPF_SVC_BODY_MAX + 1 };
	const struct epf_blob halves[2] = { { bytes, EPF_SVC_BODY_MAX / 2 },
					    { bytes, EPF_SVC_BODY_MAX / 2 } };
	struct epf_blob out[3] = { { "x", 9 } };
	uint8_t *buf;
	size_t len;

	assert_int_equal(epf_svc_pack(in, 3, &buf, &len), 0);
	assert_int_equal(len, sizeof(bytes) - 1);
	assert_memory_equal(buf, bytes, len);
	for (size_t cut = 0; cut < len; cut++) {
		uint8_t *part = exactly(buf, cut);

		assert_int_equal(epf_svc_unpack(part, cut, 3, out), -EBADMSG);
		assert_non_null(strstr(epf_last_error(), "ends inside that of rank"));
		assert_int_equal(out[0].len, 9);
		free(part);
	}
	assert_int_equal(epf_svc_unpack(buf, len, 2, out), -EBADMSG);
	assert_non_null(strstr(epf_last_error(), "6 bytes too many"));
	assert_int_equal(epf_svc_unpack(buf, len, 3, out), 0);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(out[r].len, in[r].len);
		assert_memory_equal(out[r].data, in[r].len ? in[r].data : "", in[r].len);
	}
	memcpy(buf, "\xff\xff\xff\xff", 4);
	assert_int_equal(epf_svc_unpack(buf, len, 3, out), -EBADMSG);
	free(buf);
	assert_int_equal(epf_svc_unpack("", 0, 0, out), 0);
	assert_int_equal(epf_svc_pack(&huge, 1, &buf, &len), -ENOSPC);
	assert_int_equal(epf_svc_pack(halves, 2, &buf, &len), -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_message_has_its_image),
		cmocka_unit_test(images_of_all_minors_are_read),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(lengths_that_lie_are_refused),
		cmocka_unit_test(texts_are_clean),
		cmocka_unit_test(types_are_known),
		cmocka_unit_test(headers),
		cmocka_unit_test(another_major_is_named),
		cmocka_unit_test(lists_of_descriptions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
