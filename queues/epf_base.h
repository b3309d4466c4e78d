/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few words that every header in queues/ needs: static assertions, inlining, branch hints, the
 * cache line, and named loads and stores. Included by the engine (C), by users of our headers in
 * C++ and by device code (CUDA, HIP) for the shared layouts. It must never include anything of
 * ours, never declare a function with a symbol, and never hide control flow.
 */
#ifndef EPF_QUEUES_BASE_H
#define EPF_QUEUES_BASE_H

/* C++ and CUDA spell it static_assert, C17 _Static_assert. */
#ifdef __cplusplus
# define EPF_STATIC_ASSERT(cond, text) static_assert(cond, text)
#else
# define EPF_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/* A function body in a header: always inlined, and silent where a file does not use it. */
#define EPF_INLINE static inline __attribute__((always_inline, unused))

#define EPF_LIKELY(x)   __builtin_expect(!!(x), 1)
#define EPF_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Host: a hint in a spin loop that gives the other hardware thread, and the memory system, a moment. */
#if defined(__x86_64__) || defined(__i386__)
# define EPF_CPU_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
# define EPF_CPU_PAUSE() __asm__ __volatile__("yield")
#else
# define EPF_CPU_PAUSE() ((void)0)
#endif

/*
 * Host: a hint that a line is about to be written which another core has read since: it comes with the right to write it, and a store need
 * not wait for that. (__builtin_prefetch says so only where the compiler may use what every CPU of 64 bits takes, or ignores.)
 */
#if defined(__x86_64__)
# define EPF_PREFETCH_WRITE(p) __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)(p)))
#else
# define EPF_PREFETCH_WRITE(p) __builtin_prefetch((p), 1)
#endif

/* Bytes that two writers must be apart for neither to slow the other down by sharing a line. */
#define EPF_CACHELINE 64

/*
 * Loads and stores of shared words between CPU threads and processes. p points to a naturally
 * aligned integer of at most 8 bytes; no word written through these may also be written plainly
 * while somebody else can see it. Orderings are those of the C11 memory model:
 *   EPF_LOAD_ACQUIRE   what the releasing writer stored before is visible after this load
 *   EPF_STORE_RELEASE  everything stored before is visible to who loads this value with acquire
 *   ..._RELAXED        the word itself is whole, nothing else is ordered
 * They are for the host: device code uses the accessors of kernels/.
 */
#define EPF_LOAD_ACQUIRE(p)     __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define EPF_STORE_RELEASE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define EPF_LOAD_RELAXED(p)     __atomic_load_n((p), __ATOMIC_RELAXED)
#define EPF_STORE_RELAXED(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)

#endif
