/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous at the end of a job, when its host is through before others. */
#include "tests/unit/bootstrap/boot_kit.h"

enum { BYTES = 4 << 20 }; /* of two ranks: together more than sockets hold */

static int gather_much(struct epf_boot *boot, void *arg)
{
	uint8_t *mine = calloc(1, BYTES);
	struct epf_blob *all = NULL;
	int rc = mine ? epf_boot_allgather(boot, mine, BYTES, &all) : -ENOMEM;

	epf_boot_free_blobs(all);
	free(mine);
	return rc;
}

static void *stop_server(void *arg)
{
	epf_boot_server_stop(arg);
	return NULL;
}

/* Reads parts of a result until a message of another type arrives, and returns that type. *got, *total: bytes read, bytes announced. */
static uint16_t read_result(struct raw *r, uint64_t *got, uint64_t *total)
{
	uint8_t *in = malloc(2 * EPF_WIRE_FRAME_MAX);
	struct epf_wire_part part = { 0 };
	struct epf_wire_msg msg = { 0 };
	size_t have = 0, frame;

	assert_non_null(in);
	for (*got = 0;;) {
		ssize_t n;

		while (epf_wire_head_read(&r->session, in, have, EPF_WIRE_PAYLOAD_MAX, &msg.head) ==
			       EPF_WIRE_V_OK &&
		       have >= (frame = EPF_WIRE_OVERHEAD + msg.head.length)) {
			if (msg.head.type != EPF_WIRE_PART) {
				free(in);
				return msg.head.type;
			}
			msg.payload = in + EPF_WIRE_HEAD_BYTES;
			assert_int_equal(epf_wire_get_part(&msg, &part), EPF_WIRE_V_OK);
			assert_int_equal(part.offset, *got);
			*got += part.bytes;
			*total = part.total;
			have -= frame;
			memmove(in, in + frame, have);
		}
		n = recv(r->fd, in + have, 2 * EPF_WIRE_FRAME_MAX - have, 0);
		assert_true(n > 0);
		have += (size_t)n;
	}
}

/* A rank that is slow to receive the last result has all of it, though the root is through and closes the server meanwhile. */
static void the_last_result_is_whole(void **state)
{
	struct epf_boot_server *srv = start_plain(3);
	uint8_t payload[EPF_WIRE_PART_HEAD + 1] = { 0 };
	uint64_t got, total = 0;
	struct rank_thread t[2] = { 0 };
	pthread_t stopper;
	int receives = 65536;
	struct raw r;

	for (uint32_t i = 0; i < 2; i++) {
		t[i].opts = rank_opts(epf_boot_server_address(srv), 2 * i, 3);
		t[i].run = gather_much;
		spawn(&t[i]);
	}
	raw_member(&r, srv, 1, 3);
	assert_int_equal(setsockopt(r.fd, SOL_SOCKET, SO_RCVBUF, &receives, sizeof(receives)), 0);
	epf_wire_put_part(payload, 0, 1, 0);
	raw_send(&r, EPF_WIRE_PART, payload, sizeof(payload));
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i].thread, NULL);
		if (t[i].rc)
			fail_msg("%s", t[i].error);
	}
	assert_int_equal(pthread_create(&stopper, NULL, stop_server, srv), 0);
	usleep(50000); /* it has begun to stop */
	assert_int_equal(read_result(&r, &got, &total), EPF_WIRE_FAIL);
	pthread_join(stopper, NULL);
	assert_true(total > 2 * BYTES);
	assert_int_equal(got, total);
	close(r.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_result_is_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
