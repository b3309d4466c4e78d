/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bare TCP ping-pong, the yardstick of a round trip over nic=tcp: one thread an end, no fabric. Usage: pingpong PORT BYTES ROUNDS poll|block [HOST]; without HOST it is the
 * end that answers. poll waits by asking the socket again and again, as an engine that does not sleep; block waits in recv(2). Prints the median round trip in us. For bench/hosts/run.sh.
 */
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

enum { BYTES_MOST = 1 << 20, ROUNDS_MOST = 1000000, WARM_UP = 100 };

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int fail(const char *what)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, strerror(errno));
	return EXIT_FAILURE;
}

/* Moves all bytes one way: 0, or -1 with errno. */
static int move(int fd, uint8_t *buf, size_t bytes, bool is_send, int flags)
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

static int meet(const char *host, const char *port)
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

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	const char *host = argc == 6 ? argv[5] : NULL;
	size_t bytes = argc >= 5 ? strtoul(argv[2], NULL, 10) : 0;
	size_t rounds = argc >= 5 ? strtoul(argv[3], NULL, 10) : 0;
	int flags, fd;
	uint8_t *buf;
	uint64_t *ns;

	if (argc < 5 || argc > 6 || !bytes || bytes > BYTES_MOST || !rounds ||
	    rounds > ROUNDS_MOST) {
		fprintf(stderr, "usage: pingpong PORT BYTES ROUNDS poll|block [HOST]\n");
		return 2;
	}
	flags = strcmp(argv[4], "poll") == 0 ? MSG_DONTWAIT : 0;
	buf = calloc(1, bytes);
	ns = calloc(rounds, sizeof(*ns));
	if (!buf || !ns)
		return fail("memory");
	fd = meet(host, argv[1]);
	if (fd < 0)
		return fail(host ? host : "listening");
	for (size_t i = 0; i < rounds + WARM_UP; i++) {
		uint64_t begin = now_ns();

		if (move(fd, buf, bytes, host != NULL, flags) ||
		    move(fd, buf, bytes, host == NULL, flags))
			return fail("the other end");
		if (i >= WARM_UP)
			ns[i - WARM_UP] = now_ns() - begin;
	}
	qsort(ns, rounds, sizeof(*ns), compare);
	if (host)
		printf("%.2f\n", (double)ns[rounds / 2] / 1e3);
	free(ns);
	free(buf);
	close(fd);
	return 0;
}
