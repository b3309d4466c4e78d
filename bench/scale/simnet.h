/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network on a virtual clock, and the NICs on it: ports with a rate, a delay on the way, queues at senders and receivers, loss, reordering,
 * ports that fail and nodes that die. Messages are cut into segments; a port sends a segment of each of its lanes in turn, as RDMA devices
 * do between queue pairs, and a receiving port takes segments in the order in which they arrive (incast). What is between the ports is never
 * the limit. Used by bench/scale; one thread.
 *
 * A NIC moves bytes only where both ends are memory: addresses from SIM_VIRTUAL on are places without bytes, of which `landed` tells.
 */
#ifndef EPF_BENCH_SCALE_SIMNET_H
#define EPF_BENCH_SCALE_SIMNET_H

#include "fabric/nic/nic.h"

#include <stdint.h>

#define SIM_VIRTUAL (UINT64_C(1) << 48)
#define SIM_NEVER   UINT64_MAX

struct sim_net_options {
	uint32_t nodes;
	uint32_t jobs;       /* NICs of a node: each job has its own on the node's ports */
	uint32_t links;      /* ports of a node */
	uint32_t lanes;      /* of a NIC to each node: a multiple of links */
	double bytes_per_ns; /* of a port, each way */
	uint32_t
		delay_ns; /* from the end of a segment's sending to its arrival, and for a completion back */
	uint32_t segment; /* bytes */
	uint32_t header;  /* bytes that a segment takes beside its payload, for each `mtu` of it */
	uint32_t mtu;     /* payload of a packet */
	int unordered;    /* messages of a lane may overtake each other */
	double loss;      /* chance that a packet has to be sent again */
	uint32_t resend_ns;  /* then its message comes so much later */
	double reorder;      /* unordered: chance that a message is late */
	uint32_t reorder_ns; /* by at most so much */
	uint64_t retry_ns;   /* a sender whose peer does not answer gives up after so long */
	uint32_t receives;   /* of a NIC */
	uint32_t
		first_jobs; /* bit j: ports send what job j posted first, as a traffic class does */
	uint64_t seed;
};

/* When a message was where: for the cause of a slow one. */
struct sim_times {
	uint64_t posted, sent, arrived,
		landed; /* posted; its first byte left; its last byte was at the receiving port; it had been taken */
};

struct sim_net;
struct sim_nic;

/* What happened on the network; `arg` of sim_net_create(). */
struct sim_net_calls {
	/* A NIC has something to reap. */
	void (*wake)(void *arg, uint32_t node, uint32_t job);
	/* A write to virtual memory has landed. May come twice: a lane's requests are sent again after a failure. */
	void (*landed)(void *arg, uint32_t node, uint32_t job, uint64_t addr, uint32_t bytes);
	/* A message of 64 bytes at most was handed to the core. */
	void (*reaped)(void *arg, uint32_t node, uint32_t job, const void *msg,
		       const struct sim_times *t);
	/* A timer that sim_net_at() has set. */
	void (*timer)(void *arg, uint64_t what);
};

struct sim_port_stats {
	uint64_t bytes_tx, bytes_rx;
	uint64_t most_queued_ns; /* a segment waited so long at the receiving port, at most */
};

int sim_net_create(const struct sim_net_options *o, const struct sim_net_calls *calls, void *arg,
		   struct sim_net **out);
void sim_net_destroy(struct sim_net *net);
uint64_t sim_net_now(void *net);

/* Opens the NIC of a job on a node: close it by its table. */
int sim_nic_open(struct sim_net *net, uint32_t node, uint32_t job, struct epf_nic **out);

/* Runs what is due next. 0: nothing is left. */
int sim_net_run(struct sim_net *net);
void sim_net_at(struct sim_net *net, uint64_t at, uint64_t what);

/* A port stops, or works again. What is under way on it is lost. */
void sim_net_port(struct sim_net *net, uint32_t node, uint32_t link, int up);

void sim_net_port_stats(const struct sim_net *net, uint32_t node, uint32_t link,
			struct sim_port_stats *out);
void sim_net_port_stats_clear(struct sim_net *net);
/* Arrivals that a NIC has given to its core since the last call. */
uint32_t sim_nic_arrivals(struct epf_nic *nic);
/* Lets go what a NIC was given since the last call: its core rings the doorbells when its step is over. */
void sim_nic_ring(struct epf_nic *nic);

#endif
