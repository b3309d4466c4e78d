/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu_kit.h. */
#include "tests/unit/nic/gpu_kit.h"

#include "fabric/gpu/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void gpu_post_all(struct rig *rig, const struct epf_wr *wr, unsigned n)
{
	while (n) {
		int taken = rig->a.nic->ops->post(rig->a.nic, 0, wr, n);

		assert_true(taken >= 0 && (unsigned)taken <= n);
		wr += taken;
		n -= (unsigned)taken;
		rig_reap(&rig->b);
		rig_reap(&rig->a);
	}
}

int gpu_outcome(struct rig *rig, uint32_t id)
{
	int status = -1;

	for (int i = 0; i < 200 && !rig_sent(rig, &rig->a, id, &status); i++)
		rig_run(rig, MS);
	return status;
}

static void overlapping_writes(const struct nic_kind *kind, unsigned at_once)
{
	enum { WRITES = 2000, SPAN = 8192, LEN = 900, MOST = 128 };
	struct rig *rig = rig_open(kind, NULL);
	unsigned char *model = calloc(1, SPAN);
	struct epf_wr wr[MOST];
	uint64_t random = 12345;
	unsigned n = 0;

	assert_non_null(model);
	rig_fill(rig->a.mem, RIG_BYTES, 77);
	memset(rig->b.mem, 0, SPAN);
	for (uint32_t i = 0; i < WRITES; i++) {
		uint32_t len = 1 + (uint32_t)(rig_random(&random) % LEN);
		uint64_t src = rig_random(&random) % (RIG_BYTES - LEN);
		uint64_t dst = rig_random(&random) % (SPAN - LEN);

		wr[n] = rig_write(rig, i, src, dst, len);
		/* Some travel in their packets: to host memory they are landed by the CPU. */
		if (i % (at_once == 1 ? 3 : 37) == 0) {
			wr[n].len = len = 1 + len % EPF_NIC_MSG_BYTES;
			rig_inline(rig, &wr[n]);
		}
		memcpy(model + dst, rig->a.mem + src, len);
		if (++n == at_once || i + 1 == WRITES) {
			gpu_post_all(rig, wr, n);
			n = 0;
		}
	}
	assert_int_equal(gpu_outcome(rig, WRITES - 1), EPF_S_OK);
	assert_memory_equal(rig->b.mem, model, SPAN);
	free(model);
	rig_close(rig);
}

void gpu_later_writes_win(const struct nic_kind *kind)
{
	for (unsigned at_once = 1; at_once <= 128; at_once = at_once * 4 + 3)
		overlapping_writes(kind, at_once);
}

void gpu_wrong_among_many(const struct nic_kind *kind)
{
	enum { WRITES = 40, LEN = 1024, WRONG = 11 };

	for (unsigned how = 0; how < 3; how++) {
		struct rig *rig = rig_open(kind, NULL);
		struct epf_wr wr[WRITES];
		int expected = how == 2 ? EPF_S_LOCAL : EPF_S_REMOTE_ACCESS;

		rig_fill(rig->a.mem, RIG_BYTES, 3);
		memset(rig->b.mem, 0, RIG_BYTES);
		for (uint32_t i = 0; i < WRITES; i++)
			wr[i] = rig_write(rig, i, i * LEN, i * LEN, LEN);
		if (how == 0)
			wr[WRONG].rkey ^= 0x10000;
		else if (how == 1)
			wr[WRONG].raddr = rig->b.mr.raddr + RIG_BYTES - LEN + 1;
		else
			wr[WRONG].laddr += RIG_BYTES;
		assert_int_not_equal(rig->a.nic->ops->post(rig->a.nic, 0, wr, WRITES), 0);
		assert_int_equal(gpu_outcome(rig, WRONG), expected);
		assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, expected), 1);
		assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
		assert_memory_equal(rig->b.mem, rig->a.mem, WRONG * LEN);
		for (unsigned i = WRONG * LEN; i < RIG_BYTES; i++)
			assert_int_equal(rig->b.mem[i], 0);
		rig_expect_whole(rig);
		rig_close(rig);
	}
}

void gpu_withdrawn(const struct nic_kind *kind)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	struct epf_copy_mem *mem;

	rig_fill(rig->a.mem, 5000, 5);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	memset(rig->b.mem, 0, 5000);
	rig->b.nic->ops->region_deregister(rig->b.nic, &rig->b.mr);
	wr.id = 2;
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 2), EPF_S_REMOTE_ACCESS);
	for (unsigned i = 0; i < 5000; i++)
		assert_int_equal(rig->b.mem[i], 0);
	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, rig->b.gpu, RIG_BYTES, &mem), 0);
	assert_int_equal(rig->b.nic->ops->region_register_gpu(rig->b.nic, mem, EPF_MR_REMOTE_WRITE,
							      &rig->b.mr),
			 0);
	epf_copy_mem_put(mem);
	rig_reconnect(rig);
	rig_clear(rig);
	wr = rig_write(rig, 3, 0, 0, 5000);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 3), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 5000, 5));
	wr.id = 4; /* not for reading */
	wr.op = EPF_WR_READ;
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 4), EPF_S_REMOTE_ACCESS);
	rig_close(rig);
}

FILE *gpu_catch_log(int *before)
{
	FILE *file = tmpfile();

	assert_non_null(file);
	fflush(stderr);
	*before = dup(STDERR_FILENO);
	assert_true(*before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
	return file;
}

bool gpu_was_logged(FILE *file, const char *text)
{
	char all[8192];
	ssize_t n = pread(fileno(file), all, sizeof(all) - 1, 0);

	all[n > 0 ? n : 0] = '\0';
	return strstr(all, text) != NULL;
}

void gpu_stands_still(const struct nic_kind *kind, int hold, const char *text)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	int status = -1, before, said = 0;
	FILE *file;

	rig_fill(rig->a.mem, 5000, 5);
	file = gpu_catch_log(&before);
	epf_copy_fake_hold(hold);
	rig_post(rig, &wr);
	for (int i = 0; i < 60000 && !said; i++) {
		rig_reap(&rig->a); /* rig_run() would wait for the copies */
		rig_reap(&rig->b);
		rig->a.nic->ops->watch(rig->a.nic);
		said = gpu_was_logged(file, "[EPF-472]");
		usleep(1000);
	}
	epf_copy_fake_hold(0);
	status = gpu_outcome(rig, 1);
	for (int i = 0; i < 60000 && !gpu_was_logged(file, "go on, after"); i++)
		usleep(1000);
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
	assert_true(said);
	assert_true(gpu_was_logged(file, text));
	assert_true(gpu_was_logged(file, "CUDA_MODULE_LOADING=EAGER"));
	assert_true(gpu_was_logged(file, "go on, after"));
	fclose(file);
	assert_int_equal(status, EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 5000, 5));
	rig_close(rig);
}
