/* SPDX-License-Identifier: Apache-2.0 */
/* The mapping that both processes of ep-bench ring --gpu share: rings, and a mailbox for one request at a time. */
#include "bench/ring/gpu.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct ring_gpu_shared *ring_gpu_map(void)
{
	size_t rings = RING_GPU_SHARED * (size_t)(RING_GPU_SLOTS_MANY * 16 + RING_GPU_PAGE) +
		       RING_GPU_PRIVATE * (size_t)(RING_GPU_SLOTS * 16 + RING_GPU_PAGE);
	size_t head = 2 * RING_GPU_PAGE;
	size_t bytes = head + RING_GPU_PAGE + rings;
	struct ring_gpu_shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (s == MAP_FAILED)
		return NULL;
	s->bytes = bytes;
	s->words = (uint8_t *)s + head;
	s->rings = s->words + RING_GPU_PAGE;
	return s;
}

static size_t stride(uint32_t slots)
{
	return (sizeof(struct epf_ring_shm) + slots * EPF_CMD_BYTES + RING_GPU_PAGE - 1) /
	       RING_GPU_PAGE * RING_GPU_PAGE;
}

struct epf_ring_shm *ring_gpu_ring(const struct ring_gpu_shared *s, uint32_t i)
{
	size_t many = stride(RING_GPU_SLOTS_MANY);

	return (struct epf_ring_shm *)(void *)(s->rings +
					       (i < RING_GPU_SHARED
							? i * many
							: RING_GPU_SHARED * many +
								  (i - RING_GPU_SHARED) *
									  stride(RING_GPU_SLOTS)));
}

uint32_t ring_gpu_rings(const struct ring_gpu_request *r)
{
	return r->n_shared + r->n_private;
}

struct epf_ring_shm *ring_gpu_ring_of(const struct ring_gpu_shared *s,
				      const struct ring_gpu_request *r, uint32_t i)
{
	return ring_gpu_ring(s, i < r->n_shared ? i : RING_GPU_SHARED + i - r->n_shared);
}

void ring_gpu_format(struct ring_gpu_shared *s, const struct ring_gpu_request *r)
{
	for (uint32_t i = 0; i < ring_gpu_rings(r); i++) {
		unsigned log2 = i < r->n_shared ? r->shared_log2 : r->private_log2;
		struct epf_ring_shm *shm = ring_gpu_ring_of(s, r, i);

		memset(shm, 0, epf_ring_bytes(log2));
		epf_ring_format(shm, log2, i, 0);
	}
}

void ring_gpu_ask(struct ring_gpu_shared *s, const struct ring_gpu_request *r)
{
	s->request = *r;
	EPF_STORE_RELEASE(&s->asked, s->asked + 1);
}

int ring_gpu_answer(struct ring_gpu_shared *s, pid_t child, struct ring_gpu_reply *out)
{
	int status;

	if (EPF_LOAD_ACQUIRE(&s->done) == s->asked) {
		*out = s->reply;
		return 1;
	}
	return waitpid(child, &status, WNOHANG) == child ? -ECHILD : 0;
}
