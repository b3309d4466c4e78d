/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening libibverbs at run time (lib.h). Called when a verbs NIC is opened. The library is never closed again: its
 * providers hold state that outlives a NIC.
 */
#include "fabric/nic/rdma/lib.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	size_t at;
} symbols[] = {

#define S(symbol, field)                        \
 {                                              \
  symbol, offsetof(struct epf_verbs_lib, field) \
 }
	S("ibv_get_device_list", get_device_list),
	S("ibv_free_device_list", free_device_list),
	S("ibv_open_device", open_device),
	S("ibv_close_device", close_device),
	S("ibv_query_device", query_device),
	S("ibv_query_port", query_port),
	S("_ibv_query_gid_table", query_gid_table),
	S("ibv_alloc_pd", alloc_pd),
	S("ibv_dealloc_pd", dealloc_pd),
	S("ibv_reg_mr_iova2", reg_mr_iova2),
	S("ibv_reg_dmabuf_mr", reg_dmabuf_mr),
	S("ibv_dereg_mr", dereg_mr),
	S("ibv_create_comp_channel", create_comp_channel),
	S("ibv_destroy_comp_channel", destroy_comp_channel),
	S("ibv_create_cq", create_cq),
	S("ibv_destroy_cq", destroy_cq),
	S("ibv_get_cq_event", get_cq_event),
	S("ibv_ack_cq_events", ack_cq_events),
	S("ibv_create_srq", create_srq),
	S("ibv_destroy_srq", destroy_srq),
	S("ibv_create_qp", create_qp),
	S("ibv_modify_qp", modify_qp),
	S("ibv_destroy_qp", destroy_qp),
	S("ibv_qp_to_qp_ex", qp_to_qp_ex),
	S("ibv_get_async_event", get_async_event),
	S("ibv_ack_async_event", ack_async_event),
#undef S
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) ==
		       sizeof(struct epf_verbs_lib) / sizeof(void *),
	       "every entry of the table has its symbol");

static struct epf_verbs_lib table;
static char why[256]; /* empty: the table is filled */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);

	if (!handle) {
		snprintf(why, sizeof(why), "%s", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *at = dlsym(handle, symbols[i].name);

		if (!at && symbols[i].at == offsetof(struct epf_verbs_lib, reg_dmabuf_mr))
			continue; /* without it there is no GPU memory by dma-buf, but all else */
		if (!at) {
			snprintf(why, sizeof(why), "libibverbs.so.1 is too old: it has no %s",
				 symbols[i].name);
			return;
		}
		memcpy((char *)&table + symbols[i].at, &at, sizeof(at));
	}
}

int epf_verbs_lib(const struct epf_verbs_lib **out)
{
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(EPF_R_VERBS_LIBRARY, "verbs: %s", why);
	*out = &table;
	return 0;
}

int epf_verbs_query_port(const struct epf_verbs_lib *lib, struct ibv_context *context, uint8_t port,
			 struct ibv_port_attr *out)
{
	struct verbs_context *long_form = verbs_get_ctx_op(context, query_port);

	memset(out, 0, sizeof(*out));
	if (long_form)
		return long_form->query_port(context, port, out, sizeof(*out));
	return lib->query_port(context, port, (struct _compat_ibv_port_attr *)(void *)out);
}
