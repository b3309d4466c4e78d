/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a small program of a few threads in every way that a weakly ordered machine may run it. The code under test is the real one: a test includes this header
 * first, and from then on the __atomic builtins mean loads and stores of a machine that keeps old values. machine.c explains the machine and what it cannot see.
 *
 * A test describes a program (struct model_program), names what each ordering is for (struct model_order), and calls model_check().
 */
#ifndef EPF_TESTS_MODEL_H
#define EPF_TESTS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_THREADS = 3 };

struct model_program {
	const char *name;
	void (*begin)(void); /* prepares static memory, which is zero; before any thread */
	void (*thread[MODEL_THREADS])(void);
	void (*end)(void); /* looks at the result; NULL: nothing to look at */
	void *memory;      /* the static memory that the threads share */
	size_t bytes;
};

/* An ordering of the code under test: every use in that file of that operation on an expression that begins so. Neighbours with one label are left out together. */
struct model_order {
	const char *label; /* as in queues/README.md */
	const char *file;
	const char *operation; /* "load", "store", "add", "or", "exchange", "compare", "fence" */
	const char *expression;
	const char *spare; /* NULL: without it the program must go wrong; else why it need not */
};

/*
 * Runs every execution of a program: none may go wrong. Then, for each ordering, runs it with that one relaxed: it must go wrong. An ordering that the program uses
 * and that no row names is an error. Prints a line for each. Return: the number of failures.
 */
int model_check(const struct model_program *p, const struct model_order *orders, size_t n);

/* The execution goes wrong unless x. */
#define MODEL_ASSERT(x) ((x) ? (void)0 : model_wrong(__FILE__, __LINE__, #x))

/* Plain memory that threads share: the execution goes wrong if nothing orders it behind another thread's access. */
#define MODEL_READ(p) \
 ((__typeof__(*(p)))model_plain((p), sizeof(*(p)), 0, false, __FILE__, __LINE__))
#define MODEL_WRITE(p, v) \
 ((void)model_plain((p), sizeof(*(p)), (uint64_t)(v), true, __FILE__, __LINE__))

/* In a loop that waits: the thread goes on when something that it has read has a newer value. */
void model_spin(void);
/* Sleeps until the word is zero: a futex that somebody rings. */
void model_sleep_while(const uint32_t *word);

void model_wrong(const char *file, int line, const char *what);
uint64_t model_plain(const void *p, size_t size, uint64_t value, bool write, const char *file,
		     int line);

/* One use of a builtin. */
struct model_site {
	const char *file, *operation, *expression;
	int line;
};

uint64_t model_load(const void *p, size_t size, int order, const struct model_site *site);
void model_store(void *p, size_t size, uint64_t value, int order, const struct model_site *site);
/* Return: the value before. */
uint64_t model_change(void *p, size_t size, uint64_t value, int order,
		      const struct model_site *site);
bool model_compare(void *p, size_t size, uint64_t *expected, uint64_t value, int order,
		   const struct model_site *site);
void model_fence(int order, const struct model_site *site);

#define MODEL_SITE(op, expr)                                             \
 (                                                                       \
	 {                                                               \
static const struct model_site site_ = { __FILE__, (op), (expr), __LINE__ }; \
&site_;                                                                      \
	 })
#define __atomic_load_n(p, o) \
 ((__typeof__(*(p)))model_load((p), sizeof(*(p)), (o), MODEL_SITE("load", #p)))
#define __atomic_store_n(p, v, o) \
 model_store((p), sizeof(*(p)), (uint64_t)(v), (o), MODEL_SITE("store", #p))
#define __atomic_fetch_add(p, v, o) \
 ((__typeof__(*(p)))model_change((p), sizeof(*(p)), (uint64_t)(v), (o), MODEL_SITE("add", #p)))
#define __atomic_fetch_sub(p, v, o)                                                   \
 ((__typeof__(*(p)))model_change((p), sizeof(*(p)), (uint64_t)0 - (uint64_t)(v), (o), \
				 MODEL_SITE("add", #p)))
#define __atomic_fetch_or(p, v, o) \
 ((__typeof__(*(p)))model_change((p), sizeof(*(p)), (uint64_t)(v), (o), MODEL_SITE("or", #p)))
#define __atomic_exchange_n(p, v, o) \
 ((__typeof__(*(p)))model_change((p), sizeof(*(p)), (uint64_t)(v), (o), MODEL_SITE("exchange", #p)))
#define __atomic_compare_exchange_n(p, e, v, weak, o, f)                                         \
 (                                                                                               \
	 {                                                                                       \
uint64_t expected_ = *(e);                                                                           \
bool done_ =                                                                                         \
    model_compare((p), sizeof(*(p)), &expected_, (uint64_t)(v), (o), MODEL_SITE("compare", #p)); \
*(e) = (__typeof__(*(e)))expected_;                                                                  \
done_;                                                                                               \
	 })
#define __atomic_thread_fence(o) model_fence((o), MODEL_SITE("fence", ""))

#endif
