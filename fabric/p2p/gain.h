/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether compressing the chunks of a connection's writes, or of its reads, saves time. Measured while they run: bytes per second during which
 * any chunk is under way, a window of chunks compressed and a window of chunks as they are. Knows no clock: the caller passes the time.
 */
#ifndef EPF_FABRIC_P2P_GAIN_H
#define EPF_FABRIC_P2P_GAIN_H

#include <stdbool.h>
#include <stdint.h>

enum {
	GAIN_WINDOW = 32,    /* chunks of one measurement */
	GAIN_TRIALS = 2,     /* windows of each way before it is decided */
	GAIN_ROUNDS = 30,    /* windows until the other way is measured again */
	GAIN_OFF_MOST = 480, /* the same at most, after compression has lost again and again */
};

enum gain_way {
	GAIN_WAIT = 0,   /* not now: the chunks of the other way are still under way */
	GAIN_FREE = 1,   /* as it is, unmeasured: compression is off */
	GAIN_PLAIN = 2,  /* as it is, measured */
	GAIN_PACKED = 3, /* compressed, measured */
};

struct gain {
	enum gain_way forced; /* tests: GAIN_PLAIN or GAIN_PACKED whatever is measured */
	enum gain_way way;    /* of this window; GAIN_WAIT at first */
	bool is_warm; /* its figures count: caches and memory are warm, and nothing else is under way */
	bool is_on; /* compression has won */
	uint32_t begun, ended, under_way;
	uint32_t trials;      /* plain windows since compression was last off, or unknown */
	uint32_t rounds, off; /* windows left on this way; windows of the next time off */
	uint64_t bytes, busy_ns, since_ns;
	double plain, packed; /* bytes per ns; 0: unknown */
};

/* Which way the next chunk takes. PLAIN and PACKED: it is under way until gain_end(). */
enum gain_way epf_p2p_gain_begin(struct gain *g, uint64_t now_ns);
/* There was no chunk after all. */
void epf_p2p_gain_abort(struct gain *g, uint64_t now_ns);
/* It has ended. bytes: 0 if it failed. */
void epf_p2p_gain_end(struct gain *g, uint64_t now_ns, uint64_t bytes);

#endif
