/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's net interface without NCCL: collective-like patterns between rank processes through the plug-in's tables (nccl_play.h), on a NIC in order and on one
 * that reorders, duplicates, loses and fails; ranks that die; handles that are none. argv[1]: the plug-in.
 */
#include "tests/proc/nccl_play.h"

#include "bootstrap/net.h"
#include "tools/nccl/abi.h"
#include "tools/nccl/greet.h"
#include "tools/nccl/handle.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const char *plugin;
static uint64_t seed = 1;

static void run(struct play p)
{
	int status[PLAY_RANKS] = { 0 };

	p.plugin = plugin;
	p.version = p.version ? p.version : 12;
	p.comms = p.comms ? p.comms : 1;
	p.parts = p.parts ? p.parts : 1;
	p.seed = seed;
	p.killed = -1;
	print_message("# EPF_SEED=%llu\n", (unsigned long long)seed);
	assert_int_equal(play_run(&p, status, NULL), 0);
	for (unsigned r = 0; r < p.ranks; r++)
		assert_int_equal(status[r], 0);
}

static void ring_in_every_version(void **state)
{
	(void)state;
	for (unsigned v = 10; v <= 12; v++)
		run((struct play){ .version = v,
				   .ranks = 2,
				   .channels = 4,
				   .messages = 60,
				   .most_bytes = 70000 });
}

static void everybody_to_everybody(void **state)
{
	(void)state;
	run((struct play){
		.ranks = 8, .all = true, .channels = 1, .messages = 20, .most_bytes = 5000 });
}

static void grouped_receives(void **state)
{
	(void)state;
	run((struct play){ .ranks = 3,
			   .all = true,
			   .channels = 2,
			   .parts = 8,
			   .messages = 40,
			   .most_bytes = 9000 });
}

static void two_communicators_share_a_link(void **state)
{
	(void)state;
	run((struct play){ .ranks = 2,
			   .all = true,
			   .comms = 2,
			   .channels = 2,
			   .messages = 60,
			   .most_bytes = 20000 });
}

static void a_rank_with_itself(void **state)
{
	(void)state;
	run((struct play){ .ranks = 1, .channels = 2, .messages = 60, .most_bytes = 20000 });
}

static void again_after_finalize(void **state)
{
	(void)state;
	run((struct play){ .ranks = 3,
			   .all = true,
			   .channels = 1,
			   .messages = 20,
			   .most_bytes = 3000,
			   .again = 2 });
}

static void long_messages(void **state)
{
	(void)state;
	run((struct play){ .ranks = 2, .channels = 1, .messages = 12, .most_bytes = 5 << 20 });
}

static void on_a_nic_that_reorders(void **state)
{
	static const char *const env[] = { "EPF_EMU_ORDER=unordered", "EPF_EMU_REORDER=0.3",
					   "EPF_EMU_DUPLICATE=0.2",   "EPF_EMU_DROP=0.05",
					   "EPF_EMU_DELAY=200us",     NULL };

	(void)state;
	run((struct play){ .ranks = 3,
			   .all = true,
			   .channels = 2,
			   .parts = 3,
			   .messages = 40,
			   .most_bytes = 30000,
			   .env = env });
}

/* The same errors end a job that has no other lane: so there are some. */
static void with_lanes_that_fail(void **state)
{
	static const char *const alone[] = { "EPF_EMU_ORDER=unordered", "EPF_EMU_ERROR=0.01",
					     "EPF_LANES_PER_PEER=1", NULL };
	static const char *const env[] = { "EPF_EMU_ORDER=unordered", "EPF_EMU_ERROR=0.001",
					   "EPF_EMU_REORDER=0.2", "EPF_LANES_PER_PEER=8", NULL };

	struct play p = {
		.ranks = 2, .all = true, .channels = 4, .messages = 100, .most_bytes = 30000
	};
	int status[PLAY_RANKS] = { 0 };

	(void)state;
	p.env = env;
	run(p);
	p.env = alone;
	p.plugin = plugin;
	p.version = 12;
	p.comms = p.parts = 1;
	p.seed = seed;
	p.killed = PLAY_RANKS; /* nobody; errors are expected */
	assert_int_equal(play_run(&p, status, NULL), 0);
	assert_true(status[0] == PLAY_ERROR_SEEN || status[1] == PLAY_ERROR_SEEN);
}

static void over_tcp(void **state)
{
	static const char *const env[] = { "EPF_NIC=tcp", NULL };

	(void)state;
	if (PLAY_KIND == EPF_NCCL_CUDA)
		skip(); /* no GPU memory there */
	run((struct play){ .ranks = 3,
			   .all = true,
			   .channels = 2,
			   .messages = 40,
			   .most_bytes = 100000,
			   .env = env });
}

/* Deadlines of silence are far away: whoever learns of the end is told of it. */
static void a_killed_rank_is_noticed(void **state)
{
	static const char *const env[] = { "EPF_PEER_TIMEOUT=1h", "EPF_EMU_RETRY_TIMEOUT=1h",
					   "EPF_EMU_STALL_TIMEOUT=1h", NULL };
	struct play p = { .plugin = plugin,
			  .version = 12,
			  .ranks = 4,
			  .all = true,
			  .channels = 1,
			  .comms = 1,
			  .parts = 1,
			  .messages = 400,
			  .most_bytes = 8000,
			  .seed = seed,
			  .killed = 2,
			  .env = env };
	int status[PLAY_RANKS] = { 0 };
	unsigned named = 0;

	(void)state;
	assert_int_equal(play_run(&p, status, &named), 0);
	for (int r = 0; r < 4; r++)
		assert_int_equal(status[r], r == 2 ? 256 + SIGKILL : PLAY_ERROR_SEEN);
	/* Not by all: a rank may first see that another one, which saw it, has closed. */
	assert_true(named > 0);
}

/* A process with the plug-in, for what needs no second rank. */
static const struct epf_nccl_net_v12 *table(void)
{
	const struct epf_nccl_net_v12 *net = play_table(plugin, "ncclNetPlugin_v12");

	assert_non_null(net);
	return net;
}

static void no_log(int level, unsigned long subsystems, const char *file, int line,
		   const char *format, ...)
{
	(void)level;
	(void)subsystems;
	(void)file;
	(void)line;
	(void)format;
}

/* Handles with any bit wrong are refused, and the next good one works. */
static void damaged_handles_are_refused(void **state)
{
	const struct epf_nccl_net_v12 *net = table();
	uint8_t good[EPF_NCCL_HANDLE_BYTES], bad[EPF_NCCL_HANDLE_BYTES];
	void *context, *listener, *comm;
	unsigned tried = 0;

	(void)state;
	assert_int_equal(net->init(&context, 1, NULL, no_log, NULL), 0);
	assert_int_equal(net->listen(context, 0, good, &listener), 0);
	for (unsigned i = 0; i < 112; i++) { /* behind them the handle is padding */
		memcpy(bad, good, sizeof(bad));
		bad[i] ^= (uint8_t)(1u << (i + seed) % 8);
		comm = NULL;
		assert_int_equal(net->connect(context, 0, bad, &comm, NULL), EPF_NCCL_ARGUMENT);
		assert_null(comm);
		tried++;
	}
	memset(bad, 0, sizeof(bad));
	assert_int_equal(net->connect(context, 0, bad, &comm, NULL), EPF_NCCL_ARGUMENT);
	assert_int_equal(tried, 112);
	assert_int_equal(net->close_listen(listener), 0);
	assert_int_equal(net->finalize(context), 0);
}

/* Whoever was not given the handle, or talks nonsense, is turned away; ranks connect all the same. */
static void strangers_are_turned_away(void **state)
{
	const struct epf_nccl_net_v12 *net = table();
	struct epf_nccl_handle h;
	uint8_t handle[EPF_NCCL_HANDLE_BYTES], forged[EPF_NCCL_HANDLE_BYTES], noise[200];
	void *context, *listener, *comm = NULL, *other = NULL;
	struct epf_nccl_self self = { .pid = 1 };
	struct epf_nccl_greeting greeting;
	int fd[5], rc = 0;

	(void)state;
	memset(noise, 'x', sizeof(noise));
	assert_int_equal(net->init(&context, 1, NULL, no_log, NULL), 0);
	assert_int_equal(net->listen(context, 0, handle, &listener), 0);
	assert_int_equal(epf_nccl_handle_read(handle, EPF_NCCL_HANDLE_NET, &h), 0);
	for (unsigned i = 0; i < 4; i++) {
		fd[i] = socket(h.address.sa.sa_family, SOCK_STREAM, 0);
		assert_int_equal(connect(fd[i], &h.address.sa, h.address.len), 0);
		if (i < 3) /* the last one says nothing */
			assert_true(send(fd[i], noise, 20 + 60 * i, MSG_NOSIGNAL) > 0);
	}
	h.secret[3] ^= 1; /* a well-formed handle, of somebody who guesses */
	fd[4] = socket(h.address.sa.sa_family, SOCK_STREAM, 0);
	assert_int_equal(connect(fd[4], &h.address.sa, h.address.len), 0);
	/* Closed without an answer: -EACCES would be an answer whose proof is wrong. */
	rc = epf_nccl_greet_dial(fd[4], h.secret, &self, UINT64_MAX, &greeting);
	assert_true(rc == -EPIPE || rc == -ECONNRESET);
	rc = 0;
	epf_nccl_handle_write(&h, forged);
	while (!rc && !comm) {
		rc = net->connect(context, 0, forged, &comm, NULL);
		usleep(200);
	}
	assert_int_equal(rc, EPF_NCCL_REMOTE);
	assert_null(comm);
	rc = 0;
	comm = NULL;
	while (!rc && (!comm || !other)) {
		if (!comm)
			rc = net->connect(context, 0, handle, &comm, NULL);
		if (!rc && !other)
			rc = net->accept(listener, &other, NULL);
		usleep(200);
	}
	assert_int_equal(rc, 0);
	assert_int_equal(net->close_send(comm), 0);
	assert_int_equal(net->close_recv(other), 0);
	assert_int_equal(net->close_listen(listener), 0);
	for (unsigned i = 0; i < 5; i++)
		close(fd[i]);
	assert_int_equal(net->finalize(context), 0);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(ring_in_every_version),
		cmocka_unit_test(everybody_to_everybody),
		cmocka_unit_test(grouped_receives),
		cmocka_unit_test(two_communicators_share_a_link),
		cmocka_unit_test(a_rank_with_itself),
		cmocka_unit_test(again_after_finalize),
		cmocka_unit_test(long_messages),
		cmocka_unit_test(on_a_nic_that_reorders),
		cmocka_unit_test(with_lanes_that_fail),
		cmocka_unit_test(over_tcp),
		cmocka_unit_test(a_killed_rank_is_noticed),
		cmocka_unit_test(damaged_handles_are_refused),
		cmocka_unit_test(strangers_are_turned_away),
	};

	if (argc < 2) {
		printf("usage: test_nccl libnccl-net-epf.so\n");
		return 1;
	}
	plugin = argv[1];
	if (PLAY_KIND == EPF_NCCL_CUDA) {
		setenv("EPF_NIC", "emu", 1);
		setenv("EPF_GPU_BACKEND", "fake", 1);
	}
	if (getenv("EPF_SEED"))
		seed = strtoull(getenv("EPF_SEED"), NULL, 0);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
