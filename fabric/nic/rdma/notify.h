/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications of an RDMA device's two completion queues, which wake a core that sleeps: asked for by the core's thread, taken by the waker's, which touches
 * nothing but the channel, the wakeup and `armed`. Used by the verbs and the EFA NIC; never by hot code.
 */
#ifndef EPF_FABRIC_NIC_RDMA_NOTIFY_H
#define EPF_FABRIC_NIC_RDMA_NOTIFY_H

#include "fabric/nic/rdma/lib.h"
#include "fabric/nic/rdma/waker.h"
#include "queues/epf_wakeup.h"

#include <stdint.h>

/* Zeroed with waker.stop_fd -1. The fields from lib on are set before the first epf_rdma_notify_arm() and stay. */
struct epf_rdma_notify {
	struct epf_verbs_waker waker;
	uint32_t armed; /* asked for and not come yet: bit 0 send, bit 1 receive */
	const struct epf_verbs_lib *lib;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send, *recv;
	struct epf_wakeup *wakeup;
};

/**
 * epf_rdma_notify_arm() - ask for a notification of each queue, unless one is under way; starts the waker.
 * @nic: "verbs" or "efa", for errors.
 * @thread: the waker's name, at most 15 characters.
 *
 * Return: 0; minus errno with epf_last_error() set.
 */
int epf_rdma_notify_arm(struct epf_rdma_notify *n, const char *nic, const char *thread);

#endif
