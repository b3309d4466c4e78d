/* SPDX-License-Identifier: Apache-2.0 */
/* See meet.h. */
#include "bench/xfer/meet.h"

#include "bench/common/bench.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DIAL_TRIES = 600 }; /* every 50 ms */

int xfer_listen(uint64_t port)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
	int s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, fd = -1;

	if (s >= 0 && !setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
	    !bind(s, (struct sockaddr *)&at, sizeof(at)) && !listen(s, 1))
		fd = accept(s, NULL, NULL);
	if (fd < 0)
		bench_complain("xfer: port %" PRIu64 ": %s", port, strerror(errno));
	if (s >= 0)
		close(s);
	return fd;
}

int xfer_dial(const char *peer)
{
	struct addrinfo *list = NULL, hints = { .ai_socktype = SOCK_STREAM };
	char host[128];
	int fd = -1, rc;

	snprintf(host, sizeof(host), "%s", peer);
	*strrchr(host, ':') = 0;
	rc = getaddrinfo(host, strrchr(peer, ':') + 1, &hints, &list);
	for (unsigned i = 0; i < DIAL_TRIES && !rc && fd < 0; i++) {
		fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0 || !connect(fd, list->ai_addr, list->ai_addrlen))
			break;
		close(fd);
		fd = -1;
		usleep(50000);
	}
	if (fd < 0)
		bench_complain("xfer: no target at %s: %s", peer,
			       rc ? gai_strerror(rc) : strerror(errno));
	if (list)
		freeaddrinfo(list);
	return fd;
}
