/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of a process: the socket that its handles name, and the thread that accepts there. Each connection gets a link's thread, which makes it prove
 * itself; no more than a fixed number of strangers at a time, each for a limited time (join.c).
 */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/door.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/join.h"
#include "tools/nccl/plug.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 512, TOO_MANY_PAUSE_MS = 20 };

int epf_door_open(void)
{
	struct epf_plug *p = &epf_plug;
	const char *spec = p->conf.socket_ifname[0] ? p->conf.socket_ifname : NULL;
	int rc = epf_net_pick(spec, AF_UNSPEC, &p->address, NULL);

	if (rc)
		return rc;
	epf_net_set_port(&p->address, 0);
	p->door_fd = socket(p->address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->door_fd < 0 || bind(p->door_fd, &p->address.sa, p->address.len) ||
	    listen(p->door_fd, BACKLOG) ||
	    getsockname(p->door_fd, &p->address.sa, &p->address.len)) {
		char text[EPF_NET_HOST_MAX];

		epf_net_print(&p->address, text, sizeof(text));
		return epf_fail_sys(EPF_R_BOOT_LISTEN, errno, "nccl: listening at %s", text);
	}
	return 0;
}

void *epf_door_run(void *arg)
{
	struct pollfd fds[2] = { { .fd = epf_plug.door_fd, .events = POLLIN },
				 { .fd = epf_plug.stop_fd, .events = POLLIN } };

	(void)arg;
	for (;;) {
		int fd;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (fds[1].revents)
			break;
		fd = accept4(epf_plug.door_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
			    errno == ENOBUFS) {
				epf_warn_ratelimited("the door cannot accept: %s", strerror(errno));
				poll(&fds[1], 1, TOO_MANY_PAUSE_MS);
			}
			continue;
		}
		if (epf_link_accept(fd)) {
			epf_warn_ratelimited("%s", epf_last_error());
			close(fd);
		}
	}
	epf_plug_thread_ends();
	return NULL;
}
