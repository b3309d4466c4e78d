/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network from inside: net.c moves messages, nic.c is the table of operations, pool.c memory and completion queues, queue.c the events. */
#ifndef EPF_BENCH_SCALE_NET_PRIV_H
#define EPF_BENCH_SCALE_NET_PRIV_H

#include "bench/scale/simnet.h"

#include <stddef.h>

enum sim_event_kind {
	SIM_EV_SENT, /* a port has sent a segment: a = port */
	SIM_EV_ARRIVE, /* a segment is at the receiving port: p = message, a = its bytes on the wire */
	SIM_EV_LAND,  /* a message has been taken: p = message */
	SIM_EV_DONE,  /* its sender learns of it: p = message */
	SIM_EV_LOST,  /* a lane's sender gives up: a = NIC, b = lane, c = the lane's epoch */
	SIM_EV_TIMER, /* a = what */
};

struct sim_event {
	uint64_t at;
	uint64_t order; /* of events at one time: the order in which they were made */
	void *p;
	uint64_t a;
	uint32_t b, c;
	uint32_t kind;
};

/* A binary heap. */
struct sim_events {
	struct sim_event *e;
	size_t n, room;
	uint64_t made;
};

int sim_events_push(struct sim_events *q, struct sim_event e);
int sim_events_pop(struct sim_events *q, struct sim_event *out);

enum { SIM_MSG_DONE = 1, SIM_MSG_OUT = 2, SIM_MSG_FLIGHT = 4, SIM_MSG_LAST = 8 };

struct sim_msg {
	struct sim_msg *next; /* of its lane, in the order of posting; or free */
	struct sim_times t;
	uint64_t raddr, laddr;
	uint8_t *payload; /* 64 bytes of a message or an inline write; or NULL */
	uint32_t len, left, rkey, imm, id;
	uint32_t nic, epoch; /* of the sender */
	uint16_t lane;
	uint8_t op, state, status;
};

struct sim_lane {
	struct sim_msg *first, *last; /* posted and not completed */
	struct sim_msg *next_tx;      /* first of them that has not been sent */
	struct sim_msg *first_new;    /* first of them that waits for the doorbell */
	struct sim_lane *next_active; /* of its port's turn */
	struct sim_lane *next_bell;
	uint64_t landed_ns; /* ordered: nothing lands before */
	uint32_t epoch;
	uint32_t peer_nic, peer_epoch;
	uint32_t depth, outstanding,
		queued; /* queued: completions and arrivals that were not reaped */
	uint32_t nic;
	uint16_t peer_lane, id;
	uint8_t used, link, active, lost, rung;
};

struct sim_port {
	/* By class: those of jobs that go first, then the others. */
	struct sim_lane *first[2], *last[2]; /* that have something to send */
	uint64_t rx_free_ns[2];
	struct sim_port_stats stats;
	uint32_t epoch; /* counts its failures */
	uint8_t busy, up;
};

struct sim_wc {
	struct epf_wc wc;
	uint8_t *payload;
	struct sim_times t;
};

struct sim_key {
	uint64_t addr, len;
	unsigned access;
};

struct sim_nic {
	struct epf_nic nic;
	struct sim_net *net;
	uint32_t node, job, id;
	struct sim_lane *lanes;
	uint32_t n_lanes, epoch;
	struct sim_key *keys;
	uint32_t n_keys, keys_room;
	struct sim_wc *cq; /* a ring */
	uint32_t cq_head, cq_tail, cq_mask;
	uint8_t **held; /* payloads that the last reap gave out */
	uint32_t n_held, held_room;
	uint32_t arrivals;
	struct sim_lane *bells,
		*last_bell; /* lanes that were posted to and wait for sim_nic_ring() */
	struct epf_nic_counters counters;
};

struct sim_net {
	struct sim_net_options o;
	struct sim_net_calls calls;
	void *arg;
	struct epf_nic_ops ops;
	struct sim_events events;
	uint64_t now, rng;
	struct sim_nic **nics;  /* [jobs * nodes] */
	struct sim_port *ports; /* [nodes * links] */
	struct sim_msg *free_msg;
	uint8_t *free_payload;
	void **slabs;
	size_t n_slabs, slabs_room;
};

double sim_chance(struct sim_net *net);
struct sim_msg *sim_msg_get(struct sim_net *net);
/* Takes flags of a message's state away; with neither OUT nor FLIGHT left it is free. */
void sim_msg_put(struct sim_net *net, struct sim_msg *m, unsigned state);
uint8_t *sim_payload_get(struct sim_net *net);
void sim_payload_put(struct sim_net *net, uint8_t *p);
/* 0: of a job that goes first. */
unsigned sim_class_of(const struct sim_net *net, uint32_t nic);
struct sim_port *sim_port_of(struct sim_net *net, const struct sim_nic *nic, unsigned link);

/* Queues what a core is to reap, and wakes it. */
int sim_nic_complete(struct sim_nic *nic, const struct epf_wc *wc, uint8_t *payload,
		     const struct sim_times *t);
/* A lane has something new to send. */
void sim_lane_send(struct sim_net *net, struct sim_nic *nic, struct sim_lane *lane);
/* Ends everything outstanding of a lane: the first as `status`, the others flushed. */
void sim_lane_end(struct sim_net *net, struct sim_nic *nic, struct sim_lane *lane, unsigned status);

#endif
