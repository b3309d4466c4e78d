/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of NCCL's one-sided interface, as in abi.h: GIN 11 (NCCL 2.28), 12 (2.29), 13 (2.30.4), and from 2.30.7 RMA 14, over which NCCL's proxy for kernels
 * runs, and GIN 14, for kernels that do without (abi_gpi.h): NCCL skips an external proxy behind it.
 */
#ifndef EPF_TOOLS_NCCL_ABI_GIN_H
#define EPF_TOOLS_NCCL_ABI_GIN_H

#include "tools/nccl/abi.h"

struct epf_nccl_gin_config_v13 {
	int signals, counters, contexts, queue_depth, traffic_class;
};

struct epf_nccl_gin_config_v14 {
	int signals, counters, contexts, queue_depth, traffic_class, backend_version, rank_stride;
};

struct epf_nccl_gin_properties_v14 {
	bool has_strong_signals; /* visible after all puts before them */
	bool has_va_signals;     /* words of windows */
};

struct epf_nccl_rma_config_v14 {
	int contexts, traffic_class, rank_stride;
};

#define EPF_NCCL_GIN_HEAD(properties)                                \
 const char *name;                                                   \
 int (*init)(void **context, uint64_t comm_id, epf_nccl_log_fn log); \
 int (*devices)(int *n);                                             \
 int (*get_properties)(int device, struct properties *out);          \
 int (*listen)(void *context, int device, void *handle, void **listen_comm);

/* Symmetric registration: all ranks make it together. */
#define EPF_NCCL_GIN_REGISTER                                                                      \
 int (*reg_mr_sym)(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **mr,      \
		   void **gin);                                                                    \
 int (*reg_mr_sym_dmabuf)(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd, \
			  uint64_t flags, void **mr, void **gin);                                  \
 int (*dereg_mr_sym)(void *coll, void *mr);

#define EPF_NCCL_GIN_CLOSE                  \
 int (*destroy_context)(void *gin_context); \
 int (*close_coll)(void *coll);             \
 int (*close_listen)(void *listen_comm);

#define EPF_NCCL_GIN_TAIL                                 \
 int (*test)(void *coll, void *request, int *done);       \
 int (*progress)(void *context);                          \
 int (*query_last_error)(void *context, bool *has_error); \
 int (*finalize)(void *context);

struct epf_nccl_gin_v11 {
	EPF_NCCL_GIN_HEAD(epf_nccl_properties_v11)
	int (*connect)(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll);
	int (*create_context)(void *coll, int signals, int counters, void **gin_context,
			      struct epf_nccl_device_handle **device);
	EPF_NCCL_GIN_REGISTER
	EPF_NCCL_GIN_CLOSE
	int (*iput)(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
		    void *dst_mr, uint32_t rank, void **request);
	int (*iput_signal)(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
			   void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr,
			   uint64_t value, uint32_t op, void **request);
	EPF_NCCL_GIN_TAIL
};

struct epf_nccl_gin_v12 {
	EPF_NCCL_GIN_HEAD(epf_nccl_properties_v11)
	int (*connect)(void *context, void *handles[], int ranks, int rank, int connections,
		       int queue_depth, void *listen_comm, void **coll);
	int (*create_context)(void *coll, int signals, int counters, int contexts,
			      void **gin_context, struct epf_nccl_device_handle **device);
	EPF_NCCL_GIN_REGISTER
	EPF_NCCL_GIN_CLOSE
	int (*iput)(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
		    void *dst_mr, uint32_t rank, int connection, void **request);
	int (*iput_signal)(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
			   void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr,
			   uint64_t value, uint32_t op, int connection, void **request);
	EPF_NCCL_GIN_TAIL
};

#define EPF_NCCL_GIN_GET                                                               \
 int (*iget)(void *context, int index, uint64_t remote, void *remote_mr, size_t bytes, \
	     uint64_t local, void *local_mr, uint32_t rank, void **request);           \
 int (*iflush)(void *context, int index, void *mr, uint32_t rank, void **request);

struct epf_nccl_gin_v13 {
	EPF_NCCL_GIN_HEAD(epf_nccl_properties_v12)
	int (*connect)(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll);
	int (*create_context)(void *coll, struct epf_nccl_gin_config_v13 *config,
			      void **gin_context, struct epf_nccl_device_handle **device);
	EPF_NCCL_GIN_REGISTER
	EPF_NCCL_GIN_CLOSE
	int (*iput)(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
		    uint64_t dst, void *dst_mr, uint32_t rank, void **request);
	int (*iput_signal)(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
			   uint64_t dst, void *dst_mr, uint32_t rank, uint64_t signal,
			   void *signal_mr, uint64_t value, uint32_t op, void **request);
	EPF_NCCL_GIN_GET
	EPF_NCCL_GIN_TAIL
};

struct epf_nccl_gin_v14 {
	const char *name;
	int (*init)(void **context, uint64_t comm_id, epf_nccl_log_fn log);
	int (*devices)(int *n);
	int (*get_gin_properties)(struct epf_nccl_gin_properties_v14 *out);
	int (*get_properties)(int device, struct epf_nccl_properties_v12 *out);
	int (*listen)(void *context, int device, void *handle, void **listen_comm);
	int (*connect)(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll);
	int (*create_context)(void *coll, struct epf_nccl_gin_config_v14 *config,
			      void **gin_context, struct epf_nccl_device_handle **device);
	EPF_NCCL_GIN_REGISTER
	EPF_NCCL_GIN_CLOSE
	int (*progress)(void *context);
	int (*query_last_error)(void *context, bool *has_error);
	int (*finalize)(void *context);
};

struct epf_nccl_rma_v14 {
	EPF_NCCL_GIN_HEAD(epf_nccl_properties_v12)
	int (*connect)(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll);
	int (*create_context)(void *coll, struct epf_nccl_rma_config_v14 *config,
			      void **rma_context);
	int (*reg_mr_sym)(void *coll, void *data, size_t bytes, int type, uint64_t flags,
			  void **mr);
	int (*reg_mr_sym_dmabuf)(void *coll, void *data, size_t bytes, int type, uint64_t offset,
				 int fd, uint64_t flags, void **mr);
	int (*dereg_mr_sym)(void *coll, void *mr);
	EPF_NCCL_GIN_CLOSE
	int (*iput)(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
		    uint64_t dst, void *dst_mr, uint32_t rank, void **request);
	int (*iput_signal)(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
			   uint64_t dst, void *dst_mr, uint32_t rank, uint64_t signal,
			   void *signal_mr, uint64_t value, uint32_t op, bool is_strong,
			   void **request);
	EPF_NCCL_GIN_GET
	EPF_NCCL_GIN_TAIL
};

_Static_assert(sizeof(struct epf_nccl_gin_v11) == 19 * 8 &&
		       offsetof(struct epf_nccl_gin_v11, iput) == 13 * 8,
	       "GIN table, version 11");
_Static_assert(sizeof(struct epf_nccl_gin_v12) == 19 * 8, "GIN table, version 12");
_Static_assert(sizeof(struct epf_nccl_gin_v13) == 21 * 8 &&
		       offsetof(struct epf_nccl_gin_v13, test) == 17 * 8,
	       "GIN table, version 13");
_Static_assert(sizeof(struct epf_nccl_gin_v14) == 17 * 8 &&
		       offsetof(struct epf_nccl_gin_v14, progress) == 14 * 8,
	       "GIN table, version 14");
_Static_assert(sizeof(struct epf_nccl_rma_v14) == 21 * 8 &&
		       offsetof(struct epf_nccl_rma_v14, iget) == 15 * 8,
	       "RMA table, version 14");

#endif
