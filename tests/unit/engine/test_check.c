/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command check: each reason for a refusal at least once, what is allowed at every edge of a region, and nothing that
 * wraps. tests/fuzz/fuzz_cmd.c holds it against a second opinion on arbitrary bytes.
 */
#include "fabric/engine/check_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BIG EPF_WIDE_REGION_BYTES

/* Own regions: 0 live, 1 revoked, 2 withdrawn, 3 a hole, 4 as large as can be. */
static struct epf_region_local own[] = {
	{ .bytes = 4096, .state = EPF_REGION_LIVE }, { .state = EPF_REGION_REVOKED },
	{ .state = EPF_REGION_WITHDRAWN },           { .state = EPF_REGION_FREE },
	{ .bytes = BIG, .state = EPF_REGION_LIVE },
};

/* Regions of peer 0: 0 all access, 1 read, 2 write, 3 not exported, 4 draining, 5 large. */
static struct epf_region_remote theirs[] = {
	{ .bytes = 8192, .state = EPF_REGION_LIVE, .access = 3 },
	{ .bytes = 8192, .state = EPF_REGION_LIVE, .access = EPF_MR_REMOTE_READ },
	{ .bytes = 8192, .state = EPF_REGION_LIVE, .access = EPF_MR_REMOTE_WRITE },
	{ .state = EPF_REGION_FREE, .access = 3 },
	{ .state = EPF_REGION_DRAINING, .access = 3 },
	{ .bytes = BIG, .state = EPF_REGION_LIVE, .access = 3 },
};

static const struct epf_rank_state rank = { .regions = own, .n_regions = 5, .max_regions = 5 };
static const struct epf_peer peers[] = {
	{ .regions = theirs, .n_regions = 6, .n_signals = 10 },
	{ .n_signals = 0 }, /* has nothing */
};

struct row {
	const char *what;
	struct epf_op op;
	unsigned reason;
};

#define PUT  .op = EPF_OP_PUT
#define R(x) EPF_R_CMD_##x

/* clang-format off */
static const struct row rows[] = {
	{ "nop", { .op = EPF_OP_NOP }, 0 },
	{ "flush names nobody", { .op = EPF_OP_FLUSH, .rank = 99 }, 0 },
	{ "reserved bits come first", { PUT, .reserved = 1, .rank = 99, .length = 1 }, R(RESERVED) },
	{ "reserved bits of a flush", { .op = EPF_OP_FLUSH, .reserved = 1 }, R(RESERVED) },
	{ "an operation of another release", { .op = EPF_OP_COUNT, .length = 1 }, R(OP) },
	{ "the mark of the wide form inside it", { .op = EPF_OP_WIDE, .length = 1 }, R(OP) },
	{ "the last operation number", { .op = 15, .length = 1 }, R(OP) },

	{ "put", { PUT, .length = 16 }, 0 },
	{ "put of all", { PUT, .length = 4096, .remote_offset = 4096 }, 0 },
	{ "put past the job", { PUT, .rank = 2, .length = 16 }, R(RANK) },
	{ "put far past the job", { PUT, .rank = 0xffffff, .length = 16 }, R(RANK) },
	{ "put from no region", { PUT, .local_region = 5, .length = 16 }, R(LOCAL_REGION) },
	{ "put from the last number", { PUT, .local_region = 65535, .length = 16 }, R(LOCAL_REGION) },
	{ "put from a hole", { PUT, .local_region = 3, .length = 16 }, R(LOCAL_REGION) },
	{ "put from a revoked region", { PUT, .local_region = 1, .length = 16 }, R(REVOKED) },
	{ "put from a withdrawn region", { PUT, .local_region = 2, .length = 16 }, R(REVOKED) },
	{ "put of one byte too many", { PUT, .length = 4097 }, R(LOCAL_RANGE) },
	{ "put of the last byte", { PUT, .local_offset = 4095, .length = 1 }, 0 },
	{ "put one past the end", { PUT, .local_offset = 4096, .length = 1 }, R(LOCAL_RANGE) },
	{ "put from far away", { PUT, .local_offset = BIG - 1, .length = 1 }, R(LOCAL_RANGE) },
	{ "put whose end wraps", { PUT, .local_offset = UINT64_MAX, .length = 2 }, R(LOCAL_RANGE) },
	{ "put of 2 GiB", { PUT, .local_region = 4, .local_offset = BIG - (1u << 31), .remote_region = 5,
			    .remote_offset = BIG - (1u << 31), .length = 1u << 31 }, 0 },
	{ "put of 2 GiB from one further", { PUT, .local_region = 4, .local_offset = BIG - (1u << 31) + 1,
					     .remote_region = 5, .length = 1u << 31 }, R(LOCAL_RANGE) },
	{ "put of 2 GiB to one further", { PUT, .local_region = 4, .remote_region = 5,
					   .remote_offset = BIG - (1u << 31) + 1, .length = 1u << 31 },
	  R(REMOTE_RANGE) },
	{ "put to no region", { PUT, .remote_region = 6, .length = 16 }, R(REMOTE_REGION) },
	{ "put to a peer without regions", { PUT, .rank = 1, .length = 16 }, R(REMOTE_REGION) },
	{ "put to what is not exported", { PUT, .remote_region = 3, .length = 16 }, R(REMOTE_REGION) },
	{ "put to a draining region", { PUT, .remote_region = 4, .length = 16 }, R(REVOKED) },
	{ "put of the peer's last byte", { PUT, .remote_offset = 8191, .length = 1 }, 0 },
	{ "put past the peer's end", { PUT, .remote_offset = 8192, .length = 1 }, R(REMOTE_RANGE) },
	{ "put over the peer's end", { PUT, .remote_offset = 8191, .length = 2 }, R(REMOTE_RANGE) },
	{ "put to an end that wraps", { PUT, .remote_offset = UINT64_MAX, .length = 2 }, R(REMOTE_RANGE) },
	{ "put to what may only be read", { PUT, .remote_region = 1, .length = 16 }, R(ACCESS) },
	{ "put to what may only be written", { PUT, .remote_region = 2, .length = 16 }, 0 },
	{ "uncounted put: its signal means nothing", { PUT, .signal = 10, .length = 16 }, 0 },
	{ "counted put", { PUT, .flags = EPF_F_COUNTED, .signal = 9, .length = 16 }, 0 },
	{ "counted put of no group", { PUT, .flags = EPF_F_COUNTED, .signal = 10, .length = 16 }, R(SIGNAL) },
	{ "counted put out of range", { PUT, .flags = EPF_F_COUNTED, .length = 4097 }, R(LOCAL_RANGE) },

	{ "put and signal", { .op = EPF_OP_PUT_SIGNAL, .signal = 9, .length = 16 }, 0 },
	{ "put and no such signal", { .op = EPF_OP_PUT_SIGNAL, .signal = 10, .length = 16 }, R(SIGNAL) },
	{ "put and signal from no region", { .op = EPF_OP_PUT_SIGNAL, .local_region = 5, .length = 16 },
	  R(LOCAL_REGION) },
	{ "put and signal to a read-only region", { .op = EPF_OP_PUT_SIGNAL, .remote_region = 1, .length = 16 },
	  R(ACCESS) },

	{ "get", { .op = EPF_OP_GET, .remote_region = 1, .length = 4096 }, 0 },
	{ "get into no region", { .op = EPF_OP_GET, .local_region = 5, .length = 16 }, R(LOCAL_REGION) },
	{ "get of more than there is", { .op = EPF_OP_GET, .local_region = 4, .length = 8193 }, R(REMOTE_RANGE) },
	{ "get of what may only be written", { .op = EPF_OP_GET, .remote_region = 2, .length = 16 }, R(ACCESS) },

	{ "signal", { .op = EPF_OP_SIGNAL, .signal = 9, .value = UINT64_MAX }, 0 },
	{ "signal out of range", { .op = EPF_OP_SIGNAL, .signal = 10 }, R(SIGNAL) },
	{ "signal to who has none", { .op = EPF_OP_SIGNAL, .rank = 1 }, R(SIGNAL) },
	{ "counted signal", { .op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED, .count = 1 }, 0 },
	{ "counted signal of nothing", { .op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED }, R(COUNT) },

	{ "inline", { .op = EPF_OP_PUT_INLINE, .remote_offset = 8184, .length = 8 }, 0 },
	{ "inline to an odd place", { .op = EPF_OP_PUT_INLINE, .remote_offset = 8191, .length = 1 }, 0 },
	{ "inline over the end", { .op = EPF_OP_PUT_INLINE, .remote_offset = 8185, .length = 8 }, R(REMOTE_RANGE) },
	{ "inline of nine bytes", { .op = EPF_OP_PUT_INLINE, .length = 9 }, R(LENGTH) },
	{ "inline to a read-only region", { .op = EPF_OP_PUT_INLINE, .remote_region = 1, .length = 1 }, R(ACCESS) },

	{ "add", { .op = EPF_OP_ADD, .remote_offset = 8184, .length = 8 }, 0 },
	{ "add to a crooked word", { .op = EPF_OP_ADD, .remote_offset = 12, .length = 8 }, R(ALIGN) },
	{ "add of another width", { .op = EPF_OP_ADD, .length = 4 }, R(LENGTH) },
	{ "add past the end", { .op = EPF_OP_ADD, .remote_offset = 8192, .length = 8 }, R(REMOTE_RANGE) },
	{ "add to a read-only region", { .op = EPF_OP_ADD, .remote_region = 1, .length = 8 }, R(ACCESS) },
};

/* clang-format on */

static void every_row_has_its_reason(void **state)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned got = epf_cmd_check(&rank, peers, 2, &rows[i].op);

		if (got != rows[i].reason)
			fail_msg("%s: reason %u, not %u", rows[i].what, got, rows[i].reason);
	}
}

/* All reasons of the check are in the table above; each has a cause and a remedy to print. */
static void every_reason_has_a_row(void **state)
{
	static const unsigned reasons[] = {
		R(OP),          R(RESERVED),      R(RANK),         R(LOCAL_REGION),
		R(LOCAL_RANGE), R(REMOTE_REGION), R(REMOTE_RANGE), R(SIGNAL),
		R(COUNT),       R(LENGTH),        R(ALIGN),        R(REVOKED),
		R(ACCESS),
	};

	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		size_t n = 0;

		while (n < sizeof(rows) / sizeof(rows[0]) && rows[n].reason != reasons[i])
			n++;
		assert_true(n < sizeof(rows) / sizeof(rows[0]));
		assert_non_null(epf_reason_info((enum epf_reason)reasons[i]));
	}
}

/* Before a job is joined there are no peers: nothing is looked up. */
static void without_a_job_everything_is_refused(void **state)
{
	static const struct epf_rank_state nobody;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		unsigned got = epf_cmd_check(&nobody, NULL, 0, &rows[i].op);

		if (rows[i].op.op != EPF_OP_NOP && rows[i].op.op != EPF_OP_FLUSH)
			assert_int_not_equal(got, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_has_its_reason),
		cmocka_unit_test(every_reason_has_a_row),
		cmocka_unit_test(without_a_job_everything_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
