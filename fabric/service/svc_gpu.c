/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of clients. The daemon gets a name of it and passes that to the job's NIC; it is mapped by the emulated NIC's copier, on
 * that thread, so that neither the control thread nor an engine waits for a driver, and a daemon without such regions never loads one.
 * Called on the control thread. It must never touch the memory.
 */
#include "fabric/emu_gpu.h"
#include "fabric/epf.h"
#include "fabric/service/svc_impl.h"

#include <errno.h>
#include <string.h>

int svc_member_gpu_region(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
			  struct svc_answer *a)
{
	const struct epf_svc_gpu_region *g = &msg->gpu_region;
	struct epf_copy_handle h = {
		.kind = g->kind, .fd = c->in.fds[0], .bytes = g->whole, .offset = g->offset
	};
	struct svc_region r = { .bytes = g->bytes, .access = g->access, .state = SVC_REGION_LIVE };
	const struct epf_copy_ops *ops;
	struct svc_member *m;
	int rc = svc_member_may_register(s, c, g->access, &m);

	if (rc)
		return rc;
	memcpy(h.ipc, g->ipc, sizeof(h.ipc));
	memcpy(h.pci, g->pci, sizeof(h.pci));
	rc = epf_copy_ops_find(epf_copy_gpu_name(s->conf), &ops);
	if (!rc)
		rc = epf_copy_mem_adopt(ops, &h, g->bytes, &r.gpu);
	if (rc)
		return rc;
	rc = svc_member_take(s, m, g->bytes);
	if (rc) {
		epf_copy_mem_put(r.gpu);
		return rc;
	}
	r.addr = (void *)(uintptr_t)r.gpu->addr;
	rc = svc_member_add(m, &r);
	if (rc) {
		svc_member_give(m, g->bytes);
		epf_copy_mem_put(r.gpu);
		return rc;
	}
	a->region.region = m->n_regions - 1;
	return 0;
}
