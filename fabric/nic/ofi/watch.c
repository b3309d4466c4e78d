/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beside the data path of the ofi NIC: lanes without progress, and waking a core that sleeps. The watch runs on the core's thread about ten times a second. The
 * waker is a thread that waits on an epoll descriptor, which reports the completion queue's descriptor once for each time that the core arms it.
 *
 * libfabric does not say that a peer is gone: operations to it fail, or wait (FI_EAGAIN, or in the provider) for as long as they are let.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <sys/epoll.h>

static void look(struct epf_ofi *v, uint16_t lane, uint64_t now)
{
	struct epf_ofi_lane *l = &v->lanes[lane];

	if (l->link != EPF_LANE_READY)
		return;
	if (v->is_down) {
		if (now - v->cut_ns > v->opts.timeout_ns)
			epf_ofi_lane_lose(v, lane, EPF_S_RETRY_EXCEEDED);
		return;
	}
	if (l->has_moved || !l->outstanding) {
		l->has_moved = 0;
		l->moved_ns = now;
	} else if (now - l->moved_ns > v->opts.timeout_ns) {
		epf_ofi_lane_lose(v, lane, EPF_S_RETRY_EXCEEDED);
	}
}

void epf_ofi_watch(struct epf_nic *nic)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	uint64_t now = v->now(v->now_arg);

	for (uint32_t i = 0; i < v->lanes_end; i++)
		if (v->lanes[i].is_used)
			look(v, (uint16_t)i, now);
}

/* ---- sleep ---- */

struct epf_wakeup *epf_ofi_wakeup(struct epf_nic *nic)
{
	return epf_ofi_of(nic)->wakeup;
}

/* On the waker's thread. */
static void wake(void *arg)
{
	struct epf_ofi *v = arg;
	struct epoll_event e;

	if (epoll_wait(v->once_fd, &e, 1, 0) == 1 && epf_wakeup_is_needed(v->wakeup))
		epf_wakeup_wake(v->wakeup);
}

static int start_waker(struct epf_ofi *v)
{
	struct epoll_event e = { .events = EPOLLONESHOT };

	if (v->once_fd < 0)
		v->once_fd = epoll_create1(EPOLL_CLOEXEC);
	if (v->once_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "ofi: epoll_create1");
	if (epoll_ctl(v->once_fd, EPOLL_CTL_ADD, v->wait_fd, &e) && errno != EEXIST)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "ofi: epoll_ctl");
	return epf_verbs_waker_start(&v->waker, "epf-ofi", v->once_fd, wake, v);
}

int epf_ofi_arm(struct epf_nic *nic)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	struct fid *fid = &v->cq->fid;
	struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
	int rc = 0;

	if (v->wait_fd < 0)
		return -EOPNOTSUPP;
	if (!v->waker.runs)
		rc = start_waker(v);
	if (rc)
		return rc;
	/* FI_EAGAIN: something has come already, and the descriptor may not say so. */
	if (fi_trywait(v->fabric, &fid, 1))
		epf_wakeup_wake(v->wakeup);
	else if (epoll_ctl(v->once_fd, EPOLL_CTL_MOD, v->wait_fd, &e))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "ofi: epoll_ctl");
	return 0;
}
