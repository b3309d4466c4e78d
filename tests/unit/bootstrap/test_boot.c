/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap when all goes well: many ranks over TCP and inside the process, long and empty
 * blobs, IPv6, a server that comes late. What goes wrong is in test_boot_bad.c.
 */
#include "queues/epf_base.h"
#include "tests/unit/bootstrap/boot_kit.h"

#define RANKS  64u
#define ROUNDS 100u

/* Blob of a rank in a round: its length and every byte follow from both. */
static size_t blob_of(uint32_t rank, uint32_t round, uint8_t *buf)
{
	size_t len = (rank * 37 + round * 11) % 300;

	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(rank * 7 + round * 3 + i);
	return len;
}

static int check_round(const struct epf_blob *all, uint32_t world, uint32_t round)
{
	uint8_t want[300];

	for (uint32_t r = 0; r < world; r++) {
		size_t len = blob_of(r, round, want);

		if (all[r].len != len || memcmp(all[r].data, want, len) ||
		    (uintptr_t)all[r].data % 16)
			return epf_fail(EPF_R_SYSTEM, "round %u: rank %u's blob is wrong", round,
					r);
	}
	return 0;
}

static int gather_and_check(struct epf_boot *boot, uint32_t round)
{
	uint8_t mine[300];
	struct epf_blob *all;
	size_t len = blob_of(epf_boot_rank(boot), round, mine);
	int rc = epf_boot_allgather(boot, mine, len, &all);

	if (rc)
		return rc;
	rc = check_round(all, epf_boot_world(boot), round);
	epf_boot_free_blobs(all);
	return rc;
}

static _Atomic uint32_t entered[ROUNDS];

/* Nobody may leave barrier n before everybody has entered it. */
static int run_rounds(struct epf_boot *boot, void *arg)
{
	for (uint32_t n = 0; n < ROUNDS; n++) {
		int rc = gather_and_check(boot, n);

		entered[n]++;
		if (!rc)
			rc = epf_boot_check(boot);
		if (!rc)
			rc = epf_boot_barrier(boot);
		if (!rc && entered[n] != epf_boot_world(boot))
			rc = epf_fail(EPF_R_SYSTEM, "barrier %u let go of %u of %u ranks", n,
				      entered[n], epf_boot_world(boot));
		if (rc)
			return rc;
	}
	return 0;
}

static void many_ranks_gather_and_meet(void **state)
{
	struct epf_boot_server *srv = start_plain(RANKS);
	struct epf_boot_server_stats st;

	memset((void *)entered, 0, sizeof(entered));
	all_ranks(srv, RANKS, run_rounds);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	epf_boot_server_stats(srv, &st);
	assert_int_equal(st.joined, RANKS);
	assert_int_equal(st.rounds, 2 * ROUNDS);
	assert_int_equal(st.refused_malformed + st.refused_proof + st.refused_join + st.silent +
				 st.evicted + st.dropped_duplicates,
			 0);
	epf_boot_server_stop(srv);
}

/* Rank 0 hosts the server, as in a job; nobody else waits for it to exist. */
static void the_root_hosts_the_server(void **state)
{
	struct rank_thread t[8] = { 0 };
	struct epf_boot_server *probe = start_plain(1);
	char where[EPF_BOOT_ADDRESS_MAX];

	snprintf(where, sizeof(where), "%s", epf_boot_server_address(probe));
	epf_boot_server_stop(probe);
	memset((void *)entered, 0, sizeof(entered));
	for (uint32_t r = 8; r-- > 0;) {
		t[r].opts = rank_opts(where, r, 8);
		t[r].opts.is_root = r == 0;
		t[r].run = run_rounds;
		spawn(&t[r]);
		usleep(r == 1 ? 60000 : 0);
	}
	for (int r = 0; r < 8; r++) {
		pthread_join(t[r].thread, NULL);
		if (t[r].rc)
			fail_msg("rank %d: %s", r, t[r].error);
	}
}

#define BIG_LEN(rank) ((rank) == 1 ? (size_t)EPF_BOOT_BLOB_MAX : 3000001 * (size_t)(rank))

static int run_big(struct epf_boot *boot, void *arg)
{
	size_t len = BIG_LEN(epf_boot_rank(boot));
	uint8_t *mine = malloc(len + 1);
	struct epf_blob *all;
	int rc;

	memset(mine, (int)epf_boot_rank(boot) + 1, len);
	rc = epf_boot_allgather(boot, mine, len, &all);
	free(mine);
	if (rc)
		return rc;
	for (uint32_t r = 0; r < epf_boot_world(boot); r++) {
		const uint8_t *d = all[r].data;

		if (all[r].len != BIG_LEN(r))
			rc = epf_fail(EPF_R_SYSTEM, "rank %u's length is wrong", r);
		for (size_t i = 0; !rc && i < all[r].len; i++)
			if (d[i] != r + 1)
				rc = epf_fail(EPF_R_SYSTEM, "rank %u's byte %zu is wrong", r, i);
	}
	epf_boot_free_blobs(all);
	return rc;
}

/* Linked in place of send(2): takes so many bytes at most, and every third time is interrupted. 0: as it is. */
static size_t most_sent;
static unsigned sends;

ssize_t __real_send(int fd, const void *buf, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags);

ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags)
{
	size_t most = EPF_LOAD_RELAXED(&most_sent);

	if (most && __atomic_fetch_add(&sends, 1u, __ATOMIC_RELAXED) % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	return __real_send(fd, buf, most && len > most ? most : len, flags);
}

static int run_parts(struct epf_boot *boot, void *arg)
{
	uint8_t mine[100000];
	struct epf_blob *all;
	int rc;

	for (size_t i = 0; i < sizeof(mine); i++)
		mine[i] = (uint8_t)(i * 7 + epf_boot_rank(boot));
	rc = epf_boot_allgather(boot, mine, sizeof(mine), &all);
	if (rc)
		return rc;
	for (uint32_t r = 0; r < epf_boot_world(boot); r++)
		for (size_t i = 0; !rc && i < sizeof(mine); i++)
			if (((const uint8_t *)all[r].data)[i] != (uint8_t)(i * 7 + r))
				rc = epf_fail(EPF_R_SYSTEM, "rank %u's byte %zu is wrong", r, i);
	epf_boot_free_blobs(all);
	return rc;
}

/* A socket may take any part of what it is given. */
static void everything_arrives_in_pieces(void **state)
{
	struct epf_boot_server *srv = start_plain(3);

	EPF_STORE_RELAXED(&most_sent, 1000u);
	all_ranks(srv, 3, run_parts);
	epf_boot_server_stop(srv);
	EPF_STORE_RELAXED(&most_sent, 0u);
	assert_true(sends > 300);
}

static void the_largest_blob_arrives(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	struct epf_boot *boot;
	struct epf_blob *all;

	all_ranks(srv, 3, run_big);
	epf_boot_server_stop(srv);
	srv = start_plain(1);
	boot = join_as(srv, 0, 1, LONG_NS);
	assert_error(epf_boot_allgather(boot, "", EPF_BOOT_BLOB_MAX + 1, &all), -E2BIG, "16777216");
	assert_error(epf_boot_allgather(boot, NULL, 1, &all), -EINVAL, "NULL");
	/* That was no failure of the bootstrap. */
	assert_ok(epf_boot_allgather(boot, NULL, 0, &all));
	assert_int_equal(all[0].len, 0);
	epf_boot_free_blobs(all);
	assert_ok(epf_boot_barrier(boot));
	epf_boot_close(boot);
	epf_boot_server_stop(srv);
}

static void ipv6_works(void **state)
{
	struct epf_boot_server_opts opts = server_opts(4);
	struct epf_boot_server *srv = NULL;

	opts.listen = "[::1]:0";
	if (epf_boot_server_start(&opts, &srv)) {
		print_message("skipped: no IPv6 loopback here (%s)\n", epf_last_error());
		skip();
	}
	assert_non_null(strstr(epf_boot_server_address(srv), "[::1]:"));
	all_ranks(srv, 4, run_gather);
	epf_boot_server_stop(srv);
}

/* With a secret the root listens on all addresses, and is reached by each of them. */
static void all_addresses_are_served(void **state)
{
	struct epf_boot_server_opts opts = server_opts(2);
	struct rank_thread t[2] = { 0 };
	struct epf_net_addr at;
	struct epf_boot_server *srv;
	char where[80], local[32];

	if (epf_net_pick("^lo", AF_INET, &at, NULL)) {
		print_message("skipped: no IPv4 address but loopback\n");
		skip();
	}
	epf_net_set_port(&at, 0);
	epf_net_print(&at, where, sizeof(where));
	opts.listen = where;
	opts.any_address = true;
	srv = start(&opts);
	epf_net_set_port(&at, epf_boot_server_port(srv));
	epf_net_print(&at, where, sizeof(where));
	snprintf(local, sizeof(local), "127.0.0.1:%u", epf_boot_server_port(srv));
	for (uint32_t r = 0; r < 2; r++) {
		t[r].opts = rank_opts(r ? where : local, r, 2);
		t[r].run = run_gather;
		spawn(&t[r]);
	}
	for (int r = 0; r < 2; r++) {
		pthread_join(t[r].thread, NULL);
		if (t[r].rc)
			fail_msg("rank %d: %s", r, t[r].error);
	}
	epf_boot_server_stop(srv);
}

static void options_are_checked(void **state)
{
	struct epf_boot_opts opts = rank_opts("127.0.0.1:1", 0, 2);
	struct epf_boot_server_opts so = server_opts(0);
	struct epf_boot_server *srv = NULL;
	struct epf_boot *boot = NULL;

	struct {
		struct epf_boot_opts known;
		uint64_t later;
	} newer = { .known = opts, .later = 1 };

	char name[200];

	assert_error(epf_boot_tcp_open(NULL, &boot), -EINVAL, "no options");
	opts.size = 0;
	assert_error(epf_boot_tcp_open(&opts, &boot), -EINVAL, "size");
	newer.known.size = sizeof(newer);
	assert_error(epf_boot_tcp_open(&newer.known, &boot), -EINVAL, "does not know");
	opts = rank_opts("127.0.0.1:1", 2, 2);
	assert_error(epf_boot_tcp_open(&opts, &boot), -EINVAL, "rank 2 is outside");
	opts = rank_opts("127.0.0.1:1", 0, EPF_BOOT_WORLD_MAX + 1);
	assert_error(epf_boot_tcp_open(&opts, &boot), -E2BIG, "4096");
	opts = rank_opts(NULL, 0, 2);
	assert_error(epf_boot_tcp_open(&opts, &boot), -EADDRNOTAVAIL, "not set");
	opts = rank_opts("127.0.0.1:0", 0, 2);
	assert_error(epf_boot_tcp_open(&opts, &boot), -EADDRNOTAVAIL, "port 0");
	opts = rank_opts("127.0.0.1:1", 0, 2);
	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	opts.job = name;
	assert_error(epf_boot_tcp_open(&opts, &boot), -E2BIG, "job's name");
	assert_error(epf_boot_server_start(&so, &srv), -E2BIG, "a world of 0");
	so = server_opts(EPF_BOOT_WORLD_MAX + 1);
	assert_error(epf_boot_server_start(&so, &srv), -E2BIG, "4096");
	so = server_opts(2);
	so.listen = "192.0.2.200:1";
	assert_error(epf_boot_server_start(&so, &srv), -EADDRNOTAVAIL, "192.0.2.200:1");
	assert_null(boot);
	assert_null(srv);
}

static void a_taken_port_is_named(void **state)
{
	struct epf_boot_server *first = start_plain(1), *second = NULL;
	struct epf_boot_server_opts so = server_opts(1);

	so.listen = epf_boot_server_address(first);
	assert_error(epf_boot_server_start(&so, &second), -EADDRINUSE, so.listen);
	epf_boot_server_stop(first);
}

static void a_result_can_be_read_while_the_next_is_made(void **state)
{
	struct epf_boot_server *srv = start_plain(1);
	struct epf_boot *boot = join_as(srv, 0, 1, LONG_NS);
	struct epf_blob *first, *second;

	assert_ok(epf_boot_allgather(boot, "one", 4, &first));
	assert_ok(epf_boot_allgather(boot, "two", 4, &second));
	assert_string_equal(first[0].data, "one");
	assert_string_equal(second[0].data, "two");
	epf_boot_free_blobs(first);
	epf_boot_free_blobs(second);
	assert_int_equal(epf_boot_local_post(boot, "x", 1), -EOPNOTSUPP);
	assert_int_equal(epf_boot_local_collect(boot, &first), -EOPNOTSUPP);
	epf_boot_close(boot);
	epf_boot_server_stop(srv);
}

/* In the process. */

static void local_threads_gather_and_meet(void **state)
{
	struct rank_thread t[RANKS] = { 0 };
	struct epf_boot_group *group;

	assert_ok(epf_boot_local_create(RANKS, &group));
	memset((void *)entered, 0, sizeof(entered));
	for (uint32_t r = 0; r < RANKS; r++) {
		assert_ok(epf_boot_local_open(group, r, &t[r].boot));
		t[r].run = run_rounds;
	}
	epf_boot_local_destroy(group);
	for (uint32_t r = 0; r < RANKS; r++)
		spawn(&t[r]);
	for (uint32_t r = 0; r < RANKS; r++) {
		pthread_join(t[r].thread, NULL);
		if (t[r].rc)
			fail_msg("rank %u: %s", r, t[r].error);
	}
}

static void one_thread_drives_a_thousand_ranks(void **state)
{
	static struct epf_boot *boot[1024];
	static struct epf_blob *kept[1024];
	struct epf_boot_group *group;
	uint8_t mine[300];

	assert_ok(epf_boot_local_create(1024, &group));
	for (uint32_t r = 0; r < 1024; r++)
		assert_ok(epf_boot_local_open(group, r, &boot[r]));
	for (uint32_t round = 0; round < 5; round++) {
		struct epf_blob *all;

		for (uint32_t r = 0; r < 1024; r++) {
			assert_int_equal(
				epf_boot_local_post(boot[r], mine, blob_of(r, round, mine)), 0);
			if (r % 100 == 0)
				assert_int_equal(epf_boot_local_collect(boot[r / 2], &all),
						 -EAGAIN);
		}
		assert_int_equal(epf_boot_local_post(boot[3], mine, 1), -EBUSY);
		for (uint32_t r = 0; r < 1024; r++)
			assert_int_equal(epf_boot_local_collect(boot[r], &kept[r]), 0);
		assert_int_equal(epf_boot_local_collect(boot[3], &all), -EBUSY);
		for (uint32_t r = 0; r < 1024; r++) {
			if (r % 64 == 0)
				assert_ok(check_round(kept[r], 1024, round));
			epf_boot_free_blobs(kept[r]);
		}
	}
	for (uint32_t r = 0; r < 1024; r++)
		epf_boot_close(boot[r]);
	epf_boot_local_destroy(group);
}

static void local_failures_name_the_rank(void **state)
{
	struct epf_boot_group *group;
	struct epf_boot *zero, *two, *again = NULL;
	struct epf_blob *all;

	assert_int_equal(epf_boot_local_create(0, &group), -E2BIG);
	assert_ok(epf_boot_local_create(4, &group));
	epf_boot_local_timeout(group, 50 * MS);
	assert_ok(epf_boot_local_open(group, 0, &zero));
	assert_ok(epf_boot_local_open(group, 2, &two));
	assert_int_equal(epf_boot_local_open(group, 2, &again), -EEXIST);
	assert_int_equal(epf_boot_local_open(group, 4, &again), -EINVAL);
	assert_ok(epf_boot_local_post(two, "x", 1));
	assert_error(epf_boot_barrier(zero), -EPROTO, "rank 0 called barrier where rank 2");
	assert_int_equal(epf_boot_local_collect(two, &all), -EPROTO);
	epf_boot_close(zero);
	epf_boot_close(two);
	epf_boot_local_destroy(group);

	assert_ok(epf_boot_local_create(4, &group));
	epf_boot_local_timeout(group, 50 * MS);
	assert_ok(epf_boot_local_open(group, 0, &zero));
	assert_ok(epf_boot_check(zero));
	assert_error(epf_boot_barrier(zero), -ETIMEDOUT, "ranks 1-3 did not arrive");
	epf_boot_close(zero);
	epf_boot_local_destroy(group);

	assert_ok(epf_boot_local_create(2, &group));
	assert_ok(epf_boot_local_open(group, 0, &zero));
	assert_ok(epf_boot_local_open(group, 1, &two));
	assert_ok(epf_boot_local_post(zero, "x", 1));
	assert_ok(epf_boot_local_post(two, "y", 1));
	/* Complete results outlive the rank that left; new exchanges do not begin. */
	epf_boot_close(two);
	assert_ok(epf_boot_local_collect(zero, &all));
	assert_memory_equal(all[1].data, "y", 1);
	epf_boot_free_blobs(all);
	assert_error(epf_boot_local_post(zero, "x", 1), -EPIPE, "rank 1 has closed");
	assert_error(epf_boot_check(zero), -EPIPE, "rank 1 has closed");
	epf_boot_close(zero);
	epf_boot_local_destroy(group);
	epf_boot_local_destroy(NULL);
}

/* HMAC-SHA-256 of "epf job key", a 0 and "job-a", by the master key of SECRET; and by 32 zeros. Made with Python's hmac. */
static const uint8_t key_of_secret[] = { 0xd8, 0x0f, 0xcb, 0xfb, 0x99, 0xe4, 0x81, 0x97,
					 0x0d, 0xa8, 0xc9, 0xd3, 0x4b, 0xae, 0x5b, 0xad,
					 0xf0, 0xdd, 0xba, 0x70, 0x32, 0x2e, 0x0c, 0xa5,
					 0x2d, 0x32, 0x6b, 0x75, 0xc5, 0x77, 0x68, 0xc9 };
static const uint8_t key_in_process[] = { 0xed, 0x6a, 0xe7, 0xb2, 0x2b, 0xd1, 0x4d, 0x28,
					  0x25, 0x93, 0xd5, 0x31, 0x43, 0xe1, 0x94, 0xee,
					  0x24, 0x9a, 0x6a, 0xe4, 0x48, 0x70, 0x25, 0x18,
					  0xf1, 0xdd, 0x8b, 0x22, 0xc8, 0x29, 0x5f, 0xe4 };

static int run_keys(struct epf_boot *boot, void *arg)
{
	uint8_t key[EPF_BOOT_KEY_BYTES], other[EPF_BOOT_KEY_BYTES];
	int rc = epf_boot_job_key(boot, "job-a", key);

	if (!rc)
		rc = epf_boot_job_key(boot, "job-b", other);
	if (!rc && (memcmp(key, key_of_secret, sizeof(key)) || !memcmp(key, other, sizeof(key))))
		rc = epf_fail(EPF_R_SYSTEM, "the key is not the one of the secret and the label");
	if (!rc && epf_boot_job_key(boot, NULL, key) != -EINVAL)
		rc = epf_fail(EPF_R_SYSTEM, "a key without a label");
	return rc ? rc : epf_boot_barrier(boot);
}

static void all_ranks_make_one_job_key(void **state)
{
	struct epf_boot_server *srv = start_plain(4);
	struct epf_boot_group *group;
	struct epf_boot *boot;
	uint8_t key[EPF_BOOT_KEY_BYTES];

	all_ranks(srv, 4, run_keys);
	epf_boot_server_stop(srv);

	assert_ok(epf_boot_local_create(1, &group));
	assert_ok(epf_boot_local_open(group, 0, &boot));
	assert_ok(epf_boot_job_key(boot, "job-a", key));
	assert_memory_equal(key, key_in_process, sizeof(key));
	epf_boot_close(boot);
	epf_boot_local_destroy(group);
}

/* Says stop when it has been asked three times. */
static int enough(void *arg)
{
	unsigned *asked = arg;

	return ++*asked < 3 ? 0 : epf_fail(EPF_R_ABORTED, "enough is enough");
}

/* A rank may have reasons of its own to wait no longer: they end the call, stay, and the others hear when it closes. */
static void a_wait_can_be_interrupted(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct epf_boot *one = join_as(srv, 0, 2, LONG_NS), *two = join_as(srv, 1, 2, LONG_NS);
	struct epf_boot_group *group;
	struct epf_blob *all;
	unsigned asked = 0;

	epf_boot_interrupt(one, enough, &asked);
	assert_error(epf_boot_barrier(one), -ECANCELED, "enough is enough: look for");
	assert_int_equal(asked, 3);
	epf_boot_interrupt(one, NULL, NULL);
	assert_error(epf_boot_allgather(one, NULL, 0, &all), -ECANCELED, "enough is enough: look");
	assert_error(epf_boot_check(one), -ECANCELED, "enough is enough");
	epf_boot_close(one);
	assert_error(epf_boot_barrier(two), -ECONNRESET, "rank 0");
	epf_boot_close(two);
	epf_boot_server_stop(srv);

	assert_ok(epf_boot_local_create(2, &group));
	assert_ok(epf_boot_local_open(group, 0, &one));
	assert_ok(epf_boot_local_open(group, 1, &two));
	asked = 0;
	epf_boot_interrupt(one, enough, &asked);
	assert_error(epf_boot_allgather(one, "x", 1, &all), -ECANCELED, "enough is enough");
	assert_error(epf_boot_barrier(two), -ECANCELED, "enough is enough");
	epf_boot_close(one);
	epf_boot_close(two);
	epf_boot_local_destroy(group);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_ranks_gather_and_meet),
		cmocka_unit_test(the_root_hosts_the_server),
		cmocka_unit_test(everything_arrives_in_pieces),
		cmocka_unit_test(the_largest_blob_arrives),
		cmocka_unit_test(ipv6_works),
		cmocka_unit_test(all_addresses_are_served),
		cmocka_unit_test(options_are_checked),
		cmocka_unit_test(a_taken_port_is_named),
		cmocka_unit_test(a_result_can_be_read_while_the_next_is_made),
		cmocka_unit_test(local_threads_gather_and_meet),
		cmocka_unit_test(one_thread_drives_a_thousand_ranks),
		cmocka_unit_test(local_failures_name_the_rank),
		cmocka_unit_test(all_ranks_make_one_job_key),
		cmocka_unit_test(a_wait_can_be_interrupted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
