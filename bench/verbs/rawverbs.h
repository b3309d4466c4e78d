/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA writes by a bare verbs post loop: what the fabric is compared with. One end of one or more reliable connections to one
 * peer, over memory of the caller. Used by ep-bench rawverbs, p2p --against rawverbs and empty. It must stay as bare as it is: no
 * check, no ring, no order, one work request list after the other and the completions of their last ones.
 */
#ifndef EPF_BENCH_RAWVERBS_H
#define EPF_BENCH_RAWVERBS_H

#include <stdbool.h>
#include <stdint.h>

enum { RAWVERBS_QPS_MAX = 16, RAWVERBS_DEVICE_MAX = 64, RAWVERBS_MARKS = 10 };

/* Options, with perftest's letters where it has them. */
struct rawverbs_opts {
	char device[RAWVERBS_DEVICE_MAX]; /* -d; "": the first with an active port */
	uint64_t port;                    /* -i; 0: the first that is active */
	uint64_t gid_index;               /* -x; UINT64_MAX: by the fabric's rule */
	uint64_t mtu;                     /* -m, bytes; 0: the port's */
	uint64_t qps;                     /* -q */
	uint64_t depth;                   /* -t: work requests outstanding on each queue pair */
	uint64_t list;                    /* -l: work requests of one post */
	uint64_t moderation;              /* -Q: a completion every so many work requests */
	uint64_t inline_bytes;            /* -I: writes of up to so many bytes go inline */
	uint64_t timeout;                 /* -u: 4.096 us << timeout */
	uint64_t service_level;           /* -S */
	bool lists; /* --use_old_post_send: ibv_post_send even where ibv_wr_ functions are there */
};

/* What the peer must know, exchanged as it is between two builds of this program. */
struct rawverbs_address {
	uint8_t gid[16];
	uint64_t address; /* of the memory */
	uint32_t rkey;
	uint32_t psn;
	uint32_t qps;
	uint32_t mtu; /* bytes */
	uint32_t lid;
	uint32_t link_layer; /* 2: Ethernet */
	uint32_t qpn[RAWVERBS_QPS_MAX];
};

_Static_assert(sizeof(struct rawverbs_address) == 112, "no padding");

struct rawverbs_result {
	double seconds;
	double cpu_seconds; /* of this thread: what a busy machine does not lengthen */
	double peak_per_second; /* best window (struct bench_peak), writes a second; NAN: the run is too short for one */
	uint64_t writes;
};

struct rawverbs;

/* Depth 128, list 1, moderation 1, one queue pair, timeout 14. */
void rawverbs_defaults(struct rawverbs_opts *o);

/* 0, or -EINVAL after a complaint: what can be no combination. */
int rawverbs_check(const struct rawverbs_opts *o);

/* Whether rawverbs_open() would find its device: 0, or -errno after a complaint. */
int rawverbs_probe(const struct rawverbs_opts *o);

/**
 * rawverbs_open() - open the device and make queue pairs over memory that stays the caller's and must outlive them.
 *
 * Return: 0, or -errno after a complaint.
 */
int rawverbs_open(const struct rawverbs_opts *o, void *memory, uint64_t bytes,
		  struct rawverbs **out);
void rawverbs_address(const struct rawverbs *r, struct rawverbs_address *out);
/* 0, or -errno after a complaint. */
int rawverbs_connect(struct rawverbs *r, const struct rawverbs_address *peer);

/**
 * rawverbs_write() - write `bytes` bytes from the memory's offset `from` to the peer's offset `to`, n times (rounded up to whole
 * lists) or for so many seconds, whichever is given, and wait for all completions.
 *
 * Return: 0; or -errno with rawverbs_error() naming the completion's status, and the connection is of no use any more.
 */
int rawverbs_write(struct rawverbs *r, uint64_t from, uint64_t to, uint64_t bytes, uint64_t n,
		   double seconds, struct rawverbs_result *out);
void rawverbs_close(struct rawverbs *r);

/* What made rawverbs_write() fail. */
const char *rawverbs_error(const struct rawverbs *r);

/* "rxe0:1, RoCE, GID 0, MTU 4096" */
const char *rawverbs_text(const struct rawverbs *r);
/* ibv_wr_ functions, not lists. */
bool rawverbs_has_wr(const struct rawverbs *r);

#endif
