/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A provider of Elastic Fabric Adapters that works like SRD: what is posted arrives in another order, completions come in another
 * order again, nothing is connected. Delays are a function of the seed, so a seed replays a run. For the tests of the EFA NIC
 * (test_efa*.c) and for the conformance suite (nic_kinds.c). All devices of a process see each other; the state is the global
 * `fake_efa`. It asserts through cmocka what a real provider refuses or what would go wrong silently.
 *
 * Calls may come from several threads: one that polls and posts, and those that make and destroy queue pairs. What a test sets and reads here it
 * touches while no such thread is at work.
 *
 * fake_efa.c has the calls that make things, fake_efa_qp.c queue pairs and what is posted, fake_efa_wire.c what travels, fake_efa_poll.c
 * what is polled.
 */
#ifndef EPF_TESTS_FAKE_EFA_H
#define EPF_TESTS_FAKE_EFA_H

#include "fabric/nic/efa/lib.h"
#include "fabric/nic/efa/opts.h"
#include "fabric/nic/nic.h"

#include <pthread.h>

enum { FAKE_EFA_DEVICES = 4, FAKE_EFA_QPNS = 2048, FAKE_EFA_EVENTS = 16 };

struct fake_efa {
	/* What the devices are: set by fake_efa_reset(), changed by tests before they open. */
	int n_devices; /* efa0, efa1, ... after one of another kind, other0 */
	struct epf_efadv_device_attr attr;
	struct ibv_device_attr dev;
	struct ibv_port_attr port;
	int has_notify;    /* completion channels */
	int reports_stale; /* completions of queue pairs that are no more come out like others */
	char sysfs[64];    /* of the devices */

	/* How they travel. */
	uint64_t seed;
	uint64_t delay_ns;       /* longest way of a packet, and of its acknowledgement */
	uint64_t rnr_timeout_ns; /* patience with a target without receives; 0: none */
	uint64_t retry_timeout_ns;
	int is_cut;            /* nothing travels */
	int down_device;       /* number + 1 of an adapter whose port is down; 0: none */
	int gone_device;       /* number + 1 of one that was pulled and is not back; 0: none */
	int no_flush;          /* a queue pair in error reports nothing */
	int lose_acks;         /* so many of the next acknowledgements never come */
	int break_next;        /* the next request fails: 1 before it has taken effect, 2 after */
	unsigned break_status; /* with this */
	uint64_t (*now)(void *);
	void *now_arg;

	/* A call that fails: its name, the errno value, and how many of its calls succeed before. */
	const char *fail;
	int fail_errno, fail_after;

	/* Time that making a queue pair, changing its state, and making an address handle take each; and the thread of the last one. */
	unsigned setup_us;
	pthread_t setup_by;

	/* What happened. */
	int open_things; /* made and not yet destroyed */
	unsigned posts, wrs, inlined, recv_posts, overtaken, rnrs, flushes, stale, unsolicited;
	unsigned ahs;            /* ever made */
	struct ibv_sge last_sge; /* of the last work request */
	uint64_t last_raddr;
	uint32_t last_rkey;
	unsigned last_flags;
	struct ibv_qp_attr rts; /* of the last queue pair that became ready */
	int rts_mask;
	struct ibv_qp_init_attr_ex init;
	struct epf_efadv_qp_attr init_efa;

	struct ibv_async_event events[FAKE_EFA_EVENTS]; /* of adapter event_device */
	int event_device;
	unsigned n_events;
};

extern struct fake_efa fake_efa;
extern const struct epf_efa_lib fake_efa_lib;

/* One device with RDMA read, write and unsolicited receives; a clock that stands at 1. */
void fake_efa_reset(void);
/* Opens a NIC with these options (NULL: the defaults) and expects success. */
struct epf_nic *fake_efa_open(const struct epf_efa_opts *opts);
/*
 * An adapter is pulled: an event says so, its queue pairs answer nobody and report nothing any more, and it cannot be opened until
 * fake_efa.gone_device is 0.
 */
void fake_efa_pull(int device);
/* When something travels next, by fake_efa.now; UINT64_MAX: never. */
uint64_t fake_efa_next(void);
/* The queue pair with this number, or NULL. */
struct ibv_qp *fake_efa_qp(uint32_t qpn);
/* Receives posted on it; its state. */
unsigned fake_efa_receives(uint32_t qpn);
/* A message or (bytes NULL) an immediate from a stranger: it knows the key. */
void fake_efa_intrude(uint32_t qpn, uint32_t src_qpn, const void *bytes, uint32_t len,
		      uint32_t imm);

#endif
