/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory shared with clients. What the daemon makes cannot change its size; what a client brings must be a memfd that cannot shrink
 * under the daemon's feet, or an access would end the daemon by SIGBUS. Called on the control thread; long work comes in slices.
 */
#include "fabric/service/service_priv.h"

#include "fabric/base/conf.h"
#include "fabric/engine/limits.h"
#include "fabric/nic/nic.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
# define F_SEAL_FUTURE_WRITE 0x0010 /* linux/fcntl.h since 5.1 */
#endif

enum { PAGE = 4096 };

static int no_memory(const char *what, uint64_t bytes, int err)
{
	if (err == ENOMEM || err == ENOSPC || err == EFBIG)
		return epf_fail(EPF_R_NO_MEMORY, "%s: no memory for %llu bytes", what,
				(unsigned long long)bytes);
	return epf_fail_sys(EPF_R_SYSTEM, err, "%s of %llu bytes", what, (unsigned long long)bytes);
}

/* fallocate(2) that goes on after a signal. */
static int allocate(int fd, uint64_t offset, uint64_t bytes)
{
	int rc;

	do
		rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
	while (rc && errno == EINTR);
	return rc ? -errno : 0;
}

int svc_memory_make(const char *name, size_t bytes, bool read_only, void **addr, int *fd)
{
	unsigned seals =
		F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0);
	int memfd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *at = MAP_FAILED;
	int rc = memfd < 0 ? -errno : 0;

	if (!rc && ftruncate(memfd, (off_t)bytes))
		rc = -errno;
	if (!rc)
		rc = allocate(memfd, 0, bytes);
	if (!rc) {
		/* Mapped before it is sealed: the seal leaves mappings that are there writable (fcntl(2)). */
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
		if (at == MAP_FAILED || fcntl(memfd, F_ADD_SEALS, seals))
			rc = -errno;
	}
	if (rc) {
		rc = no_memory(name, bytes, -rc);
		if (at != MAP_FAILED)
			munmap(at, bytes);
		if (memfd >= 0)
			close(memfd);
		return rc;
	}
	*addr = at;
	*fd = memfd;
	return 0;
}

int svc_memory_check(int fd, uint64_t offset, uint64_t bytes)
{
	struct statfs fs;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || fstat(fd, &st) || fstatfs(fd, &fs))
		return epf_fail(EPF_R_SVC_MEMORY, "region: the descriptor is no memfd");
	/* Of huge pages a hole may not be filled again when it is touched, and that is a SIGBUS here. */
	if (fs.f_type != TMPFS_MAGIC)
		return epf_fail(
			EPF_R_SVC_MEMORY,
			"region: a memfd on huge pages or another file system cannot be used");
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
		return epf_fail(EPF_R_SVC_MEMORY, "region: the memfd was opened for reading only");
	if (!(seals & F_SEAL_SHRINK))
		return epf_fail(
			EPF_R_SVC_MEMORY,
			"region: the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
	if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return epf_fail(EPF_R_SVC_MEMORY, "region: the memfd is sealed against writing");
	if (!bytes)
		return epf_fail(EPF_R_SVC_MEMORY, "region: 0 bytes are asked for");
	if (offset > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - offset)
		return epf_fail(EPF_R_SVC_MEMORY,
				"region: %llu bytes at offset %llu reach beyond the memfd's %llu",
				(unsigned long long)bytes, (unsigned long long)offset,
				(unsigned long long)st.st_size);
	return 0;
}

/* With vm.overcommit_memory=2, touching a page that cannot be allocated is a SIGBUS, and the OOM killer does nothing. */
static bool kernel_counts(void)
{
	int fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char c = '0';

	if (fd < 0 || read(fd, &c, 1) != 1)
		c = '2';
	if (fd >= 0)
		close(fd);
	return c == '2';
}

bool svc_memory_must_fill(const struct epf_conf *conf)
{
	const struct epf_nic_ops *ops = epf_nic_find(epf_limits_nic(conf));

	return conf->service_fill || !ops || !ops->is_cpu() || kernel_counts();
}

/*
 * The client can punch a hole afterwards and nothing forbids it: the next access then finds a page of zeros, so only its own bytes
 * change. What must not happen is a shorter file.
 */
int svc_memory_fill(int fd, uint64_t offset, uint64_t bytes)
{
	int rc = allocate(fd, offset, bytes);

	return rc ? no_memory("region", bytes, -rc) : 0;
}

/* Pages are mapped, and the address inside the first one is given: a region may begin anywhere. */
int svc_memory_map(int fd, uint64_t offset, uint64_t bytes, void **addr)
{
	uint64_t before = offset % PAGE;
	void *at = mmap(NULL, bytes + before, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			(off_t)(offset - before));

	if (at != MAP_FAILED) {
		*addr = (void *)((uintptr_t)at + before);
		/* cppcheck-suppress memleak */
		return 0;
	}
	if (errno == ENOMEM)
		return no_memory("region", bytes, ENOMEM);
	return epf_fail(EPF_R_SVC_MEMORY,
			"region: the descriptor cannot be mapped for reading and writing");
}

void svc_memory_unmap(void *addr, uint64_t bytes)
{
	uint64_t before = (uintptr_t)addr % PAGE;

	if (addr)
		munmap((uint8_t *)addr - before, bytes + before);
}

void svc_device_free(struct epf_device_mem *mem)
{
	if (mem)
		close(mem->dmabuf_fd);
	free(mem);
}
