/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports of RDMA devices opened as one NIC (nic/nic.h: epf_nic_rails_open), also where it is a single one: so that it can be opened again after its
 * device was removed. For nic/verbs/rails.c and nic/efa/rails.c, which say how one is opened. Slow path.
 */
#ifndef EPF_FABRIC_NIC_RAILS_PORTS_H
#define EPF_FABRIC_NIC_RAILS_PORTS_H

#include "fabric/nic/nic.h"
#include "fabric/place/pick.h"

#include <stdbool.h>
#include <stdint.h>

/* How one port is opened. */
struct epf_rails_ports {
	/* may_be_down: it is opened even if it is. */
	int (*open)(const void *arg, const struct epf_place_candidate *port, bool may_be_down,
		    struct epf_nic **out);
	/* It rings another one's wakeup from now on; before anybody waits. That NIC is closed after this one. */
	void (*share_wakeup)(struct epf_nic *nic, const struct epf_nic *with);
	void *arg; /* free(3) frees it when the NIC is closed */
};

/**
 * epf_rails_ports_open() - those of a list as one NIC. Of several, a port that is down keeps its place: links mean the same at both ends.
 * @how: copied; @how->arg belongs to the NIC when this succeeds, and is the caller's when it fails.
 * @order: @n places in @list, 1 to EPF_NIC_LINKS of them. Names are copied.
 *
 * Slow. Return: 0 and *out; -errno with epf_last_error() set.
 */
int epf_rails_ports_open(const struct epf_rails_ports *how, const struct epf_place_candidate *list,
			 const uint32_t *order, uint32_t n, struct epf_nic **out);

#endif
