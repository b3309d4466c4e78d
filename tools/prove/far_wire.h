/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of far.h send each other: one request and one reply for each operation, in the byte order of both hosts. */
#ifndef EPF_TOOLS_PROVE_FAR_WIRE_H
#define EPF_TOOLS_PROVE_FAR_WIRE_H

#include "fabric/nic/nic.h"

#include <stdint.h>

enum far_op {
	FAR_OPEN = 1, /* n: flags of the check */
	FAR_CLOSE,
	FAR_ADDRESS,
	FAR_REGISTER, /* a: offset in the memory, b: bytes, n: access; reply a: number, b: raddr, data: keys */
	FAR_DEREGISTER, /* a: number */
	FAR_LANE_CREATE,
	FAR_LANE_CONNECT, /* a: token, data: address */
	FAR_LANE_FENCE,
	FAR_LANE_DRAINED,
	FAR_LANE_DESTROY,
	FAR_LANE_LINK,
	FAR_POST, /* data: one work request, then its payload where that is inline */
	FAR_REAP, /* n: most; reply n, data: completions, then EPF_NIC_MSG_BYTES for each */
	FAR_RECEIVES,
	FAR_COUNTERS,
	FAR_WATCH,
	FAR_WAKE_PEERS,
	FAR_SET_LINK, /* a: link, n: up */
	FAR_LOAD,     /* a: offset, b: bytes */
	FAR_STORE,
	FAR_END,
};

enum { FAR_VERSION = 1, FAR_REGIONS = 304, FAR_REAP_MOST = 16 };

struct far_head {
	uint32_t op; /* of a request */
	int32_t rc;  /* of a reply */
	uint64_t a, b;
	uint32_t n;
	uint16_t lane;
	uint16_t reserved;
};

/* What FAR_OPEN answers with. */
struct far_caps {
	struct epf_nic_caps caps; /* name means nothing here */
	uint64_t base;
};

struct far_hello {
	char magic[8]; /* "EPFPROVE" */
	uint32_t version;
	uint32_t sizes; /* of the structs above: another release or byte order differs */
	char nic[32];
	char host[64];
};

#endif
