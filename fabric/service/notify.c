/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling a service manager that the daemon is ready, alive, and ending: the datagrams of sd_notify(3), to the socket in NOTIFY_SOCKET.
 * Called by the control thread. The protocol is stable by its manual page, which shows it written out; written out here too, so that a
 * container that has the daemon needs no libsystemd. A manager that does not listen is never waited for.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/log.h"

#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TEXT_BYTES = 512 };

static int connect_to(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t len = strlen(path);
	int fd;

	/* "@name" is of the abstract namespace, which begins with a 0. */
	if ((*path != '/' && *path != '@') || len >= sizeof(to.sun_path)) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	memcpy(to.sun_path, path, len);
	if (*path == '@')
		to.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to,
			       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len))) {
		int err = errno;

		close(fd);
		errno = err;
		return -1;
	}
	return fd;
}

/* WATCHDOG_USEC is for the process in WATCHDOG_PID, if there is one. */
static uint64_t watchdog_ns(void)
{
	const char *pid = getenv("WATCHDOG_PID"), *usec = getenv("WATCHDOG_USEC");
	unsigned long long us = usec ? strtoull(usec, NULL, 10) : 0;

	if (pid && strtoll(pid, NULL, 10) != (long long)getpid())
		return 0;
	return us > UINT64_MAX / 1000 ? 0 : us * 1000;
}

void svc_notify_open(struct epf_svc *s)
{
	const char *path = getenv("NOTIFY_SOCKET");

	s->notify_fd = -1;
	if (!path || !*path)
		return;
	s->notify_fd = connect_to(path);
	if (s->notify_fd < 0)
		epf_warn("NOTIFY_SOCKET=%s: %s: the service manager will not hear of this daemon",
			 path, strerror(errno));
	else
		s->watchdog_ns = watchdog_ns();
}

void svc_notify_close(struct epf_svc *s)
{
	if (s->notify_fd >= 0)
		close(s->notify_fd);
	s->notify_fd = -1;
}

static void tell(const struct epf_svc *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A full socket loses the datagram: the next beat says it again. */
static void tell(const struct epf_svc *s, const char *fmt, ...)
{
	char text[TEXT_BYTES];
	va_list ap;
	int n;

	if (s->notify_fd < 0)
		return;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n > 0 &&
	    send(s->notify_fd, text, (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1,
		 MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		epf_dbg("notify: %s", strerror(errno));
}

void svc_notify_beat(struct epf_svc *s, bool first)
{
	const char *what = s->stopping ? "STOPPING=1\n" : first ? "READY=1\n" : "";

	tell(s, "%s%sSTATUS=%s, %u jobs, %u clients, %u ranks lost so far\n", what,
	     s->watchdog_ns ? "WATCHDOG=1\n" : "",
	     s->stopping   ? "ends after its last job"
	     : s->draining ? "drains"
			   : "serves",
	     s->n_jobs, s->n_clients, s->ranks_lost);
}

uint64_t svc_notify_period(const struct epf_svc *s, uint64_t period_ns)
{
	return s->watchdog_ns && s->watchdog_ns / 3 < period_ns ? s->watchdog_ns / 3 : period_ns;
}
