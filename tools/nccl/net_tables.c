/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net tables that NCCL finds in the plug-in by name, versions 10 to 12, and the edge between its conventions and ours: its numbers, its log. What the
 * functions do is in net.h.
 */
#include "fabric/base/err.h"
#include "tools/nccl/net.h"
#include "tools/nccl/plug.h"
#include "tools/nccl/properties.h"
#include "tools/nccl/start.h"

static int devices(int *n)
{
	*n = 1;
	return EPF_NCCL_OK;
}

static int init(void **context, uint64_t comm_id, struct epf_nccl_config *config,
		epf_nccl_log_fn log, epf_nccl_profile_fn profile)
{
	(void)comm_id;
	(void)config;
	(void)profile;
	if (context)
		*context = &epf_plug;
	return epf_plug_result("init", epf_plug_open(log));
}

static int finalize(void *context)
{
	(void)context;
	epf_plug_close();
	return EPF_NCCL_OK;
}

static int init_v10(epf_nccl_log_fn log, epf_nccl_profile_fn profile)
{
	return init(NULL, 0, NULL, log, profile);
}

static int properties_v10(int device, struct epf_nccl_properties_v10 *out)
{
	struct epf_nccl_properties_v12 p;
	int rc = epf_nccl_net_properties(device, &p);

	if (!rc)
		epf_nccl_properties_as_v10(&p, out);
	return epf_plug_result("getProperties", rc);
}

static int properties_v11(int device, struct epf_nccl_properties_v11 *out)
{
	struct epf_nccl_properties_v12 p;
	int rc = epf_nccl_net_properties(device, &p);

	if (!rc)
		epf_nccl_properties_as_v11(&p, out);
	return epf_plug_result("getProperties", rc);
}

static int properties_v12(int device, struct epf_nccl_properties_v12 *out)
{
	return epf_plug_result("getProperties", epf_nccl_net_properties(device, out));
}

static int listen_v11(void *context, int device, void *handle, void **listen_comm)
{
	struct epf_listener *l;
	int rc = epf_nccl_check_device(device);

	(void)context;
	if (!rc)
		rc = epf_net_listen(handle, &l);
	if (!rc)
		*listen_comm = l;
	return epf_plug_result("listen", rc);
}

static int listen_v10(int device, void *handle, void **listen_comm)
{
	return listen_v11(NULL, device, handle, listen_comm);
}

static int connect_v11(void *context, int device, void *handle, void **send_comm,
		       struct epf_nccl_device_handle **device_comm)
{
	struct epf_send *s = NULL;
	int rc = epf_nccl_check_device(device);

	(void)context;
	(void)device_comm;
	if (!rc)
		rc = epf_net_connect(handle, &s);
	if (!rc)
		*send_comm = s;
	return epf_plug_result("connect", rc);
}

static int connect_v10(int device, struct epf_nccl_config *config, void *handle, void **send_comm,
		       struct epf_nccl_device_handle **device_comm)
{
	(void)config;
	return connect_v11(NULL, device, handle, send_comm, device_comm);
}

static int accept_one(void *listen_comm, void **recv_comm, struct epf_nccl_device_handle **device)
{
	struct epf_recv *r = NULL;
	int rc = epf_net_accept(listen_comm, &r);

	(void)device;
	if (!rc)
		*recv_comm = r;
	return epf_plug_result("accept", rc);
}

static int reg_mr(void *comm, void *data, size_t bytes, int type, void **mr)
{
	struct epf_mr *m;
	int rc = epf_net_register(comm, data, bytes, type, &m);

	if (!rc)
		*mr = m;
	return epf_plug_result("regMr", rc);
}

/* The library asks the driver for a dma-buf by itself, where the NIC takes one. */
static int reg_mr_dmabuf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
			 void **mr)
{
	(void)offset;
	(void)fd;
	return reg_mr(comm, data, bytes, type, mr);
}

static int dereg_mr(void *comm, void *mr)
{
	(void)comm;
	epf_net_deregister(mr);
	return EPF_NCCL_OK;
}

static int isend(void *send_comm, void *data, size_t bytes, int tag, void *mr, void *profile,
		 void **request)
{
	struct epf_request *r;
	int rc = epf_net_isend(send_comm, data, bytes, tag, mr, &r);

	(void)profile;
	if (!rc)
		*request = r;
	return epf_plug_result("isend", rc);
}

static int irecv(void *recv_comm, int n, void **data, size_t *bytes, int *tags, void **mrs,
		 void **profiles, void **request)
{
	struct epf_mr *registered[EPF_NET_PARTS] = { NULL };
	struct epf_request *r;
	int rc;

	(void)profiles;
	for (int i = 0; i < n && i < EPF_NET_PARTS; i++)
		registered[i] = mrs[i];
	rc = epf_net_irecv(recv_comm, n, data, bytes, tags, registered, &r);
	if (!rc)
		*request = r;
	return epf_plug_result("irecv", rc);
}

/* The engine has the GPU see the data before it says that it came (docs/design.md, section 6): nothing is left to do. */
static int iflush(void *recv_comm, int n, void **data, int *bytes, void **mrs, void **request)
{
	(void)recv_comm;
	(void)n;
	(void)data;
	(void)bytes;
	(void)mrs;
	*request = NULL;
	return EPF_NCCL_OK;
}

static int test(void *request, int *done, int *bytes)
{
	int rc = epf_net_test(request, done, bytes);

	return epf_plug_result("test", rc);
}

static int close_comm(void *comm)
{
	epf_net_close(comm);
	return EPF_NCCL_OK;
}

static int close_listen(void *listen_comm)
{
	epf_net_close_listen(listen_comm);
	return EPF_NCCL_OK;
}

/* NCCL takes NULL for what we have no use for: getDeviceMr and irecvConsumed (no device offload), makeVDevice (the fabric merges NICs itself), setNetAttr. */
#define OPERATIONS                                                                             \
 .accept = accept_one, .reg_mr = reg_mr, .reg_mr_dmabuf = reg_mr_dmabuf, .dereg_mr = dereg_mr, \
 .isend = isend, .irecv = irecv, .iflush = iflush, .test = test, .close_send = close_comm,     \
 .close_recv = close_comm, .close_listen = close_listen

#pragma GCC visibility push(default)

extern const struct epf_nccl_net_v10 ncclNetPlugin_v10;
extern const struct epf_nccl_net_v11 ncclNetPlugin_v11;
extern const struct epf_nccl_net_v12 ncclNetPlugin_v12;

const struct epf_nccl_net_v10 ncclNetPlugin_v10 = {
	.name = "epf",
	.init = init_v10,
	.devices = devices,
	.get_properties = properties_v10,
	.listen = listen_v10,
	.connect = connect_v10,
	OPERATIONS,
};

const struct epf_nccl_net_v11 ncclNetPlugin_v11 = {
	.name = "epf",
	.init = init,
	.devices = devices,
	.get_properties = properties_v11,
	.listen = listen_v11,
	.connect = connect_v11,
	OPERATIONS,
	.finalize = finalize,
};

const struct epf_nccl_net_v12 ncclNetPlugin_v12 = {
	.name = "epf",
	.init = init,
	.devices = devices,
	.get_properties = properties_v12,
	.listen = listen_v11,
	.connect = connect_v11,
	OPERATIONS,
	.finalize = finalize,
};

#pragma GCC visibility pop
