/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The types of a rig (rig.h), and how a check says that a requirement is not met.
 *
 * A requirement that fails does not return: rig_verdicts says where it goes (cmocka in tests, the next check in the tool).
 */
#ifndef EPF_TOOLS_PROVE_ENDS_H
#define EPF_TOOLS_PROVE_ENDS_H

#include "fabric/nic/nic.h"

#include <stddef.h>
#include <stdint.h>

struct epf_copy_ops;
struct epf_device_gpu;
struct epf_emu_opts;
struct epf_gpu_ops;

/* How a sender learns that the target refused its request. */
enum nic_refusal {
	NIC_REFUSAL_NAMED,  /* EPF_S_REMOTE_ACCESS */
	NIC_REFUSAL_LOST,   /* its connection is lost: EPF_S_RETRY_EXCEEDED */
	NIC_REFUSAL_SILENT, /* not at all, before the NIC's limit of time */
};

/* What is known of a NIC besides its epf_nic_caps. */
struct nic_kind {
	const char *name;
	int ordered;
	int carries;     /* 0: takes work and completes it, nothing arrives */
	int real;        /* 1: on the real clock */
	int device;      /* 1: runs by itself, not as part of a reap */
	int eager;       /* 1: a lane takes writes from when it is made, connected or not */
	int unsolicited; /* 1: a write with immediate needs no receive */
	int gpu;         /* bit 0: a's memory is GPU memory, bit 1: b's is */
	/* end: 0 for the rig's a, 1 for b. now() takes the rig; tune is the rig's opts. */
	int (*open)(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *rig,
		    struct epf_nic **out);
	enum nic_refusal refusal;
	int instant;    /* 1: carries out a request when it is posted */
	int lengthless; /* 1: EPF_WC_RECV_IMM may have no length */
	/* Of devices on the virtual clock: when the next one has something to do; NULL: not one. */
	uint64_t (*next_event)(void);
};

/*
 * Bytes of memory at each end; completions a check may see; lanes that a check opens besides lane 0, at most; bytes of a verdict's
 * text; depth of the lanes.
 */
enum { RIG_BYTES = 1 << 18, RIG_LOG = 8192, RIG_TEXT = 400, RIG_DEPTH = 128 };

/* Memory that this process cannot address: another host's. */
struct rig_far {
	void (*load)(void *arg, uint64_t off, void *to, size_t len);
	void (*store)(void *arg, uint64_t off, const void *from, size_t len);
	void *arg;
	uint64_t base; /* as work requests of that host name it; known when its NIC is open */
};

struct rig_track;

/* One end. */
struct rig_end {
	struct epf_nic *nic;
	unsigned char *
		mem; /* RIG_BYTES, registered for remote write and read; NULL: no CPU of this host may touch it */
	uint64_t base; /* mem as work requests name it */
	void *gpu;     /* GPU memory: its address, which no CPU may touch */
	int by_dmabuf; /* the NIC reaches it by a dma-buf */
	struct epf_device_gpu *gpus;
	int copies;                /* 1: GPU memory at one of the ends */
	const struct rig_far *far; /* NULL: of this host */
	const struct epf_copy_ops *copy;
	uint64_t deadline_ns;    /* as the rig's */
	struct rig_track *track; /* real clock: what is outstanding; else NULL */
	struct epf_nic_mr mr;
	struct epf_wc log[RIG_LOG]; /* everything reaped since rig_clear() */
	unsigned char msg[RIG_LOG][EPF_NIC_MSG_BYTES];
	unsigned n;
};

struct rig {
	const struct nic_kind *kind;
	struct epf_emu_opts *opts; /* of a test's software NIC; free(3)d with the rig. NULL: none */
	const struct epf_copy_ops *copy; /* of GPU memory; NULL: fake */
	const struct epf_gpu_ops
		*gpu_ops; /* its driver, for NICs that reach it by themselves; NULL: none */
	void *user;       /* of kind->open */
	const struct rig_far *far; /* b's memory is another host's */
	uint64_t rnr_timeout_ns;   /* longest wait for a missing receive */
	uint64_t lost_ns;          /* after that a sender has been told of a lost peer */
	uint64_t deadline_ns;      /* real clock: the check is given up then; 0: never */
	uint64_t now_ns;
	unsigned lanes; /* at most, of a check that opens many */
	struct rig_end a, b;
};

/* Where a check ends that does not reach its end. Neither returns. Set before anything else here. */
struct rig_verdicts {
	void (*broken)(const char *file, int line, const char *text);
	void (*not_tried)(const char *why);
	void (*note)(const char *text); /* returns; NULL: nothing is said */
};

extern struct rig_verdicts rig_verdicts;

__attribute__((noreturn)) void rig_broken(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
__attribute__((noreturn)) void rig_not_tried(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

#define REQUIRE(condition)                                         \
 do {                                                              \
  if (!(condition))                                                \
   rig_broken(__FILE__, __LINE__, "%s does not hold", #condition); \
 } while (0)
#define REQUIRE_EQ(x, y)                                               \
 do {                                                                  \
  long long x_ = (long long)(x), y_ = (long long)(y);                  \
  if (x_ != y_)                                                        \
   rig_broken(__FILE__, __LINE__, "%s is %lld, not %lld", #x, x_, y_); \
 } while (0)
#define REQUIRE_NE(x, y) REQUIRE((x) != (y))
#define REQUIRE_IN(x, least, most)                                                    \
 do {                                                                                 \
  long long x_ = (long long)(x);                                                      \
  if (x_ < (long long)(least) || x_ > (long long)(most))                              \
   rig_broken(__FILE__, __LINE__, "%s is %lld, not in " #least " to " #most, #x, x_); \
 } while (0)

#endif
