/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seals: literal bytes (made by a script with another library's HMAC), and everything that must not open: another
 * secret, any bit changed, any byte missing, another session, rank, world or exchange.
 */
#include "fabric/base/err.h"
#include "fabric/protocol/proto.h"
#include "fabric/protocol/seal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANK = 1, ROUND = 3, AT_MAJOR = 4 };

#define DATA "description"

/* clang-format off */
static const uint8_t image[] = {
	0x45, 0x50, 0x46, 0x44, 0x01, 0x00, 0x05, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
	0x0b, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x64, 0x65, 0x73, 0x63, 0x72, 0x69, 0x70, 0x74,
	0x69, 0x6f, 0x6e, 0x1a, 0x5a, 0x84, 0x41, 0x60, 0xb3, 0x23, 0xb8, 0xd0, 0x21, 0x8a, 0xa3, 0xd0,
	0x37, 0x1e, 0xd3, 0xe5, 0x59, 0x32, 0x7f, 0x80, 0x02, 0x14, 0x31, 0xa7, 0xa7, 0x85, 0x97, 0x59,
	0xa4, 0x8b, 0xcd,
};

/* The same by a daemon one minor older. */
static const uint8_t image_1_4[] = {
	0x45, 0x50, 0x46, 0x44, 0x01, 0x00, 0x04, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00,
	0x0b, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x64, 0x65, 0x73, 0x63, 0x72, 0x69, 0x70, 0x74,
	0x69, 0x6f, 0x6e, 0x04, 0xfc, 0xd4, 0x13, 0x49, 0x20, 0x83, 0xb9, 0xfa, 0xfd, 0xf6, 0x53, 0xa9,
	0x94, 0xd2, 0x48, 0x11, 0xc3, 0x2a, 0x0c, 0x28, 0x17, 0xe4, 0xa6, 0x56, 0xf1, 0x39, 0x8a, 0xf2,
	0xfd, 0x4b, 0x54,
};
/* clang-format on */

static struct epf_auth auth;
static struct epf_seal_session session;
static uint8_t job_id[16], table[2 * EPF_SVC_MEMBER_BYTES];

static int setup(void **state)
{
	for (unsigned i = 0; i < sizeof(auth.master); i++)
		auth.master[i] = (uint8_t)(1 + i);
	for (unsigned i = 0; i < sizeof(job_id); i++)
		job_id[i] = (uint8_t)(0x10 + i);
	memset(table, 'T', sizeof(table));
	epf_seal_session_init(&session, job_id, table, sizeof(table), 2);
	return 0;
}

static int open_it(const void *sealed, size_t len)
{
	const void *bytes;
	size_t n;

	return epf_seal_open(&auth, &session, RANK, ROUND, sealed, len, &bytes, &n);
}

static void refused(int rc, const char *words)
{
	assert_int_equal(rc, -EBADMSG);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_SEAL);
	if (!strstr(epf_last_error(), "rank 1: ") || !strstr(epf_last_error(), words))
		fail_msg("'%s' lacks '%s'", epf_last_error(), words);
}

static void a_seal_has_its_image(void **state)
{
	const void *bytes;
	uint8_t *out;
	size_t len, n;

	assert_int_equal(epf_seal(&auth, &session, RANK, ROUND, DATA, 11, &out, &len), 0);
	assert_int_equal(len, sizeof(image));
	assert_memory_equal(out, image, len);
	assert_int_equal(epf_seal_open(&auth, &session, RANK, ROUND, out, len, &bytes, &n), 0);
	assert_int_equal(n, 11);
	assert_memory_equal(bytes, DATA, n);
	assert_ptr_equal(bytes, out + 24);
	free(out);
	/* Nothing can be sealed, too much cannot. */
	assert_int_equal(epf_seal(&auth, &session, RANK, ROUND, NULL, 0, &out, &len), 0);
	assert_int_equal(epf_seal_open(&auth, &session, RANK, ROUND, out, len, &bytes, &n), 0);
	assert_int_equal(n, 0);
	free(out);
	assert_int_equal(epf_seal(&auth, &session, RANK, ROUND, DATA, (size_t)EPF_SVC_BODY_MAX + 1,
				  &out, &len),
			 -ENOSPC);
}

static void any_changed_bit_is_noticed(void **state)
{
	uint8_t sealed[sizeof(image)];

	for (size_t bit = 0; bit < sizeof(image) * 8; bit++) {
		const void *bytes = "untouched";
		size_t n = 9;
		int rc;

		memcpy(sealed, image, sizeof(image));
		sealed[bit / 8] ^= (uint8_t)(1 << bit % 8);
		rc = epf_seal_open(&auth, &session, RANK, ROUND, sealed, sizeof(sealed), &bytes,
				   &n);
		if (rc != -EBADMSG && rc != -EPROTO)
			fail_msg("bit %zu changed: %d", bit, rc);
		if (!strstr(epf_last_error(), "rank 1"))
			fail_msg("bit %zu: '%s' names no rank", bit, epf_last_error());
		assert_int_equal(n, 9);
		assert_string_equal(bytes, "untouched");
	}
}

static void any_other_length_is_noticed(void **state)
{
	for (size_t len = 0; len < sizeof(image); len++) {
		uint8_t *cut = malloc(len ? len : 1);

		memcpy(cut, image, len);
		refused(open_it(cut, len), "");
		free(cut);
	}
	uint8_t longer[sizeof(image) + 1] = { 0 };

	memcpy(longer, image, sizeof(image));
	refused(open_it(longer, sizeof(longer)), "11 bytes comes in");
	refused(open_it(NULL, 0), "no description");
}

static void others_cannot_open_it(void **state)
{
	struct epf_auth other = auth;
	struct epf_seal_session s;
	const void *bytes;
	size_t n;

	other.master[31] ^= 1;
	refused(epf_seal_open(&other, &session, RANK, ROUND, image, sizeof(image), &bytes, &n),
		"wrong proof");
	job_id[0] ^= 1;
	epf_seal_session_init(&s, job_id, table, sizeof(table), 2);
	job_id[0] ^= 1;
	refused(epf_seal_open(&auth, &s, RANK, ROUND, image, sizeof(image), &bytes, &n),
		"another run of the job");
	/* A nonce of the table is new: what was recorded in an earlier run is of no use. */
	table[sizeof(table) - 1] ^= 1;
	epf_seal_session_init(&s, job_id, table, sizeof(table), 2);
	table[sizeof(table) - 1] ^= 1;
	refused(epf_seal_open(&auth, &s, RANK, ROUND, image, sizeof(image), &bytes, &n),
		"wrong proof");
	epf_seal_session_init(&s, job_id, table, sizeof(table), 3);
	refused(epf_seal_open(&auth, &s, RANK, ROUND, image, sizeof(image), &bytes, &n),
		"wrong proof");
	s = session;
	s.world = 3;
	refused(epf_seal_open(&auth, &s, RANK, ROUND, image, sizeof(image), &bytes, &n),
		"for 2 ranks, the job has 3");
}

/* What is genuine, at the wrong place or the wrong time. */
static void replays_are_refused(void **state)
{
	const void *bytes;
	uint8_t *out;
	size_t len, n;

	assert_int_equal(epf_seal_open(&auth, &session, 0, ROUND, image, sizeof(image), &bytes, &n),
			 -EBADMSG);
	assert_non_null(strstr(epf_last_error(), "rank 0: its description is that of rank 1"));
	refused(epf_seal_open(&auth, &session, RANK, ROUND + 1, image, sizeof(image), &bytes, &n),
		"is of exchange 3, this is exchange 4");
	assert_int_equal(epf_seal(&auth, &session, RANK, 0, DATA, 11, &out, &len), 0);
	refused(open_it(out, len), "is of exchange 0, this is exchange 3");
	free(out);
}

static void versions_are_compared(void **state)
{
	uint8_t sealed[sizeof(image)];

	memcpy(sealed, image, sizeof(image));
	sealed[AT_MAJOR] = 2;
	assert_int_equal(open_it(sealed, sizeof(sealed)), -EPROTO);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_VERSION);
	assert_non_null(strstr(epf_last_error(), "the daemon of rank 1 speaks version 2.5"));
	assert_int_equal(open_it(image_1_4, sizeof(image_1_4)), 0);
	sealed[AT_MAJOR] = 1;
	sealed[AT_MAJOR + 2] = 4;
	/* 1.4 would do, but nobody has sealed these bytes. */
	refused(open_it(sealed, sizeof(sealed)), "wrong proof");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_seal_has_its_image),
		cmocka_unit_test(any_changed_bit_is_noticed),
		cmocka_unit_test(any_other_length_is_noticed),
		cmocka_unit_test(others_cannot_open_it),
		cmocka_unit_test(replays_are_refused),
		cmocka_unit_test(versions_are_compared),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
