/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of compressed chunks as plain C, for the fake GPU: a launch is one block of one thread, on the calling thread. */
#include "fabric/gpu/copy.h"
#include "fabric/gpu/fake.h"

/* Its memory is behind addresses that no CPU code may touch. */
static uint8_t *bytes_at(uint64_t addr, uint64_t bytes)
{
	void *at = epf_copy_fake_bytes((const void *)(uintptr_t)addr, bytes);

	return at ? (uint8_t *)at : (uint8_t *)(uintptr_t)addr;
}

#define EPF_PACK_AT(addr, bytes) bytes_at(addr, bytes)
#include "kernels/pack/epf_pack.cuh"

static struct epf_pack_job job_of(const struct epf_gpu_launch *l)
{
	struct epf_pack_job j = *(const struct epf_pack_job *)l->args[0];

	j.blocks = j.threads = 1;
	return j;
}

/* ThreadSanitizer checks each byte of a chunk, which is slow; on a real GPU no sanitizer sees these accesses. */
#define FAKE(name)                                                                              \
 __attribute__((no_sanitize("thread"))) static void fake_##name(const struct epf_gpu_launch *l) \
 {                                                                                              \
  struct epf_pack_job j = job_of(l);                                                            \
                                                                                                \
  epf_pack_##name(&j);                                                                          \
 }

FAKE(move)
FAKE(split)
FAKE(join)
FAKE(sum)
FAKE(close)
FAKE(verdict)

static const struct epf_gpu_fake_kernel kernels[] = {
	{ "epf_pack_k_move", fake_move },
	{ "epf_pack_k_split", fake_split },
	{ "epf_pack_k_join", fake_join },
	{ "epf_pack_k_sum", fake_sum },
	{ "epf_pack_k_close", fake_close },
	{ "epf_pack_k_verdict", fake_verdict },
	{ NULL, NULL },
};

extern const void *const epf_pack_fake_image;
const void *const epf_pack_fake_image = kernels;
