/* SPDX-License-Identifier: Apache-2.0 */
/* A socket between the two ends of a bare program of this folder: meeting, moving bytes, the clock. */
#ifndef EPF_BENCH_HOSTS_SOCK_H
#define EPF_BENCH_HOSTS_SOCK_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t sock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Moves all bytes one way: 0, or -1 with errno. */
static inline int sock_move(int fd, uint8_t *buf, size_t bytes, bool is_send, int flags)
{
	while (bytes) {
		ssize_t n =
			is_send ? send(fd, buf, bytes, MSG_NOSIGNAL) : recv(fd, buf, bytes, flags);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			return -1;
		buf += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* Connects to the other end at a host, or (NULL) waits for it: a socket, or -1 with errno. */
static inline int sock_meet(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE },
			*at;
	int on = 1, fd, listener;

	if (getaddrinfo(host, port, &hints, &at))
		return -1;
	fd = socket(at->ai_family, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (host) {
		while (connect(fd, at->ai_addr,
			       at->ai_addrlen)) { /* the other end may not listen yet */
			if (errno != ECONNREFUSED)
				return -1;
			close(fd);
			usleep(20000);
			fd = socket(at->ai_family, SOCK_STREAM, 0);
		}
	} else {
		listener = fd;
		if (bind(listener, at->ai_addr, at->ai_addrlen) || listen(listener, 1))
			return -1;
		fd = accept(listener, NULL, NULL);
		close(listener);
	}
	freeaddrinfo(at);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

#endif
