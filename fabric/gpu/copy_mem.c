/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory as objects that NICs register (copy.h), and the list of kinds. Called by the back-ends of libepf and by the daemon
 * when a region is registered; the import of a client's memory is left to the copier, because it may take long. It must never touch the
 * memory itself.
 */
#include "fabric/gpu/copy.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* A name without its "/own". */
static const char *plain_name(const char *name)
{
	static const char *const all[] = { "auto", "cuda", "hip" };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (strncmp(name, all[i], strlen(all[i])) == 0)
			return all[i];
	return name;
}

int epf_copy_ops_find(const char *name, const struct epf_copy_ops **out)
{
	bool is_own = strchr(name, '/') != NULL;

	if (strcmp(name, "fake") == 0 || strcmp(name, "fake/own") == 0) {
		*out = is_own ? &epf_copy_fake_own : &epf_copy_fake;
		return 0;
	}
	if (strcmp(name, "none") == 0)
		return epf_fail(EPF_R_GPU_MEMORY, "GPU memory: gpu-backend is none");
	epf_copy_driver_choose(is_own ? plain_name(name) : name);
	*out = is_own ? &epf_copy_driver_own : &epf_copy_driver;
	return 0;
}

bool epf_copy_may_have(const char *name)
{
	static const char *const libraries[][2] = {
		{ "cuda", "libcuda.so.1" },    { "hip", "libamdhip64.so" },
		{ "hip", "libamdhip64.so.7" }, { "hip", "libamdhip64.so.6" },
		{ "hip", "libamdhip64.so.5" },
	};
	bool has = strcmp(name, "fake") == 0;

	for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries) && !has; i++) {
		void *lib = strcmp(name, "auto") == 0 || strcmp(name, libraries[i][0]) == 0
				    ? dlopen(libraries[i][1], RTLD_LAZY | RTLD_NOLOAD)
				    : NULL;

		has = lib != NULL;
		if (lib)
			dlclose(lib);
	}
	return has;
}

static struct epf_copy_mem *new_mem(const struct epf_copy_ops *ops, uint64_t bytes)
{
	struct epf_copy_mem *mem = calloc(1, sizeof(*mem));

	if (!mem) {
		epf_fail(EPF_R_NO_MEMORY, "GPU region: no memory");
		return NULL;
	}
	mem->ops = ops;
	mem->bytes = bytes;
	mem->handle.fd = -1;
	mem->refs = 1;
	return mem;
}

int epf_copy_mem_wrap(const struct epf_copy_ops *ops, void *addr, uint64_t bytes,
		      struct epf_copy_mem **out)
{
	struct epf_copy_mem *mem = new_mem(ops, bytes);
	int rc;

	if (!mem)
		return -ENOMEM;
	rc = ops->mem_export(addr, bytes, &mem->handle);
	if (rc) {
		free(mem);
		return rc;
	}
	mem->addr = mem->device_addr = (uint64_t)(uintptr_t)addr;
	mem->device = ops->mem_device(&mem->handle);
	mem->state = 1;
	*out = mem;
	return 0;
}

int epf_copy_mem_adopt(const struct epf_copy_ops *ops, const struct epf_copy_handle *h,
		       uint64_t bytes, struct epf_copy_mem **out)
{
	struct epf_copy_mem *mem;
	void *at;
	int rc = 0;

	if (!bytes || h->offset > h->bytes || bytes > h->bytes - h->offset ||
	    (h->kind != EPF_COPY_FD && h->kind != EPF_COPY_IPC))
		return epf_fail(
			EPF_R_GPU_MEMORY,
			"GPU region: %llu bytes at offset %llu of an allocation of %llu, handle kind %u",
			(unsigned long long)bytes, (unsigned long long)h->offset,
			(unsigned long long)h->bytes, h->kind);
	mem = new_mem(ops, bytes);
	if (!mem)
		return -ENOMEM;
	mem->handle = *h;
	mem->handle.fd = -1;
	mem->reserved = (bytes + PAGE - 1) / PAGE * PAGE;
	at = mmap(NULL, mem->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		  0);
	if (at == MAP_FAILED) {
		rc = epf_fail_sys(EPF_R_NO_MEMORY, errno, "GPU region: %llu bytes of addresses",
				  (unsigned long long)mem->reserved);
		goto err_free;
	}
	mem->addr = (uint64_t)(uintptr_t)at;
	if (h->kind == EPF_COPY_FD) {
		mem->handle.fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
		if (mem->handle.fd < 0) {
			rc = epf_fail_sys(EPF_R_SYSTEM, errno, "GPU region: its descriptor");
			goto err_unmap;
		}
	}
	*out = mem;
	return 0;
err_unmap:
	munmap(at, mem->reserved);
err_free:
	free(mem);
	return rc;
}

void epf_copy_mem_get(struct epf_copy_mem *mem)
{
	__atomic_fetch_add(&mem->refs, 1, __ATOMIC_RELAXED);
}

void epf_copy_mem_put(struct epf_copy_mem *mem)
{
	if (!mem || __atomic_sub_fetch(&mem->refs, 1, __ATOMIC_ACQ_REL))
		return;
	if (mem->reserved) {
		if (mem->state == 1)
			mem->ops->mem_unimport(&mem->handle, mem->device_addr);
		munmap((void *)(uintptr_t)mem->addr, mem->reserved);
	}
	if (mem->handle.fd >= 0)
		close(mem->handle.fd);
	free(mem);
}
