/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the one-sided interface that NCCL finds in the plug-in by name: GIN 11 to 14, RMA 14. They differ in how contexts are named; what the functions do
 * is in gin.h. NCCL's layer over them keeps the queues and counters of kernels, but for GIN 14: there gpi.h does.
 */
#include "tools/nccl/abi_gin.h"

#include "fabric/base/err.h"
#include "tools/nccl/gin.h"
#include "tools/nccl/gpi.h"
#include "tools/nccl/plug.h"
#include "tools/nccl/properties.h"
#include "tools/nccl/start.h"

#include <stdlib.h>
#include <string.h>

static int init(void **context, uint64_t comm_id, epf_nccl_log_fn log)
{
	(void)comm_id;
	*context = &epf_plug;
	return epf_plug_result("init", epf_plug_open(log));
}

static int finalize(void *context)
{
	(void)context;
	epf_plug_close();
	return EPF_NCCL_OK;
}

static int devices(int *n)
{
	*n = 1;
	return EPF_NCCL_OK;
}

static int properties_v12(int device, struct epf_nccl_properties_v12 *out)
{
	int rc = epf_nccl_net_properties(device, out);

	if (!rc) {
		out->ptr_support = EPF_NCCL_HOST | EPF_NCCL_CUDA;
		out->device_type = EPF_NCCL_DEVICE_GIN_PROXY;
	}
	return epf_plug_result("getProperties", rc);
}

/* With NCCL_GIN_TYPE=4 only: DeepEP V2 is written for the layout of NCCL's proxy. As a proxy NCCL skips this table, and uses RMA 14. */
static int properties_v14(int device, struct epf_nccl_properties_v12 *out)
{
	const char *type = getenv("NCCL_GIN_TYPE");
	int rc = properties_v12(device, out);

	if (!rc && type && strcmp(type, "4") == 0)
		out->device_type = EPF_NCCL_DEVICE_GIN_GPI;
	return rc;
}

static int gin_properties(struct epf_nccl_gin_properties_v14 *out)
{
	out->has_strong_signals = true;
	out->has_va_signals = epf_group_adds_to_gpus();
	return EPF_NCCL_OK;
}

static int properties_v11(int device, struct epf_nccl_properties_v11 *out)
{
	struct epf_nccl_properties_v12 p;
	int rc = properties_v12(device, &p);

	if (!rc)
		epf_nccl_properties_as_v11(&p, out);
	return rc;
}

static int listen_group(void *context, int device, void *handle, void **listen_comm)
{
	struct epf_group_listener *l;
	int rc = epf_nccl_check_device(device);

	(void)context;
	if (!rc)
		rc = epf_group_listen(handle, &l);
	if (!rc)
		*listen_comm = l;
	return epf_plug_result("listen", rc);
}

static int close_listen(void *listen_comm)
{
	epf_group_close_listen(listen_comm);
	return EPF_NCCL_OK;
}

static int connect_v13(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll)
{
	struct epf_group *g;
	int rc = epf_group_connect(handles, ranks, rank, listen_comm, &g);

	(void)context;
	if (!rc)
		*coll = g;
	return epf_plug_result("connect", rc);
}

/* Operations of versions 11 and 12 name the group, and a connection where version 13 names a context. */
static int connect_v12(void *context, void *handles[], int ranks, int rank, int connections,
		       int queue_depth, void *listen_comm, void **coll)
{
	struct epf_group *g;
	int rc = epf_group_connect(handles, ranks, rank, listen_comm, &g);

	(void)context;
	(void)queue_depth;
	if (!rc)
		rc = epf_gin_context_open(g, connections, &g->single);
	if (!rc)
		*coll = g;
	return epf_plug_result("connect", rc);
}

static int connect_v11(void *context, void *handles[], int ranks, int rank, void *listen_comm,
		       void **coll)
{
	return connect_v12(context, handles, ranks, rank, 1, 0, listen_comm, coll);
}

static int close_coll(void *coll)
{
	epf_group_close(coll);
	return EPF_NCCL_OK;
}

static int context_of(void *coll, int contexts, void **out)
{
	struct epf_gin_context *c;
	int rc = epf_gin_context_open(coll, contexts, &c);

	if (!rc)
		*out = c;
	return epf_plug_result("createContext", rc);
}

static int context_v13(void *coll, struct epf_nccl_gin_config_v13 *config, void **gin_context,
		       struct epf_nccl_device_handle **device)
{
	(void)device; /* NULL: the proxy's layer makes the kernels' half */
	return context_of(coll, config->contexts, gin_context);
}

static int context_v14(void *coll, struct epf_nccl_rma_config_v14 *config, void **rma_context)
{
	return context_of(coll, config->contexts, rma_context);
}

static int context_gpi(void *coll, struct epf_nccl_gin_config_v14 *config, void **gin_context,
		       struct epf_nccl_device_handle **device)
{
	struct epf_gpi_wanted w = { .contexts = config->contexts,
				    .kernels = config->backend_version,
				    .signals = config->signals,
				    .counters = config->counters,
				    .slots = config->queue_depth };
	struct epf_gpi *g;
	int rc = epf_gpi_open(coll, &w, &g);

	if (!rc) {
		*gin_context = g;
		*device = &g->device;
	}
	return epf_plug_result("createContext", rc);
}

static int destroy_context_gpi(void *context)
{
	epf_gpi_close(context);
	return EPF_NCCL_OK;
}

/* Not called for a proxy. */
static int context_v12(void *coll, int signals, int counters, int contexts, void **gin_context,
		       struct epf_nccl_device_handle **device)
{
	(void)signals;
	(void)counters;
	(void)device;
	return context_of(coll, contexts, gin_context);
}

static int context_v11(void *coll, int signals, int counters, void **gin_context,
		       struct epf_nccl_device_handle **device)
{
	return context_v12(coll, signals, counters, 1, gin_context, device);
}

static int destroy_context(void *context)
{
	epf_gin_context_close(context);
	return EPF_NCCL_OK;
}

static int reg_v14(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **mr)
{
	struct epf_group_mr *m;
	int rc = epf_group_register(coll, data, bytes, type, &m);

	(void)flags; /* order is always strong, and signals are always added to */
	if (!rc)
		*mr = m;
	return epf_plug_result("regMrSym", rc);
}

static int reg_dmabuf_v14(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd,
			  uint64_t flags, void **mr)
{
	(void)offset;
	(void)fd;
	return reg_v14(coll, data, bytes, type, flags, mr);
}

/* What kernels hand to the proxy is the registration itself. */
static int reg_v11(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **mr,
		   void **gin)
{
	int rc = reg_v14(coll, data, bytes, type, flags, mr);

	if (!rc)
		*gin = *mr;
	return rc;
}

static int reg_dmabuf_v11(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd,
			  uint64_t flags, void **mr, void **gin)
{
	(void)offset;
	(void)fd;
	return reg_v11(coll, data, bytes, type, flags, mr, gin);
}

static int reg_gpi(void *coll, void *data, size_t bytes, int type, uint64_t flags, void **mr,
		   void **gin)
{
	int rc = reg_v14(coll, data, bytes, type, flags, mr);

	if (rc)
		return rc;
	rc = epf_group_number(coll, *mr);
	if (rc)
		epf_group_deregister(coll, *mr);
	else
		*gin = (void *)(uintptr_t)((struct epf_group_mr *)*mr)
			       ->window; /* kernels write it */
	return epf_plug_result("regMrSym", rc);
}

static int reg_dmabuf_gpi(void *coll, void *data, size_t bytes, int type, uint64_t offset, int fd,
			  uint64_t flags, void **mr, void **gin)
{
	(void)offset;
	(void)fd;
	return reg_gpi(coll, data, bytes, type, flags, mr, gin);
}

static int dereg(void *coll, void *mr)
{
	epf_group_deregister(coll, mr);
	return EPF_NCCL_OK;
}

static int put(struct epf_gin_context *c, int index, const struct epf_gin_put *p, void **request)
{
	return epf_plug_result(p->signal_mr ? "iputSignal" : "iput",
			       epf_gin_put(c, index, p, request));
}

static int add_of(uint32_t op, uint64_t value, uint64_t *add)
{
	if (op != EPF_NCCL_SIGNAL_INC && op != EPF_NCCL_SIGNAL_ADD)
		return epf_plug_result("iputSignal",
				       epf_fail(EPF_R_NCCL_CALL, "nccl: signal operation %u", op));
	*add = op == EPF_NCCL_SIGNAL_INC ? 1 : value;
	return EPF_NCCL_OK;
}

static int iput_v13(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
		    uint64_t dst, void *dst_mr, uint32_t rank, void **request)
{
	struct epf_gin_put p = { .src = src,
				 .src_mr = src_mr,
				 .bytes = bytes,
				 .dst = dst,
				 .dst_mr = dst_mr,
				 .rank = rank };

	return put(context, index, &p, request);
}

static int iput_signal_v14(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
			   uint64_t dst, void *dst_mr, uint32_t rank, uint64_t signal,
			   void *signal_mr, uint64_t value, uint32_t op, bool is_strong,
			   void **request)
{
	struct epf_gin_put p = { .src = src,
				 .src_mr = src_mr,
				 .bytes = bytes,
				 .dst = dst,
				 .dst_mr = dst_mr,
				 .rank = rank,
				 .signal = signal,
				 .signal_mr = signal_mr };
	int rc = add_of(op, value, &p.add);

	(void)is_strong; /* every signal is */
	return rc ? rc : put(context, index, &p, request);
}

static int iput_signal_v13(void *context, int index, uint64_t src, void *src_mr, size_t bytes,
			   uint64_t dst, void *dst_mr, uint32_t rank, uint64_t signal,
			   void *signal_mr, uint64_t value, uint32_t op, void **request)
{
	return iput_signal_v14(context, index, src, src_mr, bytes, dst, dst_mr, rank, signal,
			       signal_mr, value, op, true, request);
}

static int iput_v12(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
		    void *dst_mr, uint32_t rank, int connection, void **request)
{
	struct epf_group *g = coll;

	return iput_v13(g->single, connection, src, src_mr, bytes, dst, dst_mr, rank, request);
}

static int iput_v11(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
		    void *dst_mr, uint32_t rank, void **request)
{
	return iput_v12(coll, src, src_mr, bytes, dst, dst_mr, rank, 0, request);
}

static int iput_signal_v12(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
			   void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr,
			   uint64_t value, uint32_t op, int connection, void **request)
{
	struct epf_group *g = coll;

	return iput_signal_v14(g->single, connection, src, src_mr, bytes, dst, dst_mr, rank, signal,
			       signal_mr, value, op, true, request);
}

static int iput_signal_v11(void *coll, uint64_t src, void *src_mr, size_t bytes, uint64_t dst,
			   void *dst_mr, uint32_t rank, uint64_t signal, void *signal_mr,
			   uint64_t value, uint32_t op, void **request)
{
	return iput_signal_v12(coll, src, src_mr, bytes, dst, dst_mr, rank, signal, signal_mr,
			       value, op, 0, request);
}

static int iget(void *context, int index, uint64_t remote, void *remote_mr, size_t bytes,
		uint64_t local, void *local_mr, uint32_t rank, void **request)
{
	struct epf_gin_put p = { .src = remote,
				 .src_mr = remote_mr,
				 .bytes = bytes,
				 .dst = local,
				 .dst_mr = local_mr,
				 .rank = rank };

	return epf_plug_result("iget", epf_gin_get(context, index, &p, request));
}

static int iflush(void *context, int index, void *mr, uint32_t rank, void **request)
{
	(void)mr;
	return epf_plug_result("iflush", epf_gin_flush(context, index, rank, request));
}

static int test(void *coll, void *request, int *done)
{
	return epf_plug_result("test", epf_gin_test(coll, request, done));
}

/* The engine has its own thread. */
static int progress(void *context)
{
	(void)context;
	return EPF_NCCL_OK;
}

/* NCCL passes the proxy's object here, not ours: errors come out of test(). */
static int query_last_error(void *context, bool *has_error)
{
	(void)context;
	*has_error = false;
	return EPF_NCCL_OK;
}

/* What fails shows in counters and in query_last_error(); the thread goes on for the kernels that are not affected. */
static int progress_gpi(void *context)
{
	struct epf_gpi *g = context;
	int rc = epf_gpi_poll(g);

	if (rc < 0)
		(void)epf_plug_result("a kernel's operation", rc);
	if (rc <= 0)
		(void)epf_progress(g->group->ep);
	return EPF_NCCL_OK;
}

static int query_last_error_gpi(void *context, bool *has_error)
{
	*has_error = epf_gpi_has_failed(context);
	return EPF_NCCL_OK;
}

#define HEAD(properties)                                                        \
 .name = "epf", .init = init, .devices = devices, .get_properties = properties, \
 .listen = listen_group
#define TAIL                                                                          \
 .dereg_mr_sym = dereg, .destroy_context = destroy_context, .close_coll = close_coll, \
 .close_listen = close_listen, .test = test, .progress = progress,                    \
 .query_last_error = query_last_error, .finalize = finalize

#pragma GCC visibility push(default)

extern const struct epf_nccl_gin_v11 ncclGinPlugin_v11;
extern const struct epf_nccl_gin_v12 ncclGinPlugin_v12;
extern const struct epf_nccl_gin_v13 ncclGinPlugin_v13;
extern const struct epf_nccl_gin_v14 ncclGinPlugin_v14;
extern const struct epf_nccl_rma_v14 ncclRmaPlugin_v14;

const struct epf_nccl_gin_v11 ncclGinPlugin_v11 = {
	HEAD(properties_v11),
	.connect = connect_v11,
	.create_context = context_v11,
	.reg_mr_sym = reg_v11,
	.reg_mr_sym_dmabuf = reg_dmabuf_v11,
	.iput = iput_v11,
	.iput_signal = iput_signal_v11,
	TAIL,
};

const struct epf_nccl_gin_v12 ncclGinPlugin_v12 = {
	HEAD(properties_v11),
	.connect = connect_v12,
	.create_context = context_v12,
	.reg_mr_sym = reg_v11,
	.reg_mr_sym_dmabuf = reg_dmabuf_v11,
	.iput = iput_v12,
	.iput_signal = iput_signal_v12,
	TAIL,
};

const struct epf_nccl_gin_v13 ncclGinPlugin_v13 = {
	HEAD(properties_v12),
	.connect = connect_v13,
	.create_context = context_v13,
	.reg_mr_sym = reg_v11,
	.reg_mr_sym_dmabuf = reg_dmabuf_v11,
	.iput = iput_v13,
	.iput_signal = iput_signal_v13,
	.iget = iget,
	.iflush = iflush,
	TAIL,
};

const struct epf_nccl_gin_v14 ncclGinPlugin_v14 = {
	.name = "epf",
	.init = init,
	.devices = devices,
	.get_gin_properties = gin_properties,
	.get_properties = properties_v14,
	.listen = listen_group,
	.connect = connect_v13,
	.create_context = context_gpi,
	.reg_mr_sym = reg_gpi,
	.reg_mr_sym_dmabuf = reg_dmabuf_gpi,
	.dereg_mr_sym = dereg,
	.destroy_context = destroy_context_gpi,
	.close_coll = close_coll,
	.close_listen = close_listen,
	.progress = progress_gpi,
	.query_last_error = query_last_error_gpi,
	.finalize = finalize,
};

const struct epf_nccl_rma_v14 ncclRmaPlugin_v14 = {
	HEAD(properties_v12),
	.connect = connect_v13,
	.create_context = context_v14,
	.reg_mr_sym = reg_v14,
	.reg_mr_sym_dmabuf = reg_dmabuf_v14,
	.iput = iput_v13,
	.iput_signal = iput_signal_v14,
	.iget = iget,
	.iflush = iflush,
	TAIL,
};

#pragma GCC visibility pop
