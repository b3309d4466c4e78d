/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of compressed transfers share: two endpoints of this process that are connected over a NIC (p2p_kit.h). */
#ifndef EPF_TESTS_PACK_KIT_H
#define EPF_TESTS_PACK_KIT_H

#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/p2p/pack_priv.h"

/* ThreadSanitizer sees no order through a socket or another process: what a NIC has moved is then not looked at, and nothing is forked. */
#ifdef __SANITIZE_THREAD__
enum { SEES_NICS = 0 };
#else
enum { SEES_NICS = 1 };
#endif

/* Of every test of a program, set by main(): the NIC, and whether pairs have memory of the fake GPU. */
extern const char *pack_nic;
extern bool pack_gpu;

/* Two endpoints of this process, each with BYTES bytes, more than a chunk; `near` has imported an export of `far`. A sanitizer looks at each byte. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { BYTES = 3 << 19 };
#else
enum { BYTES = 3 << 20 };
#endif

struct pair {
	struct epf_p2p *near, *far;
	uint64_t conn, region, far_region, import;
	uint8_t *here, *there;            /* where a test finds the bytes */
	void *here_memory, *there_memory; /* as they are registered: the same of host memory */
	uint8_t key[EPF_P2P_KEY_BYTES];
};

/* The settings of such an endpoint, and more; valid until the next call. */
const char *pack_settings(const char *more);
/* The connection behind a number. */
struct conn *pack_conn(struct epf_p2p *ep, uint64_t number);
/* Chunks of a connection, of every kind, go that way, whatever is measured. */
void pack_force(struct epf_p2p *ep, uint64_t conn, enum gain_way way);
struct epf_p2p_peer pack_about(struct epf_p2p *ep, uint64_t conn);
/* near, far: settings. */
void pair_begin(struct pair *p, const char *near, const char *far);
/* The same with memory of the fake GPU at an end or not, whatever pack_gpu says. */
void pair_begin_in(struct pair *p, const char *near, bool near_gpu, const char *far, bool far_gpu);
void pair_end(struct pair *p);
/* Exports all of far's memory again, and imports it. */
void pack_export(struct pair *p, unsigned rights, uint64_t lifetime_ns);
int write_some(struct pair *p, uint64_t bytes);
int read_some(struct pair *p, uint64_t bytes);
/* Waits until an endpoint has lost a connection; false: it still lives after a long time. */
bool pack_ends(struct epf_p2p *ep, uint64_t conn);
void must_match(const struct pair *p, uint64_t bytes);

#endif
