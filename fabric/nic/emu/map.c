/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire segments of the emulated NIC: one memfd a process, a slice of it for each NIC, and the mappings of
 * slices that other processes own (opened through /proc/<pid>/fd, so nothing is left behind by a crash and
 * /dev/shm is not used). Slow path, called by nic.c and lane.c from any thread. It must never map
 * anything but wire segments, and never trust a number in a foreign one before checking it.
 */
#include "fabric/nic/emu/emu.h"
#include "fabric/nic/emu/peers.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUCKETS = 4096, MAX_NICS = 65535 };

/* A NIC address, little-endian: what a peer needs to open the segment and to know it is the right one. */
enum {
	AT_MAGIC = 0,   /* 8 */
	AT_NONCE = 8,   /* 8 */
	AT_START = 16,  /* 8: start time of the process */
	AT_OFFSET = 24, /* 8 */
	AT_BYTES = 32,  /* 8 */
	AT_PID = 40,    /* 4 */
	AT_FD = 44,     /* 4 */
	AT_SPACE = 48,  /* 8: PID namespace in which AT_PID counts, 0: not known */
	ADDRESS_BYTES = 56,
};

static struct {
	pthread_mutex_t lock;
	pid_t pid; /* the process this state belongs to: a forked child starts afresh */
	int fd;
	uint64_t end; /* of the slices given out so far: the file is sparse, none is given twice */
	unsigned slices; /* in use */
	uint64_t start_ticks;
	struct epf_emu_seg *bucket[BUCKETS];
	uint64_t numbers[(MAX_NICS + 63) / 64];
} wires = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

static void put64(unsigned char *at, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		at[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get64(const unsigned char *at)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | at[i];
	return v;
}

/* With the lock held: makes the state this process's own. */
static void own_state(void)
{
	pid_t pid = getpid();
	char state;

	if (wires.pid == pid)
		return;
	if (wires.fd >= 0)
		close(wires.fd);
	wires.pid = pid;
	wires.fd = -1;
	wires.end = 0;
	wires.slices = 0;
	wires.start_ticks = 0;
	memset(wires.bucket, 0, sizeof(wires.bucket));
	memset(wires.numbers, 0, sizeof(wires.numbers));
	epf_emu_procs_forget();
	epf_emu_proc_stat(pid, &state, &wires.start_ticks);
}

static struct epf_emu_seg **bucket_of(uint64_t nonce)
{
	return &wires.bucket[nonce % BUCKETS];
}

static struct epf_emu_seg *find(uint64_t nonce)
{
	struct epf_emu_seg *seg = *bucket_of(nonce);

	while (seg && seg->nonce != nonce)
		seg = seg->next;
	return seg;
}

static void add(struct epf_emu_seg *seg)
{
	struct epf_emu_seg **bucket = bucket_of(seg->nonce);

	seg->next = *bucket;
	*bucket = seg;
}

static int take_number(uint32_t *number)
{
	for (uint32_t i = 0; i < MAX_NICS; i++) {
		if (wires.numbers[i / 64] >> (i % 64) & 1)
			continue;
		wires.numbers[i / 64] |= 1ull << (i % 64);
		*number = i;
		return 0;
	}
	return epf_fail(EPF_R_NIC_LIMIT, "emu: a process can open %d NICs", MAX_NICS);
}

static int open_memfd(void)
{
	if (wires.fd >= 0)
		return 0;
	wires.fd = memfd_create("ep-fabric-wire", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (wires.fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "emu: memfd_create");
	/* Growing is ours, shrinking nobody's: a peer never meets SIGBUS. */
	if (fcntl(wires.fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "emu: sealing the wire segment");
	return 0;
}

static void set_views(struct epf_emu_seg *seg, void *base)
{
	seg->hdr = base;
	seg->gpu = (void *)((unsigned char *)base + EPF_EMU_OFF_GPU);
	seg->lanes = (void *)((unsigned char *)base + EPF_EMU_OFF_LANES);
	seg->packets = (unsigned char *)base + epf_emu_off_packets(seg->nlanes);
}

/* With the lock held: the slice of a new NIC, mapped, with its header written. */
static int make_slice(struct epf_emu_seg *seg)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct epf_emu_segment *hdr;
	void *base;
	int rc;

	seg->bytes = epf_emu_off_packets(seg->nlanes) + (uint64_t)seg->npackets * seg->stride;
	seg->bytes = (seg->bytes + page - 1) & ~(page - 1);
	seg->offset = wires.end;
	rc = open_memfd();
	if (rc)
		return rc;
	if (getrandom(&seg->nonce, sizeof(seg->nonce), 0) != (ssize_t)sizeof(seg->nonce))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "emu: getrandom");
	if (ftruncate(wires.fd, (off_t)(seg->offset + seg->bytes)) < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "emu: wire segment of %" PRIu64 " bytes",
				    seg->bytes);
	base = mmap(NULL, seg->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, wires.fd,
		    (off_t)seg->offset);
	if (base == MAP_FAILED)
		return epf_fail_sys(EPF_R_SYSTEM, errno,
				    "emu: mapping a wire segment of %" PRIu64 " bytes", seg->bytes);
	set_views(seg, base);
	seg->fd = wires.fd;
	hdr = seg->hdr;
	hdr->nonce = seg->nonce;
	hdr->bytes = seg->bytes;
	hdr->version = EPF_EMU_VERSION;
	hdr->nic_number = seg->nic_number;
	hdr->packets = seg->npackets;
	hdr->mtu = seg->mtu;
	hdr->lanes = seg->nlanes;
	hdr->ordered = seg->ordered;
	__atomic_store_n(&hdr->pulse, 1, __ATOMIC_RELEASE); /* M6 */
	__atomic_store_n(&hdr->alive, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&hdr->magic, EPF_EMU_MAGIC, __ATOMIC_RELEASE);
	wires.end += seg->bytes;
	wires.slices++;
	return 0;
}

int epf_emu_seg_create(const struct epf_emu_opts *opts, struct epf_emu_seg **out)
{
	struct epf_emu_seg *seg = calloc(1, sizeof(*seg));
	int rc;

	if (!seg)
		return epf_fail(EPF_R_NO_MEMORY, "emu: a NIC");
	seg->npackets = opts->packets;
	seg->mtu = opts->mtu;
	seg->stride = EPF_EMU_PACKET_HEADER + opts->mtu;
	seg->nlanes = opts->lanes;
	seg->ordered = (uint32_t)opts->ordered;
	seg->refs = 1;
	seg->own = true;
	pthread_mutex_lock(&wires.lock);
	own_state();
	seg->pid = wires.pid;
	seg->start_ticks = wires.start_ticks;
	rc = take_number(&seg->nic_number);
	if (rc)
		goto out_unlock;
	rc = make_slice(seg);
	if (rc) {
		wires.numbers[seg->nic_number / 64] &= ~(1ull << (seg->nic_number % 64));
		goto out_unlock;
	}
	add(seg);
	*out = seg;
out_unlock:
	pthread_mutex_unlock(&wires.lock);
	if (rc)
		free(seg);
	return rc;
}

int epf_emu_seg_address(const struct epf_emu_seg *seg, void *buf, size_t size)
{
	unsigned char *at = buf;

	if (size < ADDRESS_BYTES)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"emu: a buffer of %zu bytes is too small for an "
				"address of %d",
				size, ADDRESS_BYTES);
	put64(at + AT_MAGIC, EPF_EMU_MAGIC);
	put64(at + AT_NONCE, seg->nonce);
	put64(at + AT_START, seg->start_ticks);
	put64(at + AT_OFFSET, seg->offset);
	put64(at + AT_BYTES, seg->bytes);
	put64(at + AT_PID, (uint32_t)seg->pid | (uint64_t)(uint32_t)seg->fd << 32);
	put64(at + AT_SPACE, epf_emu_proc_namespace());
	return ADDRESS_BYTES;
}

/* Opens the memfd of another process and maps a slice of it. */
static int map_foreign(struct epf_emu_seg *seg, int fd_there)
{
	char path[64];
	struct stat st;
	void *base;
	int fd, seals, err;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)seg->pid, fd_there);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		err = errno;
		if (err == ENOENT || err == ESRCH)
			return epf_fail(EPF_R_NIC_PEER_GONE, "emu: no wire segment at %s", path);
		return epf_fail_sys(EPF_R_NIC_PEER_ACCESS, err, "emu: opening %s", path);
	}
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
	    (uint64_t)st.st_size < seg->offset + seg->bytes) {
		close(fd);
		return epf_fail(EPF_R_NIC_PEER_GONE, "emu: %s is not a wire segment", path);
	}
	base = mmap(NULL, seg->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)seg->offset);
	err = errno;
	close(fd);
	if (base == MAP_FAILED)
		return epf_fail_sys(EPF_R_SYSTEM, err, "emu: mapping %s", path);
	seg->hdr = base;
	return 0;
}

/* Copies the geometry out of a foreign header once, and refuses what does not fit. */
static int adopt(struct epf_emu_seg *seg)
{
	struct epf_emu_segment *hdr = seg->hdr;
	uint64_t need;

	if (__atomic_load_n(&hdr->magic, __ATOMIC_ACQUIRE) != EPF_EMU_MAGIC ||
	    hdr->nonce != seg->nonce)
		return epf_fail(EPF_R_NIC_PEER_GONE, "emu: process %d has no such NIC (any more)",
				(int)seg->pid);
	if (hdr->version != EPF_EMU_VERSION)
		return epf_fail(EPF_R_NIC_PEER_MODE,
				"emu: process %d speaks wire version %u, "
				"this one %d",
				(int)seg->pid, hdr->version, EPF_EMU_VERSION);
	seg->npackets = hdr->packets;
	seg->mtu = hdr->mtu;
	seg->stride = EPF_EMU_PACKET_HEADER + seg->mtu;
	seg->nlanes = hdr->lanes;
	seg->nic_number = hdr->nic_number;
	seg->ordered = hdr->ordered;
	need = epf_emu_off_packets(seg->nlanes) + (uint64_t)seg->npackets * seg->stride;
	if (seg->npackets > EPF_EMU_MAX_PACKETS || seg->mtu > EPF_EMU_MAX_MTU || seg->mtu % 64 ||
	    seg->nlanes > EPF_EMU_MAX_LANES || need > seg->bytes)
		return epf_fail(EPF_R_NIC_PEER_MODE, "emu: process %d has a damaged wire segment",
				(int)seg->pid);
	set_views(seg, hdr);
	return 0;
}

/* With the lock held: a segment that no NIC of this process knows yet. */
static int attach_foreign(const unsigned char *at, struct epf_emu_seg **out)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct epf_emu_seg *seg;
	int rc;

	seg = calloc(1, sizeof(*seg));
	if (!seg)
		return epf_fail(EPF_R_NO_MEMORY, "emu: a peer");
	seg->nonce = get64(at + AT_NONCE);
	seg->start_ticks = get64(at + AT_START);
	seg->offset = get64(at + AT_OFFSET);
	seg->bytes = get64(at + AT_BYTES);
	seg->pid = (pid_t)(uint32_t)get64(at + AT_PID);
	seg->refs = 1;
	if (seg->offset % page || seg->bytes % page || seg->bytes < EPF_EMU_OFF_LANES ||
	    seg->bytes > 1ull << 46 || seg->offset > 1ull << 62) {
		rc = epf_fail(EPF_R_NIC_ADDRESS, "emu: an address with impossible sizes");
		goto err_free;
	}
	if (seg->pid == wires.pid && seg->start_ticks == wires.start_ticks) {
		rc = epf_fail(EPF_R_NIC_PEER_GONE, "emu: a NIC of this process that is closed");
		goto err_free;
	}
	rc = epf_emu_proc_get(seg->pid, seg->start_ticks, get64(at + AT_SPACE), &seg->proc);
	if (rc)
		goto err_free;
	rc = map_foreign(seg, (int)(get64(at + AT_PID) >> 32));
	if (rc)
		goto err_put;
	rc = adopt(seg);
	if (rc)
		goto err_unmap;
	add(seg);
	*out = seg;
	return 0;
err_unmap:
	munmap(seg->hdr, seg->bytes);
err_put:
	epf_emu_proc_put(seg->proc);
err_free:
	free(seg);
	return rc;
}

int epf_emu_seg_is_at(const struct epf_emu_seg *seg, const void *addr, size_t len)
{
	const unsigned char *at = addr;

	return len == ADDRESS_BYTES && get64(at + AT_MAGIC) == EPF_EMU_MAGIC &&
	       get64(at + AT_NONCE) == seg->nonce;
}

int epf_emu_seg_attach(const void *addr, size_t len, struct epf_emu_seg **out)
{
	const unsigned char *at = addr;
	struct epf_emu_seg *seg;
	int rc = 0;

	if (len != ADDRESS_BYTES || get64(at + AT_MAGIC) != EPF_EMU_MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"emu: %zu bytes that are not the address of an "
				"emulated NIC",
				len);
	pthread_mutex_lock(&wires.lock);
	own_state();
	seg = find(get64(at + AT_NONCE));
	if (seg) {
		seg->refs++;
		*out = seg;
	} else {
		rc = attach_foreign(at, out);
	}
	pthread_mutex_unlock(&wires.lock);
	return rc;
}

void epf_emu_seg_put(struct epf_emu_seg *seg)
{
	struct epf_emu_seg **at;

	if (!seg)
		return;
	pthread_mutex_lock(&wires.lock);
	own_state();
	if (--seg->refs)
		goto out_unlock;
	for (at = bucket_of(seg->nonce); *at && *at != seg; at = &(*at)->next)
		;
	if (*at)
		*at = seg->next;
	epf_emu_copier_forget(seg);
	munmap(seg->hdr, seg->bytes);
	epf_emu_proc_put(seg->proc);
	if (seg->own && seg->pid == wires.pid) {
		/* Peers that still map it read zeroes from now on: no lane, no mail. */
		fallocate(wires.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)seg->offset,
			  (off_t)seg->bytes);
		wires.numbers[seg->nic_number / 64] &= ~(1ull << (seg->nic_number % 64));
		if (--wires.slices == 0) {
			close(wires.fd);
			wires.fd = -1;
			wires.end = 0;
		}
	}
	free(seg);
out_unlock:
	pthread_mutex_unlock(&wires.lock);
}
