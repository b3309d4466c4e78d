/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixed versions. A client one minor version older or newer joins a job with a client of this version, and bytes go both
 * ways; so does a daemon whose sealed description carries such a version (sealed here, by a second implementation). A client or daemon
 * two minor versions away, or of another major version, is refused with an error that names both versions.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/protocol/seal.h"
#include "tests/proc/svc_job.h"
#include "tests/proc/svc_raw.h"

#include <errno.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 4096, SEAL_HEAD = 24, NUMBER = 77, TAIL = 24 };

static const char *const daemon_settings[] = { "service-grace=100ms", NULL };
static struct daemons daemons;

/* ---- clients ---- */

static uint8_t pattern(uint32_t from, unsigned i)
{
	return (uint8_t)(from * 101 + i * 7 + 3);
}

/* Sends its page to the other rank, receives the other's, checks it. */
static void exchange_raw(struct job_rank *j, struct raw_rank *r)
{
	struct epf_op op = { .op = EPF_OP_PUT_SIGNAL,
			     .rank = 1 - j->me,
			     .signal = j->me,
			     .add = 1,
			     .length = BYTES,
			     .remote_offset = BYTES };
	uint64_t deadline = epf_now_ns() + job_wait_ns();

	for (unsigned i = 0; i < BYTES; i++)
		r->mem[0][i] = pattern(j->me, i);
	JOB_CHECK(j, epf_ring_push(&r->ring[0].producer, epf_op_pack_narrow(&op)));
	raw_rank_kick(r);
	JOB_CHECK(j, raw_rank_retired(r, 0, 1, job_ms(JOB_WAIT_MS)) == 0);
	JOB_CHECK(j, r->ring[0].shm->done.failed == 0);
	while (epf_signal_read(&r->signals[1 - j->me]) < 1)
		JOB_CHECK(j, epf_now_ns() < deadline);
	for (unsigned i = 0; i < BYTES; i++)
		JOB_CHECK(j, r->mem[0][BYTES + i] == pattern(1 - j->me, i));
}

static void exchange(struct job_rank *j)
{
	struct epf_ring *ring;
	uint32_t region;
	void *mem;

	JOB_CHECK(j, epf_memory_alloc(j->ep, 2 * BYTES, &mem) == 0);
	JOB_CHECK(j, epf_region_register(j->ep, mem, 2 * BYTES, EPF_REMOTE_WRITE, &region) == 0);
	JOB_CHECK(j, epf_ring_open(j->ep, NULL, &ring) == 0);
	j->mem = mem;
	for (unsigned i = 0; i < BYTES; i++)
		j->mem[i] = pattern(j->me, i);
	JOB_CHECK(j, job_rank_join(j) == 0);
	JOB_CHECK(j, epf_put_signal(ring, 1 - j->me, 0, 0, 0, BYTES, BYTES, j->me, 1, 0) == 0);
	JOB_CHECK(j, epf_signal_wait(j->ep, 1 - j->me, 1, job_wait_ns()) == 0);
	for (unsigned i = 0; i < BYTES; i++)
		JOB_CHECK(j, j->mem[BYTES + i] == pattern(1 - j->me, i));
	JOB_CHECK(j, epf_flush(ring, 0, 0) == 0);
	JOB_CHECK(j, epf_barrier(j->ep) == 0);
}

/* All ranks' bytes of a round, concatenated. */
static void gather(struct job_rank *j, const void *mine, size_t len, uint8_t *all)
{
	struct epf_blob *blobs;

	JOB_CHECK(j, epf_boot_allgather(j->boot, mine, len, &blobs) == 0);
	for (uint32_t i = 0; i < j->world; i++) {
		JOB_CHECK(j, blobs[i].len == len);
		memcpy(all + i * len, blobs[i].data, len);
	}
	epf_boot_free_blobs(blobs);
}

/* Joins as libepf does, by hand. */
static void join_raw(struct job_rank *j, struct raw_rank *r, bool lowest)
{
	uint8_t ids[2 * EPF_SVC_ID], digest[EPF_AUTH_HASH_BYTES], key[EPF_SVC_KEY];
	uint8_t table[2 * EPF_SVC_MEMBER_BYTES], random[EPF_AUTH_NONCE_BYTES], *packed = NULL;
	struct epf_blob *blobs;
	size_t len = 0;

	epf_auth_nonce(random);
	gather(j, random, EPF_SVC_ID, ids);
	epf_auth_digest(ids, sizeof(ids), digest);
	JOB_CHECK(j, epf_boot_job_key(j->boot, j->plan->name, key) == 0);
	JOB_CHECK(j, raw_rank_attach(r, j->plan->name, digest, key, j->me, j->world, 0) == 0);
	gather(j, r->member, sizeof(r->member), table);
	JOB_CHECK(j, raw_rank_world(r, table) == 0);
	JOB_CHECK(j, epf_boot_allgather(j->boot, r->sealed, r->sealed_len, &blobs) == 0);
	if (lowest)
		JOB_CHECK(j, epf_svc_pack(blobs, j->world, &packed, &len) == 0);
	JOB_CHECK(j, raw_rank_connect(r, packed, len) == 0);
	epf_boot_free_blobs(blobs);
	free(packed);
	JOB_CHECK(j, epf_boot_allgather(j->boot, NULL, 0, &blobs) == 0);
	epf_boot_free_blobs(blobs);
}

/* plan->arg: the minor version of rank 0. */
static void mixed(struct job_rank *j)
{
	unsigned minor = *(const unsigned *)j->plan->arg;
	struct epf_boot_opts b = { .size = sizeof(b),
				   .rank = j->me,
				   .world = j->world,
				   .rendezvous = j->page->rendezvous,
				   .job = j->plan->name,
				   .timeout_ns = j->plan->boot_timeout_ns };
	struct raw_rank r;

	if (j->me == 0) {
		JOB_CHECK(j, epf_boot_tcp_open(&b, &j->boot) == 0);
		JOB_CHECK(j, raw_rank_open(&r, j->plan->client[0][0] + strlen("service="), minor,
					   minor > EPF_SVC_MINOR ? TAIL : 0, 16) == 0);
		JOB_CHECK(j, raw_rank_region(&r, 2 * BYTES, 1) == 0);
		JOB_CHECK(j, raw_rank_ring(&r, 6) == 0);
		join_raw(j, &r, true);
		exchange_raw(j, &r);
		JOB_CHECK(j, epf_boot_barrier(j->boot) == 0);
		raw_rank_close(&r, true);
	} else {
		JOB_CHECK(j, job_rank_connect(j) == 0);
		exchange(j);
	}
	job_rank_leave(j);
}

static void near_clients_are_served(void **state)
{
	unsigned minors[] = { EPF_SVC_MINOR - 1, EPF_SVC_MINOR, EPF_SVC_MINOR + 1 };

	for (unsigned i = 0; i < 6; i++) {
		struct job_plan plan = {
			.name = "versions", .world = 2, .body = mixed, .arg = &minors[i / 2]
		};

		plan.client[0] = daemons_client(&daemons, 0);
		plan.client[1] = daemons_client(&daemons, i & 1);
		/* The tail that a newer minor appends to its messages is ignored. */
		assert_int_equal(job_run(&plan), 0);
		printf("# versions: client %u.%u, daemon %u.%u, on %s: served\n", EPF_SVC_MAJOR,
		       minors[i / 2], EPF_SVC_MAJOR, EPF_SVC_MINOR,
		       i & 1 ? "two nodes" : "one node");
	}
}

/* The error names both versions. */
static void must_name(const char *text, unsigned major, unsigned minor)
{
	char theirs[32], ours[32];

	snprintf(theirs, sizeof(theirs), "%u.%u", major, minor);
	snprintf(ours, sizeof(ours), "%u.%u", EPF_SVC_MAJOR, EPF_SVC_MINOR);
	if (!strstr(text, theirs) || !strstr(text, ours))
		print_error("does not name %s and %s: %s\n", theirs, ours, text);
	assert_non_null(strstr(text, theirs));
	assert_non_null(strstr(text, ours));
}

static const unsigned far_versions[][2] = { { EPF_SVC_MAJOR, EPF_SVC_MINOR + 2 },
					    { EPF_SVC_MAJOR, EPF_SVC_MINOR + 40 },
					    { EPF_SVC_MAJOR, 65535 },
					    { EPF_SVC_MAJOR + 1, 0 },
					    { EPF_SVC_MAJOR + 1, EPF_SVC_MINOR },
					    { 0, EPF_SVC_MINOR } };

static void far_clients_are_refused(void **state)
{
	for (unsigned i = 0; i < sizeof(far_versions) / sizeof(far_versions[0]); i++) {
		struct raw c;

		assert_int_equal(raw_open(&c, daemons_socket(&daemons, 0)), 0);
		assert_true(raw_hello(&c, far_versions[i][0], far_versions[i][1], 0) < 0);
		assert_int_equal(c.head.reason, EPF_R_SVC_VERSION);
		must_name(c.text, far_versions[i][0], far_versions[i][1]);
		if (i == 0)
			printf("# versions: refused: %s\n", c.text);
		raw_close(&c);
	}
}

/* ---- daemons: the ranks carry their messages to each other ---- */

/*
 * Seals a description again for another version: RFC 2104 with the key of daemons without a fabric secret. Written from docs/abi.md, not
 * from fabric/protocol/seal.c.
 */
static void seal_as(struct raw_rank *r, const struct epf_seal_session *s, unsigned major,
		    unsigned minor)
{
	static const char label[] = "EP fabric description seal";
	crypto_auth_hmacsha256_state st;
	uint8_t key[crypto_auth_hmacsha256_BYTES];
	size_t body = r->sealed_len - crypto_auth_hmacsha256_BYTES;
	struct epf_auth auth;

	assert_int_equal(epf_auth_load(NULL, 0, NULL, NULL, NULL, &auth), 0);
	r->sealed[4] = (uint8_t)major;
	r->sealed[5] = (uint8_t)(major >> 8);
	r->sealed[6] = (uint8_t)minor;
	r->sealed[7] = (uint8_t)(minor >> 8);
	crypto_auth_hmacsha256_init(&st, auth.master, sizeof(auth.master));
	crypto_auth_hmacsha256_update(&st, (const uint8_t *)label, sizeof(label));
	crypto_auth_hmacsha256_final(&st, key);
	crypto_auth_hmacsha256_init(&st, key, sizeof(key));
	crypto_auth_hmacsha256_update(&st, s->hash, sizeof(s->hash));
	crypto_auth_hmacsha256_update(&st, r->sealed, body);
	crypto_auth_hmacsha256_final(&st, r->sealed + body);
}

/* Runs a job of two ranks on two daemons; the second daemon claims major.minor. Returns 0, or the refusal with its text. */
static int job_with(unsigned major, unsigned minor, bool break_it, char *text, size_t size)
{
	uint8_t id[EPF_SVC_ID], key[EPF_SVC_KEY], table[2 * EPF_SVC_MEMBER_BYTES], *packed = NULL;
	struct epf_seal_session session;
	struct raw_rank r[2];
	struct epf_blob blobs[2];
	size_t len = 0;
	int rc;

	raw_job_names(NUMBER + major * 100 + minor, id, key);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(
			raw_rank_open(&r[i], daemons_socket(&daemons, i), EPF_SVC_MINOR, 0, 4), 0);
		assert_int_equal(raw_rank_region(&r[i], 2 * BYTES, 1), 0);
		assert_int_equal(raw_rank_ring(&r[i], 6), 0);
		assert_int_equal(raw_rank_attach(&r[i], "seals", id, key, i, 2, 0), 0);
		memcpy(table + i * EPF_SVC_MEMBER_BYTES, r[i].member, EPF_SVC_MEMBER_BYTES);
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(raw_rank_world(&r[i], table), 0);
	epf_seal_session_init(&session, id, table, sizeof(table), 2);
	for (unsigned i = 0; i < 2; i++)
		blobs[i] = (struct epf_blob){ r[i].sealed, r[i].sealed_len };
	assert_int_equal(epf_svc_pack(blobs, 2, &packed, &len), 0);
	assert_int_equal(raw_rank_connect(&r[1], packed, len), 0);
	free(packed);
	seal_as(&r[1], &session, major, minor);
	r[1].sealed[SEAL_HEAD] ^= break_it;
	assert_int_equal(epf_svc_pack(blobs, 2, &packed, &len), 0);
	rc = raw_rank_connect(&r[0], packed, len);
	snprintf(text, size, "%s", r[0].c.text);
	free(packed);
	if (rc == 0) {
		struct epf_op op = {
			.op = EPF_OP_PUT_SIGNAL, .rank = 1, .add = 1, .length = BYTES
		};

		memset(r[0].mem[0], 0x7c, BYTES);
		assert_int_equal(epf_ring_push(&r[0].ring[0].producer, epf_op_pack_narrow(&op)), 1);
		raw_rank_kick(&r[0]);
		for (unsigned i = 0; i < job_ms(JOB_WAIT_MS) && !epf_signal_read(r[1].signals); i++)
			usleep(1000);
		assert_int_equal(epf_signal_read(r[1].signals), 1);
		assert_memory_equal(r[1].mem[0], r[0].mem[0], BYTES);
	}
	for (unsigned i = 0; i < 2; i++)
		raw_rank_close(&r[i], true);
	return rc;
}

static void near_daemons_are_served(void **state)
{
	char text[512];

	for (unsigned minor = EPF_SVC_MINOR - 1; minor <= EPF_SVC_MINOR + 1; minor++) {
		int rc = job_with(EPF_SVC_MAJOR, minor, false, text, sizeof(text));

		if (rc)
			print_error("a daemon of %u.%u: %d %s\n", EPF_SVC_MAJOR, minor, rc, text);
		assert_int_equal(rc, 0);
		printf("# versions: daemon %u.%u with daemon %u.%u: served\n", EPF_SVC_MAJOR, minor,
		       EPF_SVC_MAJOR, EPF_SVC_MINOR);
	}
}

static void far_daemons_are_refused(void **state)
{
	char text[512];

	for (unsigned i = 0; i < sizeof(far_versions) / sizeof(far_versions[0]); i++) {
		assert_true(job_with(far_versions[i][0], far_versions[i][1], false, text,
				     sizeof(text)) < 0);
		must_name(text, far_versions[i][0], far_versions[i][1]);
		if (i == 0)
			printf("# versions: refused: %s\n", text);
	}
	/* One wrong bit breaks the seal. */
	assert_int_equal(job_with(EPF_SVC_MAJOR, EPF_SVC_MINOR, true, text, sizeof(text)),
			 -EBADMSG);
}

static int begin(void **state)
{
	if (sodium_init() < 0)
		return -1;
	return daemons_start(&daemons, 2, daemon_settings);
}

static int finish(void **state)
{
	return daemons_stop(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(near_clients_are_served),
		cmocka_unit_test(far_clients_are_refused),
		cmocka_unit_test(near_daemons_are_served),
		cmocka_unit_test(far_daemons_are_refused),
	};

	return cmocka_run_group_tests_name("versions", tests, begin, finish);
}
