/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl_play.h: where tables and memory come from. */
#include "tests/proc/nccl_play.h"

#include "tools/nccl/abi_gin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void play_device(unsigned rank)
{
	const char *all = getenv("PLAY_DEVICES"), *from = all;
	char name[64];

	if (!all)
		return;
	for (; rank && *from; rank--) {
		from = strchr(from, ',');
		from = from ? from + 1 : all;
	}
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(from, ","), from);
	setenv("EPF_NIC_DEVICE", name, 1);
}

#ifdef PLAY_FAKE_GPU
# include "fabric/gpu/copy.h"

extern const struct epf_nccl_net_v10 ncclNetPlugin_v10;
extern const struct epf_nccl_net_v11 ncclNetPlugin_v11;
extern const struct epf_nccl_net_v12 ncclNetPlugin_v12;
extern const struct epf_nccl_gin_v11 ncclGinPlugin_v11;
extern const struct epf_nccl_gin_v12 ncclGinPlugin_v12;
extern const struct epf_nccl_gin_v13 ncclGinPlugin_v13;
extern const struct epf_nccl_gin_v14 ncclGinPlugin_v14;
extern const struct epf_nccl_rma_v14 ncclRmaPlugin_v14;

void *play_table(const char *library, const char *symbol)
{
	static const struct {
		const char *name;
		const void *table;
	} all[] = {
		{ "ncclNetPlugin_v10", &ncclNetPlugin_v10 },
		{ "ncclNetPlugin_v11", &ncclNetPlugin_v11 },
		{ "ncclNetPlugin_v12", &ncclNetPlugin_v12 },
		{ "ncclGinPlugin_v11", &ncclGinPlugin_v11 },
		{ "ncclGinPlugin_v12", &ncclGinPlugin_v12 },
		{ "ncclGinPlugin_v13", &ncclGinPlugin_v13 },
		{ "ncclGinPlugin_v14", &ncclGinPlugin_v14 },
		{ "ncclRmaPlugin_v14", &ncclRmaPlugin_v14 },
	};

	(void)library;
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(symbol, all[i].name) == 0)
			return (void *)(uintptr_t)all[i].table;
	return NULL;
}

int play_memory(size_t bytes, void **addr, uint8_t **seen)
{
	const struct epf_copy_ops *ops;
	int rc = epf_copy_ops_find("fake", &ops);

	if (!rc)
		rc = ops->load();
	if (!rc)
		rc = ops->mem_alloc(0, bytes, addr);
	if (!rc)
		*seen = epf_copy_fake_bytes(*addr, bytes);
	return rc;
}

void play_memory_free(void *addr, size_t bytes)
{
	const struct epf_copy_ops *ops;

	(void)bytes;
	if (epf_copy_ops_find("fake", &ops) == 0)
		ops->mem_free(addr);
}

void play_private(bool on)
{
	epf_copy_fake_private(on);
}

void play_load(bool on)
{
	epf_copy_fake_hold(on ? 5 : 0);
}

unsigned play_blocked(void)
{
	return epf_copy_fake_held();
}

#else

void *play_table(const char *library, const char *symbol)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		fprintf(stderr, "%s\n", dlerror());
	return lib ? dlsym(lib, symbol) : NULL;
}

int play_memory(size_t bytes, void **addr, uint8_t **seen)
{
	*addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*seen = *addr;
	return *addr == MAP_FAILED ? -1 : 0;
}

void play_memory_free(void *addr, size_t bytes)
{
	munmap(addr, bytes);
}

void play_private(bool on)
{
	(void)on;
}

void play_load(bool on)
{
	(void)on;
}

unsigned play_blocked(void)
{
	return 0;
}

#endif
