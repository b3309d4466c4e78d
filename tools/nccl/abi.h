/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL and its network plug-ins agree on: tables of functions, by version, as NCCL 2.28 to 2.30 load them. Our own declarations; the assertions
 * at the end hold their layout, and tests/gpu/nccl.sh holds the constants against NCCL's installed headers. Nothing here is ours to change.
 *
 * A table's symbol names its version: ncclNetPlugin_v10 to _v12, ncclGinPlugin_v11 to _v14, ncclRmaPlugin_v14. NCCL asks for the newest it knows first.
 */
#ifndef EPF_TOOLS_NCCL_ABI_H
#define EPF_TOOLS_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	EPF_NCCL_HANDLE_BYTES = 128, /* of a listening object's handle */
	EPF_NCCL_REQUESTS = 32,      /* most requests of one communicator object at a time */
};

/* ncclResult_t */
enum {
	EPF_NCCL_OK = 0,
	EPF_NCCL_SYSTEM = 2,
	EPF_NCCL_ARGUMENT = 4,
	EPF_NCCL_REMOTE = 6,
};

/* Kinds of memory (ptrSupport, type of a registration). */
enum { EPF_NCCL_HOST = 1, EPF_NCCL_CUDA = 2, EPF_NCCL_DMABUF = 4 };

/* ncclNetDeviceType: who drives the device. */
enum { EPF_NCCL_DEVICE_HOST = 0, EPF_NCCL_DEVICE_GIN_PROXY = 2, EPF_NCCL_DEVICE_GIN_GPI = 4 };

/* Operations of a signal. */
enum { EPF_NCCL_SIGNAL_INC = 1, EPF_NCCL_SIGNAL_ADD = 2 };

/* Levels and subsystems of NCCL's log. */
enum { EPF_NCCL_LOG_WARN = 2, EPF_NCCL_LOG_INFO = 3 };

enum { EPF_NCCL_SUB_INIT = 0x1, EPF_NCCL_SUB_NET = 0x10 };

typedef void (*epf_nccl_log_fn)(int level, unsigned long subsystems, const char *file, int line,
				const char *format, ...);
typedef int (*epf_nccl_profile_fn)(void **event, int type, void *handle, int64_t plugin,
				   void *data);

struct epf_nccl_config {
	int traffic_class; /* -1: none */
};

/* What kernels are given that drive a NIC. */
struct epf_nccl_device_handle {
	int type; /* EPF_NCCL_DEVICE_* */
	int version;
	void *handle; /* an address of the GPU */
	size_t bytes;
	int needs_progress;
};

/* Common head of the properties of all versions. */
#define EPF_NCCL_PROPERTIES_HEAD \
 char *name;                     \
 char *pci_path;                 \
 uint64_t guid;                  \
 int ptr_support;                \
 int reg_is_global;              \
 int force_flush;                \
 int speed_mbps;                 \
 int port;                       \
 float latency_us;               \
 int max_comms;                  \
 int max_recvs;                  \
 int device_type;                \
 int device_version;

struct epf_nccl_vdevice_v10 {
	int n;
	int devices[4];
};

struct epf_nccl_vdevice_v12 {
	int n;
	int devices[8];
};

struct epf_nccl_properties_v10 {
	EPF_NCCL_PROPERTIES_HEAD
	struct epf_nccl_vdevice_v10 vdevice;
	size_t max_p2p_bytes;
	size_t max_coll_bytes;
};

struct epf_nccl_properties_v11 {
	EPF_NCCL_PROPERTIES_HEAD
	struct epf_nccl_vdevice_v10 vdevice;
	size_t max_p2p_bytes;
	size_t max_coll_bytes;
	int max_multi_request;
};

struct epf_nccl_properties_v12 {
	EPF_NCCL_PROPERTIES_HEAD
	struct epf_nccl_vdevice_v12 vdevice;
	size_t max_p2p_bytes;
	size_t max_coll_bytes;
	int max_multi_request;
	int16_t rail;
	int16_t plane;
};

/* The part of the net table that is the same in all versions, from accept on. */
#define EPF_NCCL_NET_OPERATIONS                                                                \
 int (*accept)(void *listen_comm, void **recv_comm, struct epf_nccl_device_handle **device);   \
 int (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);                     \
 int (*reg_mr_dmabuf)(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, \
		      void **mr);                                                              \
 int (*dereg_mr)(void *comm, void *mr);                                                        \
 int (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mr, void *profile,     \
	      void **request);                                                                 \
 int (*irecv)(void *recv_comm, int n, void **data, size_t *bytes, int *tags, void **mrs,       \
	      void **profiles, void **request);                                                \
 int (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs, void **request);   \
 int (*test)(void *request, int *done, int *bytes);                                            \
 int (*close_send)(void *send_comm);                                                           \
 int (*close_recv)(void *recv_comm);                                                           \
 int (*close_listen)(void *listen_comm);                                                       \
 int (*get_device_mr)(void *comm, void *mr, void **device_mr);                                 \
 int (*irecv_consumed)(void *recv_comm, int n, void *request);

struct epf_nccl_net_v10 {
	const char *name;
	int (*init)(epf_nccl_log_fn log, epf_nccl_profile_fn profile);
	int (*devices)(int *n);
	int (*get_properties)(int device, struct epf_nccl_properties_v10 *out);
	int (*listen)(int device, void *handle, void **listen_comm);
	int (*connect)(int device, struct epf_nccl_config *config, void *handle, void **send_comm,
		       struct epf_nccl_device_handle **device_comm);
	EPF_NCCL_NET_OPERATIONS
	int (*make_vdevice)(int *device, struct epf_nccl_vdevice_v10 *properties);
};

struct epf_nccl_net_v11 {
	const char *name;
	int (*init)(void **context, uint64_t comm_id, struct epf_nccl_config *config,
		    epf_nccl_log_fn log, epf_nccl_profile_fn profile);
	int (*devices)(int *n);
	int (*get_properties)(int device, struct epf_nccl_properties_v11 *out);
	int (*listen)(void *context, int device, void *handle, void **listen_comm);
	int (*connect)(void *context, int device, void *handle, void **send_comm,
		       struct epf_nccl_device_handle **device_comm);
	EPF_NCCL_NET_OPERATIONS
	int (*make_vdevice)(int *device, struct epf_nccl_vdevice_v10 *properties); /* may be NULL */
	int (*finalize)(void *context);
	int (*set_attributes)(void *context, void *attributes); /* may be NULL */
};

struct epf_nccl_net_v12 {
	const char *name;
	int (*init)(void **context, uint64_t comm_id, struct epf_nccl_config *config,
		    epf_nccl_log_fn log, epf_nccl_profile_fn profile);
	int (*devices)(int *n);
	int (*get_properties)(int device, struct epf_nccl_properties_v12 *out);
	int (*listen)(void *context, int device, void *handle, void **listen_comm);
	int (*connect)(void *context, int device, void *handle, void **send_comm,
		       struct epf_nccl_device_handle **device_comm);
	EPF_NCCL_NET_OPERATIONS
	int (*make_vdevice)(int *device, struct epf_nccl_vdevice_v12 *properties); /* may be NULL */
	int (*finalize)(void *context);
	int (*set_attributes)(void *context, void *attributes); /* may be NULL */
};

_Static_assert(sizeof(struct epf_nccl_properties_v10) == 104 &&
		       offsetof(struct epf_nccl_properties_v10, max_p2p_bytes) == 88,
	       "net properties, version 10");
_Static_assert(sizeof(struct epf_nccl_properties_v11) == 112 &&
		       offsetof(struct epf_nccl_properties_v11, max_multi_request) == 104,
	       "net properties, version 11");
_Static_assert(sizeof(struct epf_nccl_properties_v12) == 128 &&
		       offsetof(struct epf_nccl_properties_v12, rail) == 124,
	       "net properties, version 12");
_Static_assert(offsetof(struct epf_nccl_properties_v12, device_version) == 60,
	       "the common head of the properties");
_Static_assert(sizeof(struct epf_nccl_net_v10) == 20 * 8 &&
		       offsetof(struct epf_nccl_net_v10, accept) == 6 * 8,
	       "net table, version 10");
_Static_assert(sizeof(struct epf_nccl_net_v11) == 22 * 8 &&
		       offsetof(struct epf_nccl_net_v11, finalize) == 20 * 8,
	       "net table, version 11");
_Static_assert(sizeof(struct epf_nccl_net_v12) == 22 * 8 &&
		       offsetof(struct epf_nccl_net_v12, test) == 13 * 8,
	       "net table, version 12");

#endif
