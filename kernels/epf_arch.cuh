/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few things that CUDA, HIP and plain C say differently: loads and stores of shared words with their scope and order, the 16-byte
 * store of a command, the payload fence, lanes of a warp, barriers, the timer. For epf_device.cuh only; users include that one.
 *
 * Plain C is the third "architecture": warps of one lane, blocks of one thread. The whole device API then runs on CPU threads, which is
 * how tests without a GPU run it. Nothing here includes the CUDA or HIP headers, so device code compiles with a bare compiler.
 *
 * Scopes: _gpu is device scope, _sys is system scope. Words shared with the CPU or a NIC are always _sys.
 */
#ifndef EPF_KERNELS_ARCH_CUH
#define EPF_KERNELS_ARCH_CUH

#include "queues/epf_cmd.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)

# define EPF_DEV_FN     static __device__ __forceinline__
# define EPF_DEV_COLD   static __device__ __noinline__
# define EPF_DEV_SHARED __shared__
typedef uint32_t epf_lanes; /* one bit a lane */

EPF_DEV_FN uint64_t epf_ld_relaxed_sys(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN uint64_t epf_ld_acquire_sys(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

/* Two words of 16 bytes, 16-byte aligned, in one load; each by itself is whole. */
EPF_DEV_FN void epf_ld2_acquire_sys(const uint64_t *p, uint64_t v[2])
{
	asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];"
		     : "=l"(v[0]), "=l"(v[1])
		     : "l"(p)
		     : "memory");
}

EPF_DEV_FN uint64_t epf_ld_relaxed_gpu(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN uint64_t epf_ld_acquire_gpu(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN uint32_t epf_ld32_relaxed_gpu(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN uint32_t epf_ld32_acquire_sys(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN void epf_st_relaxed_sys(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

EPF_DEV_FN void epf_st_relaxed_gpu(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

EPF_DEV_FN void epf_st_release_gpu(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

EPF_DEV_FN void epf_st32_relaxed_gpu(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

EPF_DEV_FN void epf_st32_relaxed_sys(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

EPF_DEV_FN void epf_st16_relaxed_sys(uint16_t *p, uint16_t v)
{
	asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
}

EPF_DEV_FN void epf_st32_release_gpu(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

EPF_DEV_FN void epf_st32_release_sys(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

EPF_DEV_FN uint64_t epf_add_gpu(uint64_t *p, uint64_t v)
{
	return atomicAdd((unsigned long long *)p, (unsigned long long)v);
}

/* Adds to a word of the block's shared memory. */
EPF_DEV_FN void epf_add32_block(uint32_t *p, uint32_t v)
{
	(void)atomicAdd_block(p, v);
}

/* The same, behind all that the warp has written before a barrier of it: who acquires the sum in this block sees that. */
EPF_DEV_FN void epf_add32_release_block(uint32_t *p, uint32_t v)
{
	asm volatile("fence.acq_rel.cta;" ::: "memory");
	(void)atomicAdd_block(p, v);
}

EPF_DEV_FN uint32_t epf_ld32_acquire_block(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

EPF_DEV_FN void epf_st32_release_block(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

EPF_DEV_FN uint64_t epf_and_gpu(uint64_t *p, uint64_t v)
{
	return atomicAnd((unsigned long long *)p, (unsigned long long)v);
}

EPF_DEV_FN uint64_t epf_or_gpu(uint64_t *p, uint64_t v)
{
	return atomicOr((unsigned long long *)p, (unsigned long long)v);
}

EPF_DEV_FN void epf_max_gpu(uint64_t *p, uint64_t v)
{
	atomicMax((unsigned long long *)p, (unsigned long long)v);
}

EPF_DEV_FN uint32_t epf_exchange32_gpu(uint32_t *p, uint32_t v)
{
	return atomicExch(p, v);
}

/* R1, together with the payload fence before it: one store of 16 bytes. */
EPF_DEV_FN void epf_st_slot(struct epf_cmd *slot, struct epf_cmd c)
{
	asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(slot),
		     "r"((uint32_t)c.lo), "r"((uint32_t)(c.lo >> 32)), "r"((uint32_t)c.hi),
		     "r"((uint32_t)(c.hi >> 32))
		     : "memory");
}

EPF_DEV_FN void epf_fence_sys(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

EPF_DEV_FN void epf_fence_gpu(void)
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

EPF_DEV_FN epf_lanes epf_lanes_active(void)
{
	return __activemask();
}

/* All lanes of the warp must call it. */
EPF_DEV_FN epf_lanes epf_lanes_where(int yes)
{
	return __ballot_sync(0xffffffffu, yes);
}

EPF_DEV_FN uint32_t epf_lane(void)
{
	uint32_t lane;

	asm("mov.u32 %0, %%laneid;" : "=r"(lane));
	return lane;
}

EPF_DEV_FN uint32_t epf_lanes_count(epf_lanes m)
{
	return (uint32_t)__popc(m);
}

EPF_DEV_FN uint32_t epf_lanes_first(epf_lanes m)
{
	return (uint32_t)__ffs((int)m) - 1u;
}

EPF_DEV_FN uint32_t epf_lanes_last(epf_lanes m)
{
	return 31u - (uint32_t)__clz((int)m);
}

/* How many lanes of m come before this one. */
EPF_DEV_FN uint32_t epf_lanes_before(epf_lanes m)
{
	uint32_t below;

	asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
	return (uint32_t)__popc(m & below);
}

/* The value of lane `from`, in every lane of m. */
EPF_DEV_FN uint64_t epf_lanes_get(epf_lanes m, uint64_t v, uint32_t from)
{
	return __shfl_sync(m, (unsigned long long)v, (int)from);
}

EPF_DEV_FN void epf_warp_barrier(void)
{
	__syncwarp();
}

EPF_DEV_FN void epf_block_barrier(void)
{
	__syncthreads();
}

EPF_DEV_FN uint32_t epf_thread_in_block(void)
{
	return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

EPF_DEV_FN uint32_t epf_block_number(void)
{
	return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

/* Which multiprocessor: only to spread waiters. */
EPF_DEV_FN uint32_t epf_processor(void)
{
	uint32_t sm;

	asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
	return sm;
}

EPF_DEV_FN uint64_t epf_timer(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* Cycles of this multiprocessor: for measuring, not for deadlines. */
EPF_DEV_FN uint64_t epf_cycles(void)
{
	return (uint64_t)clock64();
}

EPF_DEV_FN void epf_pause(void)
{
	__nanosleep(64);
}

/* What lies at an address is likely to be read soon. */
EPF_DEV_FN void epf_prefetch(const void *at)
{
	asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

# define epf_relax() \
  ((void)0) /* a poll of the host takes a microsecond: nothing to save between two */

#elif defined(__HIP__)

# define EPF_DEV_FN     static __attribute__((device, always_inline, unused)) inline
# define EPF_DEV_COLD   static __attribute__((device, noinline, unused))
# define EPF_DEV_SHARED static __attribute__((shared))
typedef uint64_t epf_lanes; /* CDNA: waves of 64 */

/* __HIP_MEMORY_SCOPE_* are the compiler's own; they need no header. */
# define EPF_HIP_GPU    __HIP_MEMORY_SCOPE_AGENT
# define EPF_HIP_SYS    __HIP_MEMORY_SCOPE_SYSTEM

EPF_DEV_FN uint64_t epf_ld_relaxed_sys(const uint64_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_RELAXED, EPF_HIP_SYS);
}

EPF_DEV_FN uint64_t epf_ld_acquire_sys(const uint64_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_ACQUIRE, EPF_HIP_SYS);
}

EPF_DEV_FN void epf_ld2_acquire_sys(const uint64_t *p, uint64_t v[2])
{
	v[0] = __hip_atomic_load(p, __ATOMIC_ACQUIRE, EPF_HIP_SYS);
	v[1] = __hip_atomic_load(p + 1, __ATOMIC_ACQUIRE, EPF_HIP_SYS);
}

EPF_DEV_FN uint64_t epf_ld_relaxed_gpu(const uint64_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN uint64_t epf_ld_acquire_gpu(const uint64_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_ACQUIRE, EPF_HIP_GPU);
}

EPF_DEV_FN uint32_t epf_ld32_relaxed_gpu(const uint32_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN uint32_t epf_ld32_acquire_sys(const uint32_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_ACQUIRE, EPF_HIP_SYS);
}

EPF_DEV_FN void epf_st_relaxed_sys(uint64_t *p, uint64_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELAXED, EPF_HIP_SYS);
}

EPF_DEV_FN void epf_st_relaxed_gpu(uint64_t *p, uint64_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_st_release_gpu(uint64_t *p, uint64_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELEASE, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_st32_relaxed_gpu(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_st32_relaxed_sys(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELAXED, EPF_HIP_SYS);
}

EPF_DEV_FN void epf_st16_relaxed_sys(uint16_t *p, uint16_t v)
{
	/* Of system scope, too; LLVM 15 knows no atomic store of 16 bits. */
	*(volatile uint16_t *)p = v;
}

EPF_DEV_FN void epf_st32_release_gpu(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELEASE, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_st32_release_sys(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELEASE, EPF_HIP_SYS);
}

EPF_DEV_FN uint64_t epf_add_gpu(uint64_t *p, uint64_t v)
{
	return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_add32_block(uint32_t *p, uint32_t v)
{
	(void)__hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

EPF_DEV_FN void epf_add32_release_block(uint32_t *p, uint32_t v)
{
	(void)__hip_atomic_fetch_add(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

EPF_DEV_FN uint32_t epf_ld32_acquire_block(const uint32_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

EPF_DEV_FN void epf_st32_release_block(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
}

EPF_DEV_FN uint64_t epf_and_gpu(uint64_t *p, uint64_t v)
{
	return __hip_atomic_fetch_and(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN uint64_t epf_or_gpu(uint64_t *p, uint64_t v)
{
	return __hip_atomic_fetch_or(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN void epf_max_gpu(uint64_t *p, uint64_t v)
{
	(void)__hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

EPF_DEV_FN uint32_t epf_exchange32_gpu(uint32_t *p, uint32_t v)
{
	return __hip_atomic_exchange(p, v, __ATOMIC_RELAXED, EPF_HIP_GPU);
}

typedef uint32_t epf_vec4 __attribute__((ext_vector_type(4)));

/*
 * One store of 16 bytes; the parities hold it together should it ever be split. From gfx940 on a store says its scope (sc0 sc1: the
 * system); before, what makes it visible is the memory's own kind, and pinned host memory is coherent.
 */
EPF_DEV_FN void epf_st_slot(struct epf_cmd *slot, struct epf_cmd c)
{
# if defined(__HIP_DEVICE_COMPILE__)
	epf_vec4 v = { (uint32_t)c.lo, (uint32_t)(c.lo >> 32), (uint32_t)c.hi,
		       (uint32_t)(c.hi >> 32) };
# endif

# if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
	asm volatile("global_store_dwordx4 %0, %1, off sc0 sc1" ::"v"((uint64_t)slot), "v"(v)
		     : "memory");
# elif defined(__HIP_DEVICE_COMPILE__)
	asm volatile("global_store_dwordx4 %0, %1, off" ::"v"((uint64_t)slot), "v"(v) : "memory");
# endif
}

/* The architecture's own release and acquire of system scope: gfx90a and gfx940 write back their L2 here. */
EPF_DEV_FN void epf_fence_sys(void)
{
	__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "");
}

EPF_DEV_FN void epf_fence_gpu(void)
{
	__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent");
}

EPF_DEV_FN epf_lanes epf_lanes_active(void)
{
	return __builtin_amdgcn_read_exec();
}

EPF_DEV_FN epf_lanes epf_lanes_where(int yes)
{
	return __builtin_amdgcn_uicmp(yes != 0, 0u, 33 /* not equal */);
}

EPF_DEV_FN uint32_t epf_lanes_before(epf_lanes m)
{
	return __builtin_amdgcn_mbcnt_hi((uint32_t)(m >> 32),
					 __builtin_amdgcn_mbcnt_lo((uint32_t)m, 0u));
}

EPF_DEV_FN uint32_t epf_lane(void)
{
	return epf_lanes_before(~(epf_lanes)0);
}

EPF_DEV_FN uint32_t epf_lanes_count(epf_lanes m)
{
	return (uint32_t)__builtin_popcountll(m);
}

EPF_DEV_FN uint32_t epf_lanes_first(epf_lanes m)
{
	return (uint32_t)__builtin_ctzll(m);
}

EPF_DEV_FN uint32_t epf_lanes_last(epf_lanes m)
{
	return 63u - (uint32_t)__builtin_clzll(m);
}

EPF_DEV_FN uint64_t epf_lanes_get(epf_lanes m, uint64_t v, uint32_t from)
{
	uint32_t lo = (uint32_t)__builtin_amdgcn_readlane((int)(uint32_t)v, (int)from);
	uint32_t hi = (uint32_t)__builtin_amdgcn_readlane((int)(uint32_t)(v >> 32), (int)from);

	(void)m;
	return (uint64_t)hi << 32 | lo;
}

EPF_DEV_FN void epf_warp_barrier(void)
{
	__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
	__builtin_amdgcn_wave_barrier();
}

EPF_DEV_FN void epf_block_barrier(void)
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
	__builtin_amdgcn_s_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

EPF_DEV_FN uint32_t epf_thread_in_block(void)
{
	return (uint32_t)__builtin_amdgcn_workitem_id_x() +
	       (uint32_t)__builtin_amdgcn_workgroup_size_x() *
		       ((uint32_t)__builtin_amdgcn_workitem_id_y() +
			(uint32_t)__builtin_amdgcn_workgroup_size_y() *
				(uint32_t)__builtin_amdgcn_workitem_id_z());
}

/* Launches of epf kernels are one-dimensional; with more dimensions blocks share numbers, which only spreads waiters less. */
EPF_DEV_FN uint32_t epf_block_number(void)
{
	return (uint32_t)__builtin_amdgcn_workgroup_id_x();
}

EPF_DEV_FN uint32_t epf_processor(void)
{
	return epf_block_number();
}

EPF_DEV_FN uint64_t epf_timer(void)
{
	return __builtin_amdgcn_s_memrealtime();
}

EPF_DEV_FN uint64_t epf_cycles(void)
{
	return __builtin_readcyclecounter();
}

EPF_DEV_FN void epf_pause(void)
{
	__builtin_amdgcn_s_sleep(1);
}

EPF_DEV_FN void epf_prefetch(const void *at)
{
	__builtin_prefetch(at);
}

# define epf_relax() ((void)0)

#else /* plain C: a warp of one lane, a block of one thread */

# include <sched.h>
# include <time.h>

# define EPF_DEV_FN     EPF_INLINE
# define EPF_DEV_COLD   static __attribute__((noinline, unused))
# define EPF_DEV_SHARED static _Thread_local
/* Which block a CPU thread plays: set by who runs a "kernel". */
static _Thread_local uint32_t epf_host_block __attribute__((unused));
/* What it does at each turn of a wait; NULL: it yields its CPU. Set by who runs a "kernel" on a thread that has an engine to drive. */
static _Thread_local void (*epf_host_relax)(void) __attribute__((unused));
typedef uint32_t epf_lanes;

# define epf_ld_relaxed_sys(p)   EPF_LOAD_RELAXED(p)
# define epf_ld_acquire_sys(p)   EPF_LOAD_ACQUIRE(p)
# define epf_ld_relaxed_gpu(p)   EPF_LOAD_RELAXED(p)
# define epf_ld_acquire_gpu(p)   EPF_LOAD_ACQUIRE(p)
# define epf_ld32_relaxed_gpu(p) EPF_LOAD_RELAXED(p)
# define epf_ld32_acquire_sys(p) EPF_LOAD_ACQUIRE(p)
# ifdef __SANITIZE_THREAD__ /* it does not model fences: what one orders, it takes from the store or addition behind */
#  define epf_st_relaxed_sys(p, v)   EPF_STORE_RELEASE(p, v)
#  define epf_st32_relaxed_sys(p, v) EPF_STORE_RELEASE(p, v)
#  define epf_st16_relaxed_sys(p, v) EPF_STORE_RELEASE(p, v)
#  define epf_add_gpu(p, v)          __atomic_fetch_add(p, v, __ATOMIC_RELEASE)
# else
#  define epf_st_relaxed_sys(p, v)   EPF_STORE_RELAXED(p, v)
#  define epf_st32_relaxed_sys(p, v) EPF_STORE_RELAXED(p, v)
#  define epf_st16_relaxed_sys(p, v) EPF_STORE_RELAXED(p, v)
#  define epf_add_gpu(p, v)          __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
# endif
# define epf_st_relaxed_gpu(p, v)     EPF_STORE_RELAXED(p, v)
# define epf_st_release_gpu(p, v)     EPF_STORE_RELEASE(p, v)
# define epf_st32_relaxed_gpu(p, v)   EPF_STORE_RELAXED(p, v)
# define epf_st32_release_gpu(p, v)   EPF_STORE_RELEASE(p, v)
# define epf_st32_release_sys(p, v)   EPF_STORE_RELEASE(p, v)
# define epf_add32_block(p, v)        ((void)(*(p) += (v)))
# define epf_add32_release_block      epf_add32_block
# define epf_ld32_acquire_block(p)    (*(p))
# define epf_st32_release_block(p, v) ((void)(*(p) = (v)))
# define epf_and_gpu(p, v)            __atomic_fetch_and(p, v, __ATOMIC_RELAXED)
# define epf_or_gpu(p, v)             __atomic_fetch_or(p, v, __ATOMIC_RELAXED)
# define epf_exchange32_gpu(p, v)     __atomic_exchange_n(p, v, __ATOMIC_RELAXED)
# define epf_fence_sys()              __atomic_thread_fence(__ATOMIC_ACQ_REL)
# define epf_fence_gpu()              __atomic_thread_fence(__ATOMIC_ACQ_REL)
# define epf_lanes_active()           1u
# define epf_lanes_where(yes)         ((yes) ? 1u : 0u)
# define epf_lanes_count(m)           ((uint32_t)(m))
# define epf_prefetch(at)             ((void)0)
# define epf_lanes_first(m)           ((void)(m), 0u)
# define epf_lanes_last(m)            ((void)(m), 0u)
# define epf_lanes_before(m)          ((void)(m), 0u)
# define epf_lanes_get(m, v, from)    ((void)(m), (void)(from), (uint64_t)(v))
# define epf_lane()                   0u
# define epf_warp_barrier()           ((void)0)
# define epf_block_barrier()          ((void)0)
# define epf_thread_in_block()        0u
# define epf_block_number()           epf_host_block
# define epf_processor()              epf_host_block
# define epf_pause()                  ((void)0)
/* Threads may be more than CPUs. */
# define epf_relax()                  (epf_host_relax ? epf_host_relax() : (void)sched_yield())

EPF_DEV_FN void epf_ld2_acquire_sys(const uint64_t *p, uint64_t v[2])
{
	v[0] = EPF_LOAD_ACQUIRE(p);
	v[1] = EPF_LOAD_ACQUIRE(p + 1);
}

EPF_DEV_FN void epf_max_gpu(uint64_t *p, uint64_t v)
{
	uint64_t old = EPF_LOAD_RELAXED(p);

	while (old < v &&
	       !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Two release stores: the parities hold them together. */
EPF_DEV_FN void epf_st_slot(struct epf_cmd *slot, struct epf_cmd c)
{
	EPF_STORE_RELEASE(&slot->lo, c.lo);
	EPF_STORE_RELEASE(&slot->hi, c.hi);
}

EPF_DEV_FN uint64_t epf_timer(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

EPF_DEV_FN uint64_t epf_cycles(void)
{
	return epf_timer();
}

#endif

#endif
