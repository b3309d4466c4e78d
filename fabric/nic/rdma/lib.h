/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, opened at run time: a table of the functions that the verbs NIC uses. Nothing of ours links the library, so
 * programs run on machines without it, and tests put a separate provider in its place. What nic/verbs/verbs.h defines inline (post,
 * poll) goes through the context's own operations and is not here. Never called from a _hot file.
 */
#ifndef EPF_FABRIC_NIC_RDMA_LIB_H
#define EPF_FABRIC_NIC_RDMA_LIB_H

#include <infiniband/verbs.h>

/* Each entry as its man page says, under the name without ibv_. No entry is NULL but reg_dmabuf_mr, which came with rdma-core 34. */
struct epf_verbs_lib {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
	/* epf_verbs_query_port() is what to call: it takes the long form where the provider has it. */
	int (*query_port)(struct ibv_context *context, uint8_t port,
			  struct _compat_ibv_port_attr *attr);
	ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
				   size_t max, uint32_t flags, size_t entry_size);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				       unsigned int access);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
	int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
				    struct ibv_comp_channel *channel, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq,
			    void **cq_context);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	int (*destroy_srq)(struct ibv_srq *srq);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *qp);
	int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
	void (*ack_async_event)(struct ibv_async_event *event);
};

/**
 * epf_verbs_lib() - the table, filled at the first call; it stays for the life of the process.
 *
 * Return: 0 and *out; -ENOENT with epf_last_error() set when the library, or a function of it, is not there.
 */
int epf_verbs_lib(const struct epf_verbs_lib **out);

/* ibv_query_port(3), over a table. Returns 0 or an errno value. */
int epf_verbs_query_port(const struct epf_verbs_lib *lib, struct ibv_context *context, uint8_t port,
			 struct ibv_port_attr *out);

#endif
