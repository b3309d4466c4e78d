/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of waker.h. It touches nothing but the channel, and what its owner's function does.
 */
#include "fabric/nic/rdma/waker.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void *waker_thread(void *arg)
{
	struct epf_verbs_waker *w = arg;
	struct pollfd fds[2] = { { .fd = w->fd, .events = POLLIN },
				 { .fd = w->stop_fd, .events = POLLIN } };

	for (;;) {
		int n = poll(fds, 2, -1);

		if (n < 0 && errno != EINTR)
			break;
		if (n > 0 && fds[1].revents)
			break;
		if (n > 0 &&
		    fds[0].revents & ~POLLIN) /* the device is gone: the core's sleep is bounded */
			break;
		if (n > 0 && fds[0].revents)
			w->drain(w->arg);
	}
	return NULL;
}

int epf_verbs_waker_start(struct epf_verbs_waker *w, const char *name, int fd,
			  void (*drain)(void *arg), void *arg)
{
	sigset_t all, old;
	int rc;

	if (w->stop_fd < 0)
		w->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (w->stop_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "%s: eventfd", name);
	w->fd = fd;
	w->drain = drain;
	w->arg = arg;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&w->thread, NULL, waker_thread, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, rc, "%s: cannot start a thread", name);
	pthread_setname_np(w->thread, name);
	w->runs = true;
	return 0;
}

void epf_verbs_waker_stop(struct epf_verbs_waker *w)
{
	uint64_t one = 1;

	if (w->runs && write(w->stop_fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(w->thread, NULL);
	w->runs = false;
	if (w->stop_fd >= 0)
		close(w->stop_fd);
	w->stop_fd = -1;
}
