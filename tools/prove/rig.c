/* SPDX-License-Identifier: Apache-2.0 */
/* Two NICs that face each other: see rig.h. It must never look at the inside of a NIC. */
#include "tools/prove/rig.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/rdma.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void run_real(struct rig *rig, uint64_t span_ns)
{
	const uint64_t quiet_ns = 8000000, patience_ns = 300000000, turn_ns = 20000000;
	uint64_t last = epf_now_ns(), waited = 0, wait;

	do {
		unsigned n = rig_reap(&rig->a) + rig_reap(&rig->b);
		uint64_t now;

		if (!n)
			usleep(50);
		/* A machine that was not run meanwhile has not waited: neither have its devices. */
		now = epf_now_ns();
		waited += now - last < turn_ns ? now - last : turn_ns;
		if (n)
			waited = 0;
		last = now;
		wait = span_ns > patience_ns ? span_ns : patience_ns;
		if (!rig_outstanding(&rig->a) && !rig_outstanding(&rig->b))
			wait = quiet_ns;
	} while (waited < wait);
}

static uint64_t rig_now(void *arg)
{
	return ((struct rig *)arg)->now_ns;
}

static const struct epf_copy_ops *copy_of(const struct rig *rig)
{
	return rig->copy ? rig->copy : &epf_copy_fake;
}

/* For a NIC that reaches GPU memory by itself. */
static int device_memory(struct rig *rig, struct rig_end *end)
{
	struct epf_device_mem mem;
	int rc = epf_device_gpu_mem(&end->gpus, rig->gpu_ops, (uint64_t)(uintptr_t)end->gpu,
				    RIG_BYTES, &mem);

	if (rc)
		return rc;
	rc = end->nic->ops->region_register_device(
		end->nic, &mem, EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &end->mr);
	end->by_dmabuf = mem.dmabuf_fd >= 0;
	if (mem.dmabuf_fd >= 0)
		close(mem.dmabuf_fd);
	return rc;
}

/* The test looks at a fake GPU's memory behind its back; a real one's is copied. */
static void gpu_memory(struct rig *rig, struct rig_end *end)
{
	const struct epf_copy_ops *copy = copy_of(rig);
	struct epf_copy_mem *mem;
	int rc;

	if (copy->mem_alloc(0, RIG_BYTES, &end->gpu))
		rig_not_tried("no GPU memory: %s", epf_last_error());
	REQUIRE_EQ(epf_copy_mem_wrap(copy, end->gpu, RIG_BYTES, &mem), 0);
	rc = end->nic->ops->region_register_gpu(end->nic, mem,
						EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &end->mr);
	epf_copy_mem_put(mem);
	if (rc && rig->gpu_ops)
		rc = device_memory(rig, end);
	if (rc)
		rig_broken(__FILE__, __LINE__, "GPU memory cannot be registered: %s",
			   epf_last_error());
	end->base = (uint64_t)(uintptr_t)end->gpu;
	if (copy == &epf_copy_fake) {
		end->mem = epf_copy_fake_bytes(end->gpu, RIG_BYTES);
		REQUIRE(end->mem);
	}
}

static void host_memory(struct rig_end *end)
{
	end->mem = calloc(1, RIG_BYTES);
	REQUIRE(end->mem);
	end->base = (uint64_t)(uintptr_t)end->mem;
}

static void open_end(struct rig *rig, struct rig_end *end, int number)
{
	if (rig->kind->open(rig->opts, number, rig_now, rig, &end->nic))
		rig_broken(__FILE__, __LINE__, "the NIC cannot be opened: %s", epf_last_error());
	if (rig->kind->real)
		rig_track(end, rig->kind->ordered);
	end->copies = rig->kind->gpu != 0;
	end->far = number ? rig->far : NULL;
	end->deadline_ns = rig->deadline_ns;
	end->copy = copy_of(rig);
	if (rig->kind->gpu >> number & 1) {
		gpu_memory(rig, end);
		return;
	}
	if (end->far)
		end->base = end->far->base;
	else
		host_memory(end);
	/* The far end puts its own memory in place of NULL. */
	if (end->nic->ops->region_register(end->nic, end->mem, RIG_BYTES,
					   EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &end->mr))
		rig_broken(__FILE__, __LINE__, "memory cannot be registered: %s", epf_last_error());
}

static void close_end(struct rig *rig, struct rig_end *end)
{
	if (end->nic)
		end->nic->ops->close(end->nic);
	if (end->gpu)
		copy_of(rig)->mem_free(end->gpu);
	else
		free(end->mem);
	epf_device_gpu_close(end->gpus);
	free(end->track);
}

void rig_close(struct rig *rig)
{
	if (!rig)
		return;
	close_end(rig, &rig->a);
	close_end(rig, &rig->b);
	free(rig->opts);
	free(rig);
}

void rig_lanes(struct rig *rig, uint16_t la, uint16_t lb)
{
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	uint64_t ta, tb;
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));

	REQUIRE(na > 0 && nb > 0);
	REQUIRE_EQ(a->ops->lane_create(a, la, RIG_DEPTH, &ta), 0);
	REQUIRE_EQ(b->ops->lane_create(b, lb, RIG_DEPTH, &tb), 0);
	REQUIRE_EQ(a->ops->lane_link(a, la), EPF_LANE_IDLE);
	REQUIRE_EQ(a->ops->lane_connect(a, la, addr_b, (size_t)nb, tb), 0);
	REQUIRE_EQ(b->ops->lane_connect(b, lb, addr_a, (size_t)na, ta), 0);
	REQUIRE_EQ(a->ops->lane_link(a, la), EPF_LANE_READY);
}

/* Where lanes share a connection, the first request after a failure may meet the rest of the one that is lost. */
static void settle(struct rig *rig)
{
	int status = EPF_S_FLUSHED;

	for (int i = 0; i < 8 && status != EPF_S_OK; i++) {
		struct epf_wr wr = rig_write(rig, 0, 0, 0, 1);

		if (i) {
			rig->a.nic->ops->lane_destroy(rig->a.nic, 0);
			rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
			rig_lanes(rig, 0, 0);
		}
		rig_clear(rig);
		rig_post(rig, &wr);
		rig_run_until(rig, 1000000, &rig->a.n, 1);
		REQUIRE(rig_sent(rig, &rig->a, 0, &status));
	}
	REQUIRE_EQ(status, EPF_S_OK);
	rig_clear(rig);
}

/* Over TCP one end is connected a moment before the other: a lane that fails in between would surprise its peer. */
static int is_tcp(const struct rig *rig)
{
	return strncmp(rig->kind->name, "tcp", 3) == 0;
}

void rig_reconnect(struct rig *rig)
{
	rig->a.nic->ops->lane_destroy(rig->a.nic, 0);
	rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
	rig_lanes(rig, 0, 0);
	if (rig->kind->refusal == NIC_REFUSAL_LOST || is_tcp(rig))
		settle(rig);
}

void rig_start(struct rig *rig)
{
	rig->now_ns = 1000000;
	if (!rig->lanes)
		rig->lanes = 300;
	open_end(rig, &rig->a, 0);
	open_end(rig, &rig->b, 1);
	rig_lanes(rig, 0, 0);
	if (is_tcp(rig))
		settle(rig);
}

void rig_expect_whole(struct rig *rig)
{
	struct epf_nic_caps caps;
	struct epf_wr wr;
	int status;

	rig_reconnect(rig);
	rig_run(rig, 1000000);
	rig_clear(rig);
	rig->a.nic->ops->describe(rig->a.nic, &caps);
	for (uint32_t i = 0; i < 8; i++) {
		wr = rig_write(rig, i, 0, 0,
			       caps.max_msg_bytes < RIG_BYTES ? caps.max_msg_bytes : RIG_BYTES);
		rig_post(rig, &wr); /* an eighth of the pool each */
	}
	rig_run(rig, 1000000000);
	REQUIRE(rig_sent(rig, &rig->a, 7, &status));
	REQUIRE_EQ(status, EPF_S_OK);
}

void rig_receives(struct rig_end *end, unsigned n)
{
	struct epf_nic_caps caps;

	end->nic->ops->describe(end->nic, &caps);
	end->nic->ops->post_receives(end->nic, n * (caps.keys > 1 ? caps.keys : 1));
}

unsigned rig_reap(struct rig_end *end)
{
	struct epf_wc wc[16];
	int n = end->nic->ops->reap(end->nic, wc, 16);

	if (end->deadline_ns && epf_now_ns() > end->deadline_ns)
		rig_not_tried("it did not end within the time that all checks have together");
	REQUIRE_IN(n, 0, 16);
	if (end->copies) { /* what the run loop does between two steps */
		end->nic->ops->wake_peers(end->nic);
		sched_yield();
	}
	for (int i = 0; i < n; i++) {
		REQUIRE(end->n < RIG_LOG);
		REQUIRE(wc[i].op != EPF_WC_RECV || wc[i].len <= sizeof(end->msg[0]));
		if (wc[i].op == EPF_WC_RECV)
			memcpy(end->msg[end->n], wc[i].msg, wc[i].len);
		end->log[end->n++] = wc[i];
	}
	return (unsigned)n;
}

void rig_run(struct rig *rig, uint64_t span_ns)
{
	uint64_t end_ns = rig->now_ns + span_ns;

	if (rig->kind->real)
		run_real(rig, span_ns);
	for (; !rig->kind->real;) {
		uint64_t na, nb, next;
		unsigned n = rig_reap(&rig->a);

		n += rig_reap(&rig->b);
		if (n)
			continue;
		na = rig->a.nic->ops->next_event(rig->a.nic);
		nb = rig->b.nic->ops->next_event(rig->b.nic);
		next = na < nb ? na : nb;
		if (rig->kind->next_event && rig->kind->next_event() < next)
			next = rig->kind->next_event();
		if (next > end_ns)
			break;
		if (next > rig->now_ns)
			rig->now_ns = next;
	}
	rig->now_ns = end_ns;
}

/* How many turns to wait for a real device: more for a GPU, whose first copy may load the driver. */
static int tries_of(const struct rig *rig)
{
	int usual = rig->kind->gpu ? 60 : 10;

	return rig->kind->real ? usual : 1;
}

int rig_run_until(struct rig *rig, uint64_t span_ns, const unsigned *n, unsigned want)
{
	int tries = tries_of(rig);

	while (*n < want && tries--)
		rig_run(rig, span_ns);
	return *n >= want;
}

void rig_finish(struct rig *rig)
{
	int tries = tries_of(rig);

	do
		rig_run(rig, 1000000);
	while (rig_silent(rig) && --tries);
}

int rig_silent(const struct rig *rig)
{
	return rig->kind->real && (rig_outstanding(&rig->a) || rig_outstanding(&rig->b));
}

void rig_clear(struct rig *rig)
{
	rig->a.n = rig->b.n = 0;
}

unsigned rig_count(const struct rig_end *end, int op, int status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < end->n; i++)
		n += end->log[i].op == op && (status < 0 || end->log[i].status == status);
	return n;
}

int rig_sent(const struct rig *rig, const struct rig_end *end, uint32_t id, int *status)
{
	for (unsigned i = 0; i < end->n; i++) {
		const struct epf_wc *wc = &end->log[i];

		if (wc->op != EPF_WC_SENT || wc->lane != 0)
			continue;
		if (wc->id != id && !(rig->kind->ordered && wc->id > id && wc->status == EPF_S_OK))
			continue;
		*status = wc->status;
		return 1;
	}
	return 0;
}

struct epf_wr rig_write(const struct rig *rig, uint32_t id, uint64_t src, uint64_t dst,
			uint32_t len)
{
	return (struct epf_wr){
		.laddr = rig->a.base + src,
		.raddr = rig->b.mr.raddr + dst,
		.lkey = rig->a.mr.lkey,
		.rkey = rig->b.mr.rkey,
		.len = len,
		.id = id,
		.op = EPF_WR_WRITE,
	};
}

void rig_message(const struct rig *rig, struct epf_wr *wr)
{
	wr->op = EPF_WR_SEND;
	if (rig->a.gpu)
		rig_inline(rig, wr);
}

void rig_needs_arrivals(const struct rig *rig)
{
	if (!rig->kind->carries)
		rig_not_tried("work completes, but nothing arrives through this NIC");
}

void rig_post(struct rig *rig, const struct epf_wr *wr)
{
	REQUIRE_EQ(rig->a.nic->ops->post(rig->a.nic, 0, wr, 1), 1);
}
