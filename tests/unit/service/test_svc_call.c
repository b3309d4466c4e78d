/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's end of the control socket against a daemon played by a thread: that is absent, late, of another version, that says no,
 * answers late, wrongly, in halves or never, sends descriptors nobody wants, or dies. Every call ends by its deadline with one
 * line of text, and no descriptor is left.
 */
#include "tests/unit/tools/shim/frame_daemon.h"

#include "fabric/base/clock.h"

#include <sys/mman.h>

enum { FLAGS = 1 };

static void answer_hello(int fd, uint16_t major, uint16_t minor, unsigned encode_minor)
{
	struct epf_svc_hello_reply r = {
		.major = major, .minor = minor, .instance = "main", .max_jobs = 8
	};
	struct epf_svc_output out = { 0 };
	struct epf_svc_input in;
	struct epf_svc_hello h;

	must(next_request(fd, &in) && in.head.type == EPF_SVC_HELLO);
	must(epf_svc_input_request(&in, 0, &h) == 0);
	must(h.major == EPF_SVC_MAJOR && h.minor == EPF_SVC_MINOR && h.flags == FLAGS);
	must(!strcmp(h.program, "a?program"));
	must(epf_svc_output_answer(&out, &in.head, encode_minor, &r, NULL, 0) == 0);
	must(epf_svc_output_write(&out, fd) == 1);
	epf_svc_input_reset(&in);
	take(fd);
}

static void hello_1_4(int fd)
{
	answer_hello(fd, 1, 4, 4);
}

static void hello_1_5(int fd)
{
	answer_hello(fd, 1, 5, 5);
}

static void hello_1_6(int fd)
{
	answer_hello(fd, 1, 6, 5);
}

static void hello_1_7(int fd)
{
	answer_hello(fd, 1, 7, 5);
}

static void hello_2_0(int fd)
{
	answer_hello(fd, 2, 0, 1);
}

static void versions_are_agreed(void **state)
{
	static void (*const good[])(int) = { hello_1_4, hello_1_5, hello_1_6 };
	static void (*const bad[])(int) = { hello_1_7, hello_2_0 };
	struct epf_svc_hello_reply r;
	struct daemon d;

	for (unsigned i = 0; i < 3; i++) {
		struct epf_svc_channel *ch = channel_to(&d, good[i]);

		assert_int_equal(epf_svc_channel_minor(ch), 0);
		assert_ok(epf_svc_hello(ch, FLAGS, "a\tprogram", &r, LONG_NS));
		assert_int_equal(epf_svc_channel_minor(ch), i ? 5 : 4);
		assert_string_equal(r.instance, "main");
		assert_int_equal(r.max_jobs, 8);
		finish(&d, ch);
	}
	for (unsigned i = 0; i < 2; i++) {
		struct epf_svc_channel *ch = channel_to(&d, bad[i]);

		assert_error(epf_svc_hello(ch, FLAGS, "a\tprogram", &r, LONG_NS), -EPROTO,
			     SVC_VERSION,
			     i ? "speaks version 2.0 of the control protocol, this end 1.5"
			       : "speaks version 1.7 of the control");
		assert_non_null(strstr(epf_last_error(), d.path));
		finish(&d, ch);
	}
}

static void just_wait(int fd)
{
	while (take(fd).type)
		;
}

static void opening_ends_by_its_deadline(void **state)
{
	struct epf_svc_channel *ch = NULL;
	struct daemon d;
	char path[200];
	uint64_t begin = epf_now_ns();

	assert_error(epf_svc_channel_open("/tmp/epf-svc-none/sock", 0, &ch), -ENOENT, SVC_ABSENT,
		     "the socket /tmp/epf-svc-none/sock");
	assert_error(epf_svc_channel_open("/tmp/epf-svc-none/sock", 60 * MS, &ch), -ENOENT,
		     SVC_ABSENT, "ep-fabric run");
	assert_true(epf_now_ns() - begin >= 60 * MS);
	memset(path, 'p', sizeof(path));
	path[sizeof(path) - 1] = 0;
	assert_error(epf_svc_channel_open(path, 0, &ch), -ENOENT, SVC_ABSENT,
		     "a path has 1 to 107 bytes, this one 199");
	assert_error(epf_svc_channel_open(NULL, 0, &ch), -ENOENT, SVC_ABSENT, "this one 0");
	assert_null(ch);
	/* It starts while we wait. */
	daemon_start(&d, just_wait, 50);
	assert_ok(epf_svc_channel_open(d.path, LONG_NS, &ch));
	finish(&d, ch);
	/* A socket whose daemon is dead. */
	daemon_start(&d, just_wait, 0);
	assert_ok(epf_svc_channel_open(d.path, LONG_NS, &ch));
	epf_svc_channel_close(ch);
	pthread_join(d.thread, NULL);
	close(d.listener);
	assert_error(epf_svc_channel_open(d.path, 0, &ch), -ECONNREFUSED, SVC_ABSENT, d.path);
	if (geteuid() != 0) {
		assert_int_equal(chmod(d.path, 0), 0);
		assert_error(epf_svc_channel_open(d.path, LONG_NS, &ch), -EACCES, SVC_ACCESS,
			     d.path);
	}
	unlink(d.path);
	rmdir(d.dir);
	epf_svc_channel_close(NULL);
}

/* RING is answered with a memfd, COUNTER with the error of a number, STATUS with text. */
static void well_behaved(int fd)
{
	struct epf_svc_output out = { 0 };
	struct epf_svc_input in;

	while (next_request(fd, &in)) {
		struct epf_svc_ring_reply ring = { .ring = 3, .bytes = 4096 };
		struct epf_svc_status_reply status = { { "{\"jobs\":0}", 10 } };
		int memfd = memfd_create("ring", MFD_CLOEXEC);

		must(ftruncate(memfd, 4096) == 0);
		if (in.head.type == EPF_SVC_RING)
			must(epf_svc_output_answer(&out, &in.head, 1, &ring, &memfd, 1) == 0);
		else
			close(memfd);
		if (in.head.type == EPF_SVC_STATUS)
			must(epf_svc_output_answer(&out, &in.head, 1, &status, NULL, 0) == 0);
		if (in.head.type == EPF_SVC_COUNTER)
			must(epf_svc_output_failure(&out, &in.head,
						    epf_fail(EPF_R_SVC_LIMIT,
							     "a user has 9 jobs, max-jobs is 8")) ==
			     0);
		if (in.head.type == EPF_SVC_REGION) {
			struct epf_svc_region_reply region = { .region = (uint32_t)fcntl(in.fds[0],
											 F_GETFD) };

			must(epf_svc_output_answer(&out, &in.head, 1, &region, NULL, 0) == 0);
		}
		must(epf_svc_output_write(&out, fd) == 1);
		epf_svc_input_reset(&in);
	}
}

static void calls_are_answered(void **state)
{
	struct epf_svc_ring ring = { .log2 = 10 };
	struct epf_svc_ring_reply ring_reply;
	struct epf_svc_region_reply region_reply;
	struct epf_svc_status_reply status_reply;
	struct epf_svc_counter counter = { "x" };
	struct epf_svc_counter_reply value;
	struct epf_svc_region region = { 0 };
	const char *detail = "a user has 9 jobs, max-jobs is 8: ", *first;
	int fds[2] = { -1, -1 };
	struct daemon d;
	struct epf_svc_channel *ch = channel_to(&d, well_behaved);
	unsigned n = 9;
	struct stat st;

	for (int i = 0; i < 3; i++) {
		assert_ok(epf_svc_call(ch, EPF_SVC_RING, &ring, NULL, 0, &ring_reply, fds, 2, &n,
				       LONG_NS));
		assert_int_equal(n, 1);
		assert_int_equal(ring_reply.bytes, 4096);
		assert_int_equal(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
		assert_int_equal(fstat(fds[0], &st), 0);
		assert_int_equal(st.st_size, 4096);
		assert_int_equal(fds[1], -1);
		close(fds[0]);
		assert_ok(epf_svc_call(ch, EPF_SVC_STATUS, &(struct epf_svc_status){ 0 }, NULL, 0,
				       &status_reply, NULL, 0, NULL, LONG_NS));
		assert_int_equal(status_reply.json.len, 10);
		assert_memory_equal(status_reply.json.data, "{\"jobs\":0}", 10);
		/* Its reason, its words once, its remedy once. */
		assert_error(epf_svc_call(ch, EPF_SVC_COUNTER, &counter, NULL, 0, &value, NULL, 0,
					  NULL, LONG_NS),
			     -ENOSPC, SVC_LIMIT, detail);
		first = strstr(epf_last_error(), "[EPF-707]");
		assert_non_null(first);
		assert_null(strstr(first + 1, "[EPF-"));
		assert_int_equal(epf_svc_channel_check(ch), 0);
	}
	/* What it sends unasked is closed: no_fds_left() looks. */
	assert_ok(epf_svc_call(ch, EPF_SVC_RING, &ring, NULL, 0, &ring_reply, NULL, 0, NULL,
			       LONG_NS));
	/* Ours are still ours. */
	fds[0] = memfd_create("region", 0);
	assert_ok(epf_svc_call(ch, EPF_SVC_REGION, &region, fds, 1, &region_reply, NULL, 0, NULL,
			       LONG_NS));
	assert_int_equal(region_reply.region, FD_CLOEXEC);
	assert_int_equal(close(fds[0]), 0);
	/* What cannot be encoded is our error, not the end. */
	memset(counter.name, 'x', sizeof(counter.name));
	assert_error(epf_svc_call(ch, EPF_SVC_COUNTER, &counter, NULL, 0, &value, NULL, 0, NULL,
				  LONG_NS),
		     -EBADMSG, SVC_MESSAGE, "COUNTER: name");
	assert_int_equal(epf_svc_channel_check(ch), 0);
	finish(&d, ch);
}

/* One answer of each wrong kind; MASK has none but an empty one, RING has one descriptor. */
static void script_seq(int fd)
{
	struct epf_svc_head request = take(fd);

	request.seq += 5;
	answer_raw(fd, &request, 0, 0, 0, 0);
	take(fd);
}

static void script_type(int fd)
{
	struct epf_svc_head request = take(fd);

	request.type = EPF_SVC_DRAIN;
	answer_raw(fd, &request, 4, 0, 0, 0);
	take(fd);
}

static void answer_once(int fd, size_t len, uint16_t announced, unsigned n_fds, int status)
{
	struct epf_svc_head request = take(fd);

	answer_raw(fd, &request, len, announced, n_fds, status);
	take(fd);
}

static void script_status(int fd)
{
	answer_once(fd, 12, 1, 1, 1);
}

static void script_short(int fd)
{
	answer_once(fd, 11, 1, 1, 0);
}

static void script_no_fd(int fd)
{
	answer_once(fd, 12, 0, 0, 0);
}

static void script_lost_fd(int fd)
{
	answer_once(fd, 12, 2, 1, 0);
}

static void script_gifts(int fd)
{
	answer_once(fd, 0, 3, 3, 0);
}

static void script_half(int fd)
{
	struct epf_svc_head h = take(fd);
	uint8_t frame[64];

	h.type |= EPF_SVC_ANSWER;
	make_frame(h, "123456789012", 12, frame);
	send_raw(fd, frame, 30, NULL, 0);
}

static void script_dies(int fd)
{
	take(fd);
}

static int ring_call(struct epf_svc_channel *ch, uint64_t timeout_ns)
{
	struct epf_svc_ring_reply reply = { .bytes = 7 };
	struct epf_svc_ring ring = { .log2 = 10 };
	int fd = -1, rc;

	rc = epf_svc_call(ch, EPF_SVC_RING, &ring, NULL, 0, &reply, &fd, 1, NULL, timeout_ns);
	if (rc == 0)
		close(fd);
	else if (fd != -1)
		fail_msg("a descriptor came from a call that failed");
	return rc;
}

/* At once, not only at the next call. */
static void unasked_descriptors_are_closed(void **state)
{
	struct epf_svc_mask mask = { .rank = 1 };
	struct daemon d;
	struct epf_svc_channel *ch = channel_to(&d, script_gifts);
	int fds[4] = { -1, -1, -1, -1 };
	unsigned n = 9;

	assert_ok(epf_svc_call(ch, EPF_SVC_MASK, &mask, NULL, 0, NULL, fds, 4, &n, LONG_NS));
	assert_int_equal(n, 0);
	assert_int_equal(fds[0], -1);
	/* The listening socket and both ends of the connection. */
	assert_int_equal(count_fds(), fds_before + 3);
	finish(&d, ch);
}

static void wrong_answers_end_the_channel(void **state)
{
	static const struct {
		void (*script)(int);
		int rc;
		enum epf_reason reason;
		const char *words;
	} rows[] = {
		{ script_seq, -EBADMSG, EPF_R_SVC_MESSAGE,
		  "RING: the daemon's answer has type 0x8005, number 6" },
		{ script_type, -EBADMSG, EPF_R_SVC_MESSAGE,
		  "RING: the daemon's answer has type 0x8010" },
		{ script_status, -EBADMSG, EPF_R_SVC_MESSAGE, "and status 1" },
		{ script_short, -EBADMSG, EPF_R_SVC_MESSAGE, "RING: the body ends inside bytes" },
		{ script_no_fd, -EBADF, EPF_R_SVC_DESCRIPTOR,
		  "RING: 0 descriptors came from the daemon, it sends 1" },
		{ script_lost_fd, -EBADF, EPF_R_SVC_DESCRIPTOR, "announces 2 descriptors, 1 came" },
		{ script_half, -ECONNRESET, EPF_R_SVC_GONE, "RING: the daemon at /tmp/epf-svc-" },
		{ script_dies, -ECONNRESET, EPF_R_SVC_GONE, "has hung up" },
	};
	struct daemon d;

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct epf_svc_channel *ch = channel_to(&d, rows[i].script);

		assert_int_equal(ring_call(ch, LONG_NS), rows[i].rc);
		assert_int_equal(epf_last_reason(), rows[i].reason);
		if (!strstr(epf_last_error(), rows[i].words))
			fail_msg("'%s' lacks '%s'", epf_last_error(), rows[i].words);
		assert_error(ring_call(ch, LONG_NS), -ECONNRESET, SVC_GONE, "ended before");
		finish(&d, ch);
	}
}

/* The first answer comes when the second request is there. */
static void script_late(int fd)
{
	struct epf_svc_head one = take(fd), two = take(fd);

	answer_raw(fd, &one, 12, 1, 1, 0);
	answer_raw(fd, &two, 12, 1, 1, 0);
	take(fd);
}

static void late_answers_are_skipped(void **state)
{
	struct daemon d;
	struct epf_svc_channel *ch = channel_to(&d, script_late);

	assert_error(ring_call(ch, 30 * MS), -ETIMEDOUT, SVC_TIMEOUT, "has not answered in 0.0 s");
	assert_ok(ring_call(ch, LONG_NS));
	finish(&d, ch);
}

/* A reason this release does not know: its number is kept in the text, its errno is returned. */
static void script_unknown(int fd)
{
	struct epf_svc_head h = take(fd);
	uint8_t frame[256];

	h.type |= EPF_SVC_ANSWER;
	h.status = -ENODATA;
	h.reason = 799;
	send_raw(fd, frame, make_frame(h, "new\nthing [EPF-799]", 19, frame), NULL, 0);
	h.seq = take(fd).seq;
	send_raw(fd, frame, make_frame(h, "", 0, frame), NULL, 0);
	take(fd);
}

static void reasons_of_the_future_are_shown(void **state)
{
	struct daemon d;
	struct epf_svc_channel *ch = channel_to(&d, script_unknown);

	assert_error(ring_call(ch, LONG_NS), -ENODATA, SYSTEM, "new?thing [EPF-799]");
	assert_error(ring_call(ch, LONG_NS), -ENODATA, SYSTEM, "RING");
	finish(&d, ch);
}

static int signal_pipe[2];

/* Reads nothing until told. */
static void script_deaf(int fd)
{
	char c;

	must(read(signal_pipe[0], &c, 1) == 1);
}

/* Answers from the header alone, then hangs up: the request's rest is not wanted. */
static void script_refuses_early(int fd)
{
	struct epf_svc_head h = { 0 };
	uint8_t head[EPF_SVC_HEAD_BYTES];

	must(recv(fd, head, sizeof(head), MSG_WAITALL) == sizeof(head));
	must(epf_svc_head_decode(head, &h) == 0);
	answer_raw(fd, &h, 0, 0, 0, -ESHUTDOWN);
	shutdown(fd, SHUT_RD);
	usleep(20000);
}

static int long_call(struct epf_svc_channel *ch, uint64_t timeout_ns)
{
	enum { LEN = 8 << 20 };

	char *bytes = calloc(1, LEN);
	struct epf_svc_connect req = { { bytes, LEN } };
	int rc = epf_svc_call(ch, EPF_SVC_CONNECT, &req, NULL, 0, NULL, NULL, 0, NULL, timeout_ns);

	free(bytes);
	return rc;
}

static void requests_that_are_not_read_end(void **state)
{
	struct daemon d;
	struct epf_svc_channel *ch;

	must(pipe2(signal_pipe, O_CLOEXEC) == 0);
	ch = channel_to(&d, script_deaf);
	assert_error(long_call(ch, 30 * MS), -ETIMEDOUT, SVC_TIMEOUT, "CONNECT: the daemon at");
	assert_error(ring_call(ch, LONG_NS), -ECONNRESET, SVC_GONE, "ended before");
	assert_int_equal(epf_svc_channel_check(ch), 0);
	must(write(signal_pipe[1], "x", 1) == 1);
	pthread_join(d.thread, NULL);
	/* The daemon has gone: seen without a call. */
	assert_error(epf_svc_channel_check(ch), -ECONNRESET, SVC_GONE, "has hung up");
	assert_int_equal(fcntl(epf_svc_channel_fd(ch), F_GETFD), FD_CLOEXEC);
	epf_svc_channel_close(ch);
	close(d.listener);
	unlink(d.path);
	rmdir(d.dir);
	close(signal_pipe[0]);
	close(signal_pipe[1]);
	ch = channel_to(&d, script_refuses_early);
	assert_int_equal(long_call(ch, LONG_NS), -ESHUTDOWN);
	finish(&d, ch);
}

#define T(name) cmocka_unit_test_setup_teardown(name, remember_fds, no_fds_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(versions_are_agreed),
		T(opening_ends_by_its_deadline),
		T(calls_are_answered),
		T(wrong_answers_end_the_channel),
		T(late_answers_are_skipped),
		T(reasons_of_the_future_are_shown),
		T(unasked_descriptors_are_closed),
		T(requests_that_are_not_read_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
