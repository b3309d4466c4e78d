/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader and the writer of frames against an other end that does everything wrong: bytes one at a time, strangers, too many, missing
 * and unasked descriptors, lengths that lie, closing in the middle, never reading. After every test no descriptor is left.
 */
#include "tests/unit/tools/shim/frame_kit.h"

#include <sys/mman.h>

static const struct epf_svc_region region = { 0x1000, 0x2000, 3 };
static int memfd = -1;

static int setup(void **state)
{
	memfd = memfd_create("svc", MFD_CLOEXEC);
	return memfd < 0;
}

static int teardown(void **state)
{
	close(memfd);
	return 0;
}

/* A REGION request. */
static size_t region_frame(uint16_t fds, uint32_t seq, uint8_t *out)
{
	uint8_t *body;
	size_t len, n;

	must(epf_svc_encode(EPF_SVC_REGION, false, 1, &region, &body, &len) == 0);
	n = make_frame((struct epf_svc_head){ .type = EPF_SVC_REGION, .fds = fds, .seq = seq },
		       body, len, out);
	free(body);
	return n;
}

static void a_message_comes_byte_by_byte(void **state)
{
	struct epf_svc_input in;
	struct epf_svc_region got;
	uint8_t frame[64];
	size_t len = region_frame(1, 5, frame);
	int fd[2];

	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	for (size_t i = 0; i < len; i++) {
		assert_int_equal(epf_svc_input_read(&in, fd[0]), 0);
		send_raw(fd[1], frame + i, 1, &memfd, i == 0);
		assert_int_equal(epf_svc_input_read(&in, fd[0]), i == len - 1);
	}
	/* It stays until the reset, whatever else comes. */
	send_raw(fd[1], frame, len, &memfd, 1);
	assert_int_equal(epf_svc_input_read(&in, fd[0]), 1);
	assert_int_equal(in.head.seq, 5);
	assert_ok(epf_svc_input_request(&in, 1, &got));
	assert_memory_equal(&got, &region, sizeof(got));
	assert_true(same_file(in.fds[0], memfd));
	assert_int_equal(fcntl(in.fds[0], F_GETFD), FD_CLOEXEC);
	epf_svc_input_reset(&in);
	/* The next one, of which the caller keeps the descriptor. */
	assert_int_equal(epf_svc_input_read(&in, fd[0]), 1);
	close(in.fds[0]);
	in.fds[0] = -1;
	epf_svc_input_destroy(&in);
	epf_svc_input_destroy(NULL);
	close_pair(fd);
}

static void messages_may_come_together(void **state)
{
	struct epf_svc_input in;
	uint8_t frames[4 * 64];
	size_t len = 0;
	int fd[2];

	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	for (uint32_t i = 0; i < 4; i++)
		len += make_frame((struct epf_svc_head){ .type = EPF_SVC_LEAVE, .seq = i }, "tail",
				  i, frames + len);
	send_raw(fd[1], frames, len, NULL, 0);
	/* Descriptors that follow belong to the message that follows. */
	len = region_frame(1, 4, frames);
	send_raw(fd[1], frames, len, &memfd, 1);
	for (uint32_t i = 0; i < 5; i++) {
		assert_int_equal(epf_svc_input_read(&in, fd[0]), 1);
		assert_int_equal(in.head.seq, i);
		assert_ok(epf_svc_input_request(&in, 1, NULL));
		epf_svc_input_reset(&in);
	}
	assert_int_equal(epf_svc_input_read(&in, fd[0]), 0);
	close_pair(fd);
}

/* Sends bytes with descriptors in up to two parts and wants the reading to fail. */
static void refused(const uint8_t *bytes, size_t len, size_t first, unsigned fds_first,
		    unsigned fds_then, uint32_t limit, int rc, enum epf_reason reason,
		    const char *words)
{
	int fd[2], fds[6] = { memfd, memfd, memfd, memfd, memfd, memfd }, got;
	struct epf_svc_input in;

	make_pair(fd);
	epf_svc_input_init(&in, limit);
	send_raw(fd[1], bytes, first, fds, fds_first);
	got = epf_svc_input_read(&in, fd[0]);
	if (got == 0 && first < len) {
		send_raw(fd[1], bytes + first, len - first, fds, fds_then);
		got = epf_svc_input_read(&in, fd[0]);
	}
	assert_int_equal(got, rc);
	assert_int_equal(epf_last_reason(), reason);
	if (!strstr(epf_last_error(), words))
		fail_msg("'%s' lacks '%s'", epf_last_error(), words);
	assert_null(in.body);
	/* Nothing to destroy: a refusal holds nothing. no_fds_left() looks. */
	close_pair(fd);
}

static void strangers_are_refused(void **state)
{
	static const uint8_t http[] = "GET /\r\n";
	uint8_t frame[64];
	size_t len = region_frame(0, 1, frame);

	refused(http, sizeof(http) - 1, sizeof(http) - 1, 0, 0, EPF_SVC_HELLO_MAX, -EBADMSG,
		EPF_R_SVC_MESSAGE, "EPFS");
	refused((const uint8_t *)"EPX", 3, 2, 0, 0, EPF_SVC_HELLO_MAX, -EBADMSG, EPF_R_SVC_MESSAGE,
		"EPFS");
	frame[3] = 'T';
	refused(frame, len, len, 0, 0, EPF_SVC_BODY_MAX, -EBADMSG, EPF_R_SVC_MESSAGE, "EPFS");
	refused(frame, len, 1, 0, 0, EPF_SVC_BODY_MAX, -EBADMSG, EPF_R_SVC_MESSAGE, "EPFS");
}

static void descriptors_are_those_announced(void **state)
{
	uint8_t frame[64];
	size_t len = region_frame(0, 1, frame);

	refused(frame, len, len, 1, 0, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"REGION: the header announces 0 descriptors, 1 came");
	refused(frame, len, 4, 2, 0, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"announces 0 descriptors, 2 came");
	/* With bytes of the header and of the body that are not the first. */
	refused(frame, len, 4, 0, 1, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"behind the first byte");
	refused(frame, len, EPF_SVC_HEAD_BYTES + 3, 0, 1, EPF_SVC_BODY_MAX, -EBADF,
		EPF_R_SVC_DESCRIPTOR, "behind the first byte");
	region_frame(1, 1, frame);
	refused(frame, len, len, 0, 0, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"announces 1 descriptors, 0 came");
	refused(frame, len, 3, 0, 1, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"behind the first byte");
	refused(frame, len, 4, 1, 4, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"behind the first byte");
	region_frame(4, 1, frame);
	refused(frame, len, len, 5, 0, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"more than 4 descriptors");
	refused(frame, len, len, 6, 0, EPF_SVC_BODY_MAX, -EBADF, EPF_R_SVC_DESCRIPTOR,
		"more than 4 descriptors");
	region_frame(5, 1, frame);
	refused(frame, len, len, 0, 0, EPF_SVC_BODY_MAX, -EBADMSG, EPF_R_SVC_MESSAGE,
		"announces 5 descriptors, the most is 4");
}

static void announced_bytes_cost_nothing(void **state)
{
	struct epf_svc_head h = { .type = EPF_SVC_CONNECT, .bytes = EPF_SVC_BODY_MAX };
	uint8_t head[EPF_SVC_HEAD_BYTES], some[1000] = { 0 };
	struct epf_svc_input in;
	int fd[2];

	epf_svc_head_encode(&h, head);
	refused(head, sizeof(head), sizeof(head), 0, 0, EPF_SVC_HELLO_MAX, -EBADMSG,
		EPF_R_SVC_MESSAGE,
		"CONNECT: a header announces 67108864 bytes, the most is 512 now");
	h.bytes++;
	epf_svc_head_encode(&h, head);
	refused(head, sizeof(head), sizeof(head), 0, 0, EPF_SVC_BODY_MAX, -EBADMSG,
		EPF_R_SVC_MESSAGE, "the most is 67108864");
	h.bytes--;
	epf_svc_head_encode(&h, head);
	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	send_raw(fd[1], head, sizeof(head), NULL, 0);
	assert_int_equal(epf_svc_input_read(&in, fd[0]), 0);
	assert_in_range(in.cap, 0, 4096);
	for (int i = 1; i <= 60; i++) {
		send_raw(fd[1], some, sizeof(some), NULL, 0);
		assert_int_equal(epf_svc_input_read(&in, fd[0]), 0);
		assert_int_equal(in.got, (size_t)i * sizeof(some));
		assert_true(in.cap <= 4096 || in.cap <= 2 * in.got);
	}
	epf_svc_input_destroy(&in);
	close_pair(fd);
}

static void closing_is_noticed_anywhere(void **state)
{
	uint8_t frame[64];
	size_t len = region_frame(1, 1, frame);

	for (size_t cut = 0; cut < len; cut++) {
		struct epf_svc_input in;
		int fd[2];

		make_pair(fd);
		epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
		if (cut)
			send_raw(fd[1], frame, cut, &memfd, 1);
		close(fd[1]);
		/* What came before is taken first; then the end, for good. */
		assert_error(epf_svc_input_read(&in, fd[0]), -ECONNRESET, SVC_GONE,
			     cut ? "in the middle of a message"
				 : "the other end closed the connection: ");
		close(fd[0]);
	}
}

static void requests_are_checked(void **state)
{
	const struct {
		struct epf_svc_head head;
		size_t len;
		int rc;
		const char *words;
	} bad[] = {
		{ { .type = 0 }, 0, -EBADMSG, "type 0, which is not known" },
		{ { .type = EPF_SVC_TYPES }, 0, -EBADMSG, "type 21, which" },
		{ { .type = EPF_SVC_LEAVE | EPF_SVC_ANSWER }, 0, -EBADMSG, "type 32782, which" },
		{ { .type = EPF_SVC_LEAVE, .status = -1 },
		  0,
		  -EBADMSG,
		  "LEAVE: a request with status -1" },
		{ { .type = EPF_SVC_LEAVE, .reason = 7 }, 0, -EBADMSG, "and reason 7" },
		{ { .type = EPF_SVC_LEAVE, .fds = 1 },
		  0,
		  -EBADF,
		  "LEAVE: 1 descriptors came, it takes 0" },
		{ { .type = EPF_SVC_REGION },
		  20,
		  -EBADF,
		  "REGION: 0 descriptors came, it takes 1" },
		{ { .type = EPF_SVC_MASK }, 7, -EBADMSG, "MASK: the body ends inside masked" },
	};

	uint8_t frame[64], zeros[32] = { 0 };
	struct epf_svc_input in;
	int fd[2];

	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		size_t len = make_frame(bad[i].head, zeros, bad[i].len, frame);

		send_raw(fd[1], frame, len, &memfd, bad[i].head.fds);
		assert_int_equal(epf_svc_input_read(&in, fd[0]), 1);
		assert_int_equal(epf_svc_input_request(&in, 1, NULL), bad[i].rc);
		if (!strstr(epf_last_error(), bad[i].words))
			fail_msg("'%s' lacks '%s'", epf_last_error(), bad[i].words);
		epf_svc_input_reset(&in);
	}
	close_pair(fd);
}

static void large_answers_go_in_parts(void **state)
{
	enum { LEN = 3 << 20 };
	struct epf_svc_head h = { .type = EPF_SVC_STATUS | EPF_SVC_ANSWER, .seq = 3 };
	struct epf_svc_output out = { 0 };
	struct epf_svc_input in;
	uint8_t *body = malloc(LEN);
	int fd[2], rc = 0, wrote = 0, fds[2] = { memfd, dup(memfd) };

	for (uint32_t i = 0; i < LEN; i++)
		body[i] = (uint8_t)(i * 7 + i / 1000);
	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	/* The copy is the queue's, the memfd stays the caller's. */
	assert_ok(epf_svc_output_add(&out, &h, NULL, 0, fds + 1, 1, true));
	h.seq = 4;
	assert_ok(epf_svc_output_add(&out, &h, body, LEN, fds, 1, false));
	assert_int_equal(epf_svc_output_write(&out, fd[0]), 0);
	assert_int_equal(epf_svc_input_read(&in, fd[1]), 1);
	assert_int_equal(in.head.seq, 3);
	assert_int_equal(in.head.fds, 1);
	epf_svc_input_reset(&in);
	while (rc == 0) {
		size_t got = in.got;

		wrote = wrote > 0 ? 1 : epf_svc_output_write(&out, fd[0]);
		assert_in_range(wrote, 0, 1);
		rc = epf_svc_input_read(&in, fd[1]);
		assert_in_range(rc, 0, 1);
		assert_in_range(in.got - got, 0, EPF_SVC_INPUT_STEP);
	}
	assert_int_equal(in.got, LEN);
	for (uint32_t i = 0; i < LEN; i++) {
		if (in.body[i] != (uint8_t)(i * 7 + i / 1000))
			fail_msg("byte %u is wrong", i);
	}
	assert_true(same_file(in.fds[0], memfd));
	assert_int_equal(in.head.seq, 4);
	assert_int_equal(in.head.fds, 1);
	assert_int_equal(epf_svc_output_write(&out, fd[0]), 1);
	assert_int_equal(out.bytes, 0);
	assert_int_equal(out.frames, 0);
	epf_svc_input_destroy(&in);
	close_pair(fd);
}

/* Requests without reading the answers: memory and descriptors stay bounded, and then it is said. */
static void who_never_reads_is_refused(void **state)
{
	const struct epf_svc_head request = { .type = EPF_SVC_STATUS, .seq = 1 };
	char *text = malloc(600000);
	struct epf_svc_status_reply reply = { { text, 600000 } };
	struct epf_svc_head h = { .type = EPF_SVC_RING | EPF_SVC_ANSWER };
	struct epf_svc_output out = { 0 };
	int fd[2], rc = 0, n = 0, copy;

	memset(text, 'x', 600000);
	make_pair(fd);
	for (; rc == 0 && n < 100; n++) {
		rc = epf_svc_output_answer(&out, &request, 1, &reply, NULL, 0);
		if (rc == 0)
			assert_int_equal(epf_svc_output_write(&out, fd[0]), 0);
	}
	assert_error(rc, -ENOSPC, SVC_LIMIT, "the other end does not read its answers");
	assert_in_range(n, 2, 5);
	assert_in_range(out.bytes, EPF_SVC_OUTPUT_BYTES, EPF_SVC_OUTPUT_BYTES + 600100);
	epf_svc_output_destroy(&out);
	free(text);

	for (n = 0, rc = 0; rc == 0 && n < 100; n++) {
		copy = dup(memfd);
		rc = epf_svc_output_add(&out, &h, NULL, 0, &copy, 1, true);
	}
	assert_error(rc, -ENOSPC, SVC_LIMIT, "64 with 1536 bytes wait");
	/* Refusing took the descriptor as well. */
	assert_int_equal(fcntl(copy, F_GETFD), -1);
	epf_svc_output_destroy(&out);
	epf_svc_output_destroy(NULL);
	close_pair(fd);
}

static void what_cannot_be_sent_is_freed(void **state)
{
	const struct epf_svc_head request = { .type = EPF_SVC_COUNTER, .seq = 1 };
	struct epf_svc_output out = { 0 };
	int fd[2], fds[5], bad = 9999;

	for (int i = 0; i < 5; i++)
		fds[i] = dup(memfd);
	assert_error(epf_svc_output_add(&out, &request, malloc(5), 5, fds, 5, true), -EBADMSG,
		     SVC_MESSAGE, "5 descriptors");
	fds[0] = dup(memfd);
	assert_error(epf_svc_output_answer(&out, &request, 1, NULL, fds, 1), -EBADMSG, SVC_MESSAGE,
		     "COUNTER");
	assert_null(out.first);
	make_pair(fd);
	assert_ok(epf_svc_output_add(&out, &request, NULL, 0, &bad, 1, false));
	assert_error(epf_svc_output_write(&out, fd[0]), -EBADF, SVC_DESCRIPTOR, "sendmsg");
	epf_svc_output_destroy(&out);
	/* The other end is gone: no signal ends us. */
	close(fd[1]);
	fds[0] = dup(memfd);
	assert_ok(epf_svc_output_add(&out, &request, strdup("body"), 4, fds, 1, true));
	assert_error(epf_svc_output_write(&out, fd[0]), -ECONNRESET, SVC_GONE,
		     "closed the connection");
	epf_svc_output_destroy(&out);
	close(fd[0]);
}

static void failures_carry_their_line(void **state)
{
	const struct epf_svc_head request = { .type = EPF_SVC_ATTACH, .seq = 77 };
	struct epf_svc_output out = { 0 };
	struct epf_svc_input in;
	int fd[2], rc = epf_fail(EPF_R_SVC_DRAINING, "the daemon main");

	make_pair(fd);
	epf_svc_input_init(&in, EPF_SVC_BODY_MAX);
	assert_ok(epf_svc_output_failure(&out, &request, rc));
	assert_int_equal(epf_svc_output_write(&out, fd[0]), 1);
	assert_int_equal(epf_svc_input_read(&in, fd[1]), 1);
	assert_int_equal(in.head.type, EPF_SVC_ATTACH | EPF_SVC_ANSWER);
	assert_int_equal(in.head.seq, 77);
	assert_int_equal(in.head.status, -ESHUTDOWN);
	assert_int_equal(in.head.reason, EPF_R_SVC_DRAINING);
	assert_int_equal(in.got, strlen(epf_last_error()));
	assert_memory_equal(in.body, epf_last_error(), in.got);
	epf_svc_input_destroy(&in);
	close_pair(fd);
}

#define T(name) cmocka_unit_test_setup_teardown(name, remember_fds, no_fds_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_message_comes_byte_by_byte), T(messages_may_come_together),
		T(strangers_are_refused),        T(descriptors_are_those_announced),
		T(announced_bytes_cost_nothing), T(closing_is_noticed_anywhere),
		T(requests_are_checked),         T(large_answers_go_in_parts),
		T(who_never_reads_is_refused),   T(what_cannot_be_sent_is_freed),
		T(failures_carry_their_line),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
