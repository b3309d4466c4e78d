/* SPDX-License-Identifier: Apache-2.0 */
/* Part of the plug-in that agents.py uses for GPU memory: lets a test allocate memory of the fake GPU inside, which only that plug-in's copies can touch. */
#include "fabric/gpu/copy.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void *epf_test_gpu_alloc(uint64_t bytes);
EXPORT void *epf_test_gpu_bytes(const void *addr, uint64_t bytes);

/* Returns an address, or NULL. Never freed. */
void *epf_test_gpu_alloc(uint64_t bytes)
{
	void *addr = NULL;

	return epf_copy_fake.mem_alloc(0, bytes, &addr) ? NULL : addr;
}

/* Returns where a test finds the bytes of an address. */
void *epf_test_gpu_bytes(const void *addr, uint64_t bytes)
{
	return epf_copy_fake_bytes(addr, bytes);
}
