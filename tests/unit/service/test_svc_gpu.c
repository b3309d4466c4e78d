/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of a daemon's client (fabric/service/gpu.c) without a GPU: which kind each NIC takes, what a dma-buf and its words must be, and that a region that was
 * taken reaches the job's NIC. The test of what is a dma-buf is real where one is refused, and a fake where one is taken: no driver makes
 * any here. The daemon has the null NIC, which is none of the emulated kind and registers no memory of devices.
 */
#include "fabric/client/epf.h"
#include "fabric/gpu/device_mem.h"
#include "fabric/service/service_priv.h"
#include "tests/unit/service/svc_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { BYTES = 1 << 20 };

static struct kit kit;
static int (*real_dmabuf)(int fd, uint64_t *bytes);

static int a_megabyte(int fd, uint64_t *bytes)
{
	*bytes = BYTES;
	return 0;
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* The same when the daemon's thread has closed what it was about to close. */
static unsigned settled_files(void)
{
	unsigned n = open_files();

	for (unsigned same = 0; same < 20; same++) {
		usleep(10000);
		if (open_files() != n)
			same = 0;
		n = open_files();
	}
	return n;
}

static void begin(const char *nic)
{
	kit_make(&kit);
	kit_set(&kit, "nic", nic);
	assert_int_equal(kit_run(&kit), 0);
}

static struct epf_svc_gpu_region region(uint64_t addr, uint32_t order)
{
	struct epf_svc_gpu_region q = { .kind = EPF_SVC_GPU_DMABUF,
					.access = EPF_REMOTE_WRITE,
					.bytes = BYTES / 2,
					.whole = BYTES / 2,
					.offset = BYTES / 2 };

	for (unsigned i = 0; i < 8; i++)
		q.ipc[i] = (uint8_t)(addr >> 8 * i);
	q.ipc[8] = (uint8_t)order;
	return q;
}

static int ask(struct epf_svc_channel *ch, const struct epf_svc_gpu_region *q)
{
	struct epf_svc_region_reply a;
	int fd = memfd_create("no dma-buf", MFD_CLOEXEC), rc;

	assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
	rc = kit_call(ch, EPF_SVC_GPU_REGION, q, fd, &a, NULL);
	close(fd);
	return rc;
}

static void refused(const struct epf_svc_gpu_region *q, int err, const char *words)
{
	struct epf_svc_channel *ch = kit_client(&kit);

	assert_non_null(ch);
	assert_int_equal(ask(ch, q), err);
	if (!strstr(epf_last_error(), words))
		fail_msg("'%s' does not say '%s'", epf_last_error(), words);
	epf_svc_channel_close(ch);
}

static void each_nic_takes_its_kind(void **state)
{
	struct epf_svc_gpu_region q = region(0x7f0000000000, EPF_ORDER_OWNER);

	begin("emu");
	refused(&q, -EOPNOTSUPP, "the NIC of this daemon, emu, takes GPU memory as a handle");
	kit_remove(&kit);
	begin("null");
	q.kind = 1;
	refused(&q, -EOPNOTSUPP, "the NIC of this daemon, null, takes GPU memory as a dma-buf");
	kit_remove(&kit);
}

static void what_is_no_dma_buf_is_refused(void **state)
{
	struct epf_svc_gpu_region q = region(0x7f0000000000, EPF_ORDER_OWNER);

	begin("null");
	refused(&q, -EINVAL, "the descriptor is no dma-buf");
	svc_dmabuf_bytes = a_megabyte;
	q.offset++;
	refused(&q, -EINVAL, "reach beyond the dma-buf's 1048576");
	q = region(0, EPF_ORDER_OWNER);
	refused(&q, -EINVAL, "is no address for them");
	q = region(~UINT64_C(0) - 100, EPF_ORDER_OWNER);
	refused(&q, -EINVAL, "is no address for them");
	q = region(0x7f0000000000, EPF_ORDER_NONE);
	refused(&q, -EOPNOTSUPP, "cannot call its driver's flush");
	q = region(0x7f0000000000, 77);
	refused(&q, -EOPNOTSUPP, "promises no order");
	svc_dmabuf_bytes = real_dmabuf;
	kit_remove(&kit);
}

/* Taken, with a descriptor of the daemon's own; registered with the NIC when the rank joins a job, which this NIC refuses. */
static void a_region_reaches_the_nic(void **state)
{
	struct epf_svc_gpu_region q = region(0x7f0000000000, EPF_ORDER_ALL);
	struct epf_svc_signals sq = { .count = 4 };
	struct epf_svc_signals_reply sa;
	struct epf_svc_attach aq = kit_attach(1, 0, 1);
	struct epf_svc_attach_reply aa;
	struct epf_svc_channel *ch;
	unsigned files;

	begin("null");
	svc_dmabuf_bytes = a_megabyte;
	ch = kit_client(&kit);
	assert_non_null(ch);
	assert_int_equal(kit_call(ch, EPF_SVC_SIGNALS, &sq, -1, &sa, NULL), 0);
	files = settled_files();
	assert_int_equal(ask(ch, &q), 0);
	assert_int_equal(settled_files(), files + 1);
	assert_int_equal(kit_call(ch, EPF_SVC_ATTACH, &aq, -1, &aa, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(epf_last_error(), "null takes no GPU memory this way"));
	epf_svc_channel_close(ch);
	for (unsigned i = 0; i < 6000 && open_files() >= files; i++)
		usleep(10000);
	assert_true(open_files() < files); /* the client's end, the daemon's and the dma-buf */
	svc_dmabuf_bytes = real_dmabuf;
	kit_remove(&kit);
}

static int keep(void **state)
{
	real_dmabuf = svc_dmabuf_bytes;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_nic_takes_its_kind),
		cmocka_unit_test(what_is_no_dma_buf_is_refused),
		cmocka_unit_test(a_region_reaches_the_nic),
	};

	return cmocka_run_group_tests_name("GPU memory of a daemon's client", tests, keep, NULL);
}
