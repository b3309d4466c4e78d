/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that waits on the completion channel of an RDMA device and wakes its owner, so that a core can sleep. Used by the verbs and the
 * EFA NIC; never by hot code.
 */
#ifndef EPF_FABRIC_NIC_RDMA_WAKER_H
#define EPF_FABRIC_NIC_RDMA_WAKER_H

#include <pthread.h>
#include <stdbool.h>

/* Zeroed with stop_fd -1: not running. */
struct epf_verbs_waker {
	pthread_t thread;
	bool runs;
	int stop_fd;
	int fd; /* the channel's, non-blocking; outlives the thread */
	void (*drain)(void *arg);
	void *arg;
};

/**
 * epf_verbs_waker_start() - start the thread, with all signals blocked.
 * @name: of the thread, at most 15 characters.
 * @fd: of the channel. @drain: called on the thread each time it can be read; must read all there is.
 *
 * Return: 0; minus errno with epf_last_error() set, and it may be tried again.
 */
int epf_verbs_waker_start(struct epf_verbs_waker *w, const char *name, int fd,
			  void (*drain)(void *arg), void *arg);

/* epf_verbs_waker_stop() - end the thread and wait for its end. One that does not run is fine. */
void epf_verbs_waker_stop(struct epf_verbs_waker *w);

#endif
