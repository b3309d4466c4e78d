/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC against strangers, who cannot prove that they belong to the job: each is counted and closed, none writes memory, and a lane to an honest peer goes on through
 * all of it.
 */
#include "fabric/nic/tcp/door_priv.h"
#include "tests/unit/nic/tcp/hostile_kit.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

static void garbage_is_refused(void **state)
{
	static const char *const texts[] = {
		"GET / HTTP/1.0\r\nHost: example.org\r\nAccept: */*\r\n\r\n",
		"EPFT garbage that is as long as the first message is",
		"EPTR a train in place of the handshake, long enough",
		"\x16\x03\x01\x02\x01\x01\x01\x01\xfc\x03\x03 and more of what a TLS client says....",
	};
	struct stage *s = open_stage(64, LONG_NS);

	for (unsigned i = 0; i < 4; i++) {
		int fd = kit_connect(s->nic);

		kit_send(fd, texts[i], strlen(texts[i]));
		expect_end(fd);
		wait_for_strangers(s->nic, i + 1);
		honest_goes_on(s, 0);
	}
	close_stage(s);
}

static void a_wrong_key_is_refused(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_claim claim = { .to_token = 1ull << 32 };
	struct epf_tcp_place place;
	int fd;

	kit_place(s->nic, &place);
	memcpy(claim.to, place.id, EPF_TCP_ID);
	s->key.auth.master[3] ^= 1;
	fd = kit_connect(s->nic);
	assert_int_equal(kit_greet(fd, &s->key, &claim), 0);
	close(fd);
	wait_for_strangers(s->nic, 1);
	honest_goes_on(s, 0);
	close_stage(s);
}

/* One says nothing, one says half of what it should, one hangs up. */
static void the_silent_and_the_slow_run_out_of_time(void **state)
{
	struct stage *s = open_stage(64, 50 * 1000000ull);
	int silent = kit_connect(s->nic), slow = kit_connect(s->nic), gone = kit_connect(s->nic);

	kit_send(slow, "EPFT\2", 5);
	close(gone);
	expect_end(silent);
	expect_end(slow);
	wait_for_strangers(s->nic, 3);
	honest_goes_on(s, 0);
	close_stage(s);
}

/* Many at once: no more than the limit are held, and an honest peer gets in all the same. */
static void a_crowd_does_not_shut_out_a_peer(void **state)
{
	enum { CROWD = 300, LIMIT = 16 };
	struct stage *s = open_stage(LIMIT, LONG_NS);
	int fds[CROWD];

	for (int i = 0; i < CROWD; i++)
		fds[i] = kit_connect(s->nic);
	wait_for_strangers(s->nic, CROWD - LIMIT);
	pair(s, 1);
	honest_goes_on(s, 1);
	honest_goes_on(s, 0);
	/* The oldest were closed first. */
	expect_end(fds[0]);
	for (int i = 1; i < CROWD; i++)
		close(fds[i]);
	close_stage(s);
}

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 3; /* ., .. and the folder's own */
}

/*
 * Ten thousand connections, as many at once as the limit of descriptors allows: the NIC holds no more of them than it may, its memory is that of so many, and all are counted.
 */
static void ten_thousand_are_held_to_the_limit(void **state)
{
	enum { CROWD = 10000, LIMIT = 100 };
	struct stage *s = open_stage(LIMIT, LONG_NS);
	unsigned before = descriptors(), wave, done = 0;
	struct rlimit limit;
	size_t bytes;
	int *fds;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max < CROWD + 1000 ? limit.rlim_max : CROWD + 1000;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	wave = (unsigned)limit.rlim_cur - before - LIMIT - 50;
	wave = wave < CROWD ? wave : CROWD;
	fds = malloc(wave * sizeof(*fds));
	assert_non_null(fds);
	honest_goes_on(s, 0);
	bytes = mallinfo2().uordblks;
	while (done < CROWD) {
		unsigned n = CROWD - done < wave ? CROWD - done : wave;

		for (unsigned i = 0; i < n; i++) {
			fds[i] = kit_connect(s->nic);
			if (i % 1000 == 0)
				honest_goes_on(s, 0);
		}
		/* All have been let in: those that are held, and those that were closed for them. */
		wait_for_strangers(s->nic, done + n - (n < LIMIT ? n : LIMIT));
		assert_true(descriptors() <= before + n + LIMIT);
		assert_true(mallinfo2().uordblks <=
			    bytes + LIMIT * (sizeof(struct epf_tcp_caller) + 64) + 4096);
		for (unsigned i = 0; i < n; i++)
			close(fds[i]);
		done += n;
		wait_for_strangers(s->nic, done);
	}
	assert_int_equal(strangers_of(s->nic), CROWD);
	honest_goes_on(s, 0);
	assert_int_equal(descriptors(), before);
	/* malloc() keeps a few freed blocks of a size for each thread, and counts them as used. */
	assert_true(mallinfo2().uordblks <=
		    bytes + 8 * (sizeof(struct epf_tcp_caller) + 64) + 4096);
	printf("# %u connections, %u at once\n", (unsigned)CROWD, wave);
	free(fds);
	close_stage(s);
}

/* Ports are scanned: connections that end at once, with FIN and with RST, and one that is shut down for writing and stays. */
static void a_scan_is_counted(void **state)
{
	struct stage *s = open_stage(64, 50 * 1000000ull);
	struct linger abort = { .l_onoff = 1 };
	int half;

	for (int i = 0; i < 200; i++) {
		int fd = kit_connect(s->nic);

		if (i % 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
		close(fd);
	}
	half = kit_connect(s->nic);
	shutdown(half, SHUT_WR);
	expect_end(half);
	wait_for_strangers(s->nic, 201);
	honest_goes_on(s, 0);
	close_stage(s);
}

/* Random bytes, of every length up to twice the first message. */
static void random_bytes_are_counted(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	uint32_t seed = 5;

	for (unsigned len = 1; len <= 2 * EPF_TCP_HELLO_BYTES; len++) {
		uint8_t bytes[2 * EPF_TCP_HELLO_BYTES];
		int fd = kit_connect(s->nic);

		for (unsigned i = 0; i < len; i++)
			bytes[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
		kit_send(fd, bytes, len);
		shutdown(fd, SHUT_WR);
		expect_end(fd);
		wait_for_strangers(s->nic, len);
	}
	honest_goes_on(s, 0);
	close_stage(s);
}

/* A byte now and then, all of them right: the time is that of the whole handshake. */
static void a_slow_client_runs_out_of_time(void **state)
{
	struct stage *s = open_stage(64, 100 * 1000000ull);
	uint8_t hello[EPF_TCP_HELLO_BYTES], answer;
	struct epf_tcp_hello h = { .version = EPF_TCP_VERSION };
	int fd = kit_connect(s->nic);
	unsigned sent = 0;

	epf_tcp_hello_encode(&h, hello);
	/* As long as it takes: the last byte is never sent. */
	while (recv(fd, &answer, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
		if (sent < sizeof(hello) - 1 && send(fd, hello + sent, 1, MSG_NOSIGNAL) < 0)
			break;
		sent++;
		usleep(5000);
	}
	close(fd);
	wait_for_strangers(s->nic, 1);
	honest_goes_on(s, 0);
	close_stage(s);
}

/* All that an honest peer has said, byte for byte, on another connection. */
static void a_recording_opens_nothing(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_claim claim = { .to_token = 1ull << 32, .from_token = 1ull << 32 };
	uint8_t said[EPF_TCP_HELLO_BYTES + EPF_TCP_PROOF_BYTES];
	struct epf_tcp_place place;
	struct epf_tcp_greet g;
	size_t n = 0;
	int fd = kit_connect(s->nic);

	kit_place(s->nic, &place);
	memcpy(claim.to, place.id, EPF_TCP_ID);
	memcpy(claim.from, s->key.id, EPF_TCP_ID);
	epf_tcp_greet_dial(&g, &s->key.auth, s->key.id, &claim, EPF_TCP_MODE_PLAIN);
	while (g.state != EPF_TCP_GREET_DONE) {
		kit_send(fd, g.out, g.out_len);
		memcpy(said + n, g.out, g.out_len);
		n += g.out_len;
		assert_int_equal(kit_receive(fd, g.in, g.want), 1);
		g.out_len = 0;
		assert_int_equal(epf_tcp_greet_step(&g), 0);
	}
	assert_int_equal(n, sizeof(said));
	close(fd);
	assert_int_equal(strangers_of(s->nic), 0);
	fd = kit_connect(s->nic);
	kit_send(fd, said, n);
	expect_end(fd);
	wait_for_strangers(s->nic, 1);
	honest_goes_on(s, 0);
	close_stage(s);
}

/* Proven, but for a lane that is not there, or was there before. */
static void a_stale_token_finds_no_lane(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_claim claim = { .from_token = 1ull << 32 };
	struct epf_tcp_place place;
	struct epf_wc wc[4];
	uint8_t byte;
	int fd;

	kit_place(s->nic, &place);
	memcpy(claim.to, place.id, EPF_TCP_ID);
	memcpy(claim.from, s->key.id, EPF_TCP_ID);
	for (uint64_t lane = 0; lane < 3; lane++) {
		claim.to_token = 12345ull << 32 | lane;
		fd = kit_connect(s->nic);
		assert_int_equal(kit_greet(fd, &s->key, &claim), 1);
		/* Accepted as one of the job; the core finds no lane for it. */
		while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
			assert_int_equal(s->nic->ops->reap(s->nic, wc, 4), 0);
			usleep(100);
		}
		expect_end(fd);
	}
	honest_goes_on(s, 0);
	close_stage(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(garbage_is_refused),
		cmocka_unit_test(a_wrong_key_is_refused),
		cmocka_unit_test(the_silent_and_the_slow_run_out_of_time),
		cmocka_unit_test(a_crowd_does_not_shut_out_a_peer),
		cmocka_unit_test(ten_thousand_are_held_to_the_limit),
		cmocka_unit_test(a_scan_is_counted),
		cmocka_unit_test(random_bytes_are_counted),
		cmocka_unit_test(a_slow_client_runs_out_of_time),
		cmocka_unit_test(a_recording_opens_nothing),
		cmocka_unit_test(a_stale_token_finds_no_lane),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
