/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory at the ends of a TCP lane. A socket cannot reach it, so payload passes through pinned memory of the lane. To send, a request's bytes are copied there as soon as it is
 * posted, while the socket sends earlier ones; to receive, bytes arrive there and are copied to their place while more arrive. Nothing takes effect or is acknowledged before its
 * copy is complete. Lanes of a NIC without GPU memory have none of this.
 *
 * For the files of this folder. Functions run on the core's thread, allocate nothing and never wait, except those marked slow.
 */
#ifndef EPF_FABRIC_NIC_TCP_STAGING_H
#define EPF_FABRIC_NIC_TCP_STAGING_H

#include "fabric/nic/tcp/copier.h"
#include "fabric/nic/tcp/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_nic;
struct epf_nic_mr;
struct epf_tcp;
struct iovec;
struct epf_tcp_lane;

enum {
	/* Bytes of a ring: a power of two, at least twice its longest transfer so far, and EPF_TCP_RING_BUSY once it has been full: copies and the socket take turns in less. */
	EPF_TCP_RING_LEAST = 64 << 10,
	EPF_TCP_RING_BUSY = 512 << 10,
	EPF_TCP_RING_MOST = 2 << 20,
	EPF_TCP_PARTS = 512,              /* most copies of a ring that are not released */
	EPF_TCP_HELD = 2 * EPF_TCP_TRAIN, /* most descriptors of held trains */
};

/* Pinned memory of a lane for one purpose. Positions count bytes and wrap at 2^32. */
struct epf_tcp_ring {
	struct epf_tcp_pinned *pinned;
	uint64_t made; /* number of the job that allocates the memory, 0: not needed yet */
	uint32_t size; /* of that memory */
	uint32_t head, tail;
	bool was_full;
	/* Receive ring only: the copies from it and their ends, oldest first. */
	uint32_t first, last;

	struct {
		uint64_t number;
		uint32_t end;
	} parts[EPF_TCP_PARTS];
};

/* A request whose bytes are, or will be, in a ring. */
struct epf_tcp_staged {
	uint64_t number; /* of its copy; 0: it needs none */
	uint32_t end;    /* its end in the ring */
	uint8_t *at;
};

/* A descriptor of a received train that waits for copies. */
struct epf_tcp_held {
	struct epf_tcp_desc desc;
	uint64_t copied; /* number of the last copy of its payload, 0: none */
	uint8_t slot;    /* as in struct epf_tcp_rx */
};

/* A piece of memory that a receive scatters to. */
struct epf_tcp_piece {
	struct epf_tcp_spot dst; /* where its bytes belong */
	uint32_t desc;
};

struct epf_tcp_lane_gpu {
	struct epf_tcp_ring tx, answers, rx;
	uint64_t last; /* number of the lane's last job */
	/* Requests: [mask + 1], by number; those before `next` are staged. */
	struct epf_tcp_staged *requests;
	uint32_t next;
	bool is_bad; /* the copy of the next one to send failed */
	/* Answers, by their place among those owed. */
	struct epf_tcp_staged owed[EPF_TCP_READS];
	uint32_t owed_next;
	/* Ends of the open train's bytes in both rings. */
	uint32_t tx_end, answers_end;
	/* The train being received: number of the last copy of each descriptor's payload. */
	uint64_t copied[EPF_TCP_TRAIN];
	bool has_copied;
	/* Descriptors of earlier trains, oldest first, and how many of them are answers. */
	struct epf_tcp_held held[EPF_TCP_HELD];
	uint32_t held_first, held_last, held_reads;
	/* Sending, or receiving, cannot continue before a copy completes. */
	bool tx_waits, rx_waits;
};

enum epf_tcp_copied { EPF_TCP_COPYING, EPF_TCP_COPIED, EPF_TCP_COPY_FAILED };

/* ---- gpu.c: slow ---- */
int epf_tcp_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			 struct epf_nic_mr *out);
/* Releases the memory of a region whose key is gone. */
void epf_tcp_gpu_forget(struct epf_tcp *t, struct epf_copy_mem *mem);
/* Adds what a lane needs if the NIC has GPU memory. Returns 0 or -ENOMEM. */
int epf_tcp_gpu_lane(struct epf_tcp *t, struct epf_tcp_lane *l);
void epf_tcp_gpu_lane_free(struct epf_tcp *t, struct epf_tcp_lane *l);
void epf_tcp_gpu_close(struct epf_tcp *t);

/* ---- gpu.c ---- */
/* Makes the lanes of copies that completed since the last call ready. */
void epf_tcp_gpu_reap(struct epf_tcp *t);
/* Returns 1 if copies have completed since epf_tcp_gpu_reap(). */
int epf_tcp_gpu_has_completed(const struct epf_tcp *t);
/* Returns 1 if no copy of the lane is under way. */
int epf_tcp_gpu_is_quiet(const struct epf_tcp *t, const struct epf_tcp_lane *l);
/* epf_nic_ops.add, add_pending */
int epf_tcp_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value);
int epf_tcp_add_pending(struct epf_nic *nic);

/*
 * Returns 1 if the ring has memory for transfers of `bytes`, or less memory if `less` is true; 0 if it has to wait. Requests memory at the first use, and more once the ring is
 * empty, unless `bytes` is 0. If it could not be allocated, returns 1, and ring->pinned->base is NULL.
 */
int epf_tcp_ring_ready(struct epf_tcp *t, struct epf_tcp_lane_gpu *g, struct epf_tcp_ring *ring,
		       uint32_t bytes, bool less);

/* ---- gpu_stage.c ---- */
/* Starts the copies of requests to send, as far as there is room. */
void epf_tcp_gpu_stage(struct epf_tcp *t, struct epf_tcp_lane *l);
/* The same for the answers that are owed. */
void epf_tcp_gpu_stage_answers(struct epf_tcp *t, struct epf_tcp_lane *l);
/* The same for a loop, whose other end is a lane of this NIC: copies straight to the destination. */
void epf_tcp_gpu_stage_loop(struct epf_tcp *t, struct epf_tcp_lane *l);
/* Return whether the bytes of request `number`, or of owed answer `number`, are in host memory, with their address in *at (at may be NULL for requests). Those that need no copy leave *at unchanged. */
enum epf_tcp_copied epf_tcp_gpu_request(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
					uint64_t *at);
enum epf_tcp_copied epf_tcp_gpu_answer(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
				       uint64_t *at);
/* Releases the bytes of the open train, once the socket has all of them. */
void epf_tcp_gpu_train_sent(struct epf_tcp_lane *l);

/* ---- gpu_land.c ---- */
/* Pauses receiving until a copy completes. */
void epf_tcp_gpu_pause(struct epf_tcp_lane *l);
/* Returns false if the pinned memory to receive into could not be allocated. */
bool epf_tcp_gpu_can_land(const struct epf_tcp *t, const struct epf_tcp_lane *l);
/* Finds room to receive payload for GPU memory, behind `ahead` bytes that are reserved: *at, and *bytes, which may shrink. Returns false if there is none now. */
bool epf_tcp_gpu_room(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t ahead, uint8_t **at,
		      uint32_t *bytes);
/* Starts the copy to dst of bytes that were received at the head of the ring: payload of descriptor number `desc`. */
void epf_tcp_gpu_land(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_spot *dst,
		      uint32_t bytes, uint32_t desc);
/* Adds pieces of pinned memory for `left` bytes of descriptor number i, or for fewer if there is no more room now. Returns how many; *reserved grows by their bytes. */
int epf_tcp_gpu_gather(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_spot dst,
		       uint32_t i, uint32_t left, uint32_t *reserved, struct iovec *v,
		       struct epf_tcp_piece *pieces, int n);
/* Starts the copies to GPU memory of `bytes` that were received into the pieces. */
void epf_tcp_gpu_land_pieces(struct epf_tcp *t, struct epf_tcp_lane *l, const struct iovec *v,
			     const struct epf_tcp_piece *pieces, size_t bytes);
/* Holds the rest of a received train, unless it has messages: the next train's would overwrite them. */
void epf_tcp_gpu_hold(struct epf_tcp_lane *l);
/* Returns true if the copy of the first descriptor that is held has ended, either way. */
bool epf_tcp_gpu_has_first(const struct epf_tcp *t, const struct epf_tcp_lane *l);
/* Returns the state of a copy of received payload; EPF_TCP_COPIED for number 0, which is none. */
enum epf_tcp_copied epf_tcp_gpu_landed(const struct epf_tcp *t, const struct epf_tcp_lane *l,
				       uint64_t number);

#endif
