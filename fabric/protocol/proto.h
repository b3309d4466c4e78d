/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control protocol between a client (libepf in service mode, ep-fabric status/drain) and the daemon, over a Unix stream
 * socket: one request, one answer, in order. Byte by byte in docs/abi.md. Little-endian, explicit widths, no padding.
 *
 * Frame: 24 bytes of header (struct epf_svc_head as drawn below), then `bytes` bytes of body; `fds` descriptors ride on the first byte
 * of the frame (SCM_RIGHTS, unix(7)). An answer has its request's type with bit 15 set and its `seq`; with a status below 0 its body
 * is one line of text: cause and remedy.
 *
 *   offset 0 u32 magic "EPFS" | 4 u16 type | 6 u16 fds | 8 u32 bytes | 12 u32 seq | 16 i32 status | 20 u32 reason
 *
 * Versions: HELLO says major.minor of both ends. The same major and a minor that differs by at most one is served; a body may be longer
 * (a newer minor: the tail is ignored) or shorter by whole fields that came with a minor above the sender's (they read as 0); anything else is refused with
 * a sentence that names both versions.
 */
#ifndef EPF_FABRIC_PROTOCOL_PROTO_H
#define EPF_FABRIC_PROTOCOL_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EPF_SVC_MAGIC 0x53465045u /* "EPFS" in memory order */
#define EPF_SVC_MAJOR 1u
/* 1.1 added struct epf_svc_attach.weight and struct epf_svc_hello_reply.max_jobs; 1.2 EPF_SVC_GPU_REGION;
 * 1.3 EPF_SVC_RECONNECT, EPF_SVC_GPU_DMABUF; 1.4 struct epf_svc_attach.route; 1.5 EPF_SVC_AWAKE */
#define EPF_SVC_MINOR 5u

enum {
	EPF_SVC_HEAD_BYTES = 24,
	EPF_SVC_FDS_MAX = 4,
	EPF_SVC_BODY_MAX = 64 << 20, /* of a client that has said HELLO */
	EPF_SVC_HELLO_MAX = 512,     /* body of the first message */
	EPF_SVC_NAME = 64,           /* bytes of a short text with its 0 */
	EPF_SVC_JOB_NAME = 128,
	EPF_SVC_ID = 16, /* bytes of a node or job id, or a nonce */
	EPF_SVC_KEY = 32,
	EPF_SVC_MEMBER_BYTES = 32, /* one rank in struct epf_svc_world.table: node id, nonce */
	EPF_SVC_STRUCT_MAX = 256,  /* no struct of a message is larger */
	EPF_SVC_ANSWER = 0x8000,
};

/* Requests. Numbers are ABI. `state` is what the connection must have done before. */
enum epf_svc_type {
	EPF_SVC_HELLO = 1, /* first of all */
	EPF_SVC_SIGNALS =
		2, /* after HELLO, once: the rank's signals and wakeup; answer carries a memfd */
	EPF_SVC_REGION = 3,       /* register memory; carries a memfd */
	EPF_SVC_REGION_CLOSE = 4, /* withdraw; asked again until done */
	EPF_SVC_RING = 5,         /* open a ring; answer carries a memfd */
	EPF_SVC_RING_CLOSE = 6,
	EPF_SVC_ATTACH =
		7, /* become rank R of a job; answer carries peers page (read-only) and kick wakeup */
	EPF_SVC_WORLD = 8, /* all ranks' nodes are known: answer: this rank's sealed description */
	EPF_SVC_CONNECT =
		9, /* all ranks' sealed descriptions; after REJOIN: empty, announces the rank */
	EPF_SVC_DESCRIBE = 10, /* this rank's sealed description again (regions registered since) */
	EPF_SVC_UPDATE = 11,   /* all ranks' of those */
	EPF_SVC_MASK = 12,     /* mask or unmask a rank for this rank */
	EPF_SVC_COUNTER = 13,  /* a counter of this job's engine by name, as epf_counter() */
	EPF_SVC_LEAVE = 14,    /* orderly end: the socket is closed afterwards */
	EPF_SVC_STATUS = 15,   /* any connection: the daemon's state as JSON */
	EPF_SVC_DRAIN = 16,    /* operator: refuse new jobs; SIGTERM is what ends the daemon */
	EPF_SVC_LINK = 17,     /* operator: cut or restore an emulated link of a job's NIC */
	EPF_SVC_GPU_REGION =
		18, /* register GPU memory; carries its descriptor, or any for an IPC handle. Since 1.2 */
	EPF_SVC_RECONNECT =
		19,         /* one step of epf_reconnect, by the lowest rank of a node. Since 1.3 */
	EPF_SVC_AWAKE = 20, /* whether the rank's engine must stay awake. Since 1.5 */
	EPF_SVC_TYPES = 21
};

struct epf_svc_head {
	uint16_t type;
	uint16_t fds;
	uint32_t bytes;
	uint32_t seq;
	int32_t status;  /* answers: 0 or negative errno; requests: 0 */
	uint32_t reason; /* answers: enum epf_reason of a failure */
};

/* Variable bytes inside a body: u32 length, then the bytes. Decoding points into the body. */
struct epf_svc_bytes {
	const void *data;
	uint32_t len;
};

struct epf_svc_hello { /* request */
	uint16_t major, minor;
	uint32_t flags; /* 1: operator (status, drain, link only) */
	char program[EPF_SVC_NAME];
};

struct epf_svc_hello_reply {
	uint16_t major, minor;
	uint8_t node_id[EPF_SVC_ID]; /* random, of this run of the daemon */
	char instance[EPF_SVC_NAME];
	char version[EPF_SVC_NAME]; /* of the release, for people */
	uint32_t max_regions;       /* of one rank */
	uint32_t max_rings;         /* of one rank */
	uint32_t max_jobs;          /* of one user; since 1.1 */
};

struct epf_svc_signals { /* request */
	uint32_t count;
};

struct epf_svc_signals_reply { /* 1 fd: signals[count], then one struct epf_wakeup at wakeup_offset */
	uint32_t count;
	uint64_t bytes;
	uint64_t wakeup_offset;
};

struct epf_svc_region { /* request, 1 fd: a memfd sealed against shrinking */
	uint64_t offset;
	uint64_t bytes;
	uint32_t access; /* EPF_REMOTE_* */
};

/*
 * Kind of struct epf_svc_gpu_region for RDMA devices, since 1.3: the descriptor is a dma-buf, `offset` the region's in it, and ipc begins with
 * u64 device address, u32 enum epf_write_order, u32 PCI vendor.
 */
enum { EPF_SVC_GPU_DMABUF = 3 };

enum { EPF_SVC_IPC = 64, EPF_SVC_PCI = 16 };

struct epf_svc_gpu_region { /* request, 1 fd; answer: struct epf_svc_region_reply */
	uint32_t kind;      /* enum epf_copy_handle_kind; or EPF_SVC_GPU_DMABUF */
	uint32_t access;    /* EPF_REMOTE_* */
	uint64_t bytes;     /* of the region */
	uint64_t whole;     /* of the allocation */
	uint64_t offset;    /* of the region in it */
	uint8_t ipc[EPF_SVC_IPC];
	char pci[EPF_SVC_PCI]; /* of the GPU */
};

struct epf_svc_region_reply {
	uint32_t region; /* 0, 1, 2 ... in order of registration */
};

struct epf_svc_region_close { /* request */
	uint32_t region;
};

struct epf_svc_region_close_reply {
	uint32_t done;
	uint32_t missing; /* a rank that has not acknowledged, 0xffffffff: none */
};

struct epf_svc_ring { /* request */
	uint32_t log2;
	uint32_t weight;
	uint64_t start;
};

struct epf_svc_ring_reply { /* 1 fd: the formatted ring */
	uint32_t ring;      /* number of the ring within its rank */
	uint64_t bytes;
};

struct epf_svc_ring_close { /* request; answered at once: the daemon drains it by itself */
	uint32_t ring;
};

struct epf_svc_attach { /* request */
	uint8_t job_id
		[EPF_SVC_ID]; /* same for all ranks of this run of the job; all 0 with REJOIN */
	uint8_t job_key
		[EPF_SVC_KEY]; /* made from the job's secret: all ranks of a job on a node show the same */
	char job[EPF_SVC_JOB_NAME];
	uint32_t rank;
	uint32_t world;
	uint32_t flags; /* EPF_SVC_REJOIN */
	uint32_t
		weight; /* share of the job against others, 1..255; 0: the default. The first rank's counts. Since 1.1 */
	/* Of a job of several hosts: this host's address, as text, on the way to the others; else empty. The first rank's counts. Since 1.4 */
	char route[EPF_SVC_NAME];
};

enum { EPF_SVC_REJOIN = 1 };

struct epf_svc_attach_reply { /* 2 fds: peers page, kick wakeup (struct epf_wakeup at offset 0) */
	uint8_t node_id[EPF_SVC_ID];
	uint8_t nonce[EPF_SVC_ID]; /* of this job on this node */
	uint8_t job_id[EPF_SVC_ID];
	uint32_t epoch;
	uint64_t peers_bytes;
	uint64_t kick_bytes;
};

struct epf_svc_world {              /* request */
	struct epf_svc_bytes table; /* world * EPF_SVC_MEMBER_BYTES */
};

struct epf_svc_world_reply {
	uint32_t n_nodes;
	uint32_t node; /* own number; nodes are numbered by their lowest rank */
	struct epf_svc_bytes sealed;
};

struct epf_svc_connect { /* request of CONNECT and UPDATE */
	struct epf_svc_bytes
		sealed; /* per rank u32 length and bytes; empty: this rank leaves it to another one of the node */
};

struct epf_svc_describe_reply {
	struct epf_svc_bytes sealed;
};

struct epf_svc_reconnect { /* request */
	uint32_t step;     /* enum epf_reconnect_step: 0, 1 ... */
	struct epf_svc_bytes
		sealed; /* what every rank gave after the step before, as in CONNECT; empty for step 0 */
};

struct epf_svc_reconnect_reply {
	uint32_t done;               /* 0: not yet, the same request again */
	struct epf_svc_bytes sealed; /* for all ranks; may be empty */
};

struct epf_svc_mask { /* request */
	uint32_t rank;
	uint32_t masked;
};

struct epf_svc_awake { /* request */
	uint32_t on;   /* 1: kernels of the rank push commands, which wake nobody; 0: none do */
};

struct epf_svc_counter { /* request */
	char name[EPF_SVC_NAME];
};

struct epf_svc_counter_reply {
	uint64_t value;
};

struct epf_svc_status { /* request */
	uint32_t flags;
};

struct epf_svc_status_reply {
	struct epf_svc_bytes json;
};

struct epf_svc_drain { /* request */
	uint32_t on;   /* 1: begin; 0: serve new jobs again */
};

struct epf_svc_drain_reply {
	uint32_t jobs; /* still running */
};

struct epf_svc_link {               /* request */
	char job[EPF_SVC_JOB_NAME]; /* empty: every job */
	uint32_t link;
	uint32_t up;
};

struct epf_svc_link_reply {
	uint32_t nics; /* NICs changed */
};

/*
 * Header to and from 24 bytes. Decoding checks the magic, fds <= EPF_SVC_FDS_MAX and bytes <= EPF_SVC_BODY_MAX: -EBADMSG with a reason.
 */
void epf_svc_head_encode(const struct epf_svc_head *h, uint8_t out[EPF_SVC_HEAD_BYTES]);
int epf_svc_head_decode(const uint8_t in[EPF_SVC_HEAD_BYTES], struct epf_svc_head *out);

/*
 * Bodies, by type: msg points to the struct of that request or answer (none: NULL, an empty body). minor: what the receiver
 * (encoding) or the sender (decoding) speaks; fields that came later are left out, or read as 0.
 * Encoding mallocs *out. Decoding: texts end within their room and hold no control characters, lengths fit, or -EBADMSG with a reason that names
 * the field; it never reads beyond len.
 */
int epf_svc_encode(unsigned type, bool answer, unsigned minor, const void *msg, uint8_t **out,
		   size_t *len);
int epf_svc_decode(unsigned type, bool answer, unsigned minor, const uint8_t *body, size_t len,
		   void *msg);
/* "HELLO", "ATTACH" ...; "?" for an unknown type. */
const char *epf_svc_type_name(unsigned type);

/* Descriptors that come with a request of this type, or with its answer when it succeeded. */
unsigned epf_svc_type_fds(unsigned type, bool answer);

/* 0 when the two versions can talk, else -EPROTO with a sentence that names both (EPF_R_SVC_VERSION). who: the other end, for the text. */
int epf_svc_version_check(const char *who, unsigned major, unsigned minor);
/* The minor both speak. */
unsigned epf_svc_minor(unsigned theirs);

/* The per-rank list in struct epf_svc_connect: malloced; and back, into out[world]. Entries may be empty. */
struct epf_blob;
int epf_svc_pack(const struct epf_blob *blobs, uint32_t world, uint8_t **out, size_t *len);
int epf_svc_unpack(const void *data, size_t len, uint32_t world, struct epf_blob *out);

#endif
