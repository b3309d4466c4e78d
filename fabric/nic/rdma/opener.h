/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread on which an RDMA NIC makes and destroys queue pairs for lanes that are opened again (epf_nic_ops.lane_reopen, lane_reconnect):
 * that asks the kernel, which may wait for the network for long, and the core's thread, which asks between two steps, makes no system call. Used by
 * nic/verbs/reopen.c and nic/efa/reopen.c; never by hot code.
 *
 * One lane at a time: there is one order, which goes to the thread and returns. It belongs to the core's thread while its state is NONE
 * or DONE, and to the other while it is ASKED (release when it changes hands, acquire when it is looked at). What an order needs beside this lies in
 * the NIC, beside the opener, and changes hands with it.
 */
#ifndef EPF_FABRIC_NIC_RDMA_OPENER_H
#define EPF_FABRIC_NIC_RDMA_OPENER_H

#include "queues/epf_wakeup.h"

#include <pthread.h>
#include <stdint.h>

enum epf_opener_state { EPF_OPENER_NONE, EPF_OPENER_ASKED, EPF_OPENER_DONE };

/* DISCARD frees what came of an order that nobody waits for any more; nobody waits for it either. */
enum epf_opener_kind { EPF_OPENER_OPEN, EPF_OPENER_CONNECT, EPF_OPENER_DISCARD };

struct epf_opener {
	uint32_t state;     /* enum epf_opener_state; by the functions below */
	uint8_t kind;       /* enum epf_opener_kind */
	uint8_t is_dropped; /* nobody waits for it any more; the core's thread's alone */
	uint8_t is_waking;  /* the thread has to be woken; the core's thread's alone */
	uint8_t link_up;    /* in: what events said last; out: what is known now */
	uint16_t lane;
	int rc; /* out */
	/* The thread. */
	void (*carry_out)(void *nic);
	void *nic;
	struct epf_wakeup *const *wakeup;
	pthread_t thread;
	int runs, stop, fd;
};

/**
 * epf_opener_init() - an opener without an order; its thread is started when it is woken first.
 * @carry_out: does what the order says and sets its rc; called on the thread, or by epf_opener_wake() where none can be started.
 * @nic: for it. @wakeup: where to find the wakeup that is rung when an order is done; read then.
 */
void epf_opener_init(struct epf_opener *o, void (*carry_out)(void *nic), void *nic,
		     struct epf_wakeup *const *wakeup);

/* epf_opener_stop() - ends the thread, behind what it is at. The order stays as it is, for the caller to free what it holds. */
void epf_opener_stop(struct epf_opener *o);

/* Of the order, by the core's thread. */
enum epf_opener_state epf_opener_state(const struct epf_opener *o);

/* epf_opener_ask() - gives an order, between two steps: no system call is made. The state is NONE; link_up: whether the port is said to be up. */
void epf_opener_ask(struct epf_opener *o, enum epf_opener_kind kind, uint16_t lane, int link_up);

/* epf_opener_take() - 1: this order is done, and dequeued: the state is NONE, rc and link_up are its outcome. 0: it is not, or there is none. */
int epf_opener_take(struct epf_opener *o, enum epf_opener_kind kind, uint16_t lane);

/* epf_opener_clear() - a done order is gone. */
void epf_opener_clear(struct epf_opener *o);

/* epf_opener_wake() - wakes the thread for an order, starting it if need be. Makes system calls: by the run loop (epf_nic_ops.wake_peers). */
void epf_opener_wake(struct epf_opener *o);

#endif
