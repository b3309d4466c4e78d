/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each rank puts 4 KiB into the next rank's memory and adds 1 to its signal. Build and run it, two ranks on this machine:
 *
 *   cc hello.c $(pkg-config --cflags --libs epf) -o hello
 *   export EPF_WORLD_SIZE=2 EPF_RENDEZVOUS=127.0.0.1:29400
 *   EPF_RANK=0 ./hello & EPF_RANK=1 ./hello; wait
 *
 * docs/getting-started.md shows what follows, line by line; tests/unit/client/test_hello.c compares the two and runs it.
 */
#include <epf.h>
#include <stdio.h>

int main(void)
{
	struct epf *ep = NULL;
	struct epf_ring *ring;
	uint32_t region, next;
	void *memory;
	int rc = epf_open(NULL, &ep);

	if (rc || (rc = epf_memory_alloc(ep, 8192, &memory)) ||
	    (rc = epf_region_register(ep, memory, 8192, EPF_REMOTE_WRITE, &region)) ||
	    (rc = epf_ring_open(ep, NULL, &ring)) || (rc = epf_join(ep, NULL)))
		goto out;
	next = (epf_rank(ep) + 1) % epf_world(ep);
	snprintf(memory, 4096, "hello from rank %u", epf_rank(ep));
	/* My first 4 KiB become the next rank's second 4 KiB; then its signal 0 grows by 1. */
	rc = epf_put_signal(ring, next, region, 0, region, 4096, 4096, 0, 1, EPF_FENCE);
	if (!rc && !(rc = epf_signal_wait(ep, 0, 1, 0)))
		printf("rank %u reads: %s\n", epf_rank(ep), (const char *)memory + 4096);
	if (!rc)
		rc = epf_barrier(ep); /* nobody leaves before everybody has read */
out:
	if (rc)
		fprintf(stderr, "%s\n", epf_last_error());
	epf_close(ep);
	return rc != 0;
}
