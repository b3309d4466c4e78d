/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole user of the device API: two ranks on GPUs; each kernel fills a buffer, puts it into the other rank's, signals, and waits for what the
 * other sends. Needs epf_memory_alloc memory only, so it runs with every NIC. Build, with a build tree of EP fabric:
 *
 *     nvcc -std=c++17 -arch=native -I SOURCE kernels/examples/ring_put.cu -L BUILD/fabric -lepf -o ring_put
 *
 * and start two of them, for example: EPF_WORLD_SIZE=2 EPF_RENDEZVOUS=127.0.0.1:7777 EPF_RANK=0 (and 1) ./ring_put
 */
#include "fabric/client/epf.h"
#include "kernels/epf_device.cuh"

#include <cstdio>
#include <cuda_runtime.h>

enum { WORDS = 4096, SIGNAL = 0 };

/* The dozen lines: write, fence, put with signal, flush, wait for the peer. */
__global__ void exchange(const struct epf_gpu_ctx *ctx, uint32_t *buffer, uint32_t rank,
			 int *result)
{
	struct epf_dev d;
	int rc = 0;

	for (uint32_t i = threadIdx.x; i < WORDS; i += blockDim.x)
		buffer[i] = rank << 16 | i;
	epf_block_fence();
	if (threadIdx.x == 0) {
		epf_dev_open(&d, ctx);
		rc = epf_dev_put_signal(&d, 1 - rank, 0, 0, 0, WORDS * 4, WORDS * 4, SIGNAL, 1, 0);
		if (!rc)
			rc = epf_dev_flush(&d, 0);
		epf_dev_close(&d);
	}
	if (epf_block_wait_signal(ctx, SIGNAL, 1) || rc) {
		*result = 1;
		return;
	}
	for (uint32_t i = threadIdx.x; i < WORDS; i += blockDim.x)
		if (((volatile uint32_t *)buffer)[WORDS + i] != ((1 - rank) << 16 | i))
			*result = 2;
}

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, epf_last_error());
	return 1;
}

int main(void)
{
	struct epf *ep;
	struct epf_gpu *gpu;
	uint32_t *on_gpu;
	void *memory;
	uint32_t region;
	int *result, host = 0;

	if (epf_open(NULL, &ep) || epf_memory_alloc(ep, 2 * WORDS * 4, &memory) ||
	    epf_region_register(ep, memory, 2 * WORDS * 4, EPF_REMOTE_WRITE, &region) ||
	    epf_join(ep, NULL) || epf_gpu_open(ep, NULL, &gpu))
		return fail("open");
	if (cudaHostRegister(memory, 2 * WORDS * 4, cudaHostRegisterMapped) ||
	    cudaHostGetDevicePointer((void **)&on_gpu, memory, 0) ||
	    cudaMalloc((void **)&result, sizeof(*result)) || cudaMemset(result, 0, sizeof(*result)))
		return fail("memory");
	exchange<<<1, 128>>>(epf_gpu_context(gpu), on_gpu, epf_rank(ep), result);
	if (cudaMemcpy(&host, result, sizeof(host), cudaMemcpyDeviceToHost) || epf_gpu_check(gpu))
		return fail("kernel");
	printf("rank %u: %s\n", epf_rank(ep), host ? "wrong" : "right");
	(void)epf_barrier(ep);
	epf_gpu_close(gpu);
	(void)cudaHostUnregister(memory);
	epf_close(ep);
	return host;
}
