/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point-to-point endpoints out of the statistics files that they write (classes endpoint and conn): which connections wait, for what, since
 * when, and whether the peer's process is stopped. For `ep-fabric why`, which only prints. Never trusts a number of a file.
 */
#ifndef EPF_TOOLS_WAITS_ENDPOINTS_H
#define EPF_TOOLS_WAITS_ENDPOINTS_H

#include "tools/waits/waits.h"

/* A connection that waits. */
struct endpoint_wait {
	char endpoint[EPF_STATS_LABEL_BYTES], peer[EPF_STATS_LABEL_BYTES],
		host[EPF_STATS_LABEL_BYTES];
	uint64_t own_pid;
	uint64_t pid;  /* of the peer; 0: on another machine */
	char process;  /* its state letter; 0: not known */
	unsigned kind; /* enum epf_stats_conn_wait */
	uint64_t age_ns, under_way, bytes_left;
	uint32_t others; /* connections that wait for the same process, this one included */
};

struct endpoints {
	uint32_t endpoints, connections, lost;
	uint32_t compressing,
		compress_off; /* connections that agreed to compress; those of them that gain nothing by it */
	uint64_t packed_from, packed_to; /* bytes before and after */
	struct endpoint_wait *wait;      /* peers that are stopped first, then the longest */
	uint32_t n;
};

/* Reads what waits_refresh() has read last. Returns NULL without memory. */
struct endpoints *endpoints_read(const struct waits *w);
void endpoints_free(struct endpoints *e);

/* One word for what is waited for ("note"); never NULL. Stable: JSON has them. */
const char *endpoint_wait_word(unsigned kind);
/* One sentence, without a full stop. Returns text. */
const char *endpoint_sentence(const struct endpoint_wait *wait, char *text, size_t bytes);

#endif
