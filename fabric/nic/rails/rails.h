/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of several NICs as one (nic/nic.h: epf_nic_rails_open), for the files of this folder only. The children share
 * nothing but the core that uses them and the numbers of lanes, so one that is broken leaves the others as they are.
 */
#ifndef EPF_FABRIC_NIC_RAILS_RAILS_H
#define EPF_FABRIC_NIC_RAILS_RAILS_H

#include "fabric/nic/nic.h"

/* A region on every child; epf_nic_mr.priv. */
struct epf_rails_region {
	struct epf_nic_mr child[EPF_NIC_LINKS];
	struct epf_nic_mr fresh;               /* on a child that is being opened again */
	struct epf_rails_region *next, **link; /* link: what points here */
	void *addr; /* NULL: GPU memory, which cannot be registered again */
	uint64_t len;
	unsigned access;
};

struct epf_rails {
	struct epf_nic nic;
	const struct epf_nic_ops *ops; /* the children's */
	uint32_t n;
	uint32_t first; /* child that the next reap begins with */
	struct epf_nic *child[EPF_NIC_LINKS];
	uint32_t
		owed[EPF_NIC_LINKS]; /* arrivals of a child for which no receive was posted again */

	/* Slow path. */
	struct epf_nic_ops own; /* nic.ops: under the children's name */
	struct epf_nic_caps caps;
	struct epf_rails_region *regions;
	uint32_t receives[EPF_NIC_LINKS]; /* that each child got when the job began */
	struct epf_rails_again again;     /* open: NULL: children are not opened again */
	struct epf_nic *wakeup_owner;     /* the first child that was there: closed last */
};

static inline struct epf_rails *epf_rails_of(const struct epf_nic *nic)
{
	return (struct epf_rails *)(uintptr_t)nic;
}

/* address.c */
int epf_rails_address(const struct epf_nic *nic, void *buf, size_t size);

/* data_hot.c */
int epf_rails_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
/* Where there is one child: no lane has to be looked up. */
int epf_rails_post_one(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
int epf_rails_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
void epf_rails_post_receives(struct epf_nic *nic, unsigned n);
uint64_t epf_rails_next_event(const struct epf_nic *nic);
int epf_rails_wake_pending(const struct epf_nic *nic);

#endif
