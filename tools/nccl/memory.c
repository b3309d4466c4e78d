/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory of connections (net.h). NCCL registers the same buffers for many connections, so equal registrations of a link are one region with a count of
 * its users. A region number is never used again, so a link has EPF_LINK_REGIONS registrations in its life.
 */
#define EPF_LOG_COMP "nccl"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/net.h"

#include <errno.h>
#include <stdlib.h>

#define WITHDRAW_NS 5000000000ull

/* One like it that is there or under way. Under the lock; waits for the latter. */
static struct epf_mr *find(struct epf_link *l, uintptr_t addr, size_t bytes, int type)
{
	struct epf_mr *mr;

again:
	LIST_FOREACH(mr, &l->mrs, entry)
	{
		if (mr->addr != addr || mr->bytes != bytes || mr->type != type)
			continue;
		if (mr->ready)
			return mr;
		epf_plug_wait(epf_now_ns() + 1000000000);
		goto again;
	}
	return NULL;
}

static int make_region(struct epf_mr *mr)
{
	void *addr = (void *)mr->addr; /* NCCL's pointer, kept as a number for comparisons */

	if (mr->type == EPF_NCCL_HOST)
		return epf_region_register(mr->link->ep, addr, mr->bytes, EPF_REMOTE_WRITE,
					   &mr->region);
	return epf_region_register_gpu(mr->link->ep, addr, mr->bytes, EPF_REMOTE_WRITE,
				       &mr->region);
}

static int make(struct epf_link *l, uintptr_t addr, size_t bytes, int type, struct epf_mr **out)
{
	struct epf_mr *mr = calloc(1, sizeof(*mr));
	int rc;

	if (!mr)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: a registration");
	*mr = (struct epf_mr){ .link = l, .addr = addr, .bytes = bytes, .type = type, .users = 1 };
	LIST_INSERT_HEAD(&l->mrs, mr, entry);
	epf_plug_unlock();
	rc = make_region(mr);
	epf_plug_lock();
	if (rc) {
		LIST_REMOVE(mr, entry);
		free(mr);
	} else {
		mr->order = ++l->registered;
		mr->ready = true;
		*out = mr;
	}
	epf_plug_notify();
	return rc;
}

int epf_net_register(struct epf_comm *comm, void *data, size_t bytes, int type, struct epf_mr **out)
{
	struct epf_link *l = comm->link;
	struct epf_mr *mr;
	int rc = 0;

	if (!data || !bytes || (type != EPF_NCCL_HOST && type != EPF_NCCL_CUDA))
		return epf_fail(EPF_R_NCCL_CALL, "nccl: a registration of %zu bytes of kind %d",
				bytes, type);
	epf_plug_lock();
	mr = find(l, (uintptr_t)data, bytes, type);
	if (mr)
		mr->users++;
	else
		rc = make(l, (uintptr_t)data, bytes, type, &mr);
	epf_plug_unlock();
	if (rc)
		return rc;
	if (comm->kind == EPF_COMM_RECV)
		rc = epf_link_publish(l, mr->order);
	if (rc) {
		struct epf_error why;

		epf_error_get(&why);
		epf_net_deregister(mr);
		epf_error_set(&why);
		return rc;
	}
	*out = mr;
	return 0;
}

/*
 * A peer acknowledges the withdrawal of a region that it has heard of, so one that is new is published first. Where the peer is gone before that, nobody can
 * name the region, and nothing is waited for.
 */
static void withdraw(struct epf_link *l, const struct epf_mr *mr)
{
	bool known;

	if (!epf_link_is_lost(l) && epf_link_publish(l, mr->order))
		epf_dbg("a registration ends: %s", epf_last_error());
	epf_plug_lock();
	known = l->published >= mr->order;
	epf_plug_unlock();
	if (epf_region_withdraw(l->ep, mr->region, known ? WITHDRAW_NS : 1) && known &&
	    !epf_link_is_lost(l))
		epf_warn("a registration ends: %s", epf_last_error());
}

void epf_net_deregister(struct epf_mr *mr)
{
	bool last;

	if (!mr)
		return;
	epf_plug_lock();
	last = --mr->users == 0;
	if (last)
		LIST_REMOVE(mr, entry);
	epf_plug_unlock();
	if (!last)
		return;
	withdraw(mr->link, mr);
	free(mr);
}
