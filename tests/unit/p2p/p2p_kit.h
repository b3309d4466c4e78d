/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of endpoints share: a target endpoint in another process, which the test drives over a socket pair by one-byte commands, and
 * short names for what every test does. A failed check in the target ends it, which the test sees.
 */
#ifndef EPF_TESTS_P2P_KIT_H
#define EPF_TESTS_P2P_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/p2p/epf_p2p.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 10 };
#else
enum { SLOWER = 3 };
#endif

/* A second of a machine that may be busy, in nanoseconds: waits that must end are limited by it, so that they end at all. */
static inline uint64_t second(void)
{
	const char *s = getenv("LIMIT_TIMES"); /* tests/stages.sh: how much slower the machine is */
	int times = s ? atoi(s) : 1;

	return UINT64_C(1000000000) * SLOWER * (times > 1 ? (unsigned)times : 1);
}

#define SECOND      second()
#define MILLISECOND UINT64_C(1000000) /* a real one: of what must expire */

enum { TARGET_BYTES = 4 << 20 };

struct target {
	pid_t pid;
	int socket;
	uint8_t metadata[EPF_P2P_METADATA_BYTES];
	size_t metadata_bytes;
	uint8_t key[EPF_P2P_KEY_BYTES]; /* of all its memory, to write and read */
	uint64_t addr;
};

/* What a target does when told. Each is answered by the same byte, with what the comment says. */
enum target_command {
	T_SUM = 's',      /* 8 bytes: sum of its memory */
	T_WITHDRAW = 'w', /* 4 bytes: what epf_p2p_withdraw returned */
	T_NOTE =
		'n', /* waits for a notification: 4 bytes its length, then its bytes; -errno as length */
	T_FILL = 'f', /* fills its memory with a pattern */
	T_SEND = 'S', /* notifies every peer "hello" */
	T_IMPORT =
		'i', /* imports the key that follows the byte, from the peer that connected first: 4 bytes, what epf_p2p_import returned */
	/* Withdraws its export, and exports all its memory again: 4 bytes, what the withdrawal returned, then the new key. */
	T_RENEW = 'r',
	T_MORE = 'm', /* exports all its memory once more: the key, which T_RENEW then withdraws */
	T_FULL = 'o', /* opens files until it may open only one more: 4 bytes, 0 */
	T_ROOM = 'c', /* closes them: 4 bytes, 0 */
	T_EXIT = 'x', /* closes its endpoint and ends */
};

/* Where a target's memory is from. */
enum target_memory {
	T_MMAP,   /* mmap(2): peers cannot map it */
	T_MAPPED, /* epf_p2p_alloc() */
	T_GPU,    /* the fake GPU's: with the setting gpu-backend=fake */
};

/* More settings of all targets, which win over those that a test gives; NULL: none. */
extern const char *target_more;

/* Starts a target. setting: NULL or up to eight settings, "KEY=VALUE", separated by spaces. */
void target_start(struct target *t, enum target_memory from, const char *name, const char *setting);
void target_tell(struct target *t, enum target_command command);
int64_t target_answer(struct target *t, void *data, size_t bytes);
/* Stops it, and waits until it is stopped. */
void target_stop(const struct target *t);
/* Kills it, or lets it exit, and collects it. */
void target_kill(struct target *t);
void target_exit(struct target *t);

#define assert_ok(call)                                     \
 do {                                                       \
  int kit_rc = (call);                                      \
  if (kit_rc < 0)                                           \
   fail_msg("%s: %d, %s", #call, kit_rc, epf_last_error()); \
 } while (0)
#define assert_err(call, err) assert_int_equal((call), -(err))

/* Opens an endpoint. setting: as for target_start(). */
struct epf_p2p *endpoint_with(const char *name, const char *setting);
struct epf_p2p *endpoint(const char *name);
uint64_t connect_to(struct epf_p2p *ep, const struct target *t);
uint8_t pattern(uint64_t i);

/* A target, and an endpoint of this process with registered memory of TARGET_BYTES that has imported the target's. */
struct both {
	struct target t;
	struct epf_p2p *ep;
	uint64_t conn, region, import;
	void *mine;     /* as it is registered */
	uint8_t *bytes; /* where a test finds its bytes: pattern() at first */
};

/* here: T_MMAP or T_GPU. setting: of both endpoints. */
void both_begin(struct both *b, enum target_memory here, enum target_memory there, const char *name,
		const char *target_name, const char *setting);
void both_end(struct both *b);
/* This process's half, for a target that was killed. */
void both_end_here(struct both *b);
/* The sum of a memory's bytes, each times its place: of the target's, and of TARGET_BYTES here. */
uint64_t sum_there(struct both *b);
uint64_t sum_of(const uint8_t *m);

#endif
