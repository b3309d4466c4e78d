/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of each kind of memory that the engine registers, and of additions to GPU memory: see check.h. */
#include "fabric/base/err.h"
#include "tools/prove/check.h"
#include "tools/prove/rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MS 1000000ull

enum { PIECE = 32768, HUGE = 2 << 20 };

static void done(struct rig *rig, uint32_t id)
{
	int status;

	rig_run_until(rig, MS, &rig->a.n, 1);
	REQUIRE(rig_sent(rig, &rig->a, id, &status));
	REQUIRE_EQ(status, EPF_S_OK);
	rig_clear(rig);
}

/* From memory of a to b, from b into it by a read, and from b into it by a write of b. */
static void use_region(struct rig *rig, unsigned char *at, const struct epf_nic_mr *mr)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, PIECE);

	wr.laddr = (uint64_t)(uintptr_t)at;
	wr.lkey = mr->lkey;
	rig_fill(at, PIECE, 5);
	rig_post(rig, &wr);
	done(rig, 1);
	REQUIRE(rig_has(&rig->b, 0, PIECE, 5));
	rig_put(&rig->b, 0, PIECE, 6);
	wr.op = EPF_WR_READ;
	wr.id = 2;
	rig_post(rig, &wr);
	done(rig, 2);
	REQUIRE(rig_matches(at, PIECE, 6));
	rig_put(&rig->b, 0, PIECE, 7);
	wr = (struct epf_wr){ .laddr = rig->b.base,
			      .lkey = rig->b.mr.lkey,
			      .raddr = mr->raddr,
			      .rkey = mr->rkey,
			      .len = PIECE,
			      .id = 3,
			      .op = EPF_WR_WRITE };
	REQUIRE_EQ(rig->b.nic->ops->post(rig->b.nic, 0, &wr, 1), 1);
	rig_run_until(rig, MS, &rig->b.n, 1);
	REQUIRE_EQ(rig_count(&rig->b, EPF_WC_SENT, EPF_S_OK), 1);
	REQUIRE(rig_matches(at, PIECE, 7));
}

/* Takes fd over. */
static void mapped(struct rig *rig, size_t bytes, int flags, int fd)
{
	struct epf_nic *a = rig->a.nic;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	struct epf_nic_mr mr;

	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		rig_not_tried("no such memory is free here: %s", strerror(errno));
	/* Where a requirement is not met, the mapping stays until the program ends. */
	if (a->ops->region_register(a, at, bytes, EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &mr))
		rig_broken(__FILE__, __LINE__, "it cannot be registered: %s", epf_last_error());
	if (rig->kind->carries)
		use_region(rig, at, &mr);
	a->ops->region_deregister(a, &mr);
	munmap(at, bytes);
	rig_needs_arrivals(rig);
}

static void private_memory(struct rig *rig)
{
	mapped(rig, 8 * PIECE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void shared_memory(struct rig *rig)
{
	int fd = memfd_create("epf-prove", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, 8 * PIECE))
		rig_not_tried("no shared memory here: %s", strerror(errno));
	mapped(rig, 8 * PIECE, MAP_SHARED, fd);
}

/* One page of 2 MiB, which is given back. */
static void huge_pages(struct rig *rig)
{
	mapped(rig, HUGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
}

/* The rig's own memory is a GPU's, at both ends. */
static void gpu_memory(struct rig *rig)
{
	struct epf_wr wr = rig_write(rig, 1, 0, 0, PIECE);

	if (!(rig->kind->gpu & 1))
		rig_not_tried("the memory of this NIC's rig is the host's");
	rig_put(&rig->a, 0, PIECE, 5);
	rig_post(rig, &wr);
	done(rig, 1);
	REQUIRE(rig_has(&rig->b, 0, PIECE, 5));
	rig_put(&rig->b, 0, PIECE, 6);
	wr.op = EPF_WR_READ;
	wr.id = 2;
	rig_post(rig, &wr);
	done(rig, 2);
	REQUIRE(rig_has(&rig->a, 0, PIECE, 6));
}

static void dmabuf(struct rig *rig)
{
	if (!rig->a.by_dmabuf)
		rig_not_tried("GPU memory was not registered by a dma-buf");
	gpu_memory(rig);
}

/* The engine adds to a word of its own GPU memory when a notification arrives. */
static void additions(struct rig *rig)
{
	struct epf_nic *b = rig->b.nic;
	uint64_t sum;
	int pending = 1;

	if (!(rig->kind->gpu & 2) || rig->b.far)
		rig_not_tried("the memory here is the host's, and the CPU adds to that");
	rig_set(&rig->b, 0, 64, 0);
	for (unsigned i = 0; i < 10; i++) {
		int rc = -EAGAIN;

		for (unsigned tries = 0; tries < 10000 && rc == -EAGAIN; tries++) {
			rc = b->ops->add(b, &rig->b.mr, 8, 40);
			rig_reap(&rig->b);
		}
		REQUIRE_EQ(rc, 0);
	}
	for (unsigned i = 0; i < 100000 && pending; i++) {
		pending = b->ops->add_pending(b);
		if (pending) {
			rig_reap(&rig->b);
			usleep(20);
		}
	}
	REQUIRE_EQ(pending, 0);
	rig_get(&rig->b, 8, &sum, sizeof(sum));
	REQUIRE_EQ(sum, 400);
	REQUIRE(rig_all(&rig->b, 0, 8, 0));
	REQUIRE(rig_all(&rig->b, 16, 48, 0));
}

const struct check checks_memory[] = {
	{ "memory-private", "Ordinary memory can be registered, written to and read from.",
	  "EPF cannot register memory: raise ulimit -l, or use nic=tcp.", 0, private_memory },
	{ "memory-shared",
	  "Memory that is shared with other processes can be registered, written to and read from.",
	  "The daemon cannot serve clients over this NIC: use it embedded (no service), or nic=tcp.",
	  0, shared_memory },
	{ "memory-huge", "Memory of huge pages can be registered, written to and read from.",
	  "EPF cannot register buffers of huge pages: use ordinary pages, or nic=tcp.", 0,
	  huge_pages },
	{ "memory-gpu", "GPU memory can be registered, written to and read from.",
	  "EPF cannot reach GPU memory over this NIC: load nvidia-peermem or use a kernel with dma-buf, or keep buffers in host memory.",
	  CHECK_ARRIVALS | CHECK_GPU, gpu_memory },
	{ "memory-dmabuf", "GPU memory can be registered by a dma-buf.",
	  "EPF cannot reach GPU memory by dma-buf: load nvidia-peermem, or keep buffers in host memory.",
	  CHECK_ARRIVALS | CHECK_GPU, dmabuf },
	{ "additions",
	  "Additions to GPU memory are complete when the NIC says so, and change nothing else.",
	  "Signals in GPU memory are wrong: keep them in host memory (epf_signals_place).",
	  CHECK_ARRIVALS | CHECK_GPU, additions },
	{ 0 },
};
