/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the daemon without libepf: ranks and whole jobs, in the order that the protocol requires.
 */
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/protocol/proto.h"
#include "tests/proc/svc_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int raw_memfd(size_t bytes, unsigned seals)
{
	int fd = memfd_create("epf-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 &&
	    (ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, (int)seals)))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Maps all of descriptor i of the last answer, at least *bytes. Returns NULL on failure. */
static void *map_fd(struct raw *c, unsigned i, size_t *bytes, bool writable)
{
	struct stat st;
	void *p;

	if (i >= c->n_fds || fstat(c->fds[i], &st) || (size_t)st.st_size < *bytes)
		return NULL;
	*bytes = (size_t)st.st_size;
	p = mmap(NULL, *bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, c->fds[i],
		 0);
	return p == MAP_FAILED ? NULL : p;
}

int raw_rank_open(struct raw_rank *r, const char *path, unsigned minor, unsigned tail,
		  uint32_t n_signals)
{
	struct epf_svc_signals s = { .count = n_signals };
	struct epf_svc_signals_reply reply;
	int rc;

	memset(r, 0, sizeof(*r));
	rc = raw_open(&r->c, path);
	r->c.tail = tail;
	if (!rc)
		rc = raw_hello(&r->c, EPF_SVC_MAJOR, minor, 0);
	if (!rc)
		rc = raw_call(&r->c, EPF_SVC_SIGNALS, &s, NULL, 0, &reply);
	if (rc)
		return rc;
	r->n_signals = reply.count;
	r->signals_bytes = reply.bytes;
	r->signals = map_fd(&r->c, 0, &r->signals_bytes, true);
	if (!r->signals)
		return -EBADF;
	r->wakeup = (struct epf_wakeup *)(void *)((char *)r->signals + reply.wakeup_offset);
	return 0;
}

int raw_rank_region(struct raw_rank *r, size_t bytes, uint32_t access)
{
	struct epf_svc_region m = { .bytes = bytes, .access = access };
	struct epf_svc_region_reply reply;
	int fd = raw_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW), rc;
	void *p;

	if (fd < 0)
		return -errno;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rc = p == MAP_FAILED ? -errno : raw_call(&r->c, EPF_SVC_REGION, &m, &fd, 1, &reply);
	if (!rc && (reply.region >= RAW_REGIONS || reply.region != r->n_regions))
		rc = -EPROTO;
	if (rc) {
		if (p != MAP_FAILED)
			munmap(p, bytes);
		close(fd);
		return rc;
	}
	r->mem[reply.region] = p;
	r->mem_bytes[reply.region] = bytes;
	r->mem_fd[reply.region] = fd;
	r->n_regions++;
	return 0;
}

int raw_rank_ring(struct raw_rank *r, unsigned log2)
{
	struct epf_svc_ring m = { .log2 = log2, .weight = 1 };
	struct epf_svc_ring_reply reply;
	uint32_t k = 0;
	struct raw_ring *ring;
	int rc;

	while (k < r->n_rings && r->ring[k].shm) /* reuses the index of a closed ring */
		k++;
	if (k == RAW_RINGS)
		return -ENOSPC;
	ring = &r->ring[k];
	rc = raw_call(&r->c, EPF_SVC_RING, &m, NULL, 0, &reply);
	if (rc)
		return rc;
	ring->bytes = reply.bytes;
	ring->shm = map_fd(&r->c, 0, &ring->bytes, true);
	if (!ring->shm || ring->shm->magic != EPF_RING_MAGIC || ring->shm->log2_slots != log2)
		return -EPROTO;
	ring->number = reply.ring;
	epf_ring_producer_init(&ring->producer, ring->shm, 0);
	if (k == r->n_rings)
		r->n_rings++;
	return (int)k;
}

int raw_rank_ring_close(struct raw_rank *r, int ring)
{
	struct epf_svc_ring_close m = { .ring = r->ring[ring].number };
	int rc = raw_call(&r->c, EPF_SVC_RING_CLOSE, &m, NULL, 0, NULL);

	munmap(r->ring[ring].shm, r->ring[ring].bytes);
	r->ring[ring].shm = NULL;
	return rc;
}

int raw_rank_attach(struct raw_rank *r, const char *job, const uint8_t job_id[EPF_SVC_ID],
		    const uint8_t key[EPF_SVC_KEY], uint32_t rank, uint32_t world, uint32_t flags)
{
	struct epf_svc_attach m = { .rank = rank, .world = world, .flags = flags };
	struct epf_svc_attach_reply reply;
	int rc;

	memcpy(m.job_id, job_id, EPF_SVC_ID);
	memcpy(m.job_key, key, EPF_SVC_KEY);
	snprintf(m.job, sizeof(m.job), "%s", job);
	r->rank = rank;
	r->world = world;
	rc = raw_call(&r->c, EPF_SVC_ATTACH, &m, NULL, 0, &reply);
	if (rc)
		return rc;
	memcpy(r->member, reply.node_id, EPF_SVC_ID);
	memcpy(r->member + EPF_SVC_ID, reply.nonce, EPF_SVC_ID);
	r->peers_bytes = reply.peers_bytes;
	r->kick_bytes = reply.kick_bytes;
	r->peers = map_fd(&r->c, 0, &r->peers_bytes, false);
	r->kick = map_fd(&r->c, 1, &r->kick_bytes, true);
	return r->peers && r->kick && r->peers->magic == EPF_PEERS_MAGIC && r->peers->world == world
		       ? 0
		       : -EPROTO;
}

int raw_rank_world(struct raw_rank *r, const uint8_t *table)
{
	struct epf_svc_world m = { .table = { table, r->world * EPF_SVC_MEMBER_BYTES } };
	struct epf_svc_world_reply reply;
	int rc = raw_call(&r->c, EPF_SVC_WORLD, &m, NULL, 0, &reply);

	if (rc)
		return rc;
	free(r->sealed);
	r->sealed_len = reply.sealed.len;
	r->sealed = malloc(reply.sealed.len + 1);
	if (!r->sealed)
		return -ENOMEM;
	memcpy(r->sealed, reply.sealed.data, reply.sealed.len);
	return 0;
}

int raw_rank_connect(struct raw_rank *r, const void *blobs, size_t len)
{
	struct epf_svc_connect m = { .sealed = { blobs, (uint32_t)len } };

	return raw_call(&r->c, EPF_SVC_CONNECT, &m, NULL, 0, NULL);
}

void raw_rank_close(struct raw_rank *r, bool leave)
{
	if (leave && r->c.fd >= 0)
		raw_call(&r->c, EPF_SVC_LEAVE, NULL, NULL, 0, NULL);
	raw_close(&r->c);
	for (uint32_t i = 0; i < r->n_rings; i++)
		if (r->ring[i].shm)
			munmap(r->ring[i].shm, r->ring[i].bytes);
	for (uint32_t i = 0; i < r->n_regions; i++) {
		munmap(r->mem[i], r->mem_bytes[i]);
		close(r->mem_fd[i]);
	}
	if (r->signals)
		munmap(r->signals, r->signals_bytes);
	if (r->peers)
		munmap((void *)(uintptr_t)r->peers, r->peers_bytes);
	if (r->kick)
		munmap(r->kick, r->kick_bytes);
	free(r->sealed);
	memset(r, 0, sizeof(*r));
	r->c.fd = -1;
}

void raw_rank_kick(struct raw_rank *r)
{
	if (r->kick && epf_wakeup_is_needed(r->kick))
		epf_wakeup_wake(r->kick);
}

int raw_rank_retired(struct raw_rank *r, int ring, uint64_t n, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;

	while (epf_ring_retired(&r->ring[ring].producer) < n) {
		if (epf_now_ns() > deadline)
			return -ETIMEDOUT;
		usleep(20);
	}
	return 0;
}

void raw_job_names(uint64_t number, uint8_t job_id[EPF_SVC_ID], uint8_t key[EPF_SVC_KEY])
{
	for (unsigned i = 0; i < EPF_SVC_ID; i++)
		job_id[i] = (uint8_t)(0x40 + i + (number >> 8 * (i & 7)));
	for (unsigned i = 0; i < EPF_SVC_KEY; i++)
		key[i] = (uint8_t)(0x80 + 3 * i + (number >> 8 * (i & 7)));
}

static int connect_all(struct raw_rank *const *r, uint32_t n)
{
	struct epf_blob *blobs = calloc(n, sizeof(*blobs));
	uint8_t *packed = NULL;
	size_t len = 0;
	int rc = blobs ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < n && !rc; i++) {
		blobs[i].data = r[i]->sealed;
		blobs[i].len = r[i]->sealed_len;
	}
	if (!rc)
		rc = epf_svc_pack(blobs, n, &packed, &len);
	for (uint32_t i = 0; i < n && !rc; i++) {
		bool lowest = true;

		for (uint32_t p = 0; p < i; p++)
			lowest &= memcmp(r[p]->member, r[i]->member, EPF_SVC_ID) != 0;
		rc = raw_rank_connect(r[i], lowest ? packed : NULL, lowest ? len : 0);
		if (rc)
			fprintf(stderr, "raw: CONNECT of rank %u: %d %s\n", i, rc, r[i]->c.text);
	}
	free(packed);
	free(blobs);
	return rc;
}

int raw_job_join(struct raw_rank *const *r, uint32_t n, const char *job, uint64_t number)
{
	uint8_t id[EPF_SVC_ID], key[EPF_SVC_KEY], *table = calloc(n, EPF_SVC_MEMBER_BYTES);
	int rc = table ? 0 : -ENOMEM;

	raw_job_names(number, id, key);
	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = raw_rank_attach(r[i], job, id, key, i, n, 0);
		if (rc)
			fprintf(stderr, "raw: ATTACH of rank %u: %d %s\n", i, rc, r[i]->c.text);
		else
			memcpy(table + (size_t)i * EPF_SVC_MEMBER_BYTES, r[i]->member,
			       EPF_SVC_MEMBER_BYTES);
	}
	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = raw_rank_world(r[i], table);
		if (rc)
			fprintf(stderr, "raw: WORLD of rank %u: %d %s\n", i, rc, r[i]->c.text);
	}
	free(table);
	return rc ? rc : connect_all(r, n);
}
