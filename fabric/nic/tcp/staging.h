/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory at the ends of a TCP lane. A socket cannot reach it, so payload passes through pinned memory of the lane: what a request sends is copied there as soon as it is
 * posted, while the socket takes what came before; what arrives is received there and copied to its place while more is received. Nothing takes effect, and nothing is
 * acknowledged, before its copy is over. Lanes of a NIC without GPU memory have none of this.
 *
 * For the files of this folder. Functions run on the core's thread, allocate nothing and never wait, but those said to be slow.
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
	EPF_TCP_RING_LEAST =
		64
		<< 10, /* bytes of a ring: a power of two, at least twice its longest transfer so far */
	EPF_TCP_RING_MOST = 2 << 20,
	EPF_TCP_PARTS = 512,              /* copies of a ring that have not been released */
	EPF_TCP_HELD = 4 * EPF_TCP_TRAIN, /* descriptors of trains that are held */
};

/* Pinned memory of a lane for one purpose. Positions count bytes and wrap at 2^32. */
struct epf_tcp_ring {
	struct epf_tcp_pinned *pinned;
	uint64_t made; /* number of the job that makes the memory, 0: nobody has needed it */
	uint32_t size; /* of the memory that it makes */
	uint32_t head, tail;
	/* What is received: ends and copies, oldest first. */
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

/* A descriptor of a train that has been received, and waits for copies. */
struct epf_tcp_held {
	struct epf_tcp_desc desc;
	uint64_t copied; /* number of the last copy of its payload, 0: none */
	uint8_t slot;    /* as in struct epf_tcp_rx */
};

/* A place that bytes are received to. */
struct epf_tcp_piece {
	struct epf_tcp_spot dst; /* where they belong */
	uint32_t desc;
};

struct epf_tcp_lane_gpu {
	struct epf_tcp_ring tx, answers, rx;
	uint64_t last; /* number of the lane's last job */
	/* Requests: [mask + 1], by number; those before `next` are staged. */
	struct epf_tcp_staged *requests;
	uint32_t next;
	bool is_bad; /* the copy of the next one to be sent failed */
	/* Answers, by their place among those owed. */
	struct epf_tcp_staged owed[EPF_TCP_READS];
	uint32_t owed_next;
	/* Ends in both rings of what the open train sends. */
	uint32_t tx_end, answers_end;
	/* The train that is received: number of the last copy of each descriptor's payload. */
	uint64_t copied[EPF_TCP_TRAIN];
	bool has_copied;
	/* Trains before it, oldest first, and how many of their descriptors are answers. */
	struct epf_tcp_held held[EPF_TCP_HELD];
	uint32_t held_first, held_last, held_reads;
	/* Neither can go on before a copy is over. */
	bool tx_waits, rx_waits;
};

enum epf_tcp_copied { EPF_TCP_COPYING, EPF_TCP_COPIED, EPF_TCP_COPY_FAILED };

/* ---- gpu.c: slow ---- */
int epf_tcp_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			 struct epf_nic_mr *out);
/* Ends the use of a region's memory that no key names any more. */
void epf_tcp_gpu_forget(struct epf_tcp *t, struct epf_copy_mem *mem);
/* Gives a lane what it needs where the NIC has GPU memory. -ENOMEM. */
int epf_tcp_gpu_lane(struct epf_tcp *t, struct epf_tcp_lane *l);
void epf_tcp_gpu_lane_free(struct epf_tcp *t, struct epf_tcp_lane *l);
void epf_tcp_gpu_close(struct epf_tcp *t);

/* ---- gpu.c ---- */
/* Copies that ended since the last call: their lanes are made ready. */
void epf_tcp_gpu_reap(struct epf_tcp *t);
/* 1: copies have ended since epf_tcp_gpu_reap(). */
int epf_tcp_gpu_has_news(const struct epf_tcp *t);
/* 1: no copy of the lane is under way. */
int epf_tcp_gpu_is_quiet(const struct epf_tcp *t, const struct epf_tcp_lane *l);
/* epf_nic_ops.add, add_pending */
int epf_tcp_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value);
int epf_tcp_add_pending(struct epf_nic *nic);

/*
 * 1 if the ring has memory for transfers of `bytes`; asks for it, or for more once the ring is empty. With less it has 0, but if `less` is true. Memory that could not be made:
 * 1, and ring->pinned->base is NULL.
 */
int epf_tcp_ring_ready(struct epf_tcp *t, struct epf_tcp_lane_gpu *g, struct epf_tcp_ring *ring,
		       uint32_t bytes, bool less);

/* ---- gpu_stage.c ---- */
/* Begins copies of what is to be sent, as far as there is room. */
void epf_tcp_gpu_stage(struct epf_tcp *t, struct epf_tcp_lane *l);
/* The same for the answers that are owed. */
void epf_tcp_gpu_stage_answers(struct epf_tcp *t, struct epf_tcp_lane *l);
/* The same for a lane between lanes of this NIC: from place to place. */
void epf_tcp_gpu_stage_loop(struct epf_tcp *t, struct epf_tcp_lane *l);
/* Request `number`, or answer `number` of those owed: whether its bytes are there, and (not NULL) where: *at is left alone for those that need no copy. */
enum epf_tcp_copied epf_tcp_gpu_request(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
					uint64_t *at);
enum epf_tcp_copied epf_tcp_gpu_answer(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t number,
				       uint64_t *at);
/* The socket has the whole train: its bytes are released. */
void epf_tcp_gpu_train_sent(struct epf_tcp_lane *l);

/* ---- gpu_land.c ---- */
/* Receiving goes on when a copy has ended. Returns 0: nothing was received. */
size_t epf_tcp_gpu_waits(struct epf_tcp_lane *l);
/* False: there is no pinned memory for what is received, and never will be. */
bool epf_tcp_gpu_can_land(const struct epf_tcp *t, const struct epf_tcp_lane *l);
/* Where the next bytes of a payload for GPU memory may be received: *at, *bytes, which is at most what it was; `ahead` bytes before them are spoken for. False: there is no room now. */
bool epf_tcp_gpu_room(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t ahead, uint8_t **at,
		      uint32_t *bytes);
/* Begins to copy bytes that were received at the next place of the ring, to dst: payload of descriptor number `desc`. */
void epf_tcp_gpu_land(struct epf_tcp *t, struct epf_tcp_lane *l, const struct epf_tcp_spot *dst,
		      uint32_t bytes, uint32_t desc);
/* Pieces of pinned memory for `left` bytes of descriptor number i. Returns how many more; fewer bytes than left: there is no room for more now. */
int epf_tcp_gpu_gather(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_spot dst,
		       uint32_t i, uint32_t left, uint32_t *reserved, struct iovec *v,
		       struct epf_tcp_piece *pieces, int n);
/* So many bytes were received to the pieces: what belongs to GPU memory is copied there. */
void epf_tcp_gpu_land_pieces(struct epf_tcp *t, struct epf_tcp_lane *l, const struct iovec *v,
			     const struct epf_tcp_piece *pieces, size_t bytes);
/* The rest of a train that has been received is held, but for messages: the next train's would take their place. */
void epf_tcp_gpu_hold(struct epf_tcp_lane *l);
/* Whether the copy of that number, of received payload, is over; 0: there is none. */
enum epf_tcp_copied epf_tcp_gpu_landed(const struct epf_tcp *t, const struct epf_tcp_lane *l,
				       uint64_t number);

#endif
