/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the receives of an RDMA NIC: registered in chunks, which are never released while the NIC is open. Hot files take slots from the
 * free list and put them back; the rest is slow path, on the core's thread.
 */
#ifndef EPF_FABRIC_NIC_RDMA_RECEIVES_H
#define EPF_FABRIC_NIC_RDMA_RECEIVES_H

#include "fabric/nic/rdma/lib.h"

#include <stdint.h>

enum {
	EPF_RDMA_MIN_SLOTS = 1024, /* of a chunk, at least */
	EPF_RDMA_CHUNKS = 64,      /* each at least doubles what there is */
};

/* A receive: memory for one message, its work request ready to post. The last two are the NIC's to use. */
struct epf_rdma_slot {
	struct ibv_recv_wr wr;
	struct ibv_sge sge;
	struct epf_rdma_slot *next;
	uint32_t qpn;  /* the queue pair it is posted to; 0 at first */
	uint16_t lane; /* it is posted on; UINT16_MAX at first */
};

struct epf_rdma_chunk {
	struct epf_rdma_slot *slots;
	uint8_t *memory;
	struct ibv_mr *mr;
	uint32_t count;
};

/* The first four are set by the NIC before it asks for slots. */
struct epf_rdma_receives {
	const struct epf_verbs_lib *lib;
	struct ibv_pd *pd;
	const char *kind, *device; /* of error messages: "efa", "rdmap0s6" */
	struct epf_rdma_slot *free;
	uint32_t all, n_chunks;
	struct epf_rdma_chunk chunks[EPF_RDMA_CHUNKS];
};

/*
 * More slots, for n in all: when the NIC is opened, and when the job grows, that is at set-up. Returns 0, or -errno with epf_last_error() set; then
 * nothing has changed.
 */
int epf_rdma_more_slots_cold(struct epf_rdma_receives *r, uint32_t n);
/* Frees all of them. Of zeros: does nothing. */
void epf_rdma_slots_free(struct epf_rdma_receives *r);
/* Fails with errno of a call on the device; what: the object. Returns -errno. */
int epf_rdma_call_failed(const char *kind, const char *device, const char *call, const char *what);

#endif
