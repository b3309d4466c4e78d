/* SPDX-License-Identifier: Apache-2.0 */
/*
 * docs/abi.md against the headers: every struct table must name each field with its offset and size and tile the
 * struct without a gap; every number in a table of names must be the constant's. Argument: the page. It reads table
 * rows (lines that begin with "|") and headings, and nothing else.
 */
#include "fabric/client/handle.h"
#include "fabric/engine/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct field {
	const char *object, *name;
	uint64_t offset, bytes;
	bool seen;
};

struct object {
	const char *name;
	uint64_t bytes;
	bool open; /* ends in an array without a length */
	bool seen;
};

struct number {
	const char *name;
	uint64_t value;
	bool seen;
};

#define F(s, f)                                                      \
 {                                                                   \
#  s, #  f, offsetof(struct s, f), sizeof(((struct s *)0)->f), false \
 }
#define N(x)   \
 {             \
#  x, x, false \
 }

static struct object objects[] = {
	{ "epf_ring_shm", sizeof(struct epf_ring_shm), false, false },
	{ "epf_done", sizeof(struct epf_done), false, false },
	{ "epf_signal", sizeof(struct epf_signal), false, false },
	{ "epf_wakeup", sizeof(struct epf_wakeup), false, false },
	{ "epf_ctl", sizeof(struct epf_ctl), true, false },
	{ "epf_msg", sizeof(struct epf_msg), false, false },
	{ "epf_peers_shm", sizeof(struct epf_peers_shm), true, false },
	{ "epf_peer_word", sizeof(struct epf_peer_word), false, false },
	{ "epf_peer_detail", sizeof(struct epf_peer_detail), false, false },
	{ "epf_flight_event", sizeof(struct epf_flight_event), false, false },
};

static struct field fields[] = {
	F(epf_ring_shm, magic),
	F(epf_ring_shm, version),
	F(epf_ring_shm, log2_slots),
	F(epf_ring_shm, ring_id),
	F(epf_ring_shm, rank),
	F(epf_ring_shm, reserved0),
	F(epf_ring_shm, dequeued),
	F(epf_ring_shm, reserved1),
	F(epf_ring_shm, abort),
	F(epf_ring_shm, reserved2),
	F(epf_ring_shm, done),
	F(epf_done, retired),
	F(epf_done, failed),
	F(epf_done, error_index),
	F(epf_done, error_rank),
	F(epf_done, error_status),
	F(epf_done, error_reason),
	F(epf_done, reserved),
	F(epf_signal, value),
	F(epf_signal, from),
	F(epf_signal, reserved),
	F(epf_wakeup, sleeping),
	F(epf_wakeup, rung),
	F(epf_wakeup, waiters),
	F(epf_wakeup, condition),
	F(epf_wakeup, condition_least),
	F(epf_wakeup, condition_index),
	F(epf_wakeup, tickets),
	F(epf_wakeup, reserved),
	F(epf_wakeup, kernel_condition),
	F(epf_wakeup, kernel_index),
	F(epf_wakeup, kernel_least),
	F(epf_wakeup, kernel_seen),
	F(epf_wakeup, kernel_reserved),
	F(epf_ctl, grants),
	{ "epf_ctl", "acks", offsetof(struct epf_ctl, acks), 8, false },
	F(epf_peers_shm, magic),
	F(epf_peers_shm, version),
	F(epf_peers_shm, world),
	F(epf_peers_shm, n_nodes),
	F(epf_peers_shm, reserved0),
	F(epf_peers_shm, lost),
	F(epf_peers_shm, changes),
	F(epf_peers_shm, reserved1),
	{ "epf_peers_shm", "peers", offsetof(struct epf_peers_shm, peers),
	  sizeof(struct epf_peer_word), false },
	F(epf_peer_word, state),
	F(epf_peer_word, cause),
	F(epf_peer_word, epoch),
	F(epf_peer_word, node),
	F(epf_peer_detail, silent_ns),
	F(epf_peer_detail, order),
	F(epf_peer_detail, root),
	F(epf_peer_detail, root_cause),
	F(epf_peer_detail, reserved0),
	F(epf_peer_detail, reserved1),
	F(epf_msg, kind),
	F(epf_msg, flags),
	F(epf_msg, handle),
	F(epf_msg, count),
	F(epf_msg, rank),
	F(epf_msg, signal),
	F(epf_msg, value),
	F(epf_msg, a),
	F(epf_msg, b),
	F(epf_msg, e),
	F(epf_msg, c),
	F(epf_msg, d),
	F(epf_msg, reserved),
	F(epf_flight_event, tsc),
	F(epf_flight_event, what),
	F(epf_flight_event, xy),
	F(epf_flight_event, b),
};

static struct number numbers[] = {
	N(EPF_CMD_BYTES),
	N(EPF_CMD_GRANULE),
	N(EPF_NARROW_RANKS),
	N(EPF_NARROW_SIGNALS),
	N(EPF_NARROW_REGIONS),
	N(EPF_NARROW_LENGTH),
	N(EPF_NARROW_REGION_BYTES),
	N(EPF_NARROW_ADD),
	N(EPF_NARROW_VALUE),
	N(EPF_WIDE_RANKS),
	N(EPF_WIDE_SIGNALS),
	N(EPF_WIDE_REGIONS),
	N(EPF_WIDE_LENGTH),
	N(EPF_WIDE_REGION_BYTES),
	N(EPF_WIDE_ADD),
	N(EPF_RING_LOG2_MIN),
	N(EPF_RING_LOG2_MAX),
	N(EPF_MAX_RINGS),
	N(EPF_MAX_LANES_PER_NODE),
	N(EPF_MAX_STREAMS_PER_NODE),
	N(EPF_MAX_WINDOW),
	N(EPF_NIC_MSG_BYTES),
	N(EPF_NIC_ADDR_BYTES),
	N(EPF_NIC_LINKS),
	N(EPF_OP_NOP),
	N(EPF_OP_PUT),
	N(EPF_OP_PUT_SIGNAL),
	N(EPF_OP_SIGNAL),
	N(EPF_OP_GET),
	N(EPF_OP_FLUSH),
	N(EPF_OP_WIDE),
	N(EPF_OP_PUT_INLINE),
	N(EPF_OP_ADD),
	N(EPF_F_FENCE),
	N(EPF_F_BULK),
	N(EPF_F_COUNTED),
	N(EPF_F_ALL),
	N(EPF_MSG_SIGNAL),
	N(EPF_MSG_ADD),
	N(EPF_MSG_FLUSH),
	N(EPF_MSG_NOTIFY),
	N(EPF_MSG_REVOKE),
	N(EPF_MSG_REVOKED),
	N(EPF_MSG_LANE_FENCE),
	N(EPF_MSG_LANE_FENCED),
	N(EPF_MSG_STREAM_QUERY),
	N(EPF_MSG_STREAM_STATE),
	N(EPF_MSG_LANE_OPEN),
	N(EPF_MSG_LANE_OPENED),
	N(EPF_MSG_BYE),
	N(EPF_MSG_RANK),
	N(EPF_MSG_REGION),
	N(EPF_MSG_KEYS),
	N(EPF_MSG_LOST),
	N(EPF_IMM_STREAM),
	N(EPF_IMM_NOTIFY),
	N(EPF_FLIGHT_DEQUEUE),
	N(EPF_FLIGHT_STEP),
	N(EPF_FLIGHT_DEFER),
	N(EPF_FLIGHT_BLOCK),
	N(EPF_FLIGHT_FLUSH),
	N(EPF_FLIGHT_FLUSHED),
	N(EPF_FLIGHT_LANE_ERROR),
	N(EPF_FLIGHT_LANE_MOVED),
	N(EPF_FLIGHT_LANE_UP),
	N(EPF_FLIGHT_NODE_DOWN),
	N(EPF_FLIGHT_PEER),
	N(EPF_FLIGHT_WAIT),
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *page;

/* The next cell of a row, without blanks and back-quotes; NULL at the end. *at is behind a bar. */
static char *cell(char **at)
{
	char *begin = *at, *end = strchr(begin, '|');

	if (!end)
		return NULL;
	*at = end + 1;
	begin += strspn(begin, " `");
	while (end > begin && strchr(" `", end[-1]))
		end--;
	*end = 0;
	return begin;
}

static bool is_number(const char *text)
{
	return text[0] && strspn(text, "0123456789") == strlen(text);
}

/* A row "offset | bytes | field | ..." of the table under a struct's heading. Returns the offset behind it. */
static uint64_t field_row(const struct object *o, uint64_t behind, const char *offset,
			  const char *bytes, const char *name)
{
	uint64_t at = strtoull(offset, NULL, 10), size = strtoull(bytes, NULL, 10);

	if (at != behind)
		fail_msg("%s.%s: begins at %s, but the row before ends at %llu", o->name, name,
			 offset, (unsigned long long)behind);
	for (size_t i = 0; i < COUNT(fields); i++) {
		struct field *f = &fields[i];

		if (strcmp(f->object, o->name) || strcmp(f->name, name))
			continue;
		if (f->offset != at || f->bytes != size)
			fail_msg("%s.%s: %s and %s in the page, %llu and %llu in the header",
				 o->name, name, offset, bytes, (unsigned long long)f->offset,
				 (unsigned long long)f->bytes);
		f->seen = true;
		return at + size;
	}
	fail_msg("%s has no field %s", o->name, name);
	return 0;
}

static void number_row(const char *name, const char *value)
{
	for (size_t i = 0; i < COUNT(numbers); i++) {
		if (strcmp(numbers[i].name, name))
			continue;
		if (strtoull(value, NULL, 10) != numbers[i].value)
			fail_msg("%s: %s in the page, %llu in the header", name, value,
				 (unsigned long long)numbers[i].value);
		numbers[i].seen = true;
		return;
	}
	fail_msg("%s: in the page, but not in this test", name);
}

static struct object *object_of(const char *heading)
{
	for (size_t i = 0; i < COUNT(objects); i++) {
		char quoted[64];

		snprintf(quoted, sizeof(quoted), "`struct %s`", objects[i].name);
		if (strstr(heading, quoted))
			return &objects[i];
	}
	return NULL;
}

static void end_table(struct object *o, uint64_t *behind)
{
	if (o && *behind) {
		if (!o->open && *behind != o->bytes)
			fail_msg("%s: the table ends at %llu, the struct at %llu", o->name,
				 (unsigned long long)*behind, (unsigned long long)o->bytes);
		o->seen = true;
	}
	*behind = 0;
}

static void page_says_what_the_headers_say(void **state)
{
	FILE *f = fopen(page, "r");
	struct object *o = NULL;
	uint64_t behind = 0;
	char line[1024];

	if (!f)
		fail_msg("%s: cannot be opened", page);
	while (fgets(line, sizeof(line), f)) {
		char *at = line + 1, *one, *two, *three;

		if (line[0] == '#') {
			end_table(o, &behind);
			o = object_of(line);
		}
		if (line[0] != '|')
			continue;
		one = cell(&at);
		two = one ? cell(&at) : NULL;
		three = two ? cell(&at) : NULL;
		if (o && three && is_number(one))
			behind = field_row(o, behind, one, two, three);
		else if (two && strncmp(one, "EPF_", 4) == 0 && is_number(two))
			number_row(one, two);
	}
	end_table(o, &behind);
	fclose(f);
	for (size_t i = 0; i < COUNT(fields); i++)
		if (!fields[i].seen)
			fail_msg("%s.%s is not in the page", fields[i].object, fields[i].name);
	for (size_t i = 0; i < COUNT(numbers); i++)
		if (!numbers[i].seen)
			fail_msg("%s is not in the page", numbers[i].name);
	for (size_t i = 0; i < COUNT(objects); i++)
		if (!objects[i].seen)
			fail_msg("struct %s is not in the page", objects[i].name);
}

static void immediates_are_as_documented(void **state)
{
	assert_int_equal(epf_imm(EPF_IMM_STREAM, 0, 0), 0x20000000);
	assert_int_equal(epf_imm(EPF_IMM_NOTIFY, 8191, 0xffffffff), 0x5fffffff);
	assert_int_equal(epf_imm(EPF_IMM_NOTIFY, 1, 0x12345), 0x40012345);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(page_says_what_the_headers_say),
		cmocka_unit_test(immediates_are_as_documented),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: test_abi docs/abi.md\n");
		return 1;
	}
	page = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
