/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rendezvous says of ranks that are missing while the job assembles, and of the loss because of which a rank has left. Lines are
 * counted, never timed: the intervals are set so short that some are due at once.
 */
#include "fabric/base/log.h"
#include "tests/unit/bootstrap/boot_kit.h"

#include <fcntl.h>
#include <sys/mman.h>

/* stderr goes into a file from here on; log_end() gives it back. */
static int log_fd, kept_fd;

static void log_begin(void)
{
	assert_int_equal(epf_log_configure(NULL), 0);
	log_fd = memfd_create("log", 0);
	kept_fd = dup(2);
	assert_true(log_fd >= 0 && kept_fd >= 0);
	dup2(log_fd, 2);
}

static void log_end(void)
{
	dup2(kept_fd, 2);
	close(kept_fd);
	close(log_fd);
}

/* How often the log has these words. */
static unsigned log_count(const char *words)
{
	static char text[1 << 20];
	ssize_t n = pread(log_fd, text, sizeof(text) - 1, 0);
	unsigned found = 0;

	text[n > 0 ? n : 0] = 0;
	for (const char *at = text; (at = strstr(at, words)); at++)
		found++;
	return found;
}

static bool log_await(const char *words, unsigned times)
{
	uint64_t until = epf_now_ns() + 60 * S;

	while (log_count(words) < times && epf_now_ns() < until)
		usleep(1000);
	return log_count(words) >= times;
}

static void missing_ranks_are_said(void **state)
{
	struct epf_boot_server_opts opts = server_opts(10);
	struct epf_boot *boot[10] = { 0 };
	struct epf_boot_server *srv;
	char where[160];
	bool said;

	opts.notice_first_ns = opts.notice_again_ns = MS;
	srv = start(&opts);
	log_begin();
	for (uint32_t r = 0; r < 10; r++)
		if (r == 0 || r == 4 || r == 8)
			boot[r] = join_as(srv, r, 10, LONG_NS);
	snprintf(where, sizeof(where),
		 "job 'job': waiting for ranks 1-3, 5-7, 9 of 10: start what is missing with "
		 "EPF_RENDEZVOUS=%s",
		 epf_boot_server_address(srv));
	said = log_await(where, 3);
	for (uint32_t r = 0; r < 10; r++)
		if (!boot[r])
			boot[r] = join_as(srv, r, 10, LONG_NS);
	log_end();
	assert_true(said);
	/* Nobody is missing: nothing more is said, and nothing is due. */
	log_begin();
	usleep(20000);
	said = log_count("waiting for") != 0;
	log_end();
	assert_false(said);
	for (uint32_t r = 0; r < 10; r++)
		epf_boot_close(boot[r]);
	epf_boot_server_stop(srv);
}

/* A server that runs by itself waits for its job for as long as it takes. */
static void a_server_without_ranks_is_silent(void **state)
{
	struct epf_boot_server_opts opts = server_opts(2);
	struct epf_boot_server *srv;
	unsigned said;

	opts.notice_first_ns = opts.notice_again_ns = MS;
	log_begin();
	srv = start(&opts);
	usleep(20000);
	said = log_count("waiting for");
	log_end();
	assert_int_equal(said, 0);
	epf_boot_server_stop(srv);
}

static void an_absent_server_is_said(void **state)
{
	struct epf_boot_opts opts;
	struct epf_boot *boot = NULL;
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	char text[80], words[256];
	socklen_t len;
	unsigned said, why;
	size_t count;
	int fd, rc;

	/* A port that nobody listens at, and that stays so. */
	assert_ok(epf_net_resolve("127.0.0.1", 0, at, &count));
	fd = socket(at[0].sa.sa_family, SOCK_STREAM, 0);
	len = at[0].len;
	assert_int_equal(bind(fd, &at[0].sa, at[0].len), 0);
	assert_int_equal(getsockname(fd, &at[0].sa, &len), 0);
	epf_net_print(&at[0], text, sizeof(text));
	opts = rank_opts(text, 1, 2);
	opts.timeout_ns = 300 * MS;
	opts.notice_first_ns = opts.notice_again_ns = MS;
	log_begin();
	rc = epf_boot_tcp_open(&opts, &boot);
	snprintf(words, sizeof(words), "rank 1 of 2: waiting for the rendezvous at %s (%s: ", text,
		 text);
	said = log_count(words);
	why = log_count("Connection refused");
	log_end();
	close(fd);
	assert_int_equal(rc, -ETIMEDOUT);
	assert_true(said >= 2);
	assert_true(why >= 2);
}

static void leaving_for_a_loss_names_the_loss(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	struct epf_boot *boot[3];

	for (uint32_t r = 0; r < 3; r++)
		boot[r] = join_as(srv, r, 3, LONG_NS);
	epf_boot_blame(boot[1], 2, EPF_R_NODE_LOST);
	epf_boot_close(boot[1]);
	assert_error(epf_boot_barrier(boot[0]), -ECONNRESET,
		     "rank 2 was lost (EPF-409), says rank 1");
	assert_error(epf_boot_barrier(boot[2]), -ECONNRESET,
		     "rank 2 was lost (EPF-409), says rank 1");
	epf_boot_close(boot[0]);
	epf_boot_close(boot[2]);
	epf_boot_server_stop(srv);
}

static void inside_a_process_too(void **state)
{
	struct epf_boot_group *group;
	struct epf_boot *boot[2];

	assert_ok(epf_boot_local_create(2, &group));
	for (uint32_t r = 0; r < 2; r++)
		assert_ok(epf_boot_local_open(group, r, &boot[r]));
	epf_boot_blame(boot[1], 7, EPF_R_RANK_DIED);
	epf_boot_close(boot[1]);
	assert_error(epf_boot_barrier(boot[0]), -ECONNRESET,
		     "rank 7 was lost (EPF-408), says rank 1");
	epf_boot_close(boot[0]);
	epf_boot_local_destroy(group);
}

/* A rank of the release before is served; it says no cause, and what it cannot say is refused. */
static void an_older_rank_is_served(void **state)
{
	struct epf_wire_join join = {
		.world = 2, .timeout_ns = LONG_NS, .job = "job", .node = "raw"
	};
	uint8_t cause[8] = { 0 }, round[8] = { 0 };
	struct epf_boot_server *srv = start_plain(2);
	struct rank_thread t = { .opts = rank_opts(epf_boot_server_address(srv), 1, 2),
				 .run = run_barrier };
	struct epf_wire_head head;
	struct raw r;

	spawn(&t);
	raw_open(&r, srv, 0);
	r.session.version = EPF_WIRE_OLDEST;
	assert_int_equal(raw_join(&r, &join), EPF_WIRE_WELCOME);
	raw_send(&r, EPF_WIRE_BARRIER, round, 8);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_RELEASE);
	assert_int_equal(head.version, EPF_WIRE_OLDEST);
	raw_send(&r, EPF_WIRE_LEAVE, NULL, 0);
	pthread_join(t.thread, NULL);
	assert_int_equal(t.rc, 0);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	close(r.fd);
	epf_boot_server_stop(srv);

	/* A farewell of another length than those of version 2. */
	srv = start_plain(2);
	raw_member(&r, srv, 0, 2);
	raw_send(&r, EPF_WIRE_LEAVE, cause, 4);
	assert_true(epf_boot_server_wait(srv, LONG_NS) < 0);
	assert_non_null(strstr(epf_last_error(), "a payload that contradicts itself"));
	close(r.fd);
	epf_boot_server_stop(srv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_ranks_are_said),
		cmocka_unit_test(a_server_without_ranks_is_silent),
		cmocka_unit_test(an_absent_server_is_said),
		cmocka_unit_test(leaving_for_a_loss_names_the_loss),
		cmocka_unit_test(inside_a_process_too),
		cmocka_unit_test(an_older_rank_is_served),
	};

	return cmocka_run_group_tests_name("boot_notice", tests, NULL, NULL);
}
