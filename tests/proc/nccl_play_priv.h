/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of the play share (nccl_play.h): ranks and their sides. */
#ifndef EPF_TESTS_NCCL_PLAY_PRIV_H
#define EPF_TESTS_NCCL_PLAY_PRIV_H

#include "tests/proc/nccl_play.h"

#include "tools/nccl/abi.h"

enum { STEPS = 8, COMMS = 4, HANG_S = 120, BASE_TAG = 100 };

/* What NCCL's own bootstrap carries. */
struct board {
	uint8_t handle[COMMS][PLAY_CHANNELS][PLAY_RANKS][PLAY_RANKS][EPF_NCCL_HANDLE_BYTES];
	uint32_t have[COMMS][PLAY_CHANNELS][PLAY_RANKS][PLAY_RANKS]; /* how often it was written */
	uint32_t killed_pid;
	uint32_t named; /* lines of NCCL's log that name that process */
};

/* One direction between two ranks, at one of them. */
struct side {
	unsigned from, to, channel;
	void *comm, *listener;
	uint8_t handle[EPF_NCCL_HANDLE_BYTES];
	void *buffer;  /* NCCL's address of it */
	uint8_t *seen; /* where its bytes are */
	void *mr;
	uint64_t next
		[PLAY_PARTS]; /* send: messages begun, of each part; receive: requests posted, [0] */
	uint64_t over[PLAY_PARTS];
	void *request[STEPS][PLAY_PARTS];
};

struct rank {
	const struct play *p;
	struct board *board;
	unsigned me, comm, round;
	const struct epf_nccl_net_v10 *v10;
	const struct epf_nccl_net_v12 *net; /* 11 is the same but for the properties */
	void *context;
	struct side *side;
	unsigned sides;
	uint64_t progress_s;
};

/* What is the same in both. */
#define CALL(r, function, ...) \
 ((r)->v10 ? (r)->v10->function(__VA_ARGS__) : (r)->net->function(__VA_ARGS__))

/* nccl_play.c. What a thread does, for the line of one that hangs. */
extern _Thread_local const char *play_doing;
/* Ends the process with a line. */
void play_quit(const struct rank *r, const char *why);
/* The call that fails: with a killed rank it is what is waited for. Returns rc. */
int play_failed(const struct rank *r, const char *call, int rc);
/* Ends the process if nothing has progressed for long; pauses shortly if nothing has now. */
void play_keep_alive(struct rank *r, bool progressed);

/* nccl_messages.c. All messages of a rank, in a thread. Returns what failed, as a pointer. */
void *play_messages(void *rank);

/* A rank that sends to itself has two sides of the same direction: the one with a listener receives. */
static inline bool is_recv(const struct rank *r, const struct side *s)
{
	return s->listener || (s->to == r->me && s->from != r->me);
}

static inline size_t slot_bytes(const struct play *p)
{
	return ((size_t)p->most_bytes + 63) & ~(size_t)63;
}

#endif
