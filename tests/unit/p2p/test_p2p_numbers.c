/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints over the engine: a connection has few numbers of regions here, and uses each many times. Arguments: the NIC and more settings of both
 * endpoints.
 */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/p2p/engine.h"
#include "fabric/p2p/engine_priv.h"

#include <sched.h>
#include <signal.h>

enum { NUMBERS = 32, ROUNDS = 3 * NUMBERS, BYTES = 4096 };

static char nic_setting[96];

static void begin(struct both *b, const char *more)
{
	char setting[160];

	snprintf(setting, sizeof(setting), "%s p2p-local=no regions=%d %s", nic_setting, NUMBERS,
		 more);
	both_begin(b, T_MMAP, T_MMAP, "near", "far-target", setting);
}

/* The target's next export; is_renewed: in place of the last. */
static void next_key(struct both *b, bool is_renewed)
{
	int32_t rc = 1;

	target_tell(&b->t, is_renewed ? T_RENEW : T_MORE);
	if (is_renewed)
		assert_int_equal(target_answer(&b->t, &rc, sizeof(rc)), sizeof(rc));
	assert_true(!is_renewed || rc == 0);
	assert_int_equal(target_answer(&b->t, b->t.key, sizeof(b->t.key)), sizeof(b->t.key));
}

/* Imports the target's export. A number that was released may be on its way for a moment. */
static uint64_t import_next(struct both *b)
{
	uint64_t end = epf_now_ns() + 10 * SECOND, import;
	int rc;

	while ((rc = epf_p2p_import(b->ep, b->conn, b->t.key, 10 * SECOND, &import)) == -ENOSPC &&
	       epf_now_ns() < end)
		;
	assert_ok(rc);
	return import;
}

static void write_and_check(struct both *b, uint64_t import, int round)
{
	uint64_t at = (uint64_t)round * BYTES;

	memset(b->bytes, round, BYTES);
	assert_ok(epf_p2p_write(b->ep, b->conn, b->region, 0, import, at, BYTES, 0));
	assert_ok(epf_p2p_read(b->ep, b->conn, b->region, BYTES, import, at, BYTES, 0));
	assert_memory_equal(b->bytes, b->bytes + BYTES, BYTES);
}

/* Each export is withdrawn before the next one. Old handles stay stale, whatever their number names by now. */
static void test_withdrawn_numbers_come_again(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
	uint64_t old, before, import;
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, "");
	old = before = b.import;
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, old, &block, 1 }, 1, NULL,
				  &x));
	for (int round = 0; round < ROUNDS; round++) {
		next_key(&b, true);
		import = import_next(&b);
		assert_err(epf_p2p_write(b.ep, b.conn, b.region, 0, old, 0, BYTES, 0), EKEYREVOKED);
		assert_err(epf_p2p_read(b.ep, b.conn, b.region, 0, before, 0, BYTES, 0),
			   EKEYREVOKED);
		assert_ok(epf_p2p_post(x, NULL, 0)); /* prepared before the withdrawal */
		assert_err(epf_p2p_wait(x, 0), EKEYREVOKED);
		write_and_check(&b, import, round);
		if (before != old)
			epf_p2p_release(b.ep, before);
		before = import;
	}
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/* All exports stay: a released import gives its number back, and the export can be imported again. */
static void test_released_numbers_come_again(void **state)
{
	uint64_t import, again;
	struct both b;

	(void)state;
	begin(&b, "");
	for (int round = 0; round < ROUNDS; round++) {
		next_key(&b, false);
		import = import_next(&b);
		write_and_check(&b, import, round);
		epf_p2p_release(b.ep, import);
		again = import_next(&b); /* while the number of the first is on its way, perhaps */
		write_and_check(&b, again, round);
		epf_p2p_release(b.ep, again);
	}
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, BYTES, 0));
	both_end(&b);
}

/* At a time there are no more than that; one that is released makes room. An export takes one number however often it is imported. */
static void test_limit_at_a_time(void **state)
{
	uint64_t import[NUMBERS], same;
	uint8_t key[EPF_P2P_KEY_BYTES];
	int n = 0, rc = 0;
	struct both b;

	(void)state;
	begin(&b, "");
	for (int i = 0; i < ROUNDS; i++) {
		assert_ok(epf_p2p_import(b.ep, b.conn, b.t.key, 10 * SECOND, &same));
		assert_true(same == b.import);
	}
	while (n < NUMBERS) {
		next_key(&b, false);
		rc = epf_p2p_import(b.ep, b.conn, b.t.key, 10 * SECOND, &import[n]);
		if (rc)
			break;
		n++;
		memcpy(key, b.t.key, sizeof(key));
	}
	assert_err(rc, ENOSPC);
	assert_int_equal(n, NUMBERS - 1);
	assert_ok(epf_p2p_import(b.ep, b.conn, key, 10 * SECOND,
				 &same)); /* that one has its number */
	assert_true(same == import[n - 1]);
	epf_p2p_release(b.ep, import[0]);
	write_and_check(&b, import_next(&b), 1);
	both_end(&b);
}

/* Memory of this end takes numbers too, as the source of transfers. */
static void test_own_numbers_come_again(void **state)
{
	uint64_t region;
	struct both b;

	(void)state;
	begin(&b, "");
	for (int round = 0; round < ROUNDS; round++) {
		int rc;
		uint64_t end = epf_now_ns() + 10 * SECOND;

		assert_ok(epf_p2p_register(b.ep, b.bytes, BYTES, EPF_P2P_HOST, &region));
		do /* as in import_next() */
			rc = epf_p2p_write(b.ep, b.conn, region, 0, b.import, 0, BYTES, 0);
		while (rc == -ENOSPC && epf_now_ns() < end);
		assert_ok(rc);
		assert_ok(epf_p2p_deregister(b.ep, region, 10 * SECOND));
	}
	both_end(&b);
}

/* What the connection's thread finds behind a number that has arrived. */
struct look {
	uint32_t is_over, pending;
};

static void look(struct conn *c, const void *data)
{
	struct look *l = *(struct look *const *)data;

	for (const struct number *n = c->engine->numbers; n; n = n->next)
		l->pending++;
	__atomic_store_n(&l->is_over, 1u, __ATOMIC_RELEASE);
}

static uint32_t pending(struct conn *c)
{
	struct look l = { .is_over = 0 }, *at = &l;

	assert_ok(epf_p2p_engine_do(c, look, &at, sizeof(at)));
	while (!__atomic_load_n(&l.is_over, __ATOMIC_ACQUIRE))
		sched_yield();
	return l.pending;
}

/* Commands that name a region are under way, since the peer is stopped: its number is not forgotten, and not free, before they are retired. */
static void test_number_waits_for_commands(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
	struct msg_number n = { .region = 0 };
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, "peer-timeout=1h");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	target_stop(&b.t);
	assert_ok(epf_p2p_post(x, NULL, 0));
	for (int i = 0; i < 3; i++) /* a peer that repeats itself takes no more memory */
		assert_ok(epf_p2p_number_arrived(x->conn, MSG_FORGET, &n));
	assert_int_equal(pending(x->conn), 1);
	n.region = 1; /* this end's, for the sake of the wait: it is not withdrawn */
	assert_ok(epf_p2p_number_arrived(x->conn, MSG_FORGOTTEN, &n));
	assert_int_equal(pending(x->conn), 2);
	kill(b.t.pid, SIGCONT);
	assert_ok(epf_p2p_wait(x, 0));
	while (pending(x->conn))
		sched_yield();
	assert_ok(epf_p2p_post(x, NULL, 0)); /* its handle is stale now */
	assert_err(epf_p2p_wait(x, 0), EKEYREVOKED);
	n.region = 1u << 20;
	assert_err(epf_p2p_number_arrived(x->conn, MSG_FORGET, &n), EBADMSG);
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/* The engine's thread finds the error; whoever called reads it. */
static void test_caller_reads_the_engines_error(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, BYTES);
	struct epf_p2p_xfer *x;
	uint32_t region;
	struct both b;
	int rc;

	(void)state;
	begin(&b, "");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	do
		rc = epf_region_register(x->conn->engine->ep, b.bytes, BYTES, 0, &region);
	while (!rc);
	assert_err(rc, ENOSPC);
	assert_non_null(strstr(epf_last_error(), "all 32 are in use"));
	epf_p2p_xfer_free(x);
	both_end(&b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_withdrawn_numbers_come_again),
		cmocka_unit_test(test_released_numbers_come_again),
		cmocka_unit_test(test_limit_at_a_time),
		cmocka_unit_test(test_own_numbers_come_again),
		cmocka_unit_test(test_number_waits_for_commands),
		cmocka_unit_test(test_caller_reads_the_engines_error),
	};

	snprintf(nic_setting, sizeof(nic_setting), "nic=%s %s", argc > 1 ? argv[1] : "tcp",
		 argc > 2 ? argv[2] : "");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
