/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of NVSHMEM's host library that libepf-deepep.so stands for, as host.c defines them and tests call them: the names and types are
 * that library's, the structures our own declarations of what is passed. A program is not compiled with this header.
 */
#ifndef EPF_TOOLS_SHIM_HOST_H
#define EPF_TOOLS_SHIM_HOST_H

#include "tools/shim/nvstate.h"

#include <stddef.h>
#include <stdint.h>

enum { EPF_HOST_ID_BYTES = 128, EPF_HOST_SECRET_BYTES = 32 };

/* The 128 opaque bytes that one process makes and all ranks get. Ours. */
struct epf_host_id {
	int32_t version;
	uint32_t magic;
	uint8_t secret[EPF_HOST_SECRET_BYTES];
	char rendezvous[88];
};

/* What a program hands to its start: the fields that the two calls before it write and read, at NVSHMEM's offsets. */
struct epf_host_attr {
	uint8_t head[32];
	const struct epf_host_id *id;
	int32_t rank, world;
	uint8_t tail[96];
};

_Static_assert(sizeof(struct epf_host_id) == EPF_HOST_ID_BYTES, "a unique id is 128 bytes");
_Static_assert(sizeof(struct epf_host_attr) == 144 && offsetof(struct epf_host_attr, rank) == 40,
	       "init attributes");

#pragma GCC visibility push(default)

/* Sets the addresses of its two structures. */
typedef void (*epf_host_states_fn)(void **host_state, void **ibgda_state);

/* Status: 0 done, 1 not (the log says why), unless stated otherwise. All ranks make the collective calls in the same order. */
int nvshmemx_get_uniqueid(
	struct epf_host_id *id); /* by one process: an address where the ranks meet, and a secret */
int nvshmemx_set_attr_uniqueid_args(const int rank, const int world, const struct epf_host_id *id,
				    struct epf_host_attr *attr);
/* Collective. */
int nvshmemid_hostlib_init_attr(int requested, int *provided, unsigned flags,
				struct epf_host_attr *attr, struct epf_nv_version version,
				epf_host_states_fn device_states);
int nvshmemid_init_status(void);                                /* 0 or 2: started */
void nvshmemid_hostlib_finalize(void *device, void *transport); /* collective */
int nvshmem_my_pe(void);                                        /* -1 before the start */
void *nvshmem_align(size_t alignment, size_t bytes);            /* collective */
void nvshmem_free(void *addr);                                  /* collective */
void nvshmem_barrier_all(void);                                 /* collective */
void nvshmemx_barrier_all_on_stream(void *stream);              /* collective */
int nvshmem_team_split_strided(
	int32_t parent, int start_pe, int stride, int size, const void *config, long mask,
	int32_t *team); /* collective; *team: -1 at ranks that are no member */
void nvshmem_team_destroy(int32_t team);

#pragma GCC visibility pop

#endif
