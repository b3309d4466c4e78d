/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job as a program, for svc_containers.sh: svc_client RANK WORLD RENDEZVOUS. Which daemon serves it stands in EPF_SERVICE. Every rank
 * sends a page of known bytes with a signal to every other one, many times over, and checks what it gets. Exit status 0 only when all was right.
 */
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, ROUNDS = 500, RANKS_MAX = 64 };

#define WAIT_NS UINT64_C(20000000000)

static int failed(const char *what)
{
	fprintf(stderr, "svc_client: %s: %s\n", what, epf_last_error());
	return 1;
}

static void fill(uint8_t *page, uint32_t sender, uint32_t round)
{
	for (uint32_t i = 0; i < PAGE_BYTES; i++)
		page[i] = (uint8_t)(sender * 31 + round * 7 + i * 13 + i / 256);
}

/* Slots: [2][world] received, then [2] sent. */
static int play(struct epf *ep, struct epf_ring *ring, uint8_t *mem, uint32_t me, uint32_t world)
{
	uint8_t want[PAGE_BYTES];

	for (uint32_t n = 0; n < ROUNDS; n++) {
		uint64_t out = (2 * world + (n & 1)) * PAGE_BYTES;

		fill(mem + out, me, n);
		for (uint32_t p = 0; p < world; p++)
			if (p != me &&
			    epf_put_signal(ring, p, 0, out, 0, ((n & 1) * world + me) * PAGE_BYTES,
					   PAGE_BYTES, me, 1, EPF_FENCE))
				return failed("put");
		for (uint32_t p = 0; p < world; p++) {
			if (p == me)
				continue;
			if (epf_signal_wait(ep, p, n + 1, WAIT_NS))
				return failed("wait");
			fill(want, p, n);
			if (memcmp(mem + ((n & 1) * world + p) * PAGE_BYTES, want, PAGE_BYTES) !=
			    0) {
				fprintf(stderr,
					"svc_client: rank %u: wrong bytes from rank %u in round %u\n",
					me, p, n);
				return 1;
			}
		}
		if (epf_wait_retired(ring, epf_ring_pushed(ring), WAIT_NS))
			return failed("retire");
	}
	return epf_flush(ring, 0, WAIT_NS) ? failed("flush") : 0;
}

static int join_and_play(struct epf *ep, struct epf_boot *boot, uint32_t me, uint32_t world)
{
	uint64_t bytes = (2 * world + 2) * PAGE_BYTES;
	struct epf_ring *ring;
	uint32_t region;
	void *mem;
	int rc;

	if (epf_memory_alloc(ep, bytes, &mem) ||
	    epf_region_register(ep, mem, bytes, EPF_REMOTE_WRITE, &region) ||
	    epf_ring_open(ep, NULL, &ring))
		return failed("memory");
	if (epf_join(ep, boot))
		return failed("join");
	rc = play(ep, ring, mem, me, world);
	if (!rc && epf_barrier(ep))
		rc = failed("barrier");
	if (!rc)
		printf("rank %u of %u: %s, %u nodes, %d rounds right\n", me, world, epf_mode(ep),
		       epf_nodes(ep), ROUNDS);
	return rc;
}

int main(int argc, char **argv)
{
	struct epf_boot_opts b = { .size = sizeof(b), .job = "containers", .timeout_ns = WAIT_NS };
	struct epf_boot *boot = NULL;
	struct epf *ep = NULL;
	struct epf_options o;
	int rc;

	if (argc != 4) {
		fprintf(stderr, "usage: svc_client RANK WORLD RENDEZVOUS\n");
		return 1;
	}
	b.rank = (uint32_t)strtoul(argv[1], NULL, 10);
	b.world = (uint32_t)strtoul(argv[2], NULL, 10);
	b.rendezvous = argv[3];
	epf_options_init(&o);
	if (b.world > RANKS_MAX || epf_boot_tcp_open(&b, &boot) || epf_open(&o, &ep))
		rc = failed("open");
	else
		rc = join_and_play(ep, boot, b.rank, b.world);
	epf_close(ep);
	epf_boot_close(boot);
	return rc;
}
