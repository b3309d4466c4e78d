/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC against strangers, and against peers that have proven themselves and then break the rules: each is counted and closed, none writes memory that was not exported, and a lane to an
 * honest peer goes on through all of it.
 */
#include "fabric/nic/tcp/door_priv.h"
#include "tests/unit/nic/tcp/tcp_kit.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

enum { BYTES = 1 << 17 };

static uint64_t clock_ns = 1;

struct stage {
	struct epf_nic *nic, *honest; /* lane 0 of each leads to the other */
	uint8_t *mem; /* of nic, exported for writing and reading; a page on both sides is not */
	uint8_t *whole;
	uint8_t *source;
	struct epf_nic_mr mr, source_mr, read_only;
	struct tcp_kit_key key;
	uint32_t sent;
};

static struct epf_nic *open_nic(uint32_t strangers, uint64_t timeout_ns)
{
	struct epf_tcp_opts opts;
	struct epf_nic *nic;

	epf_tcp_opts_defaults(&opts);
	opts.strangers = strangers;
	opts.stranger_timeout_ns = timeout_ns;
	assert_int_equal(epf_tcp_open(&opts, kit_now, &clock_ns, &nic), 0);
	return nic;
}

static void pair(struct stage *s, uint16_t lane)
{
	uint8_t a[EPF_NIC_ADDR_BYTES], b[EPF_NIC_ADDR_BYTES];
	int na = s->nic->ops->address(s->nic, a, sizeof(a));
	int nb = s->honest->ops->address(s->honest, b, sizeof(b));
	uint64_t ta, tb;

	assert_int_equal(s->nic->ops->lane_create(s->nic, lane, 16, &ta), 0);
	assert_int_equal(s->honest->ops->lane_create(s->honest, lane, 16, &tb), 0);
	assert_int_equal(s->nic->ops->lane_connect(s->nic, lane, b, (size_t)nb, tb), 0);
	assert_int_equal(s->honest->ops->lane_connect(s->honest, lane, a, (size_t)na, ta), 0);
}

static struct stage *open_stage(uint32_t strangers, uint64_t timeout_ns)
{
	struct stage *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	kit_key(&s->key);
	s->nic = open_nic(strangers, timeout_ns);
	s->honest = open_nic(strangers, timeout_ns);
	s->whole = malloc(BYTES + 8192);
	s->source = malloc(BYTES);
	assert_true(s->whole && s->source);
	memset(s->whole, 0xcc, BYTES + 8192);
	s->mem = s->whole + 4096;
	assert_int_equal(s->nic->ops->region_register(s->nic, s->mem, BYTES,
						      EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						      &s->mr),
			 0);
	assert_int_equal(s->nic->ops->region_register(s->nic, s->whole, 4096, EPF_MR_REMOTE_READ,
						      &s->read_only),
			 0);
	assert_int_equal(
		s->honest->ops->region_register(s->honest, s->source, BYTES, 0, &s->source_mr), 0);
	s->nic->ops->post_receives(s->nic, 1000);
	pair(s, 0);
	return s;
}

/* The honest peer writes, and what it writes is there. */
static void honest_goes_on(struct stage *s, uint16_t lane)
{
	struct epf_wr wr = { .laddr = (uint64_t)(uintptr_t)s->source,
			     .raddr = s->mr.raddr + 64,
			     .lkey = s->source_mr.lkey,
			     .rkey = s->mr.rkey,
			     .len = 5000,
			     .id = ++s->sent,
			     .op = EPF_WR_WRITE };
	struct epf_wc wc[8];
	int done = 0;

	memset(s->source, (int)s->sent, 5000);
	assert_int_equal(s->honest->ops->post(s->honest, lane, &wr, 1), 1);
	while (!done) {
		int n;

		assert_int_equal(s->nic->ops->reap(s->nic, wc, 8), 0);
		n = s->honest->ops->reap(s->honest, wc, 8);
		for (int i = 0; i < n; i++) {
			assert_int_equal(wc[i].op, EPF_WC_SENT);
			assert_int_equal(wc[i].status, EPF_S_OK);
			done = wc[i].id == s->sent;
		}
		if (!n)
			usleep(100);
	}
	assert_memory_equal(s->mem + 64, s->source, 5000);
}

static void close_stage(struct stage *s)
{
	for (int i = 0; i < 4096; i++) {
		assert_int_equal(s->whole[i], 0xcc);
		assert_int_equal(s->mem[BYTES + i], 0xcc);
	}
	s->nic->ops->close(s->nic);
	s->honest->ops->close(s->honest);
	free(s->whole);
	free(s->source);
	free(s);
}

static uint64_t strangers_of(struct epf_nic *nic)
{
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.strangers;
}

static uint64_t errors_of(struct epf_nic *nic)
{
	struct epf_nic_counters c;

	nic->ops->counters(nic, &c);
	return c.errors;
}

static void wait_for_strangers(struct epf_nic *nic, uint64_t least)
{
	while (strangers_of(nic) < least)
		usleep(1000);
}

/* The other end closes. */
static void expect_end(int fd)
{
	uint8_t byte[256];
	ssize_t n;

	while ((n = recv(fd, byte, sizeof(byte), 0)) > 0)
		;
	assert_true(n == 0 || errno == ECONNRESET);
	close(fd);
}

#define LONG_NS 3600000000000ull

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

	kit_send(slow, "EPFT\1", 5);
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
	assert_true(mallinfo2().uordblks <= bytes + 4096);
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

/* ---- peers that have proven themselves ---- */

/* Sends a train of one descriptor, of whose payload only `given` bytes. */
static void send_train(int fd, const struct epf_tcp_desc *d, uint32_t ack, uint32_t given)
{
	struct epf_tcp_head h = { .count = 1, .ack = ack, .bytes = epf_tcp_payload(d) };
	uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];
	uint8_t *payload = malloc(given ? given : 1);

	assert_non_null(payload);
	memset(payload, 0xaa, given);
	epf_tcp_head_encode(&h, buf);
	epf_tcp_desc_encode(d, buf + EPF_TCP_HEAD_BYTES);
	kit_send(fd, buf, sizeof(buf));
	if (given)
		kit_send(fd, payload, given);
	free(payload);
}

/* The lane is down, said once, and nothing else happened. */
static void expect_down(struct stage *s, uint16_t lane)
{
	struct epf_wc wc[4];

	assert_int_equal(kit_reap(s->nic, wc, 4), 1);
	assert_int_equal(wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(wc[0].lane, lane);
	s->nic->ops->lane_destroy(s->nic, lane);
	honest_goes_on(s, 0);
}

static void broken_trains_cost_their_lane(void **state)
{
	static const struct epf_tcp_desc wrong[] = {
		{ .kind = 0 },
		{ .kind = 9, .len = 4 },
		{ .kind = EPF_TCP_SEND, .len = 129 },
		{ .kind = EPF_TCP_WRITE, .len = (1 << 20) + 1 },
		{ .kind = EPF_TCP_WRITE, .len = 4, .status = 3 },
		{ .kind = EPF_TCP_BYTES, .len = 4 },                             /* nobody asked */
		{ .kind = EPF_TCP_NAK, .status = EPF_S_REMOTE_ACCESS },          /* of nothing */
		{ .kind = EPF_TCP_NAK, .status = EPF_S_REMOTE_ACCESS, .imm = 9 } /* of the future */
	};
	struct stage *s = open_stage(64, LONG_NS);
	uint64_t errors = errors_of(s->nic), token;
	int fd;

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		fd = kit_lane(s->nic, &s->key, 1, &token);
		send_train(fd, &wrong[i], 0, 0);
		expect_down(s, 1);
		expect_end(fd);
		assert_true(errors_of(s->nic) > errors);
		errors = errors_of(s->nic);
	}
	/* Bytes that are none, and an acknowledgement of what was not sent. */
	fd = kit_lane(s->nic, &s->key, 1, &token);
	kit_send(fd, "sixteen bytes...and some more", 29);
	expect_down(s, 1);
	expect_end(fd);
	fd = kit_lane(s->nic, &s->key, 1, &token);
	send_train(fd, &(struct epf_tcp_desc){ .kind = EPF_TCP_WRITE }, 1, 0);
	expect_down(s, 1);
	expect_end(fd);
	/* More reads at once than are allowed: nobody reads the answers. */
	fd = kit_lane(s->nic, &s->key, 1, &token);
	for (int i = 0; i <= 100; i++) {
		struct epf_tcp_desc d = {
			.kind = EPF_TCP_READ, .raddr = s->mr.raddr, .rkey = s->mr.rkey, .len = BYTES
		};
		struct epf_tcp_head h = { .count = 1 };
		uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];

		epf_tcp_head_encode(&h, buf);
		epf_tcp_desc_encode(&d, buf + EPF_TCP_HEAD_BYTES);
		if (send(fd, buf, sizeof(buf), MSG_NOSIGNAL) < 0)
			break;
	}
	expect_down(s, 1);
	close(fd);
	close_stage(s);
}

/* The refusal that a request of one descriptor gets. */
static void expect_nak(struct stage *s, int fd, unsigned status)
{
	uint8_t buf[EPF_TCP_HEAD_BYTES + EPF_TCP_DESC_BYTES];
	struct epf_tcp_desc d[EPF_TCP_TRAIN];
	struct epf_tcp_head h;
	struct epf_wc wc[4];

	while (recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT) < (ssize_t)sizeof(buf)) {
		assert_int_equal(s->nic->ops->reap(s->nic, wc, 4), 0);
		usleep(100);
	}
	assert_int_equal(kit_receive(fd, buf, sizeof(buf)), 1);
	assert_int_equal(epf_tcp_head_decode(buf, &h), 0);
	assert_int_equal(h.count, 1);
	assert_int_equal(epf_tcp_descs_decode(&h, buf + EPF_TCP_HEAD_BYTES, d), 0);
	assert_int_equal(d[0].kind, EPF_TCP_NAK);
	assert_int_equal(d[0].status, status);
	assert_int_equal(d[0].imm, 0);
	close(fd);
	expect_down(s, 1);
}

static void memory_that_is_not_exported_stays_as_it_is(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	uint64_t base = s->mr.raddr, token;
	const struct epf_tcp_desc wrong[] = {
		{ .kind = EPF_TCP_WRITE, .raddr = base, .rkey = s->mr.rkey ^ 0x10000, .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = base, .rkey = 0, .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = base - 1, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_WRITE,
		  .raddr = base + BYTES - 63,
		  .rkey = s->mr.rkey,
		  .len = 64 },
		{ .kind = EPF_TCP_WRITE, .raddr = UINT64_MAX - 10, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_WRITE,
		  .raddr = s->read_only.raddr,
		  .rkey = s->read_only.rkey,
		  .len = 64 },
		{ .kind = EPF_TCP_WRITE_IMM, .raddr = base + BYTES, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_READ, .raddr = base + BYTES - 63, .rkey = s->mr.rkey, .len = 64 },
		{ .kind = EPF_TCP_READ, .raddr = 4096, .rkey = 0xffff, .len = 64 },
	};

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int fd = kit_lane(s->nic, &s->key, 1, &token);

		send_train(fd, &wrong[i], 0, epf_tcp_payload(&wrong[i]));
		expect_nak(s, fd, EPF_S_REMOTE_ACCESS);
	}
	close_stage(s);
}

/* The region goes while its bytes come in: what comes afterwards is not written. */
static void a_region_that_goes_is_not_written(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_desc d = { .kind = EPF_TCP_WRITE, .len = 60000 };
	uint8_t *gone = malloc(65536);
	struct epf_nic_mr mr;
	struct epf_wc wc[4];
	uint64_t token;
	int fd;

	assert_non_null(gone);
	memset(gone, 0, 65536);
	assert_int_equal(
		s->nic->ops->region_register(s->nic, gone, 65536, EPF_MR_REMOTE_WRITE, &mr), 0);
	d.raddr = mr.raddr;
	d.rkey = mr.rkey;
	fd = kit_lane(s->nic, &s->key, 1, &token);
	send_train(fd, &d, 0, 30000);
	while (gone[29999] != 0xaa) {
		assert_int_equal(s->nic->ops->reap(s->nic, wc, 4), 0);
		usleep(100);
	}
	s->nic->ops->region_deregister(s->nic, &mr);
	memset(gone, 0, 65536);
	for (int i = 0; i < 3000; i++)
		kit_send(fd, "0123456789", 10);
	expect_nak(s, fd, EPF_S_REMOTE_ACCESS);
	for (int i = 0; i < 65536; i++)
		assert_int_equal(gone[i], 0);
	free(gone);
	close_stage(s);
}

/* A peer that stops in the middle of a train, and one that goes away there. */
static void half_a_train_waits_or_ends(void **state)
{
	struct stage *s = open_stage(64, LONG_NS);
	struct epf_tcp_desc d = { .kind = EPF_TCP_WRITE_IMM, .len = 1000 };
	uint64_t token;
	int fd;

	d.raddr = s->mr.raddr + 8192;
	d.rkey = s->mr.rkey;
	for (uint32_t given = 0; given < 1000; given += 333) {
		fd = kit_lane(s->nic, &s->key, 1, &token);
		send_train(fd, &d, 0, given);
		honest_goes_on(s, 0);
		close(fd);
		expect_down(s, 1);
	}
	fd = kit_lane(s->nic, &s->key, 1, &token);
	kit_send(fd, "EPTR", 4);
	honest_goes_on(s, 0);
	close(fd);
	expect_down(s, 1);
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
		cmocka_unit_test(broken_trains_cost_their_lane),
		cmocka_unit_test(memory_that_is_not_exported_stays_as_it_is),
		cmocka_unit_test(a_region_that_goes_is_not_written),
		cmocka_unit_test(half_a_train_waits_or_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
