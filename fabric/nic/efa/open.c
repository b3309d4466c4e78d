/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The EFA NIC: choosing and opening a device, the queues all lanes share, receive slots, closing. Slow path, called by the
 * engine when it opens and closes a NIC; the _cold functions are called by efa_*_hot.c when the job grows.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"
#include "fabric/place/select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum { PORT = 1, SINK_BYTES = 4096 };

static int check_opts(const struct epf_efa_opts *o)
{
	int rc;

	if ((rc = epf_nic_check_range("efa", "verbs-service-level", o->service_level, 0, 15)) ||
	    (rc = epf_nic_check_range("efa", "verbs-rnr-retries", o->rnr_retries, 0, 7)) ||
	    (rc = epf_nic_check_range("efa", "efa-inline", o->inline_bytes, 0,
				      EPF_NIC_MSG_BYTES)) ||
	    (rc = epf_nic_check_range("efa", "verbs-completions", o->completions, 16, 1 << 22)) ||
	    (rc = epf_nic_check_range("efa", "verbs-receives", o->receives, 16, 1 << 20)) ||
	    (rc = epf_nic_check_range("efa", "lane-receives", o->lane_receives, 1, 32767)) ||
	    (rc = epf_nic_check_range("efa", "efa-flush-wait", o->flush_wait_ns, 1,
				      UINT64_C(60000000000))))
		return rc;
	return 0;
}

/* What is looked for, and what was found that cannot be used, for the error. */
struct search {
	struct epf_place_select select;
	unsigned devices, fitting;
	char last[160];
};

/* Whether an open device can be used; what it lacks goes to found->last. 1: the device's numbers are in v. */
static int is_fit(struct epf_efa *v, const char *name, struct search *found)
{
	uint32_t caps;

	if (v->lib->efa_query_device(v->ctx, &v->efa_attr, sizeof(v->efa_attr)))
		return 0; /* an RDMA device of another kind */
	found->fitting++;
	caps = v->efa_attr.device_caps;
	if (v->lib->verbs->query_device(v->ctx, &v->dev_attr) ||
	    epf_verbs_query_port(v->lib->verbs, v->ctx, PORT, &v->port_attr) ||
	    v->lib->query_gid(v->ctx, PORT, 0, &v->gid)) {
		snprintf(found->last, sizeof(found->last), "%.60s cannot be asked", name);
		return 0;
	}
	if (!(caps & EPF_EFADV_CAP_RDMA_WRITE) || !(caps & EPF_EFADV_CAP_RDMA_READ)) {
		snprintf(found->last, sizeof(found->last),
			 "%.60s has no RDMA %s, or its driver or libefa is too old to say so", name,
			 caps & EPF_EFADV_CAP_RDMA_READ ? "write" : "read");
		return 0;
	}
	if (v->port_attr.state != IBV_PORT_ACTIVE && !v->opts.may_be_down) {
		snprintf(found->last, sizeof(found->last), "%.60s is not active (port state %d)",
			 name, (int)v->port_attr.state);
		return 0;
	}
	return 1;
}

static int try_device(struct epf_efa *v, struct ibv_device *device, struct search *found)
{
	const char *name = device->name;

	if (!epf_place_select_fits(&found->select, name, PORT))
		return 0;
	found->devices++;
	v->ctx = v->lib->verbs->open_device(device);
	if (!v->ctx) {
		snprintf(found->last, sizeof(found->last), "%.60s cannot be opened: %s", name,
			 strerror(errno));
		return 0;
	}
	if (is_fit(v, name, found)) {
		snprintf(v->device, sizeof(v->device), "%s", name);
		return 1;
	}
	v->lib->verbs->close_device(v->ctx);
	v->ctx = NULL;
	return 0;
}

static int search_devices(struct epf_efa *v, struct search *found)
{
	struct ibv_device **list;
	int count = 0, hit = 0;

	list = v->lib->verbs->get_device_list(&count);
	if (!list && errno == ENOSYS)
		return epf_fail(EPF_R_EFA_DEVICE,
				"efa: this kernel has no RDMA (the modules ib_uverbs and efa)");
	if (!list)
		return epf_fail_sys(EPF_R_EFA_DEVICE, errno, "efa: ibv_get_device_list");
	for (int i = 0; i < count && !hit; i++)
		hit = try_device(v, list[i], found);
	v->lib->verbs->free_device_list(list);
	if (hit)
		return 0;
	if (found->last[0])
		return epf_fail(found->fitting ? EPF_R_EFA_UNFIT : EPF_R_EFA_DEVICE,
				"efa: no device can be used: %s", found->last);
	return epf_fail(
		EPF_R_EFA_DEVICE,
		"efa: none of this machine's %d RDMA devices is an EFA that fits nic-device",
		count);
}

static int open_device(struct epf_efa *v)
{
	struct search found = { 0 };
	int rc = epf_place_select_parse(&v->opts.devices, &found.select);

	if (rc)
		return rc;
	rc = search_devices(v, &found);
	epf_place_select_destroy(&found.select);
	return rc;
}

static uint32_t least(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

/* What the device allows of what the settings ask for. */
static int set_limits(struct epf_efa *v)
{
	const struct epf_efadv_device_attr *e = &v->efa_attr;
	struct epf_efa_opts *o = &v->opts;
	uint32_t most = e->inline_buf_size_ex > e->inline_buf_size ? e->inline_buf_size_ex
								   : e->inline_buf_size;

	o->inline_bytes = least(o->inline_bytes, most);
	if (o->inline_bytes > EPF_EFA_SMALL_INLINE)
		v->qp_flags |= EPF_EFADV_QP_INLINE_WRITE;
	v->lane_depth = least(EPF_EFA_MAX_DEPTH, e->max_sq_wr);
	if (v->qp_flags & EPF_EFADV_QP_INLINE_WRITE) /* queue entries of twice the size */
		v->lane_depth = v->lane_depth > 1 ? v->lane_depth / 2 : 1;
	if (o->unsolicited && (e->device_caps & EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV))
		v->qp_flags |= EPF_EFADV_QP_UNSOLICITED_WRITE_RECV;
	v->completions = least(o->completions, (uint64_t)v->dev_attr.max_cqe);
	o->receives = least(o->receives, (uint64_t)v->dev_attr.max_cqe);
	v->max_lanes = least(EPF_EFA_MAX_LANES, (uint64_t)v->dev_attr.max_qp);
	v->max_msg_bytes = least(EPF_EFA_MSG_BYTES, e->max_rdma_size);
	v->counters.link_up = v->port_attr.state == IBV_PORT_ACTIVE;
	if (o->lane_receives > e->max_rq_wr)
		return epf_fail(EPF_R_NIC_LIMIT,
				"efa: lane-receives is %u, but a queue pair of %s holds %u",
				o->lane_receives, v->device, e->max_rq_wr);
	v->lane_receives = o->lane_receives;
	return 0;
}

/*
 * A completion queue with the provider's lock: one thread polls it, and another makes and destroys queue pairs that report to it. A device
 * without notifications refuses a channel: the NIC then has none, and a sleeping core looks by itself.
 */
static struct ibv_cq_ex *create_cq(struct epf_efa *v, uint32_t entries, uint64_t wc_flags)
{
	struct epf_efadv_cq_attr efa_attr = { .wc_flags = wc_flags };
	struct ibv_cq_init_attr_ex attr = {
		.cqe = entries,
		.channel = v->channel,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
			    IBV_WC_EX_WITH_SRC_QP,
	};

	/* cppcheck-suppress returnDanglingLifetime ; the provider reads both and keeps neither */
	return v->lib->efa_create_cq(v->ctx, &attr, &efa_attr, sizeof(efa_attr));
}

static int create_channel(struct epf_efa *v)
{
	struct ibv_cq_ex *probe;

	v->channel = v->lib->verbs->create_comp_channel(v->ctx);
	if (!v->channel)
		return epf_efa_call_failed(v, "ibv_create_comp_channel", "a completion channel");
	probe = create_cq(v, 16, 0);
	if (probe) {
		v->lib->verbs->destroy_cq(ibv_cq_ex_to_cq(probe));
		return epf_rdma_set_nonblocking("efa", v->channel->fd);
	}
	if (errno != EOPNOTSUPP)
		return epf_efa_call_failed(v, "efadv_create_cq", "a completion queue");
	v->lib->verbs->destroy_comp_channel(v->channel);
	v->channel = NULL;
	return 0;
}

static int create_queues(struct epf_efa *v)
{
	int unsolicited = v->qp_flags & EPF_EFADV_QP_UNSOLICITED_WRITE_RECV;
	int rc = epf_rdma_set_nonblocking("efa", v->ctx->async_fd);

	if (rc)
		return rc;
	v->pd = v->lib->verbs->alloc_pd(v->ctx);
	if (!v->pd)
		return epf_efa_call_failed(v, "ibv_alloc_pd", "a protection domain");
	rc = create_channel(v);
	if (rc)
		return rc;
	v->send_cq = create_cq(v, v->completions, 0);
	if (!v->send_cq)
		return epf_efa_call_failed(v, "efadv_create_cq", "verbs-completions");
	v->recv_cq =
		create_cq(v, v->opts.receives, unsolicited ? EPF_EFADV_WC_WITH_IS_UNSOLICITED : 0);
	if (!v->recv_cq)
		return epf_efa_call_failed(v, "efadv_create_cq", "verbs-receives");
	if (unsolicited)
		v->recv_dv = v->lib->efa_cq_of(v->recv_cq);
	if (unsolicited && !v->recv_dv)
		return epf_efa_call_failed(v, "efadv_cq_from_ibv_cq_ex", "verbs-receives");
	v->sink = aligned_alloc(SINK_BYTES, SINK_BYTES);
	if (!v->sink)
		return epf_fail(EPF_R_NO_MEMORY, "efa: a NIC");
	memset(v->sink, 0, SINK_BYTES);
	v->sink_mr = v->lib->verbs->reg_mr_iova2(v->pd, v->sink, SINK_BYTES, (uintptr_t)v->sink,
						 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							 IBV_ACCESS_REMOTE_READ);
	return v->sink_mr ? 0 : epf_efa_call_failed(v, "ibv_reg_mr", "a sink");
}

void epf_efa_destroy(struct epf_efa *v)
{
	const struct epf_verbs_lib *verbs = v->lib->verbs;

	epf_hw_counters_close(&v->hw_counters);
	if (v->recv_cq)
		verbs->destroy_cq(ibv_cq_ex_to_cq(v->recv_cq));
	if (v->send_cq)
		verbs->destroy_cq(ibv_cq_ex_to_cq(v->send_cq));
	if (v->channel)
		verbs->destroy_comp_channel(v->channel);
	epf_rdma_slots_free(&v->receives);
	if (v->sink_mr)
		verbs->dereg_mr(v->sink_mr);
	free(v->sink);
	if (v->pd)
		verbs->dealloc_pd(v->pd);
	if (v->ctx)
		verbs->close_device(v->ctx);
	if (v->lanes)
		munmap(v->lanes, v->max_lanes * sizeof(*v->lanes));
	free(v->lane_of);
	free(v->opener);
	if (!v->shares_wakeup)
		free(v->wakeup);
	pthread_mutex_destroy(&v->setup);
	free(v);
}

/* Lanes come as they are used: memory that is not touched is not there. */
static int alloc_lanes(struct epf_efa *v)
{
	void *at = mmap(NULL, v->max_lanes * sizeof(*v->lanes), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "efa: lanes");
	v->lanes = at;
	return 0;
}

static struct epf_efa *alloc_nic(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts)
{
	struct epf_efa *v = aligned_alloc(64, (sizeof(*v) + 63) / 64 * 64);

	if (!v)
		return NULL;
	memset(v, 0, sizeof(*v));
	v->nic.ops = epf_nic_find("efa");
	v->lib = lib;
	v->opts = *opts;
	v->notify.waker.stop_fd = -1;
	pthread_mutex_init(&v->setup, NULL);
	v->report_head = v->report_tail = v->hungry_head = v->hungry_tail = EPF_EFA_NONE;
	v->wakeup = aligned_alloc(128, sizeof(*v->wakeup));
	v->lane_of = malloc(EPF_EFA_QPNS * sizeof(*v->lane_of));
	if (!v->wakeup || !v->lane_of ||
	    getrandom(&v->random, sizeof(v->random), 0) != sizeof(v->random)) {
		epf_efa_destroy(v);
		return NULL;
	}
	memset(v->wakeup, 0, sizeof(*v->wakeup));
	memset(v->lane_of, 0xff, EPF_EFA_QPNS * sizeof(*v->lane_of));
	return v;
}

int epf_efa_open(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
		 uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct epf_efa *v;
	int rc = check_opts(opts);

	if (rc)
		return rc;
	v = alloc_nic(lib, opts);
	if (!v)
		return epf_fail(EPF_R_NO_MEMORY, "efa: a NIC");
	v->now = now;
	v->now_arg = now_arg;
	rc = epf_efa_reopen_init(v);
	if (!rc)
		rc = open_device(v);
	if (!rc)
		rc = set_limits(v);
	if (!rc)
		rc = alloc_lanes(v);
	if (!rc)
		rc = create_queues(v);
	if (!rc) {
		v->receives.lib = v->lib->verbs;
		v->receives.pd = v->pd;
		v->receives.kind = "efa";
		v->receives.device = v->device;
		rc = epf_rdma_more_slots_cold(&v->receives, EPF_RDMA_MIN_SLOTS);
	}
	if (rc) {
		epf_efa_destroy(v);
		return rc;
	}
	epf_efa_counters_open(v);
	memset(&v->opts.devices, 0, sizeof(v->opts.devices)); /* the caller's */
	*out = &v->nic;
	return 0;
}

void epf_efa_share_wakeup(struct epf_nic *nic, const struct epf_nic *with)
{
	struct epf_efa *v = epf_efa_of(nic);

	if (!v->shares_wakeup)
		free(v->wakeup);
	v->wakeup = epf_efa_of(with)->wakeup;
	v->shares_wakeup = 1;
}
