/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous against strangers, liars and ranks that die, are late or leave: each gets a clear
 * refusal or names the culprit in bounded time, and nobody else is disturbed.
 */
#include "tests/unit/bootstrap/boot_kit.h"

/* Whatever was thrown at the server, a job of three ranks still meets. */
static void still_serves(struct epf_boot_server *srv)
{
	all_ranks(srv, 3, run_gather);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	epf_boot_server_stop(srv);
}

static void garbage_disturbs_nobody(void **state)
{
	static const char *const texts[] = { "GET / HTTP/1.0\r\n\r\n", "EPFX",
					     "EPFB garbage garbage garbage",
					     "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" };
	struct epf_boot_server *srv = start_plain(3);
	struct epf_wire_head head;
	struct raw r;

	for (size_t i = 0; i < 4; i++) {
		raw_open(&r, srv, 0);
		raw_bytes(&r, texts[i], strlen(texts[i]));
		/* A refusal with nothing in it, and the end. */
		assert_int_equal(raw_frame(&r, &head), EPF_WIRE_REFUSE);
		for (size_t b = EPF_WIRE_HEAD_BYTES; b < r.in_len; b++)
			assert_int_equal(r.in[b], 0);
		assert_int_equal(raw_frame(&r, &head), 0);
		close(r.fd);
	}
	wait_for(srv, refused_malformed, 4);
	still_serves(srv);
}

static void oversized_and_misplaced_are_refused(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	uint8_t nonce[EPF_AUTH_NONCE_BYTES] = { 0 }, frame[128];
	struct epf_wire_head head;
	struct raw r;
	size_t n;

	/* A header that announces 4 GiB. */
	raw_open(&r, srv, 0);
	n = epf_wire_seal(&r.session, EPF_WIRE_HELLO, nonce, sizeof(nonce), NULL, frame);
	memset(frame + 8, 0xff, 4);
	raw_bytes(&r, frame, n);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_REFUSE);
	close(r.fd);
	/* A proven message that has no place in the handshake. */
	raw_open(&r, srv, 0);
	raw_send(&r, EPF_WIRE_BARRIER, nonce, 8);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_REFUSE);
	close(r.fd);
	/* HELLO twice. */
	raw_open(&r, srv, 0);
	raw_send(&r, EPF_WIRE_HELLO, nonce, sizeof(nonce));
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_CHALLENGE);
	epf_wire_session_rekey(&r.session, &r.auth, nonce, r.in + EPF_WIRE_HEAD_BYTES);
	raw_send(&r, EPF_WIRE_HELLO, nonce, sizeof(nonce));
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_REFUSE);
	close(r.fd);
	wait_for(srv, refused_malformed, 3);
	still_serves(srv);
}

static void wrong_secret_is_refused(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	struct epf_boot_opts opts = rank_opts(epf_boot_server_address(srv), 0, 3);
	struct epf_boot *boot = NULL;

	opts.secret = "another secret, long enough";
	opts.secret_len = 27;
	assert_error(epf_boot_tcp_open(&opts, &boot), -EACCES, "our secret (from option)");
	assert_null(strstr(epf_last_error(), "another secret"));
	wait_for(srv, refused_proof, 1);
	still_serves(srv);
}

static void a_recorded_connection_is_worth_nothing(void **state)
{
	struct epf_boot_server *srv = start_plain(4);
	struct epf_wire_join join = { .rank = 3, .world = 4, .timeout_ns = LONG_NS, .job = "job" };
	struct rank_thread t[3] = { 0 };
	struct epf_wire_head head;
	uint8_t round[8] = { 0 };
	struct raw r, again;

	for (uint32_t i = 0; i < 3; i++) {
		t[i].opts = rank_opts(epf_boot_server_address(srv), i, 4);
		t[i].run = run_barrier;
		spawn(&t[i]);
	}
	raw_open(&r, srv, 3);
	assert_int_equal(raw_join(&r, &join), EPF_WIRE_WELCOME);
	/* The same bytes on a new connection: HELLO passes, JOIN is under another key. */
	raw_open(&again, srv, 3);
	raw_bytes(&again, r.sent, r.sent_len);
	assert_int_equal(raw_frame(&again, &head), EPF_WIRE_CHALLENGE);
	assert_int_equal(raw_frame(&again, &head), EPF_WIRE_REFUSE);
	assert_int_equal(raw_frame(&again, &head), 0);
	close(again.fd);
	wait_for(srv, refused_proof, 1);
	/* Its job is not disturbed: the barrier it is part of completes. */
	raw_send(&r, EPF_WIRE_BARRIER, round, 8);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_RELEASE);
	raw_send(&r, EPF_WIRE_LEAVE, NULL, 0);
	for (int i = 0; i < 3; i++) {
		pthread_join(t[i].thread, NULL);
		assert_int_equal(t[i].rc, 0);
	}
	close(r.fd);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	epf_boot_server_stop(srv);
}

static void a_repeated_message_is_dropped(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct rank_thread t = { .opts = rank_opts(epf_boot_server_address(srv), 1, 2),
				 .run = run_barrier };
	struct epf_wire_head head;
	uint8_t round[8] = { 0 };
	size_t before, hello = EPF_WIRE_OVERHEAD + EPF_AUTH_NONCE_BYTES;
	struct raw r;

	raw_member(&r, srv, 0, 2);
	before = r.sent_len;
	raw_send(&r, EPF_WIRE_BARRIER, round, 8);
	raw_bytes(&r, r.sent + before, r.sent_len - before);
	/* JOIN again; HELLO is under another key, it would be tampering. */
	raw_bytes(&r, r.sent + hello, before - hello);
	wait_for(srv, dropped_duplicates, 2);
	spawn(&t);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_RELEASE);
	raw_send(&r, EPF_WIRE_LEAVE, NULL, 0);
	pthread_join(t.thread, NULL);
	assert_int_equal(t.rc, 0);
	close(r.fd);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	epf_boot_server_stop(srv);
}

static void second_claim_of_a_rank_names_both(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	struct epf_boot_opts opts = rank_opts(epf_boot_server_address(srv), 1, 3);
	struct epf_boot *first = join_as(srv, 1, 3, LONG_NS), *second = NULL;
	struct rank_thread t[2] = { 0 };
	const char *at;

	opts.node = "there";
	assert_error(epf_boot_tcp_open(&opts, &second), -EEXIST, "rank 1 at 127.0.0.1:");
	assert_non_null(strstr(epf_last_error(), "(node there)"));
	assert_non_null(strstr(epf_last_error(), "(node here)"));
	at = strstr(epf_last_error(), "127.0.0.1:");
	assert_non_null(strstr(at + 1, "127.0.0.1:"));
	for (uint32_t i = 0; i < 2; i++) {
		t[i].opts = rank_opts(epf_boot_server_address(srv), i * 2, 3);
		t[i].run = run_barrier;
		spawn(&t[i]);
	}
	assert_ok(epf_boot_barrier(first));
	epf_boot_close(first);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i].thread, NULL);
	wait_for(srv, refused_join, 1);
	epf_boot_server_stop(srv);
}

static void wrong_job_world_or_rank_is_told(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	struct epf_boot_opts opts = rank_opts(epf_boot_server_address(srv), 0, 3);
	struct epf_boot *boot = NULL;

	opts.job = "other";
	assert_error(epf_boot_tcp_open(&opts, &boot), -EINVAL, "job 'other' came to job 'job'");
	for (uint32_t rank = 0; rank < 4; rank += 3) {
		opts = rank_opts(epf_boot_server_address(srv), rank, 4);
		assert_error(epf_boot_tcp_open(&opts, &boot), -EINVAL, "of 4 came to");
		assert_int_equal(epf_last_reason(), EPF_R_BOOT_WORLD);
	}
	wait_for(srv, refused_join, 3);
	still_serves(srv);
}

static void wrong_version_is_told(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	uint8_t nonce[EPF_AUTH_NONCE_BYTES] = { 0 }, payload[64] = { 0 }, digest[32], frame[256];
	struct epf_wire_head head;
	struct epf_wire_note note;
	struct epf_wire_msg msg;
	struct raw r;
	size_t n, len;

	raw_open(&r, srv, 2);
	raw_send(&r, EPF_WIRE_HELLO, nonce, sizeof(nonce));
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_CHALLENGE);
	epf_wire_session_rekey(&r.session, &r.auth, nonce, r.in + EPF_WIRE_HEAD_BYTES);
	r.session.rx_sequence = 1;
	n = epf_wire_seal(&r.session, EPF_WIRE_JOIN, payload, 40, NULL, frame);
	frame[4] = 77;
	epf_auth_digest(payload, 40, digest);
	epf_auth_proof(r.session.key, false, frame, EPF_WIRE_HEAD_BYTES, digest, frame + n - 32);
	raw_bytes(&r, frame, n);
	assert_int_equal(raw_frame(&r, &head), EPF_WIRE_REFUSE);
	assert_int_equal(epf_wire_open(&r.session, r.in, r.in_len, EPF_WIRE_EARLY_MAX, &msg, &len),
			 EPF_WIRE_V_OK);
	assert_int_equal(epf_wire_get_note(&msg, &note), EPF_WIRE_V_OK);
	assert_int_equal(note.reason, EPF_R_BOOT_VERSION);
	assert_non_null(strstr(note.text, "version 77"));
	close(r.fd);
	still_serves(srv);
}

static void silent_strangers_run_out_of_time_and_room(void **state)
{
	struct epf_boot_server_opts opts = server_opts(3);
	struct epf_boot_server *srv;
	struct raw r[24];
	char end;

	opts.handshake_ns = 150 * MS;
	opts.pending_max = 8;
	srv = start(&opts);
	for (int i = 0; i < 24; i++) {
		raw_open(&r[i], srv, 0);
		if (i % 2)
			raw_bytes(&r[i], "EPFB", 4);
	}
	/* The oldest make room, the rest run out of time; ranks come through meanwhile. */
	wait_for(srv, evicted, 16);
	all_ranks(srv, 3, run_gather);
	wait_for(srv, accepted, 27);
	for (int i = 0; i < 24; i++) {
		assert_true(recv(r[i].fd, &end, 1, 0) <= 0);
		close(r[i].fd);
	}
	epf_boot_server_stop(srv);

	opts = server_opts(3);
	opts.handshake_ns = 100 * MS;
	srv = start(&opts);
	raw_open(&r[0], srv, 0);
	wait_for(srv, silent, 1);
	assert_int_equal(recv(r[0].fd, &end, 1, 0), 0);
	close(r[0].fd);
	still_serves(srv);
}

static void a_dead_rank_is_named_to_all(void **state)
{
	struct epf_boot_server *srv = start_plain(4);
	struct rank_thread t[3] = { 0 };
	struct raw r;

	raw_member(&r, srv, 3, 4);
	for (uint32_t i = 0; i < 3; i++) {
		t[i].opts = rank_opts(epf_boot_server_address(srv), i, 4);
		t[i].run = run_gather;
		spawn(&t[i]);
	}
	wait_for(srv, joined, 4);
	close(r.fd);
	for (int i = 0; i < 3; i++) {
		pthread_join(t[i].thread, NULL);
		assert_int_equal(t[i].rc, -ECONNRESET);
		assert_non_null(strstr(t[i].error, "rank 3 at 127.0.0.1:"));
		assert_non_null(
			strstr(t[i].error, "(node raw) was lost: it closed the connection"));
	}
	assert_error(epf_boot_server_wait(srv, LONG_NS), -ECONNRESET, "rank 3");
	epf_boot_server_stop(srv);
}

static void a_rank_that_breaks_the_format_is_named(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct epf_boot *other = join_as(srv, 1, 2, LONG_NS);
	uint8_t payload[EPF_WIRE_PART_HEAD + 8] = { 0 };
	struct raw r;

	raw_member(&r, srv, 0, 2);
	epf_wire_put_part(payload, 0, (uint64_t)EPF_BOOT_BLOB_MAX + 1, 0);
	raw_send(&r, EPF_WIRE_PART, payload, sizeof(payload));
	assert_error(epf_boot_barrier(other), -ECONNRESET, "rank 0");
	assert_non_null(strstr(epf_last_error(), "contradicts itself"));
	/* It stays broken, with the same cause. */
	assert_error(epf_boot_check(other), -ECONNRESET, "contradicts itself");
	assert_error(epf_boot_barrier(other), -ECONNRESET, "contradicts itself");
	close(r.fd);
	epf_boot_close(other);
	epf_boot_server_stop(srv);
}

static void missing_ranks_are_named(void **state)
{
	struct epf_boot_server *srv = start_plain(12);
	struct epf_boot *zero = join_as(srv, 0, 12, 1500 * MS),
			*five = join_as(srv, 5, 12, LONG_NS);
	struct epf_boot *one = join_as(srv, 1, 12, LONG_NS);
	struct rank_thread t = { .boot = one, .run = run_barrier };
	uint64_t heard = received(srv), begin;

	spawn(&t);
	wait_for_more(srv, heard); /* rank 1 has arrived */
	begin = epf_now_ns();
	assert_error(epf_boot_barrier(zero), -ETIMEDOUT,
		     "ranks 2-11 did not arrive within 1.5 s at 127.0.0.1:");
	assert_true(epf_now_ns() - begin >= 1500 * MS);
	assert_non_null(strstr(epf_last_error(), "ranks 2-4, 6-11 never connected"));
	assert_non_null(strstr(epf_last_error(), "barrier"));
	pthread_join(t.thread, NULL);
	assert_int_equal(t.rc, -ETIMEDOUT);
	/* The one that was late hears the same, also without waiting. */
	assert_error(epf_boot_check(five), -ETIMEDOUT, "ranks 2-11");
	epf_boot_close(zero);
	epf_boot_close(five);
	epf_boot_server_stop(srv);
}

static void different_calls_are_named(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct epf_boot *zero = join_as(srv, 0, 2, LONG_NS), *one = join_as(srv, 1, 2, LONG_NS);
	struct rank_thread t = { .boot = zero, .run = run_barrier };
	uint64_t heard = received(srv);

	spawn(&t);
	wait_for_more(srv, heard);
	assert_int_equal(run_gather(one, NULL), -EPROTO);
	assert_non_null(
		strstr(epf_last_error(), "rank 1 called allgather where rank 0 called barrier"));
	pthread_join(t.thread, NULL);
	assert_int_equal(t.rc, -EPROTO);
	epf_boot_close(one);
	epf_boot_server_stop(srv);
}

static void leaving_early_is_named(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct epf_boot *zero = join_as(srv, 0, 2, LONG_NS);

	epf_boot_close(join_as(srv, 1, 2, LONG_NS));
	assert_error(epf_boot_barrier(zero), -EPIPE, "rank 1");
	assert_non_null(strstr(epf_last_error(), "has left"));
	epf_boot_close(zero);
	epf_boot_server_stop(srv);
}

static void a_stopped_server_is_named(void **state)
{
	struct epf_boot_server *srv = start_plain(2);
	struct epf_boot *zero = join_as(srv, 0, 2, LONG_NS);

	assert_int_equal(epf_boot_server_wait(srv, 0), -ETIME);
	assert_ok(epf_boot_check(zero));
	epf_boot_server_stop(srv);
	assert_error(epf_boot_barrier(zero), -ECONNRESET, "the process that hosts it");
	epf_boot_close(zero);
	epf_boot_server_stop(NULL);
	epf_boot_close(NULL);
	epf_boot_free_blobs(NULL);
}

/* Something else listens there: it is not taken for a server, and it cannot make us wait. */
static void *speak_nonsense(void *arg)
{
	int fd = accept(*(int *)arg, NULL, NULL);
	char rest[256];

	if (send(fd, "220 mail.example.org ESMTP, how are you today?\r\n", 48, MSG_NOSIGNAL) < 0)
		perror("send");
	while (recv(fd, rest, sizeof(rest), 0) > 0) /* it hears all of it, and hangs up */
		;
	close(fd);
	return NULL;
}

static void a_false_server_is_not_believed(void **state)
{
	struct epf_net_addr at = { .v4 = { .sin_family = AF_INET }, .len = sizeof(at.v4) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct epf_boot *boot = NULL;
	struct epf_boot_opts opts;
	pthread_t thread;
	char where[80];

	at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, &at.sa, at.len), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, &at.sa, &at.len), 0);
	epf_net_print(&at, where, sizeof(where));
	pthread_create(&thread, NULL, speak_nonsense, &fd);
	opts = rank_opts(where, 0, 2);
	assert_error(epf_boot_tcp_open(&opts, &boot), -EACCES, "did not prove");
	pthread_join(thread, NULL);
	/* Listening and silent, then gone. */
	opts.timeout_ns = 200 * MS;
	assert_error(epf_boot_tcp_open(&opts, &boot), -ETIMEDOUT, "no rendezvous server answered");
	close(fd);
	/* What is said is what the last try met: on a machine that is stalled, its own deadline. */
	for (int i = 0; i < 20; i++) {
		assert_error(epf_boot_tcp_open(&opts, &boot), -ETIMEDOUT, "no rendezvous server");
		if (strstr(epf_last_error(), "Connection refused"))
			return;
	}
	fail_msg("'%s' does not say that the connection is refused", epf_last_error());
}

static void no_secret_means_loopback_only(void **state)
{
	struct epf_boot_server_opts so = server_opts(2);
	struct epf_boot_opts opts = rank_opts("192.0.2.1:29555", 0, 2);
	struct epf_boot_server *srv = NULL;
	struct epf_boot *boot = NULL;

	unsetenv("EPF_SECRET");
	unsetenv("EPF_SECRET_FD");
	unsetenv("EPF_SECRET_FILE");
	opts.secret = NULL;
	assert_error(epf_boot_tcp_open(&opts, &boot), -EPERM, "192.0.2.1:29555");
	assert_non_null(strstr(epf_last_error(), "EPF_SECRET_FILE"));
	opts.is_root = true;
	assert_error(epf_boot_tcp_open(&opts, &boot), -EPERM, "cannot listen");
	so.secret = NULL;
	so.listen = "0.0.0.0:0";
	assert_error(epf_boot_server_start(&so, &srv), -EPERM, "0.0.0.0:0");
	/* On loopback it works, and a rank that has a secret does not fit one that has none. */
	so.listen = "127.0.0.1:0";
	srv = start(&so);
	opts = rank_opts(epf_boot_server_address(srv), 0, 2);
	assert_error(epf_boot_tcp_open(&opts, &boot), -EACCES, "is not its secret");
	opts.secret = NULL;
	assert_ok(epf_boot_tcp_open(&opts, &boot));
	epf_boot_close(boot);
	epf_boot_server_stop(srv);
}

enum { QUEUED = 4 };

static char where_text[64];

/* A listener that never answers; full: not even the connection is made, its queue being full. */
static int deaf_listener(int full, int *queued, char where[64])
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, full ? 0 : 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	for (int i = 0; i < QUEUED; i++) {
		queued[i] =
			full ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
		if (full)
			(void)connect(queued[i], (struct sockaddr *)&at, sizeof(at));
	}
	snprintf(where, 64, "127.0.0.1:%u", ntohs(at.sin_port));
	return fd;
}

struct patience {
	uint64_t end_ns;
	unsigned asked;
};

static int lost_patience(void *arg)
{
	struct patience *p = arg;

	p->asked++;
	return epf_now_ns() < p->end_ns || p->asked < 2
		       ? 0
		       : epf_fail(EPF_R_ABORTED, "enough after %u times", p->asked);
}

/* Nobody there, nobody who answers, and nobody who lets us in: the opening itself ends when the caller wants it to. */
static void an_opening_is_interrupted(void **state)
{
	for (int kind = 0; kind < 3; kind++) {
		int queued[QUEUED], fd = kind ? deaf_listener(kind == 2, queued, where_text) : -1;
		struct patience p = { .end_ns = epf_now_ns() + 300000000 };
		struct epf_boot_opts opts = rank_opts(kind ? where_text : "127.0.0.1:1", 1, 2);
		struct epf_boot *boot = NULL;

		opts.why = lost_patience;
		opts.why_arg = &p;
		assert_error(epf_boot_tcp_open(&opts, &boot), -ECANCELED, "enough after");
		assert_in_range(p.asked, 2, 1000);
		assert_null(boot);
		for (int i = 0; kind == 2 && i < QUEUED; i++)
			close(queued[i]);
		if (kind)
			close(fd);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(garbage_disturbs_nobody),
		cmocka_unit_test(oversized_and_misplaced_are_refused),
		cmocka_unit_test(wrong_secret_is_refused),
		cmocka_unit_test(a_recorded_connection_is_worth_nothing),
		cmocka_unit_test(a_repeated_message_is_dropped),
		cmocka_unit_test(second_claim_of_a_rank_names_both),
		cmocka_unit_test(wrong_job_world_or_rank_is_told),
		cmocka_unit_test(wrong_version_is_told),
		cmocka_unit_test(silent_strangers_run_out_of_time_and_room),
		cmocka_unit_test(a_dead_rank_is_named_to_all),
		cmocka_unit_test(a_rank_that_breaks_the_format_is_named),
		cmocka_unit_test(missing_ranks_are_named),
		cmocka_unit_test(different_calls_are_named),
		cmocka_unit_test(leaving_early_is_named),
		cmocka_unit_test(a_stopped_server_is_named),
		cmocka_unit_test(a_false_server_is_not_believed),
		cmocka_unit_test(no_secret_means_loopback_only),
		cmocka_unit_test(an_opening_is_interrupted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
