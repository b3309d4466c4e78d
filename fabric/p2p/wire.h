/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between two endpoints, on the control connection (a Unix socket on one machine, else TCP), and the bytes of metadata and export keys.
 * Little-endian, exact sizes, versioned. Everything that arrives is checked before it is used.
 *
 *   who connects               who accepts
 *   HELLO (nonce, metadata) ->
 *                           <- HELLO (nonce, metadata, proof)
 *   JOIN (proof, [3 fds])   ->
 *                           <- READY (status, [2 fds])
 *   afterwards both: STAGE, CHUNK, CHUNK_DONE, IMPORT, IMPORTED, RELEASE, FORGET, FORGOTTEN, WAKE, NOTE, BOOT, BYE
 * A QUERY in place of the HELLO is answered by META, for epf_p2p_connect_to(). Over TCP every later message carries a proof (session key,
 * direction, running number).
 */
#ifndef EPF_FABRIC_P2P_WIRE_H
#define EPF_FABRIC_P2P_WIRE_H

#include "bootstrap/auth.h"
#include "fabric/p2p/epf_p2p.h"

#include <stdbool.h>

enum { P2P_MAGIC = 0x32505045, P2P_VERSION = 1, P2P_PAYLOAD_MAX = 4 << 20 };

enum message {
	MSG_HELLO = 1,
	MSG_JOIN = 2,
	MSG_READY = 3,
	MSG_QUERY = 4,
	MSG_META = 5,
	MSG_IMPORT = 6,
	MSG_IMPORTED = 7,
	MSG_WAKE = 8,
	MSG_NOTE = 9,
	MSG_BOOT = 10,
	MSG_BYE = 11,
	MSG_STAGE = 12, /* these only where both compress */
	MSG_CHUNK = 13,
	MSG_CHUNK_DONE = 14,
	MSG_RELEASE = 15, /* these only where both say HELLO_REUSE (engine_numbers.c) */
	MSG_FORGET = 16,
	MSG_FORGOTTEN = 17,
};

struct msg_head {
	uint32_t magic;
	uint16_t type;   /* enum message */
	uint16_t fds;    /* descriptors that came with it */
	uint32_t bytes;  /* of payload */
	uint32_t number; /* of messages of this direction */
};

enum { META_HAS_KEY = 1, META_HAS_SECRET = 2 };

struct metadata {
	uint8_t magic[8];
	uint32_t version;
	uint32_t flags;
	uint8_t id[16];
	uint8_t machine[16];             /* of the kernel that runs now (boot_id) */
	uint8_t fingerprint[8];          /* of the key that all share; zeros without */
	uint8_t key[EPF_AUTH_KEY_BYTES]; /* of this endpoint, with META_HAS_KEY */
	int32_t gpu;
	uint32_t pid;
	uint16_t port;
	uint16_t reserved;
	char name[EPF_P2P_NAME_BYTES];
	char host[64];
	uint8_t check[8]; /* of what is above */
	uint32_t end;     /* 0 */
};

_Static_assert(sizeof(struct metadata) == 8 + 4 + 4 + 16 + 16 + 8 + 32 + 4 + 4 + 4 + 64 + 64 + 12,
	       "metadata has no padding");
_Static_assert(sizeof(struct metadata) <= EPF_P2P_METADATA_BYTES, "metadata fits its limit");

enum {
	HELLO_STRATEGY = 0xff,
	HELLO_NVCOMP = 1 << 8, /* compresses GPU memory by nvCOMP 6 */
	HELLO_FP8 = 1 << 9,    /* knows values of one byte */
	HELLO_REUSE = 1 << 10, /* numbers of regions are used again */
};

struct msg_hello {
	uint8_t nonce[EPF_AUTH_NONCE_BYTES];
	struct metadata meta;               /* without the key */
	uint8_t proof[EPF_AUTH_HASH_BYTES]; /* of who accepts; zeros in the first */
	uint32_t is_local;
	uint32_t
		compress; /* enum codec_strategy and what else this end can do, HELLO_*; older releases say 0 or a strategy */
};

/* Where the other end may try whether the kernel lets it read this process. */
struct probe {
	uint64_t addr;
	uint8_t token[16];
};

struct msg_join {
	uint8_t proof[EPF_AUTH_HASH_BYTES];
	struct probe probe;
	uint32_t bell_index; /* of this connection in the sender's bell */
	uint32_t can_copy;   /* the sender reads the receiver's memory; 2: unknown yet */
};

struct msg_ready {
	int32_t status; /* 0 or -errno */
	uint32_t bell_index;
	struct probe probe;
	uint32_t can_copy;
	uint32_t reserved;
};

/* The bytes of an export key. */
struct export_key {
	uint32_t magic;
	uint32_t slot;
	uint64_t generation;
	uint8_t endpoint[8];
	uint8_t secret[16];
	uint64_t addr, bytes;
	uint32_t rights;
	uint32_t reserved;
};

_Static_assert(sizeof(struct export_key) == EPF_P2P_KEY_BYTES, "an export key is 64 bytes");

struct msg_import {
	uint64_t request; /* repeated in the answer */
	struct export_key key;
};

enum memory_kind { MEMORY_PROCESS = 0, MEMORY_FILE = 1, MEMORY_GPU = 2 };

struct msg_imported {
	uint64_t request;
	int32_t status;         /* 0 or -errno */
	uint32_t kind;          /* enum memory_kind; FILE: a descriptor comes with it */
	uint64_t file_offset;   /* of addr in that file */
	uint32_t engine_region; /* its number in the pair's job; UINT32_MAX: none */
	int32_t device;         /* as the owner numbers it */
	/* GPU memory on one machine: fields of struct epf_copy_handle; its descriptor is passed with the message. gpu_kind 0: cannot be shared */
	uint32_t gpu_kind;
	uint32_t reserved;
	uint64_t gpu_offset, gpu_bytes;
	uint8_t gpu_handle[64];
	char gpu_pci[16];
};

/* An answered import of an export has ended: there is one for each answer of status 0. */
struct msg_release {
	uint32_t slot, reserved;
	uint64_t generation;
};

/* The number of a withdrawn region in the pair's job: to be forgotten, or forgotten. */
struct msg_number {
	uint32_t region;
};

/* The region of the pair's job that takes compressed chunks. */
struct msg_stage {
	uint32_t region;
};

enum { CHUNK_PIECES = 128 };

/* A part of an export. */
struct piece {
	uint64_t offset;
	uint32_t bytes;
	uint32_t reserved;
};

/* A compressed chunk is in a slot of the receiver's staging memory, or is to be put into one of the sender's. n pieces follow. */
struct msg_chunk {
	uint32_t slot, is_read;
	uint32_t export_slot, n;
	uint64_t generation; /* of the export */
	uint32_t type;       /* enum epf_p2p_float */
	uint32_t bytes;      /* of all pieces */
	uint32_t packed;     /* of the chunk in the slot; of a read 0 */
	uint32_t is_gpu;     /* compressed by GPUs, from and to their memory */
};

struct msg_chunk_done {
	uint32_t slot, is_read;
	int32_t status;  /* 0 or -errno */
	uint32_t packed; /* of a read: bytes of the chunk in the slot */
};

/* Makes the checksum of metadata. */
void epf_p2p_meta_seal(struct metadata *meta);
/* Copies and checks metadata. -EBADMSG with a reason. */
int epf_p2p_meta_read(const void *bytes, size_t len, struct metadata *out);
/* Compares in constant time. */
bool epf_p2p_same_key(const struct export_key *a, const struct export_key *b);
/* The proof of one end over both hellos. */
void epf_p2p_proof(const uint8_t key[EPF_AUTH_KEY_BYTES], bool accepts,
		   const struct msg_hello *first, const struct msg_hello *second,
		   uint8_t proof[EPF_AUTH_HASH_BYTES]);

#endif
