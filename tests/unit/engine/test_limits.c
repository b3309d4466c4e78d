/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The written limits of what engines say to each other, each at the limit, one past it, and across its wrap: immediates (kind,
 * handle, count), arrival windows, streams and notify handles, ranks, signals, regions, transfers up to 2 GiB, descriptions, depths.
 * What cannot be said must be refused; nothing may come out as another number. The command formats have test_cmd.c.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/limits.h"
#include "fabric/join/describe.h"
#include "tests/unit/client/job.h"
#include "tests/unit/engine/grow_all.h"

#define GIB (UINT64_C(1) << 30)

enum { WRS = 8192, MESSAGE = 1 << 20, SIGNALS = 65536, SLOTS_LOG2 = 8 };

/* ---- a core over a NIC that completes all and notes what it was asked ------------------------- */

static struct {
	const struct epf_nic_ops *null;
	struct epf_nic_ops ops;
	struct epf_nic_caps caps;
	struct epf_wr wr[WRS];
	unsigned n;
} rec;

static void rec_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	*out = rec.caps;
}

static int rec_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	int done = rec.null->post(nic, lane, wr, n);

	for (int i = 0; i < done && rec.n < WRS; i++)
		rec.wr[rec.n++] = wr[i];
	return done;
}

struct rig {
	struct epf_conf conf;
	struct epf_nic *nic;
	struct epf_stats *stats;
	struct epf_core *core;
	struct epf_signal *signals;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
	struct epf_core_limits limits;
	uint32_t ring_id;
};

static void rig_nic(struct rig *r)
{
	rec.null = epf_nic_find("null");
	assert_int_equal(rec.null->open(&r->conf, epf_limits_now, NULL, &r->nic), 0);
	rec.ops = *rec.null;
	rec.null->describe(r->nic, &rec.caps);
	rec.caps.max_msg_bytes = MESSAGE;
	rec.ops.describe = rec_describe;
	rec.ops.post = rec_post;
	rec.n = 0;
	r->nic->ops = &rec.ops;
}

static int rig_core(struct rig *r)
{
	struct epf_core_config cfg = {
		.max_ranks = 1, .now = epf_limits_now, .nic = r->nic, .limits = r->limits
	};
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "rig", .tsc_hz = epf_tsc_hz() };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	char why[256];

	o.blocks[EPF_STATS_CORE] = 1;
	assert_int_equal(epf_stats_create(&o, &r->stats, why, sizeof(why)), 0);
	assert_int_equal(epf_stats_add_block(r->stats, EPF_STATS_CORE, labels, 2, &cfg.stats), 0);
	return epf_core_create(&cfg, &r->core);
}

static void rig_init(struct rig *r)
{
	memset(r, 0, sizeof(*r));
	assert_int_equal(epf_conf_init(&r->conf), 0);
	epf_limits_from_conf(&r->conf, &r->limits);
	r->limits.lane_depth = 8;
	r->limits.window = 64;
	r->limits.lanes_per_node = 1;
	r->limits.streams_per_node = 16;
	rig_nic(r);
}

/* One rank with 65,536 signals and a region of `bytes` at an address that nobody touches, alone in its world. */
static void rig_join(struct rig *r, uint64_t bytes)
{
	uint32_t local, region, node = 0;
	uint64_t tokens[8];
	struct epf_region_remote there = { .raddr = 0x10000,
					   .bytes = bytes,
					   .rkey = 1,
					   .state = EPF_REGION_LIVE,
					   .access = EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ };
	struct epf_node_info info = { .nic_addr = "null",
				      .nic_addr_len = 4,
				      .tokens = tokens,
				      .receives = 8,
				      .streams = 16 };
	struct epf_peer_info peer = { .n_signals = SIGNALS, .n_regions = 1, .regions = &there };

	r->signals = calloc(SIGNALS, sizeof(*r->signals));
	r->shm = aligned_alloc(128, epf_ring_bytes(SLOTS_LOG2));
	assert_true(r->signals && r->shm);
	memset(r->shm, 0, epf_ring_bytes(SLOTS_LOG2));
	epf_ring_format(r->shm, SLOTS_LOG2, 0, 0);
	assert_int_equal(rig_core(r), 0);
	assert_int_equal(epf_core_add_rank(r->core, 0, r->signals, SIGNALS, 4, NULL, &local), 0);
	assert_int_equal(epf_core_add_region(r->core, local, (void *)0x10000, bytes,
					     EPF_MR_REMOTE_WRITE, &region),
			 0);
	assert_int_equal(epf_core_add_ring(r->core, local, r->shm, SLOTS_LOG2, 1, 0, &r->ring_id),
			 0);
	epf_ring_producer_init(&r->ring, r->shm, 0);
	assert_int_equal(epf_core_set_world(r->core, 1, 1, 0, NULL, tokens), 0);
	assert_int_equal(epf_core_connect(r->core, node, &info), 0);
	assert_int_equal(epf_core_set_peer(r->core, 0, &peer), 0);
}

static void rig_destroy(struct rig *r)
{
	epf_core_destroy(r->core);
	rec.null->close(r->nic);
	epf_stats_destroy(r->stats, 0);
	epf_conf_destroy(&r->conf);
	free(r->signals);
	free(r->shm);
}

static void push_wide(struct rig *r, const struct epf_op *op)
{
	struct epf_cmd c[2];

	assert_true(epf_op_fits_wide(op));
	epf_op_pack_wide(op, c);
	assert_true(epf_ring_room(&r->ring, 2) >= 2);
	epf_ring_push_wide(&r->ring, c);
}

static void run(struct rig *r)
{
	for (int i = 0; i < 20000 && epf_ring_retired(&r->ring) != r->ring.pushed; i++)
		epf_core_step(r->core);
}

/* ---- immediates ------------------------------------------------------------------------------ */

static void an_immediate_keeps_its_fields_apart(void **state)
{
	static const uint32_t handles[] = { 0, 1, 4095, 4096, EPF_MAX_STREAMS_PER_NODE - 1 };
	static const uint32_t counts[] = { 0, 1, 0x7fff, 0x8000, 0xffff, 0x10000, 0xffffffff };

	for (unsigned kind = EPF_IMM_STREAM; kind <= EPF_IMM_NOTIFY; kind++)
		for (unsigned h = 0; h < sizeof(handles) / sizeof(handles[0]); h++)
			for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
				uint32_t imm = epf_imm(kind, handles[h], counts[c]);

				assert_int_equal(imm >> 29, kind);
				assert_int_equal(imm >> 16 & 0x1fff, handles[h]);
				assert_int_equal(imm & 0xffff, counts[c] & 0xffff);
			}
}

static void arrive(struct rig *r, uint32_t handle, uint32_t count)
{
	struct epf_wc wc = { .op = EPF_WC_RECV_IMM, .imm = epf_imm(EPF_IMM_STREAM, handle, count) };

	epf_arrive(r->core, &wc);
}

static uint64_t counted(const struct rig *r, unsigned counter)
{
	return epf_stat_get(r->core->stats, counter);
}

/*
 * A window takes exactly its size, in any order, wherever the counts are: 16 bits of count and the base tell them apart up to the
 * largest window. Windows below 64 are the engine's arithmetic alone: the setting begins there.
 */
static void window_from(uint32_t window, uint32_t start)
{
	struct epf_rx_stream *rx;
	struct rig r;

	rig_init(&r);
	r.limits.window = window < 64 ? 64 : window;
	r.limits.start_count = start;
	rig_join(&r, 4096);
	r.core->rx_mask = window - 1;
	grow_all(r.core);
	rx = &r.core->nodes[0].rx[1];
	for (uint32_t round = 0; round < 3; round++) {
		uint32_t base = start + round * window;

		assert_int_equal(rx->base, base);
		for (uint32_t i = window; i-- > 1;)
			arrive(&r, 1, base + i);
		assert_int_equal(rx->base, base);
		assert_int_equal(rx->ahead, window - 1);
		assert_int_equal(counted(&r, EPF_STAT_CORE_ARRIVALS_REFUSED),
				 round * (window < 32768));
		if (window < 32768) /* past the largest one, a count is behind the base */
			arrive(&r, 1, base + window);
		assert_int_equal(rx->ahead, window - 1);
		arrive(&r, 1, base);
		assert_int_equal(rx->base, base + window);
		assert_int_equal(rx->ahead, 0);
	}
	assert_int_equal(counted(&r, EPF_STAT_CORE_DUPLICATES_DROPPED), 0);
	for (uint32_t i = 1; i <= window; i++) /* every one again */
		arrive(&r, 1, start + 3 * window - i);
	assert_int_equal(counted(&r, EPF_STAT_CORE_DUPLICATES_DROPPED), window);
	assert_int_equal(rx->base, start + 3 * window);
	rig_destroy(&r);
}

static void windows_from_1_to_the_largest(void **state)
{
	static const uint32_t starts[] = { 0, 0xfffe, 0xffff, 0x7fff, 0x8000, 0xfffffffe };

	for (uint32_t window = 1; window <= EPF_MAX_WINDOW; window *= 2)
		for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
			window_from(window, starts[i]);
}

static void a_window_past_the_largest_is_refused(void **state)
{
	struct rig r;

	rig_init(&r);
	r.limits.window = EPF_MAX_WINDOW;
	assert_int_equal(rig_core(&r), 0);
	rig_destroy(&r);
	rig_init(&r);
	r.limits.window = EPF_MAX_WINDOW + 1;
	assert_int_equal(rig_core(&r), -ERANGE);
	rig_destroy(&r);
	rig_init(&r);
	r.limits.lane_depth = 128; /* more on the way than the window holds */
	assert_int_equal(rig_core(&r), -ERANGE);
	rig_destroy(&r);
}

static void handles_end_where_they_are_said_to(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_NOTIFY, .value = EPF_WIDE_ADD - 1 };
	struct epf_node *node;
	struct rig r;

	rig_init(&r);
	r.limits.streams_per_node = EPF_MAX_STREAMS_PER_NODE + 1; /* the setting ends before */
	rig_join(&r, 4096);
	node = &r.core->nodes[0];
	assert_int_equal(node->rx_streams, EPF_MAX_STREAMS_PER_NODE);
	arrive(&r, EPF_MAX_STREAMS_PER_NODE - 1, 0);
	assert_int_equal(node->rx[EPF_MAX_STREAMS_PER_NODE - 1].base, 1);
	assert_int_equal(node->rx[0].base, 0);
	assert_int_equal(counted(&r, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);

	m.c = m.d = EPF_MAX_STREAMS_PER_NODE - 1;
	assert_int_equal(epf_notify_defined(r.core, node, &m), 1);
	assert_int_equal(node->notify_in[m.d].add, EPF_WIDE_ADD - 1);
	assert_int_equal(node->notify_in[m.d].stream, m.c);
	m.value = EPF_WIDE_ADD;
	assert_int_equal(epf_notify_defined(r.core, node, &m), 0);
	m.value = UINT64_C(1) << 32 | 1;
	assert_int_equal(epf_notify_defined(r.core, node, &m), 0);
	m.value = 1;
	m.d = EPF_MAX_STREAMS_PER_NODE;
	assert_int_equal(epf_notify_defined(r.core, node, &m), 0);
	m.d = 0;
	m.c = EPF_MAX_STREAMS_PER_NODE;
	assert_int_equal(epf_notify_defined(r.core, node, &m), 0);
	rig_destroy(&r);
}

/* ---- ranks, signals, regions, depths --------------------------------------------------------- */

static void worlds_end_where_numbers_do(void **state)
{
	uint64_t token;
	struct rig r;

	rig_init(&r);
	assert_int_equal(rig_core(&r), 0);
	assert_int_equal(epf_core_set_world(r.core, EPF_MAX_WORLD + 1, 1, 0, NULL, &token),
			 -ERANGE);
	assert_int_equal(epf_last_reason(), EPF_R_CONF_RANGE);
	assert_int_equal(epf_core_set_world(r.core, EPF_MAX_WORLD, 1, 0, NULL, &token), 0);
	assert_int_equal(epf_core_set_peer(r.core, EPF_MAX_WORLD - 1,
					   &(struct epf_peer_info){ .place = EPF_MAX_WORLD - 1 }),
			 0);
	assert_int_equal(r.core->peers[EPF_MAX_WORLD - 1].place, EPF_MAX_WORLD - 1);
	rig_destroy(&r);
}

static void every_signal_can_be_named_and_no_more(void **state)
{
	struct epf_op op = { .op = EPF_OP_SIGNAL, .signal = SIGNALS - 1, .value = 1 };
	struct rig r;

	rig_init(&r);
	rig_join(&r, 4096);
	assert_true(epf_op_is_narrow(&op));
	epf_ring_push(&r.ring, epf_op_pack_narrow(&op));
	run(&r);
	assert_int_equal(rec.n, 1);
	assert_int_equal(r.shm->done.failed, 0);
	op.signal = SIGNALS;
	assert_false(epf_op_is_narrow(&op));
	push_wide(&r, &op);
	run(&r);
	assert_int_equal(rec.n, 1);
	assert_int_equal(r.shm->done.failed, 1);
	assert_int_equal(r.shm->done.error_reason, EPF_R_CMD_SIGNAL);
	op.signal = EPF_WIDE_SIGNALS;
	assert_false(epf_op_fits_wide(&op));
	rig_destroy(&r);
}

static void regions_end_at_their_number(void **state)
{
	uint32_t local, region;
	struct rig r;

	rig_init(&r);
	assert_int_equal(rig_core(&r), 0);
	assert_int_equal(epf_core_add_rank(r.core, 0, NULL, 0, EPF_MAX_REGIONS + 1, NULL, &local),
			 -ERANGE);
	assert_int_equal(epf_core_add_rank(r.core, 0, NULL, 0, EPF_MAX_REGIONS, NULL, &local), 0);
	for (uint32_t i = 0; i < EPF_MAX_REGIONS; i++) {
		assert_int_equal(epf_core_add_region(r.core, local, (void *)0x1000,
						     EPF_WIDE_REGION_BYTES, 0, &region),
				 0);
		assert_int_equal(region, i);
	}
	assert_true(epf_core_add_region(r.core, local, (void *)0x1000, 1, 0, &region) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_REGION_LIMIT);
	rig_destroy(&r);
	rig_init(&r);
	assert_int_equal(rig_core(&r), 0);
	assert_int_equal(epf_core_add_rank(r.core, 0, NULL, 0, 1, NULL, &local), 0);
	assert_true(epf_core_add_region(r.core, local, (void *)0x1000, EPF_WIDE_REGION_BYTES + 1, 0,
					&region) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_REGION_BAD);
	rig_destroy(&r);
}

/* A NIC may hold any number; a lane counts modulo a power of two. */
static void a_lane_is_as_deep_as_a_power_of_two_that_the_nic_holds(void **state)
{
	static const struct {
		uint32_t nic, asked, depth;
	} rows[] = {
		{ 100, 256, 64 }, { 63, 64, 32 }, { 64, 64, 64 }, { 4063, 4096, 2048 }, { 4, 32, 4 }
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct rig r;

		rig_init(&r);
		rec.caps.lane_depth = rows[i].nic;
		r.limits.lane_depth = rows[i].asked;
		r.limits.window = EPF_MAX_WINDOW;
		assert_int_equal(rig_core(&r), 0);
		assert_int_equal(r.core->limits.lane_depth, rows[i].depth);
		rig_destroy(&r);
	}
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* The pieces cover [0, bytes) once, in order, each as long as the NIC takes. */
static void check_pieces(uint64_t bytes)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < rec.n; i++) {
		assert_int_equal(rec.wr[i].op, EPF_WR_WRITE);
		assert_int_equal(rec.wr[i].laddr, 0x10000 + at);
		assert_int_equal(rec.wr[i].raddr, 0x10000 + at);
		assert_true(rec.wr[i].len > 0 && rec.wr[i].len <= rec.caps.max_msg_bytes);
		at += rec.wr[i].len;
	}
	assert_int_equal(at, bytes);
}

static void transfers_are_cut_up_to_2_gib(void **state)
{
	static const uint64_t sizes[] = { 1,   MESSAGE - 1, MESSAGE, MESSAGE + 1,
					  GIB, 2 * GIB - 1, 2 * GIB };

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct epf_op op = { .op = EPF_OP_PUT, .length = (uint32_t)sizes[i] };
		struct rig r;

		rig_init(&r);
		rig_join(&r, 2 * GIB);
		push_wide(&r, &op);
		run(&r);
		assert_int_equal(epf_ring_retired(&r.ring), 1);
		assert_int_equal(r.shm->done.failed, 0);
		assert_int_equal(rec.n, (sizes[i] + MESSAGE - 1) / MESSAGE);
		check_pieces(sizes[i]);
		/* What the ring has overdrawn is what was sent: the next command waits for it. */
		assert_true(r.core->rings[0]->deficit > INT64_MIN / 2);
		op.length = 64;
		push_wide(&r, &op);
		run(&r);
		assert_int_equal(epf_ring_retired(&r.ring), 2);
		rig_destroy(&r);
	}
}

static void a_byte_past_a_limit_is_refused(void **state)
{
	struct epf_op op = { .op = EPF_OP_PUT, .length = 1u << 31 };
	struct rig r;

	rig_init(&r);
	rig_join(&r, 2 * GIB - 1); /* inside the limit, outside the region */
	push_wide(&r, &op);
	run(&r);
	assert_int_equal(rec.n, 0);
	assert_int_equal(r.shm->done.error_reason, EPF_R_CMD_LOCAL_RANGE);
	op.length++;
	assert_false(epf_op_fits_wide(&op));
	assert_false(epf_op_is_narrow(&op));
	rig_destroy(&r);
}

static uint8_t *alias(uint64_t bytes, uint64_t piece)
{
	int fd = memfd_create("limits", MFD_CLOEXEC);
	uint8_t *at =
		mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_true(fd >= 0 && at != MAP_FAILED);
	assert_int_equal(ftruncate(fd, (off_t)piece), 0);
	for (uint64_t o = 0; o < bytes; o += piece)
		assert_ptr_equal(
			mmap(at + o, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
			at + o);
	close(fd);
	return at;
}

/* Two ranks, 2 GiB really copied by the software NIC. Each side is 16 MiB of memory seen 128 times: the last piece is what stays. */
static struct {
	uint8_t *mem[2];
	struct epf_ring *ring[2];
} big;

static void setup_big(struct job *job, uint32_t rank)
{
	uint32_t region;

	big.mem[rank] = alias(2 * GIB, 16 << 20);
	assert_return_code(epf_region_register(job->ep[rank], big.mem[rank], 2 * GIB,
					       EPF_REMOTE_WRITE, &region),
			   0);
	assert_return_code(epf_ring_open(job->ep[rank], NULL, &big.ring[rank]), 0);
}

static void two_gib_are_really_copied(void **state)
{
	static const char *const settings[] = { "signals=4", "emu-packets=512", "emu-mtu=64k",
						NULL };
	struct epf_nic_counters c;
	struct job job;

	memset(&job, 0, sizeof(job));
	assert_return_code(job_open(&job, 2, 2, settings, 1000, setup_big), 0);
	for (uint32_t i = 0; i < 16u << 20; i++)
		big.mem[0][i] = (uint8_t)(i * 7 + (i >> 9));
	assert_return_code(epf_put_signal(big.ring[0], 1, 0, 0, 0, 0, 2 * GIB, 1, 5, 0), 0);
	assert_return_code(epf_signal_wait(job.ep[1], 1, 5, UINT64_C(3600000000000)), 0);
	assert_memory_equal(big.mem[0], big.mem[1] + 2 * GIB - (16 << 20), 16 << 20);
	job.ep[0]->ops->counters(job.ep[0]->nic, &c);
	assert_true(c.bytes_tx >= 2 * GIB && c.bytes_tx < 2 * GIB + (1 << 20));
	assert_int_equal(epf_put(big.ring[0], 1, 0, 0, 0, 0, 2 * GIB + 1, 0), -E2BIG);
	assert_int_equal(epf_last_reason(), EPF_R_CMD_LIMIT);
	assert_int_equal(epf_put(big.ring[0], 1, EPF_WIDE_REGIONS, 0, 0, 0, 16, 0), -E2BIG);
	assert_int_equal(epf_put(big.ring[0], EPF_WIDE_RANKS, 0, 0, 0, 0, 16, 0), -E2BIG);
	assert_int_equal(epf_signal_send(big.ring[0], 1, EPF_WIDE_SIGNALS, 1, 0), -E2BIG);
	assert_int_equal(epf_put_signal(big.ring[0], 1, 0, 0, 0, 0, 16, 1, EPF_WIDE_ADD, 0),
			 -E2BIG);
	job_close(&job);
	for (int i = 0; i < 2; i++)
		munmap(big.mem[i], 2 * GIB);
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static void a_description_is_written_up_to_its_limits(void **state)
{
	uint32_t most = 4096 * EPF_MAX_LANES_PER_NODE;
	struct epf_description back,
		d = { .lanes = 8, .depth = EPF_MAX_WINDOW, .receives = EPF_MAX_WINDOW };
	uint8_t *buf;
	size_t len;

	d.streams = EPF_MAX_STREAMS_PER_NODE;
	d.n_signals = EPF_WIDE_SIGNALS;
	d.nic_addr_len = EPF_NIC_ADDR_BYTES;
	d.n_tokens = most;
	d.n_regions = EPF_MAX_REGIONS;
	d.tokens = calloc(most + 1, sizeof(*d.tokens));
	d.regions = calloc(EPF_MAX_REGIONS + 1, sizeof(*d.regions));
	assert_true(d.tokens && d.regions);
	d.tokens[most - 1] = UINT64_MAX;
	d.regions[EPF_MAX_REGIONS - 1] = (struct epf_region_remote){ .raddr = 1,
								     .bytes = EPF_WIDE_REGION_BYTES,
								     .rkey = UINT32_MAX,
								     .access = EPF_MR_REMOTE_READ };
	memset(d.node, 'n', sizeof(d.node) - 1);
	assert_int_equal(epf_description_encode(&d, &buf, &len), 0);
	assert_int_equal(epf_description_decode(buf, len, &back), 0);
	assert_int_equal(back.n_tokens, most);
	assert_int_equal(back.tokens[most - 1], UINT64_MAX);
	assert_int_equal(back.regions[EPF_MAX_REGIONS - 1].bytes, EPF_WIDE_REGION_BYTES);
	assert_int_equal(back.regions[EPF_MAX_REGIONS - 1].rkey, UINT32_MAX);
	assert_string_equal(back.node, d.node);
	epf_description_free(&back);
	free(buf);

	d.n_tokens++;
	assert_int_equal(epf_description_encode(&d, &buf, &len), -ERANGE);
	d.n_tokens--;
	d.n_regions++;
	assert_int_equal(epf_description_encode(&d, &buf, &len), -ERANGE);
	d.n_regions--;
	d.n_signals++;
	assert_int_equal(epf_description_encode(&d, &buf, &len), -ERANGE);
	d.n_signals--;
	d.nic_addr_len++;
	assert_int_equal(epf_description_encode(&d, &buf, &len), -ERANGE);
	d.nic_addr_len--;
	d.node[sizeof(d.node) - 1] = 'n'; /* would be cut */
	assert_int_equal(epf_description_encode(&d, &buf, &len), -ERANGE);
	free(d.tokens);
	free(d.regions);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_immediate_keeps_its_fields_apart),
		cmocka_unit_test(windows_from_1_to_the_largest),
		cmocka_unit_test(a_window_past_the_largest_is_refused),
		cmocka_unit_test(handles_end_where_they_are_said_to),
		cmocka_unit_test(worlds_end_where_numbers_do),
		cmocka_unit_test(every_signal_can_be_named_and_no_more),
		cmocka_unit_test(regions_end_at_their_number),
		cmocka_unit_test(a_lane_is_as_deep_as_a_power_of_two_that_the_nic_holds),
		cmocka_unit_test(transfers_are_cut_up_to_2_gib),
		cmocka_unit_test(a_byte_past_a_limit_is_refused),
		cmocka_unit_test(two_gib_are_really_copied),
		cmocka_unit_test(a_description_is_written_up_to_its_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
