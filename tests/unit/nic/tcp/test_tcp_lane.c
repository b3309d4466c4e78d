/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the TCP NIC where the conformance suite cannot look: connections that break in the middle, fences, links that are switched off, lanes between lanes of one NIC, peers that
 * cannot be reached, and waking a sleeper.
 */
#include "tests/unit/nic/tcp/duo_kit.h"

#include "fabric/base/err.h"

#include <netinet/tcp.h>

#define LONG_NS 3600000000000ull

static struct epf_wr write_wr(const struct duo *d, uint32_t id, uint64_t at, uint32_t len)
{
	return (struct epf_wr){ .laddr = (uint64_t)(uintptr_t)d->mem_a + at,
				.raddr = d->mr_b.raddr + at,
				.lkey = d->mr_a.lkey,
				.rkey = d->mr_b.rkey,
				.len = len,
				.id = id,
				.op = EPF_WR_WRITE };
}

/* Both reap until a has reported the request of that number, well. */
static void run_until_sent(struct duo *d, uint32_t id)
{
	for (;;) {
		int n = d->a->ops->reap(d->a, d->wc, 64);

		for (int i = 0; i < n; i++) {
			assert_int_equal(d->wc[i].op, EPF_WC_SENT);
			assert_int_equal(d->wc[i].status, EPF_S_OK);
			if (d->wc[i].id == id)
				return;
		}
		assert_true(d->b->ops->reap(d->b, d->wc, 64) >= 0);
		usleep(50);
	}
}

/* a reports: some well, one failed, the rest flushed, then that the lane is down. Returns how many were well. */
static uint32_t expect_loss(struct duo *d, uint32_t posted)
{
	uint32_t next = 0, well = 0;
	int failed = 0, down = 0;

	while (!down) {
		int n = kit_reap(d->a, d->wc, 16);

		for (int i = 0; i < n; i++) {
			const struct epf_wc *wc = &d->wc[i];

			assert_int_equal(wc->lane, 0);
			if (wc->op == EPF_WC_LANE_DOWN) {
				down = 1;
				continue;
			}
			assert_int_equal(wc->op, EPF_WC_SENT);
			assert_false(down);
			if (wc->status == EPF_S_OK) {
				assert_false(failed);
				next = well = wc->id + 1;
				continue;
			}
			assert_int_equal(wc->id, next++);
			assert_int_equal(wc->status,
					 failed++ ? EPF_S_FLUSHED : EPF_S_RETRY_EXCEEDED);
		}
	}
	assert_int_equal(next, posted);
	assert_int_equal(d->a->ops->lane_link(d->a, 0), EPF_LANE_ERROR);
	assert_int_equal(d->a->ops->lane_drained(d->a, 0), 1);
	return well;
}

static void break_connection(struct epf_nic *nic, int by_reset)
{
	struct linger abort = { .l_onoff = 1 };
	struct epf_tcp_lane *l = epf_tcp_lane_at(epf_tcp_of(nic), 0);

	while (l->fd < 0) { /* the door gives it a moment later */
		epf_tcp_take_given(epf_tcp_of(nic));
		usleep(100);
	}
	if (by_reset)
		setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
	/* As if the process had ended: the NIC does not know. */
	assert_true(shutdown(l->fd, SHUT_RDWR) == 0);
}

/* A write arrives and a read is answered: the peer reports nothing, but counts what it receives and sends, as the other end does. */
static void what_is_moved_is_counted(void **state)
{
	struct duo *d = duo_open();
	struct epf_wr wr = write_wr(d, 1, 0, 4096);
	uint32_t a = 0, b = 0, before_a = 0, before_b = 0;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
		run_until_sent(d, wr.id);
		/* b has sent an acknowledgement that may still come; then nothing moves. */
		for (unsigned still = 0; still < 1000; still++) {
			if (a != d->a->served || b != d->b->served)
				still = 0;
			a = d->a->served;
			b = d->b->served;
			assert_int_equal(d->a->ops->reap(d->a, d->wc, 64), 0);
			assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
		}
		assert_true(a - before_a >= 2 && b - before_b >= 2);
		before_a = a;
		before_b = b;
		wr.op = EPF_WR_READ;
		wr.id = 2;
	}
	duo_close(d);
}

static void a_broken_connection_is_a_failed_lane(void **state)
{
	for (int round = 0; round < 6; round++) {
		struct duo *d = duo_open();
		uint32_t posted = 0;

		for (uint32_t i = 0; i < 40; i++) {
			struct epf_wr wr = write_wr(d, i, i * 4096, round < 3 ? 4096 : 64);

			memset(d->mem_a + (uint64_t)i * 4096, (int)i + 1, 4096);
			posted += (uint32_t)d->a->ops->post(d->a, 0, &wr, 1);
			if (i == 10 * (uint32_t)(round % 3))
				d->b->ops->reap(d->b, d->wc, 64);
		}
		assert_int_equal(posted, 40);
		break_connection(round & 1 ? d->a : d->b, round % 3 == 2);
		for (uint32_t i = expect_loss(d, posted); i-- > 0;)
			assert_memory_equal(d->mem_a + (uint64_t)i * 4096,
					    d->mem_b + (uint64_t)i * 4096, 64);
		/* The other end has nothing under way: it hears that the lane is down. */
		while (d->b->ops->lane_link(d->b, 0) == EPF_LANE_READY)
			(void)kit_reap(d->b, d->wc, 64);
		d->a->ops->lane_destroy(d->a, 0);
		d->b->ops->lane_destroy(d->b, 0);
		duo_join(d->a, 0, d->b, 0);
		d->a->ops->post(d->a, 0, &(struct epf_wr){ .op = EPF_WR_WRITE, .id = 7 }, 1);
		run_until_sent(d, 7);
		duo_close(d);
	}
}

static void nothing_lands_after_a_fence(void **state)
{
	struct duo *d = duo_open();
	struct epf_wr wr = write_wr(d, 0, 0, 1 << 20);

	memset(d->mem_a, 0x5a, 1 << 20);
	wr.op = EPF_WR_WRITE_IMM;
	assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
	/* Some of it is there, and the rest in the socket. */
	while (!d->mem_b[0]) {
		assert_int_equal(d->a->ops->reap(d->a, d->wc, 64), 0);
		assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
	}
	d->b->ops->lane_fence(d->b, 0);
	assert_int_equal(d->b->ops->lane_drained(d->b, 0), 1);
	memset(d->mem_b, 0, 1 << 20);
	(void)expect_loss(d, 1);
	assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
	for (int i = 0; i < 1 << 20; i++)
		assert_int_equal(d->mem_b[i], 0);
	duo_close(d);
}

/* A lane that is fenced gives its requests back, and says nothing of its peer. */
static void a_fence_flushes(void **state)
{
	struct duo *d = duo_open();
	int n = 0;

	for (uint32_t i = 0; i < 5; i++) {
		struct epf_wr wr = write_wr(d, i, 0, 64);

		wr.op = i == 3 ? EPF_WR_READ : EPF_WR_WRITE;
		assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
	}
	d->a->ops->lane_fence(d->a, 0);
	d->a->ops->lane_fence(d->a, 0);
	assert_int_equal(d->a->ops->lane_drained(d->a, 0), 0);
	assert_int_equal(d->a->ops->post(d->a, 0, &(struct epf_wr){ .op = EPF_WR_WRITE }, 1),
			 -ENOTCONN);
	while (!d->a->ops->lane_drained(d->a, 0)) {
		int got = d->a->ops->reap(d->a, d->wc, 2);

		for (int i = 0; i < got; i++) {
			assert_int_equal(d->wc[i].op, EPF_WC_SENT);
			assert_int_equal(d->wc[i].status, EPF_S_FLUSHED);
			assert_int_equal(d->wc[i].id, n++);
		}
	}
	assert_int_equal(n, 5);
	duo_close(d);
}

/* Far more reads than a lane has under way, between writes: all in order, all bytes there. */
static void many_reads(void **state)
{
	struct duo *d = duo_open();
	struct epf_wr wr;

	for (uint32_t i = 0; i < DUO_BYTES; i++)
		d->mem_b[i] = (uint8_t)(i * 7 >> 3);
	for (uint32_t i = 0; i < 200; i++) {
		wr = write_wr(d, i, i * 9000, i % 7 ? 9000 : 1);
		wr.op = EPF_WR_READ;
		while (d->a->ops->post(d->a, 0, &wr, 1) == 0)
			usleep(50);
	}
	run_until_sent(d, 199);
	for (uint32_t i = 0; i < 200; i++)
		assert_memory_equal(d->mem_a + (uint64_t)i * 9000, d->mem_b + (uint64_t)i * 9000,
				    i % 7 ? 9000 : 1);
	duo_close(d);
}

static void a_link_that_is_off_waits(void **state)
{
	struct duo *d = duo_open();
	struct epf_nic_counters c;
	struct epf_wr wr = write_wr(d, 3, 0, 3000);

	memset(d->mem_a, 9, 3000);
	for (int end = 0; end < 2; end++) {
		struct epf_nic *nic = end ? d->b : d->a;

		memset(d->mem_b, 0, 3000);
		assert_int_equal(nic->ops->set_link(nic, 0, 0), 0);
		assert_int_equal(nic->ops->link_ready(nic, 0), 0);
		nic->ops->counters(nic, &c);
		assert_int_equal(c.link_up, 0);
		assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
		for (int i = 0; i < 50; i++) {
			assert_int_equal(d->a->ops->reap(d->a, d->wc, 64), 0);
			assert_int_equal(d->b->ops->reap(d->b, d->wc, 64), 0);
		}
		assert_int_equal(d->mem_b[5], 0);
		assert_int_equal(nic->ops->set_link(nic, 0, 1), 0);
		run_until_sent(d, 3);
		assert_memory_equal(d->mem_a, d->mem_b, 3000);
	}
	/* Longer than tcp-timeout: the lanes fail. */
	d->a->ops->set_link(d->a, 0, 0);
	wr.id = 0;
	assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
	d->clock_ns += 5000000000u;
	d->a->ops->watch(d->a);
	(void)expect_loss(d, 1);
	duo_close(d);
}

static unsigned path_of(struct epf_nic *nic, uint16_t lane)
{
	struct epf_nic_path path;

	nic->ops->watch(nic);
	assert_int_equal(nic->ops->lane_path(nic, lane, &path), 1);
	return path.state;
}

/* The other end does not read, whatever is sent; then it does. */
static void a_full_receive_buffer_is_seen(void **state)
{
	struct duo *d = duo_open();
	struct epf_nic_path path;
	struct epf_wr wr;
	uint32_t id = 0;

	wr = write_wr(d, id++, 0, 8);
	assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
	run_until_sent(d, 0);
	assert_int_equal(path_of(d->a, 0), EPF_STATS_PATH_FINE);
	while (path_of(d->a, 0) != EPF_STATS_PATH_FULL) {
		wr = write_wr(d, id, 0, 1 << 20);
		id += (uint32_t)d->a->ops->post(d->a, 0, &wr, 1);
		assert_int_equal(d->a->ops->reap(d->a, d->wc, 64), 0);
		usleep(100);
	}
	assert_int_equal(d->a->ops->lane_path(d->a, 0, &path), 1);
	assert_true(path.unsent_bytes > 0 && path.cwnd_bytes > 0);
	run_until_sent(d, id - 1);
	assert_true(path_of(d->a, 0) != EPF_STATS_PATH_FULL);
	duo_close(d);
}

/* Nobody connects to a lane that is posted to. */
static void a_peer_that_never_comes(void **state)
{
	struct duo *d = duo_open();
	struct epf_tcp_place place;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	uint64_t token;
	int n;

	kit_place(d->a, &place);
	memset(place.id, 0, sizeof(place.id)); /* the lowest id: it is the peer that dials */
	n = epf_tcp_addr_encode(&place, addr, sizeof(addr));
	assert_int_equal(d->a->ops->lane_create(d->a, 5, 8, &token), 0);
	assert_int_equal(d->a->ops->lane_connect(d->a, 5, addr, (size_t)n, 1ull << 32), 0);
	assert_int_equal(d->a->ops->post(d->a, 5, &(struct epf_wr){ .op = EPF_WR_WRITE }, 1), 1);
	d->a->ops->watch(d->a);
	assert_int_equal(d->a->ops->reap(d->a, d->wc, 8), 0);
	assert_int_equal(path_of(d->a, 5), EPF_STATS_PATH_UNCONNECTED);
	d->clock_ns += 5000000000u;
	d->a->ops->watch(d->a);
	assert_int_equal(kit_reap(d->a, d->wc, 8), 2);
	assert_int_equal(d->wc[0].status, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(d->wc[1].op, EPF_WC_LANE_DOWN);
	duo_close(d);
}

/* The address of a NIC that a dials, at a port of which nobody takes connections. Returns its length; *fd holds the port. */
static int nobody(struct epf_nic *a, bool listens, uint8_t addr[EPF_NIC_ADDR_BYTES], int *fd)
{
	struct epf_net_addr at = epf_net_any(AF_INET, 0);
	struct epf_tcp_place place;

	*fd = socket(AF_INET, SOCK_STREAM, 0);
	at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(*fd, &at.sa, at.len), 0);
	if (listens)
		assert_int_equal(listen(*fd, 4), 0);
	assert_int_equal(getsockname(*fd, &at.sa, &at.len), 0);
	kit_place(a, &place);
	memset(place.id, 0xff, sizeof(place.id)); /* the highest id: this end dials */
	place.addrs[0] = at;
	return epf_tcp_addr_encode(&place, addr, EPF_NIC_ADDR_BYTES);
}

/* The peer's kernel accepts the connection, and nobody reads it. */
static void a_stopped_peer_is_no_firewall(void **state)
{
	struct duo *d = duo_open();
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int fd, n = nobody(d->a, true, addr, &fd);
	uint64_t token;

	assert_int_equal(d->a->ops->lane_create(d->a, 5, 8, &token), 0);
	assert_int_equal(d->a->ops->lane_connect(d->a, 5, addr, (size_t)n, 1ull << 32),
			 -EHOSTUNREACH);
	assert_non_null(strstr(epf_last_error(), "connected, but no answer"));
	close(fd);
	duo_close(d);
}

/* The peer's process has ended: the error says where nobody answers, and the lane can be tried again. */
static void a_refused_connection_says_so(void **state)
{
	struct duo *d = duo_open();
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int rc, fd, n = nobody(d->a, false, addr, &fd);
	uint64_t token;

	assert_int_equal(d->a->ops->lane_create(d->a, 5, 8, &token), 0);
	assert_int_equal(d->a->ops->lane_connect(d->a, 5, addr, (size_t)n, 1ull << 32),
			 -EHOSTUNREACH);
	assert_non_null(strstr(epf_last_error(), "127.0.0.1"));
	assert_non_null(strstr(epf_last_error(), "refused"));
	d->a->ops->lane_destroy(d->a, 5);
	/* Between two steps nobody waits: it is begun, and asked for. */
	assert_int_equal(d->a->ops->lane_create(d->a, 5, 8, &token), 0);
	do {
		rc = d->a->ops->lane_reconnect(d->a, 5, addr, (size_t)n, 1ull << 32);
		assert_int_equal(d->a->ops->reap(d->a, d->wc, 8), 0);
		usleep(100);
	} while (rc == -EAGAIN);
	assert_int_equal(rc, -EHOSTUNREACH);
	assert_int_equal(path_of(d->a, 5), EPF_STATS_PATH_REFUSED);
	d->a->ops->lane_destroy(d->a, 5); /* as an engine does that tries again */
	assert_int_equal(path_of(d->a, 5), EPF_STATS_PATH_REFUSED);
	duo_join(d->a, 5, d->b, 5);
	while (path_of(d->a, 5) != EPF_STATS_PATH_FINE) { /* b may be the one that dials */
		assert_int_equal(d->a->ops->reap(d->a, d->wc, 8), 0);
		usleep(100);
	}
	close(fd);
	duo_close(d);
}

/* A lane that is opened again in place of a failed one. */
static void lanes_are_opened_again(void **state)
{
	struct duo *d = duo_open();

	for (uint32_t round = 0; round < 20; round++) {
		uint8_t aa[EPF_NIC_ADDR_BYTES], ab[EPF_NIC_ADDR_BYTES];
		int na = d->a->ops->address(d->a, aa, sizeof(aa));
		int nb = d->b->ops->address(d->b, ab, sizeof(ab));
		int is_a = 0, is_b = 0;
		uint64_t ta, tb;
		struct epf_wr wr = write_wr(d, round, 0, 64);

		d->a->ops->lane_fence(d->a, 0);
		d->b->ops->lane_fence(d->b, 0);
		assert_int_equal(d->a->ops->lane_reopen(d->a, 0, DUO_DEPTH, &ta), 0);
		assert_int_equal(d->b->ops->lane_reopen(d->b, 0, DUO_DEPTH, &tb), 0);
		while (!is_a || !is_b) {
			if (!is_a)
				is_a = d->a->ops->lane_reconnect(d->a, 0, ab, (size_t)nb, tb) == 0;
			if (!is_b)
				is_b = d->b->ops->lane_reconnect(d->b, 0, aa, (size_t)na, ta) == 0;
			assert_int_equal(d->a->ops->reap(d->a, d->wc, 8), 0);
			assert_int_equal(d->b->ops->reap(d->b, d->wc, 8), 0);
			usleep(100);
		}
		d->mem_a[0] = (uint8_t)round;
		assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
		run_until_sent(d, round);
		assert_int_equal(d->mem_b[0], (uint8_t)round);
	}
	duo_close(d);
}

/* Two lanes of one NIC, and a lane to itself: waiting for a receive, wrong keys, the end of the other. */
static void lanes_within_a_nic(void **state)
{
	struct duo *d = duo_open();
	struct epf_nic *a = d->a;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int n = a->ops->address(a, addr, sizeof(addr));
	struct epf_wr wr = write_wr(d, 1, 0, 64);
	uint64_t token;

	duo_join(a, 3, a, 4);
	assert_int_equal(a->ops->lane_create(a, 5, 8, &token), 0);
	assert_int_equal(a->ops->lane_connect(a, 5, addr, (size_t)n, token), 0);
	epf_tcp_of(a)->receives = 0;
	wr.raddr = d->mr_a.raddr + 1000;
	wr.rkey = d->mr_a.rkey;
	wr.op = EPF_WR_WRITE_IMM;
	wr.imm = 77;
	memset(d->mem_a, 3, 64);
	assert_int_equal(a->ops->post(a, 3, &wr, 1), 1);
	assert_int_equal(a->ops->post(a, 5, &wr, 1), 1);
	assert_int_equal(a->ops->reap(a, d->wc, 8), 0);
	assert_int_equal(d->mem_a[1000], 0);
	a->ops->post_receives(a, 2);
	assert_int_equal(a->ops->reap(a, d->wc, 8), 4);
	assert_int_equal(d->wc[0].op, EPF_WC_RECV_IMM);
	assert_int_equal(d->wc[0].lane, 4);
	assert_int_equal(d->wc[0].imm, 77);
	assert_int_equal(d->wc[2].lane, 5);
	assert_int_equal(d->mem_a[1000], 3);
	/* Too long without a receive. */
	assert_int_equal(a->ops->post(a, 5, &wr, 1), 1);
	assert_int_equal(a->ops->reap(a, d->wc, 8), 0);
	assert_true(a->ops->next_event(a) != UINT64_MAX && a->ops->next_event(a) > d->clock_ns);
	d->clock_ns += 2000000000u;
	assert_int_equal(a->ops->reap(a, d->wc, 8), 1);
	assert_int_equal(d->wc[0].status, EPF_S_RNR_EXCEEDED);
	/* A wrong key, and a lane whose other end is gone. */
	wr.op = EPF_WR_WRITE;
	wr.rkey ^= 1u << 20;
	assert_int_equal(a->ops->post(a, 4, &wr, 1), 1);
	assert_int_equal(a->ops->reap(a, d->wc, 8), 1);
	assert_int_equal(d->wc[0].status, EPF_S_REMOTE_ACCESS);
	assert_int_equal(kit_reap(a, d->wc, 8), 1);
	assert_int_equal(d->wc[0].op, EPF_WC_LANE_DOWN);
	assert_int_equal(d->wc[0].lane, 3);
	duo_close(d);
}

/* A core that sleeps is rung when something comes, and not for what it has seen. */
static void a_sleeper_is_woken(void **state)
{
	struct duo *d = duo_open();
	struct epf_wakeup *w = d->b->ops->wakeup(d->b);
	struct epf_wr wr = write_wr(d, 0, 0, 64);

	assert_non_null(w);
	wr.id = 100;
	assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
	run_until_sent(d, 100); /* both are connected */
	wr.op = EPF_WR_WRITE_IMM;
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t rung;
		int n = 0;

		wr.id = round;
		rung = __atomic_load_n(&w->rung, __ATOMIC_RELAXED);
		epf_wakeup_arm(w);
		assert_int_equal(d->b->ops->arm(d->b), 0);
		assert_int_equal(d->a->ops->post(d->a, 0, &wr, 1), 1);
		while (__atomic_load_n(&w->rung, __ATOMIC_RELAXED) == rung) {
			d->a->ops->reap(d->a, d->wc, 8);
			usleep(100);
		}
		epf_wakeup_disarm(w);
		while (!n)
			n = d->b->ops->reap(d->b, d->wc, 8);
		assert_int_equal(d->wc[0].op, EPF_WC_RECV_IMM);
		run_until_sent(d, round);
		/* Acknowledged, and nothing is left to do. */
		while (d->b->ops->next_event(d->b) != UINT64_MAX)
			assert_int_equal(d->b->ops->reap(d->b, d->wc, 8), 0);
	}
	duo_close(d);
}

static void expect_congestion(struct epf_nic *nic, const char *name)
{
	char found[16] = "";
	socklen_t len = sizeof(found);

	assert_int_equal(
		getsockopt(epf_tcp_of(nic)->lanes[0]->fd, IPPROTO_TCP, TCP_CONGESTION, found, &len),
		0);
	assert_string_equal(found, name);
}

/* Both ends of a connection have the congestion control that is chosen, the one that dials and the one that is called; reno is in every kernel. */
static void congestion_control_is_chosen(void **state)
{
	uint8_t address[EPF_NIC_ADDR_BYTES];
	struct epf_tcp_opts opts;
	struct epf_nic *nic;
	struct duo *d = duo_open_with("reno");

	while (epf_tcp_of(d->a)->lanes[0]->fd < 0 || epf_tcp_of(d->b)->lanes[0]->fd < 0) {
		assert_true(d->a->ops->reap(d->a, d->wc, 64) >= 0);
		assert_true(d->b->ops->reap(d->b, d->wc, 64) >= 0);
		usleep(50);
	}
	expect_congestion(d->a, "reno");
	expect_congestion(d->b, "reno");
	duo_close(d);

	epf_tcp_opts_defaults(&opts);
	opts.congestion = "hearsay";
	assert_int_equal(epf_tcp_open(&opts, kit_now, NULL, &nic), 0);
	assert_true(nic->ops->address(nic, address, sizeof(address)) < 0);
	assert_non_null(strstr(epf_last_error(), "tcp-congestion: 'hearsay'"));
	nic->ops->close(nic);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_moved_is_counted),
		cmocka_unit_test(a_broken_connection_is_a_failed_lane),
		cmocka_unit_test(nothing_lands_after_a_fence),
		cmocka_unit_test(a_fence_flushes),
		cmocka_unit_test(many_reads),
		cmocka_unit_test(a_link_that_is_off_waits),
		cmocka_unit_test(a_full_receive_buffer_is_seen),
		cmocka_unit_test(a_peer_that_never_comes),
		cmocka_unit_test(a_refused_connection_says_so),
		cmocka_unit_test(a_stopped_peer_is_no_firewall),
		cmocka_unit_test(lanes_are_opened_again),
		cmocka_unit_test(lanes_within_a_nic),
		cmocka_unit_test(a_sleeper_is_woken),
		cmocka_unit_test(congestion_control_is_chosen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
