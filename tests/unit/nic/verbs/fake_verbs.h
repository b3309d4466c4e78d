/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A provider of RDMA devices that moves nothing: it notes what it is asked for and reports what the test says. One device,
 * "fake0", or up to three, for the tests of the verbs NIC (test_verbs*.c). One set at a time: its state is the global `fake`.
 */
#ifndef EPF_TESTS_FAKE_VERBS_H
#define EPF_TESTS_FAKE_VERBS_H

#include "fabric/nic/nic.h"
#include "fabric/nic/rdma/lib.h"
#include "fabric/nic/verbs/opts.h"

#include <pthread.h>

enum { FAKE_DEVICES = 3 };

enum { FAKE_RQ = 64, FAKE_WRS = 4096, FAKE_WCS = 4096, FAKE_QPS = 256, FAKE_MODIFIES = 1024 };

/* A work request as the provider got it. */
struct fake_wr {
	uint64_t wr_id, raddr, laddr;
	uint32_t rkey, lkey, len, imm, qpn;
	unsigned device;
	int op; /* enum ibv_wr_opcode */
	int is_signaled, is_inline, has_data;
	unsigned char bytes[128]; /* of an inline one */
};

struct fake_modify {
	uint32_t qpn;
	int mask;
	struct ibv_qp_attr attr;
};

struct fake_queue {
	struct ibv_wc wc[FAKE_WCS];
	unsigned head, tail;
	int notified;
};

struct fake_verbs {
	/* What the device is: set by fake_reset(), changed by tests before they open. */
	int n_devices;
	int has_ex;          /* ibv_wr_* exists */
	char sysfs[64];      /* of the device */
	uint32_t max_inline; /* more than that and no queue pair is made */
	struct ibv_device_attr attr;
	struct ibv_port_attr port[3]; /* by number */
	int is_down[FAKE_DEVICES];    /* port 1 of that device is, whatever port[1] says */
	struct ibv_gid_entry gids[8];
	int n_gids;

	/* A call that fails: its name without ibv_, the errno value, and how many of its calls succeed before. */
	const char *fail;
	int fail_errno, fail_after;
	int fail_once; /* 1: later ones succeed */

	/*
	 * Time that each ibv_create_qp and ibv_modify_qp takes; how many of these went on at once at most; and until how many do they wait for
	 * each other, 20 s at most: so that what a test counts does not depend on who runs when.
	 */
	unsigned setup_us, in_setup, most_in_setup, setup_gather;
	/* The thread of the last one; a test may set it while one is at work, so atomically. */
	pthread_t setup_by;

	/* What it was asked for. */
	int open_things; /* made and not yet destroyed */
	struct fake_wr wrs[FAKE_WRS];
	unsigned n_wrs, posts;
	struct fake_modify modifies[FAKE_MODIFIES];
	unsigned n_modifies;
	uint64_t receives[FAKE_WRS]; /* slots that are posted, in order */
	unsigned n_receives, srq_posts, srq_limit;
	unsigned last_access;

	struct { /* of ibv_reg_dmabuf_mr */
		uint64_t offset, length, iova;
		int fd, access, calls;
	} dmabuf;

	void *last_addr; /* of ibv_reg_mr */
	uint32_t next_qpn;

	/* What it will report. */
	struct fake_queue sends, recvs;              /* of fake0 */
	struct fake_queue more[FAKE_DEVICES - 1][2]; /* of the others: sends, receives */
	struct ibv_async_event events[16];
	unsigned event_device[16];
	unsigned n_events;

	struct fake_rq { /* of each, where the device has no shared receive queue */
		uint64_t slots[FAKE_RQ];
		unsigned n, most;
	} rqs[FAKE_QPS];

	unsigned opened[FAKE_DEVICES]; /* times */
	struct ibv_qp *qps[FAKE_QPS];  /* in order of creation; NULL: destroyed */
	unsigned n_qps;
};

extern struct fake_verbs fake;
extern const struct epf_verbs_lib fake_lib;

/* A device with two ports, the first active, RoCE v2, and with ibv_wr_*. */
void fake_reset(void);
/* Opens a NIC with these options (NULL: the defaults) and expects success. */
struct epf_nic *fake_open(const struct epf_verbs_opts *opts);
/* Creates and connects a lane (to an address of the same kind) and expects success. */
void fake_lane(struct epf_nic *nic, uint16_t lane, uint32_t depth);
/* The provider reports work request number i of fake.wrs. */
void fake_complete(unsigned i, enum ibv_wc_status status);
/* An arrival on a queue pair takes the oldest receive; bytes != NULL: a message of len bytes, else an immediate. */
void fake_arrive(uint32_t qpn, const void *bytes, uint32_t len, uint32_t imm);
/* A completion for the oldest receive of a queue pair of its own (fake.attr.max_srq is 0); returns its number. */
uint64_t fake_flush(uint32_t qpn, enum ibv_wc_status status, const struct ibv_wc *like);
uint32_t fake_qpn(unsigned i);

#endif
