/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's watch over its peers: a child process with a NIC is killed, stopped, or closes its NIC, and this end must
 * report its lanes, idle ones too, or not. Every case runs twice: with process descriptors, and (built with the test hooks)
 * where only /proc is to be had. Children meet this process in a shared page; one that finds a fault exits with 1.
 */
#include "fabric/base/err.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LANES = 4, DEPTH = 64, BYTES = 4096, MANY = 300, A_CALL = 128 };

/* What a child does next; it answers by incrementing done. */
enum command { CONNECT = 1, SEND, REAP, CLOSE };

struct side {
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	int addr_len;
	uint64_t token[LANES];
	uint64_t raddr;
	uint32_t rkey;
};

struct page {
	struct side child, parent;
	uint32_t command, done;
};

struct pair {
	struct page *page;
	pid_t pid;
	struct epf_nic *nic;
	unsigned char mem[BYTES];
	struct epf_nic_mr mr;
	struct epf_wc log[64];
	int n;
	uint16_t first; /* lane of this end that is connected to lane 0 of the child */
};

static int ordered;

/* Time is stalled: nothing here can run into a timeout. */
static uint64_t now(void *arg)
{
	(void)arg;
	return 1000000;
}

static struct epf_nic *open_nic(void)
{
	struct epf_emu_opts opts;
	struct epf_nic *nic = NULL;

	epf_emu_opts_defaults(&opts);
	opts.ordered = ordered;
	opts.packets = 64;
	assert_int_equal(epf_emu_open(&opts, now, NULL, &nic), 0);
	return nic;
}

static int make_side(struct epf_nic *nic, struct side *side, uint16_t first)
{
	side->addr_len = nic->ops->address(nic, side->addr, sizeof(side->addr));
	for (uint16_t i = 0; i < LANES; i++)
		if (nic->ops->lane_create(nic, (uint16_t)(first + i), DEPTH, &side->token[i]))
			return -1;
	return 0;
}

static int connect_to(struct epf_nic *nic, const struct side *peer, uint16_t first)
{
	int rc = 0;

	for (uint16_t i = 0; i < LANES && !rc; i++)
		rc = nic->ops->lane_connect(nic, (uint16_t)(first + i), peer->addr,
					    (size_t)peer->addr_len, peer->token[i]);
	return rc;
}

static void child_send(struct epf_nic *nic, const struct page *page, unsigned char *mem,
		       uint32_t lkey)
{
	for (uint32_t i = 0; i < 3; i++) {
		struct epf_wr wr = { .laddr = (uint64_t)(uintptr_t)mem,
				     .lkey = lkey,
				     .raddr = page->parent.raddr,
				     .rkey = page->parent.rkey,
				     .len = 8,
				     .imm = i,
				     .id = i,
				     .op = EPF_WR_WRITE_IMM };

		if (nic->ops->post(nic, 1, &wr, 1) != 1)
			_exit(1);
	}
}

static void child_main(struct page *page)
{
	static unsigned char mem[BYTES];
	struct epf_nic *nic = open_nic();
	struct epf_nic_mr mr;
	struct epf_wc wc[16];

	if (nic->ops->region_register(nic, mem, sizeof(mem), EPF_MR_REMOTE_WRITE, &mr) ||
	    make_side(nic, &page->child, 0))
		_exit(1);
	page->child.raddr = mr.raddr;
	page->child.rkey = mr.rkey;
	for (;;) {
		__atomic_fetch_add(&page->done, 1, __ATOMIC_RELEASE);
		while (__atomic_load_n(&page->command, __ATOMIC_ACQUIRE) == 0)
			usleep(200);
		switch (__atomic_exchange_n(&page->command, 0, __ATOMIC_ACQ_REL)) {
		case CONNECT:
			if (connect_to(nic, &page->parent, 0))
				_exit(1);
			break;
		case SEND:
			child_send(nic, page, mem, mr.lkey);
			break;
		case REAP:
			for (int i = 0; i < 10; i++)
				nic->ops->reap(nic, wc, 16);
			break;
		default:
			nic->ops->close(nic);
			break;
		}
	}
}

static void wait_done(struct pair *p, uint32_t count)
{
	while (__atomic_load_n(&p->page->done, __ATOMIC_ACQUIRE) < count) {
		assert_int_equal(waitpid(p->pid, NULL, WNOHANG), 0);
		usleep(200);
	}
}

static void tell(struct pair *p, enum command command)
{
	uint32_t before = p->page->done;

	__atomic_store_n(&p->page->command, command, __ATOMIC_RELEASE);
	wait_done(p, before + 1);
}

/* A child with a NIC, its four lanes connected to lanes first.. of nic (NULL: of a new one). */
static struct pair *pair_open(struct epf_nic *nic, uint16_t first)
{
	struct pair *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	p->page = mmap(NULL, sizeof(*p->page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	assert_true(p->page != MAP_FAILED);
	p->pid = fork();
	assert_true(p->pid >= 0);
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		child_main(p->page);
	}
	wait_done(p, 1);
	p->nic = nic ? nic : open_nic();
	p->first = first;
	assert_int_equal(p->nic->ops->region_register(p->nic, p->mem, sizeof(p->mem),
						      EPF_MR_REMOTE_WRITE, &p->mr),
			 0);
	p->page->parent.raddr = p->mr.raddr;
	p->page->parent.rkey = p->mr.rkey;
	p->nic->ops->post_receives(p->nic, 32);
	assert_int_equal(make_side(p->nic, &p->page->parent, first), 0);
	assert_int_equal(connect_to(p->nic, &p->page->child, first), 0);
	tell(p, CONNECT);
	return p;
}

/* Kills the child and leaves it a zombie: dead for everybody but its parent. */
static void kill_child(struct pair *p)
{
	siginfo_t info;

	kill(p->pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOWAIT), 0);
}

static void pair_close(struct pair *p, int close_nic)
{
	kill(p->pid, SIGKILL);
	assert_int_equal(waitpid(p->pid, NULL, 0), p->pid);
	if (close_nic)
		p->nic->ops->close(p->nic);
	munmap(p->page, sizeof(*p->page));
	free(p);
}

static int post(struct pair *p, uint16_t lane, uint32_t id)
{
	struct epf_wr wr = { .laddr = p->mr.raddr,
			     .lkey = p->mr.lkey,
			     .raddr = p->page->child.raddr,
			     .rkey = p->page->child.rkey,
			     .len = 8,
			     .id = id,
			     .op = EPF_WR_WRITE };

	return p->nic->ops->post(p->nic, (uint16_t)(p->first + lane), &wr, 1);
}

/* Reaps, step completions at a time, as long as the NIC says that there is something now: a core would go to sleep then. */
static void reap_all(struct pair *p, unsigned step)
{
	p->n = 0;
	do {
		int n = p->nic->ops->reap(p->nic, p->log + p->n, step);

		assert_in_range(n, 0, step);
		p->n += n;
		assert_true(p->n <= 64 - (int)step);
	} while (p->nic->ops->next_event(p->nic) <= now(NULL));
}

static void watch_and_reap(struct pair *p, unsigned step)
{
	p->nic->ops->watch(p->nic);
	reap_all(p, step);
}

static int count(const struct pair *p, int op, int lane, int status)
{
	int n = 0;

	for (int i = 0; i < p->n; i++)
		n += p->log[i].op == op && (lane < 0 || p->log[i].lane == lane) &&
		     (status < 0 || p->log[i].status == status);
	return n;
}

/* Outstanding work fails, idle lanes are reported, each once, a lane after its work; one fenced before is not. */
static void test_killed(void **state)
{
	for (unsigned step = 1; step <= 16; step += 15) {
		struct pair *p = pair_open(NULL, 0);

		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(post(p, 0, i), 1);
		p->nic->ops->lane_fence(p->nic, 2);
		watch_and_reap(p, step);
		assert_int_equal(p->n, 0);
		kill_child(p);
		reap_all(p, step);
		assert_int_equal(p->n, 0);
		watch_and_reap(p, step);
		assert_int_equal(count(p, EPF_WC_SENT, 0, EPF_S_RETRY_EXCEEDED), 1);
		assert_int_equal(count(p, EPF_WC_SENT, 0, EPF_S_FLUSHED), 2);
		assert_int_equal(p->log[0].id, 0);
		assert_int_equal(p->log[0].status, EPF_S_RETRY_EXCEEDED);
		for (int lane = 0; lane < LANES; lane++) {
			assert_int_equal(count(p, EPF_WC_LANE_DOWN, lane, EPF_S_RETRY_EXCEEDED),
					 lane != 2);
			assert_int_equal(p->nic->ops->lane_link(p->nic, (uint16_t)lane),
					 EPF_LANE_ERROR);
			assert_int_equal(p->nic->ops->lane_drained(p->nic, (uint16_t)lane), 1);
		}
		assert_int_equal(p->n, 6);
		for (int i = 0; i < 3; i++)
			assert_int_equal(p->log[i].op, EPF_WC_SENT);
		assert_int_equal(post(p, 1, 9), -ENOTCONN);
		watch_and_reap(p, step);
		assert_int_equal(p->n, 0);
		pair_close(p, 1);
	}
}

/*
 * What the dead peer had sent is still let in, before anything of its lane is reported, also when it died just before it could
 * mark the lane in our bitmap.
 */
static void test_last_words(void **state)
{
	for (int marked = 0; marked < 2; marked++) {
		struct pair *p = pair_open(NULL, 0);
		struct epf_emu_segment *hdr = epf_emu_of(p->nic)->seg->hdr;
		int seen = 0;

		assert_int_equal(post(p, 1, 5), 1);
		reap_all(p, 16);
		tell(p, SEND);
		kill_child(p);
		if (!marked)
			hdr->summary = hdr->mail[0] = 0;
		watch_and_reap(p, 1);
		assert_int_equal(count(p, EPF_WC_RECV_IMM, 1, -1), 3);
		assert_int_equal(count(p, EPF_WC_SENT, 1, EPF_S_RETRY_EXCEEDED), 1);
		assert_int_equal(count(p, EPF_WC_LANE_DOWN, -1, -1), LANES);
		for (int i = 0; i < p->n; i++) {
			seen += p->log[i].op == EPF_WC_RECV_IMM;
			if (p->log[i].lane == 1 && p->log[i].op != EPF_WC_RECV_IMM)
				assert_int_equal(seen, 3);
		}
		pair_close(p, 1);
	}
}

/* The same without a receive for them, and on a cut link: nothing to wait for. */
static void test_nothing_to_wait_for(void **state)
{
	for (int cut = 0; cut < 2; cut++) {
		struct pair *p = pair_open(NULL, 0);

		if (cut)
			assert_int_equal(p->nic->ops->set_link(p->nic, 0, 0), 0);
		else
			epf_emu_of(p->nic)->receives = 0;
		tell(p, SEND);
		reap_all(p, 16);
		assert_int_equal(p->n, 0);
		kill_child(p);
		watch_and_reap(p, 16);
		assert_int_equal(count(p, EPF_WC_LANE_DOWN, -1, -1), LANES);
		assert_int_equal(p->n, LANES);
		pair_close(p, 1);
	}
}

/* A stopped process is no dead one, nor is one that never looks; another peer's death is not theirs. */
static void test_stopped(void **state)
{
	struct pair *p = pair_open(NULL, 0), *other = pair_open(p->nic, 8);
	int status;

	assert_int_equal(post(p, 0, 1), 1);
	kill(p->pid, SIGSTOP);
	assert_int_equal(waitpid(p->pid, &status, WUNTRACED), p->pid);
	assert_true(WIFSTOPPED(status));
	for (int i = 0; i < 5; i++) {
		watch_and_reap(p, 16);
		assert_int_equal(p->n, 0);
	}
	kill_child(other);
	watch_and_reap(p, 16);
	assert_int_equal(p->n, LANES);
	for (int lane = 8; lane < 8 + LANES; lane++)
		assert_int_equal(count(p, EPF_WC_LANE_DOWN, lane, -1), 1);
	kill(p->pid, SIGCONT);
	tell(p, REAP);
	watch_and_reap(p, 16);
	assert_int_equal(count(p, EPF_WC_SENT, 0, EPF_S_OK), 1);
	assert_int_equal(p->n, 1);
	pair_close(other, 0);
	pair_close(p, 1);
}

/* An orderly close is seen as well, in the child's process that lives on, and in this one. */
static void test_closed(void **state)
{
	struct pair *p = pair_open(NULL, 0);
	struct epf_nic *near = open_nic();
	struct side here, there;

	assert_int_equal(make_side(p->nic, &here, 8), 0);
	assert_int_equal(make_side(near, &there, 0), 0);
	assert_int_equal(connect_to(p->nic, &there, 8), 0);
	assert_int_equal(connect_to(near, &here, 0), 0);
	assert_int_equal(post(p, 0, 1), 1);
	watch_and_reap(p, 16);
	assert_int_equal(p->n, 0);
	tell(p, CLOSE);
	watch_and_reap(p, 16);
	assert_int_equal(count(p, EPF_WC_SENT, 0, -1), 1);
	assert_int_equal(count(p, EPF_WC_LANE_DOWN, -1, -1), LANES);
	near->ops->close(near);
	watch_and_reap(p, 16);
	for (int lane = 8; lane < 8 + LANES; lane++)
		assert_int_equal(count(p, EPF_WC_LANE_DOWN, lane, -1), 1);
	assert_int_equal(p->n, LANES);
	pair_close(p, 1);
}

/* Between the watch and the reap lanes may be fenced, destroyed, made again: they are not reported, nothing is lost. */
static void test_gone_meanwhile(void **state)
{
	struct pair *p = pair_open(NULL, 0), *next;
	struct epf_emu *e = epf_emu_of(p->nic);

	assert_int_equal(post(p, 0, 1), 1);
	assert_int_equal(post(p, 1, 2), 1);
	kill_child(p);
	p->nic->ops->watch(p->nic);
	assert_int_equal(p->nic->ops->lane_drained(p->nic, 3), 0);
	p->nic->ops->lane_fence(p->nic, 0);
	p->nic->ops->lane_destroy(p->nic, 1);
	p->nic->ops->lane_destroy(p->nic, 2);
	reap_all(p, 16);
	assert_int_equal(count(p, EPF_WC_LANE_DOWN, -1, -1), 1);
	assert_int_equal(count(p, EPF_WC_LANE_DOWN, 3, -1), 1);
	assert_int_equal(count(p, EPF_WC_SENT, 0, EPF_S_FLUSHED), 1);
	assert_int_equal(p->n, 2);
	for (uint16_t lane = 0; lane < LANES; lane++)
		p->nic->ops->lane_destroy(p->nic, lane);
	assert_int_equal(e->free_count, 64);
	assert_int_equal(e->gone_lanes, 0);
	/* The same numbers serve a new peer. */
	next = pair_open(p->nic, 0);
	assert_int_equal(post(next, 0, 7), 1);
	tell(next, REAP);
	watch_and_reap(next, 16);
	assert_int_equal(next->n, 1);
	assert_int_equal(count(next, EPF_WC_SENT, 0, EPF_S_OK), 1);
	pair_close(next, 0);
	pair_close(p, 1);
}

static unsigned watch_count(struct epf_nic *nic)
{
	struct epf_wc wc[16];
	unsigned reported = 0;
	int n;

	nic->ops->watch(nic);
	while ((n = nic->ops->reap(nic, wc, 16)))
		for (int i = 0; i < n; i++)
			reported += wc[i].op == EPF_WC_LANE_DOWN;
	return reported;
}

/* More peers than one call looks at: the next calls look at the others. */
static void test_many(void **state)
{
	static struct epf_nic *peer[MANY];
	struct epf_nic *nic = open_nic();
	unsigned char addr[2][EPF_NIC_ADDR_BYTES];
	int len = nic->ops->address(nic, addr[0], sizeof(addr[0]));
	uint64_t mine, theirs;
	unsigned reported = 0;

	for (uint16_t i = 0; i < MANY; i++) {
		peer[i] = open_nic();
		assert_int_equal(peer[i]->ops->address(peer[i], addr[1], sizeof(addr[1])), len);
		assert_int_equal(nic->ops->lane_create(nic, i, DEPTH, &mine), 0);
		assert_int_equal(peer[i]->ops->lane_create(peer[i], 0, DEPTH, &theirs), 0);
		assert_int_equal(nic->ops->lane_connect(nic, i, addr[1], (size_t)len, theirs), 0);
		assert_int_equal(peer[i]->ops->lane_connect(peer[i], 0, addr[0], (size_t)len, mine),
				 0);
	}
	peer[MANY - 1]->ops->close(peer[MANY - 1]);
	for (unsigned call = 0; call < (MANY + A_CALL - 1) / A_CALL; call++)
		reported += watch_count(nic);
	assert_int_equal(reported, 1);
	for (int i = 0; i < MANY - 1; i++)
		peer[i]->ops->close(peer[i]);
	for (unsigned call = 0; call < (MANY + A_CALL - 1) / A_CALL; call++) {
		unsigned more = watch_count(nic);

		assert_in_range(more, 1, A_CALL);
		reported += more;
	}
	assert_int_equal(reported, MANY);
	nic->ops->close(nic);
}

/* Peers that cannot be reached: the line says why. */
static void test_refused(void **state)
{
	struct pair *p = pair_open(NULL, 0);
	struct epf_nic *nic = open_nic();
	struct side peer = p->page->child;
	uint64_t token;

	assert_int_equal(nic->ops->lane_create(nic, 0, DEPTH, &token), 0);
	peer.addr[8] ^= 1;  /* another NIC of that process: nonce */
	peer.addr[48] ^= 1; /* PID namespace */
	assert_int_equal(connect_to(nic, &peer, 0), -ESRCH);
	assert_non_null(strstr(epf_last_error(), "another PID namespace"));
	peer.addr[48] ^= 1;
	peer.addr[16] ^= 1; /* start time */
	assert_int_equal(connect_to(nic, &peer, 0), -ESRCH);
	assert_non_null(strstr(epf_last_error(), "has ended"));
	peer.addr[16] ^= 1;
	assert_int_equal(connect_to(nic, &peer, 0), -ESRCH);
	assert_non_null(strstr(epf_last_error(), "no such NIC"));
	kill_child(p);
	assert_int_equal(connect_to(nic, &peer, 0), -ESRCH);
	assert_non_null(strstr(epf_last_error(), "has ended"));
	nic->ops->close(nic);
	pair_close(p, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_last_words),
		cmocka_unit_test(test_nothing_to_wait_for),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_closed),
		cmocka_unit_test(test_gone_meanwhile),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_refused),
	};
	int failed = 0;

	for (ordered = 0; ordered < 2; ordered++)
		failed += cmocka_run_group_tests_name(
			ordered ? "watch, ordered" : "watch, unordered", tests, NULL, NULL);
#ifdef EPF_TEST_HOOKS
	epf_hook_no_pidfd = 1;
	ordered = 1;
	failed += cmocka_run_group_tests_name("watch by /proc alone", tests, NULL, NULL);
#endif
	return failed != 0;
}
