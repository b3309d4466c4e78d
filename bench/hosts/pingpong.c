/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bare TCP ping-pong, the yardstick of a round trip over nic=tcp: one thread an end, no fabric. Usage: pingpong PORT BYTES ROUNDS poll|block [HOST]; without HOST it is the
 * end that answers. poll waits by asking the socket again and again, as an engine that does not sleep; block waits in recv(2). Prints the median round trip in us. For bench/hosts/run.sh.
 */
#include "bench/hosts/sock.h"

enum { BYTES_MOST = 1 << 20, ROUNDS_MOST = 1000000, WARM_UP = 100 };

static int fail(const char *what)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, strerror(errno));
	return EXIT_FAILURE;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint8_t buf[BYTES_MOST];
static uint64_t ns[ROUNDS_MOST];

int main(int argc, char **argv)
{
	const char *host = argc == 6 ? argv[5] : NULL;
	size_t bytes = argc >= 5 ? strtoul(argv[2], NULL, 10) : 0;
	size_t rounds = argc >= 5 ? strtoul(argv[3], NULL, 10) : 0;
	int flags, fd;

	if (argc < 5 || argc > 6 || !bytes || bytes > BYTES_MOST || !rounds ||
	    rounds > ROUNDS_MOST) {
		fprintf(stderr, "usage: pingpong PORT BYTES ROUNDS poll|block [HOST]\n");
		return 2;
	}
	flags = strcmp(argv[4], "poll") == 0 ? MSG_DONTWAIT : 0;
	fd = sock_meet(host, argv[1]);
	if (fd < 0)
		return fail(host ? host : "listening");
	for (size_t i = 0; i < rounds + WARM_UP; i++) {
		uint64_t begin = sock_now_ns();

		if (sock_move(fd, buf, bytes, host != NULL, flags) ||
		    sock_move(fd, buf, bytes, host == NULL, flags))
			return fail("the other end");
		if (i >= WARM_UP)
			ns[i - WARM_UP] = sock_now_ns() - begin;
	}
	qsort(ns, rounds, sizeof(*ns), compare);
	if (host)
		printf("%.2f\n", (double)ns[rounds / 2] / 1e3);
	close(fd);
	return 0;
}
