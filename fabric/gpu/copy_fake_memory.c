/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake GPU of copy_fake.c: addresses that no CPU code may touch, and where their bytes really are. */
#include "fabric/base/err.h"
#include "fabric/gpu/copy_fake_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A mapping of fake device memory: addresses for the world, an alias for the copying thread. */
struct piece {
	struct piece *next;
	uint64_t addr, bytes;
	uint8_t *alias;
	int fd;
};

static struct piece *pieces;
static pthread_mutex_t pieces_lock = PTHREAD_MUTEX_INITIALIZER;

/* Maps a memfd twice; takes the descriptor. */
static int add_piece(int fd, uint64_t bytes, uint64_t *addr)
{
	struct piece *p = calloc(1, sizeof(*p));
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	void *alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (!p || at == MAP_FAILED || alias == MAP_FAILED) {
		if (at != MAP_FAILED)
			munmap(at, bytes);
		if (alias != MAP_FAILED)
			munmap(alias, bytes);
		free(p);
		close(fd);
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: no memory for %llu bytes",
				(unsigned long long)bytes);
	}
	*p = (struct piece){ NULL, (uint64_t)(uintptr_t)at, bytes, alias, fd };
	pthread_mutex_lock(&pieces_lock);
	p->next = pieces;
	pieces = p;
	pthread_mutex_unlock(&pieces_lock);
	*addr = p->addr;
	/* cppcheck-suppress memleak */
	return 0;
}

static void drop_piece(uint64_t addr)
{
	struct piece **at = &pieces, *p;

	pthread_mutex_lock(&pieces_lock);
	while (*at && (*at)->addr != addr)
		at = &(*at)->next;
	p = *at;
	if (p)
		*at = p->next;
	pthread_mutex_unlock(&pieces_lock);
	if (!p)
		return;
	munmap((void *)(uintptr_t)p->addr, p->bytes);
	munmap(p->alias, p->bytes);
	close(p->fd);
	free(p);
}

int epf_copy_fake_alloc(int device, uint64_t bytes, void **addr)
{
	uint64_t at;
	int fd, rc;

	(void)device;
	bytes = (bytes + 4095) & ~4095ull;
	fd = memfd_create("ep-fabric-fake-gpu", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
		rc = epf_fail_sys(EPF_R_NO_MEMORY, errno, "fake GPU: %llu bytes",
				  (unsigned long long)bytes);
		if (fd >= 0)
			close(fd);
		return rc;
	}
	rc = add_piece(fd, bytes, &at);
	if (!rc)
		*addr = (void *)(uintptr_t)at;
	return rc;
}

void epf_copy_fake_free(void *addr)
{
	drop_piece((uint64_t)(uintptr_t)addr);
}

/* The piece that holds an address, or NULL. pieces_lock held. */
static const struct piece *find(uint64_t addr)
{
	const struct piece *p = pieces;

	while (p && (addr < p->addr || addr - p->addr >= p->bytes))
		p = p->next;
	return p;
}

/* Where the bytes of an address are: the alias of fake memory, or the address itself. NULL: it leaves its piece. */
uint8_t *epf_copy_fake_real(uint64_t addr, uint64_t bytes)
{
	uint8_t *at = (uint8_t *)(uintptr_t)addr;
	const struct piece *p;

	pthread_mutex_lock(&pieces_lock);
	p = find(addr);
	if (p)
		at = bytes <= p->bytes - (addr - p->addr) ? p->alias + (addr - p->addr) : NULL;
	pthread_mutex_unlock(&pieces_lock);
	return at;
}

void *epf_copy_fake_bytes(const void *addr, uint64_t bytes)
{
	uint8_t *at = epf_copy_fake_real((uint64_t)(uintptr_t)addr, bytes);

	return at == addr ? NULL : at;
}

/* Kernels of the fake GPU are CPU code. */
uint64_t epf_copy_fake_for_kernels(const void *addr, uint64_t bytes)
{
	return (uint64_t)(uintptr_t)epf_copy_fake_bytes(addr, bytes);
}

static int is_private; /* under pieces_lock */

void epf_copy_fake_private(int on)
{
	pthread_mutex_lock(&pieces_lock);
	is_private = on;
	pthread_mutex_unlock(&pieces_lock);
}

int epf_copy_fake_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;
	struct epf_copy_handle h = { .kind = EPF_COPY_FD, .fd = -1 };
	const struct piece *p;

	pthread_mutex_lock(&pieces_lock);
	p = find(at);
	if (p && bytes <= p->bytes - (at - p->addr)) {
		h.bytes = p->bytes;
		h.offset = at - p->addr;
		if (is_private)
			h.kind = EPF_COPY_LOCAL;
		else
			h.fd = dup(p->fd);
	}
	pthread_mutex_unlock(&pieces_lock);
	if (h.fd < 0 && (h.kind != EPF_COPY_LOCAL || !h.bytes))
		return epf_fail(EPF_R_GPU_MEMORY, "fake GPU: %llu bytes at %p are no memory of it",
				(unsigned long long)bytes, addr);
	*out = h;
	return 0;
}

int epf_copy_fake_place(const void *addr, uint64_t bytes, int *device)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;
	const struct piece *p;
	int rc = 0;

	pthread_mutex_lock(&pieces_lock);
	p = find(at);
	if (p)
		rc = bytes <= p->bytes - (at - p->addr) ? 1 : -EINVAL;
	pthread_mutex_unlock(&pieces_lock);
	if (rc < 0)
		return epf_fail(EPF_R_GPU_MEMORY, "fake GPU: %llu bytes at %p leave their memory",
				(unsigned long long)bytes, addr);
	if (rc)
		*device = 0;
	return rc;
}

int epf_copy_fake_import_own(const struct epf_copy_handle *h, int device, uint64_t *addr)
{
	struct stat st;
	uint64_t at;
	int fd, rc;

	(void)device;
	if (h->kind != EPF_COPY_FD || fstat(h->fd, &st) || (uint64_t)st.st_size < h->bytes)
		return epf_fail(EPF_R_GPU_MEMORY,
				"fake GPU: the descriptor names no memory of %llu bytes",
				(unsigned long long)h->bytes);
	fd = dup(h->fd);
	if (fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "fake GPU: a descriptor");
	rc = add_piece(fd, h->bytes, &at);
	if (rc)
		return rc;
	*addr = at + h->offset;
	return 0;
}

int epf_copy_fake_import(const struct epf_copy_handle *h, int device, uint64_t *addr)
{
	epf_copy_fake_wait(HELD_BY_LOAD);
	return epf_copy_fake_import_own(h, device, addr);
}

void epf_copy_fake_unimport(const struct epf_copy_handle *h, uint64_t addr)
{
	drop_piece(addr - h->offset);
}

int epf_copy_fake_copy(void *dst, const void *src, uint64_t bytes)
{
	uint8_t *to = epf_copy_fake_real((uint64_t)(uintptr_t)dst, bytes);
	const uint8_t *from = epf_copy_fake_real((uint64_t)(uintptr_t)src, bytes);

	if (!to || !from)
		return epf_fail(EPF_R_GPU_MEMORY, "fake GPU: a copy beyond its memory");
	memcpy(to, from, bytes);
	return 0;
}
