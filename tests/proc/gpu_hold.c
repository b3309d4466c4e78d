/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that fill a GPU and wait, and calls that wait for the device, while the NIC copies (gpu_hold.h). Rank 0 launches the kernels;
 * the last rank answers. A kernel that gets no data ends by its own deadline and reports it: nothing here can hang a GPU.
 */
#include "tests/proc/gpu_hold.h"

#include "fabric/base/clock.h"
#include "fabric/gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>

#define WAIT_NS     UINT64_C(30000000000)
#define DEADLINE_NS UINT64_C(5000000000) /* of a kernel */

enum { KERNELS = 40, CALLS = 1000, THREADS = 1024, BLOCKS_PER_SM = 2, PUSH = 32, BYTES = 7168 };

/* spin(word, want, ns, result): every thread waits until *word >= want, at most ns; *result: 1 if it was, 2 if not. */
static const char spin_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			       ".visible .entry spin(.param .u64 p_word, .param .u64 p_want,"
			       " .param .u64 p_ns, .param .u64 p_result)\n{\n"
			       ".reg .pred %p, %q;\n"
			       ".reg .u64 %word, %want, %ns, %result, %v, %t0, %t;\n"
			       ".reg .u32 %me, %block;\n"
			       "ld.param.u64 %word, [p_word];\n"
			       "ld.param.u64 %want, [p_want];\n"
			       "ld.param.u64 %ns, [p_ns];\n"
			       "ld.param.u64 %result, [p_result];\n"
			       "mov.u64 %t0, %globaltimer;\n"
			       "AGAIN:\n"
			       "ld.acquire.sys.global.u64 %v, [%word];\n"
			       "setp.ge.u64 %p, %v, %want;\n"
			       "mov.u64 %t, %globaltimer;\n"
			       "sub.u64 %t, %t, %t0;\n"
			       "setp.gt.u64 %q, %t, %ns;\n"
			       "@%p bra CAME;\n"
			       "@!%q bra AGAIN;\n"
			       "mov.u64 %v, 2;\n"
			       "bra SAY;\n"
			       "CAME:\n"
			       "mov.u64 %v, 1;\n"
			       "SAY:\n"
			       "mov.u32 %me, %tid.x;\n"
			       "mov.u32 %block, %ctaid.x;\n"
			       "or.b32 %me, %me, %block;\n"
			       "setp.ne.u32 %p, %me, 0;\n"
			       "@%p bra END;\n"
			       "st.global.u64 [%result], %v;\n"
			       "END:\n"
			       "ret;\n}\n";

static int bad(const struct gpu_hold *h, const char *what)
{
	fprintf(stderr, "gpu_hold %s rank %u: %s: %s\n", h->what, h->me, what, epf_last_error());
	return -1;
}

struct kernel {
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	void *stream, *module, *spin;
};

static int prepare(const struct gpu_hold *h, struct kernel *k)
{
	const struct epf_gpu_ops *ops;

	if (epf_gpu_backend(h->backend, &ops) || ops->open(h->device, &k->dev) ||
	    ops->describe(k->dev, &k->props) || ops->stream_create(k->dev, &k->stream) ||
	    ops->module_load(k->dev, spin_ptx, &k->module) ||
	    ops->function(k->dev, k->module, "spin", &k->spin))
		return bad(h, "a kernel");
	return 0;
}

/* A kernel on every SM waits for word i + 1, which its own rank puts, or the last rank on request. */
static int one_kernel(struct gpu_hold *h, struct kernel *k, uint64_t i, unsigned per_sm, double *ms)
{
	const struct epf_gpu_ops *ops = k->dev->ops;
	uint64_t word = (uint64_t)(uintptr_t)h->gpu + h->words, want = i + 1, ns = DEADLINE_NS,
		 result = word + 8, got = 0, t0;
	void *args[4] = { &word, &want, &ns, &result };
	struct epf_gpu_launch how = { .grid = k->props.multiprocessors * per_sm,
				      .block = THREADS,
				      .cooperative = true,
				      .args = args };

	if (ops->launch(k->dev, k->stream, k->spin, &how))
		return bad(h, "launch");
	t0 = epf_now_ns();
	while (epf_now_ns() - t0 < 2000000) /* it runs by now */
		;
	t0 = epf_now_ns();
	if (i & 1 ? epf_signal_send(h->ring, h->world - 1, h->signal, 1, 0)
		  : epf_put_inline(h->ring, h->me, h->region, h->words, want, 8, 0))
		return bad(h, "put");
	if (ops->stream_sync(k->dev, k->stream))
		return bad(h, "the kernel");
	*ms = (double)(epf_now_ns() - t0) / 1e6;
	if (ops->copy(k->dev, (uint64_t)(uintptr_t)&got, result, 8))
		return bad(h, "its result");
	if (got == 1)
		return 0;
	fprintf(stderr, "gpu_hold %s: kernel %llu ended by its deadline\n", h->what,
		(unsigned long long)i);
	return -1;
}

static int kernels(struct gpu_hold *h, struct kernel *k)
{
	double ms, longest = 0;

	for (uint64_t i = 0; i < KERNELS; i++) {
		if (one_kernel(h, k, i, 1 + (unsigned)(i >> 1 & 1) * (BLOCKS_PER_SM - 1), &ms))
			return -1;
		longest = ms > longest ? ms : longest;
	}
	printf("gpu_job %s: %d cooperative kernels of %u and %u blocks of %d threads, on every SM, waited for a put of their own rank or of "
	       "a peer: all ended, the longest %.2f ms after the put was pushed\n",
	       h->what, KERNELS, k->props.multiprocessors, BLOCKS_PER_SM * k->props.multiprocessors,
	       THREADS, longest);
	return 0;
}

static int answer(struct gpu_hold *h)
{
	for (uint64_t i = 1, n = 0; i < KERNELS; i += 2)
		if (epf_signal_wait(h->ep, h->signal, ++n, WAIT_NS) ||
		    epf_put_inline(h->ring, 0, h->region, h->words, i + 1, 8, 0))
			return bad(h, "answer");
	return 0;
}

/* Starts traffic for the next call. */
static int push(struct gpu_hold *h)
{
	for (unsigned i = 0; i < PUSH; i++)
		if (epf_put(h->ring, h->world - 1, h->region, h->from + i * 16384, h->region,
			    h->to + i * 16384, BYTES, 0))
			return bad(h, "put");
	return 0;
}

/* Driver calls on this process's context. */
static int own_context(int device, int (**synchronize)(void))
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
	int (*retain)(void **, int), (*current)(void *);

	if (!lib)
		return -1;
	*(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&current = dlsym(lib, "cuCtxSetCurrent");
	*(void **)synchronize = dlsym(lib, "cuCtxSynchronize");
	return !retain || !current || !*synchronize || retain(&context, device) || current(context);
}

static int calls(struct gpu_hold *h, struct kernel *k)
{
	const struct epf_gpu_ops *ops = k->dev->ops;
	double longest[3] = { 0 };
	int (*synchronize)(void);

	if (own_context(h->device, &synchronize))
		return bad(h, "libcuda");
	for (unsigned i = 0; i < 3 * CALLS; i++) {
		struct epf_gpu_mem mem = { 0 };
		void *module = NULL;
		uint64_t t0;
		double ms;
		int rc = 0;

		if (i % 3 == 1 && ops->mem_alloc(k->dev, 1 << 20, 0, &mem))
			return bad(h, "memory");
		if (push(h))
			return -1;
		t0 = epf_now_ns();
		if (i % 3 == 0)
			rc = synchronize();
		else if (i % 3 == 1)
			ops->mem_free(k->dev, &mem);
		else
			rc = ops->module_load(k->dev, spin_ptx, &module);
		ms = (double)(epf_now_ns() - t0) / 1e6;
		if (rc)
			return bad(h, "a call");
		ops->module_unload(k->dev, module);
		longest[i % 3] = ms > longest[i % 3] ? ms : longest[i % 3];
	}
	printf("gpu_job %s: under traffic, longest of %d: cuCtxSynchronize %.2f ms, cuMemFree %.2f ms, "
	       "module load %.2f ms\n",
	       h->what, CALLS, longest[0], longest[1], longest[2]);
	return longest[0] > 50 || longest[1] > 50 || longest[2] > 50 ? -1 : 0;
}

int gpu_hold(struct gpu_hold *h)
{
	struct kernel k = { 0 };
	int rc;

	if (epf_barrier(h->ep))
		return bad(h, "barrier");
	if (h->me == h->world - 1)
		return answer(h);
	if (h->me != 0)
		return 0;
	rc = prepare(h, &k);
	if (!rc)
		rc = kernels(h, &k);
	if (!rc)
		rc = calls(h, &k);
	fflush(stdout);
	return rc;
}
