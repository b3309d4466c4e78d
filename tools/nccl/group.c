/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks and their memory (gin.h): a job of the fabric for each, with the plug-in's own rendezvous and secret. */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/gin.h"

#include "bootstrap/boot.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WITHDRAW_NS 5000000000ull

enum { REGIONS = 4096 };

static int no_memory(const char *what)
{
	return epf_fail(EPF_R_NO_MEMORY, "nccl: %s", what);
}

/*
 * Keeps a port from others until the rendezvous server has it; both must say that they may share it. On all addresses where the server listens on all: a port that
 * is free at one of them may be taken at another.
 */
static int keep_port(struct epf_group_listener *l, struct epf_net_addr *address)
{
	struct epf_net_addr at =
		epf_net_is_loopback(address) ? *address : epf_net_any(address->sa.sa_family, 0);
	int on = 1, off = 0;

	epf_net_set_port(&at, 0);
	l->fd = socket(at.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    (at.sa.sa_family == AF_INET6 &&
	     setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off))) ||
	    bind(l->fd, &at.sa, at.len) || getsockname(l->fd, &at.sa, &at.len))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: an address for the ranks to meet");
	epf_net_set_port(address, epf_net_port(&at));
	return 0;
}

int epf_group_listen(void *handle, struct epf_group_listener **out)
{
	struct epf_group_listener *l = calloc(1, sizeof(*l));
	struct epf_nccl_handle *h;
	int rc;

	if (!l)
		return no_memory("a listening object");
	h = &l->handle;
	h->kind = EPF_NCCL_HANDLE_GROUP;
	h->address = epf_plug.address;
	rc = keep_port(l, &h->address);
	if (rc) {
		epf_group_close_listen(l);
		return rc;
	}
	memcpy(h->process, epf_plug.self.process, sizeof(h->process));
	epf_auth_nonce(h->secret);
	epf_plug_lock();
	h->listener = ++epf_plug.listeners_made;
	epf_plug_unlock();
	epf_nccl_handle_write(h, handle);
	*out = l;
	return 0;
}

void epf_group_close_listen(struct epf_group_listener *listener)
{
	if (!listener)
		return;
	if (listener->fd >= 0)
		close(listener->fd);
	explicit_bzero(listener, sizeof(*listener));
	free(listener);
}

/*
 * Which NIC serves the group where the setting says auto: the software NIC if all ranks' doors have one address, which they have within a host. Every rank sees
 * all handles, so all choose alike.
 */
static const char *choose(void *const *handles, int ranks)
{
	struct epf_nccl_handle first, h;
	bool one = true;

	if (epf_nccl_handle_read(handles[0], EPF_NCCL_HANDLE_GROUP, &first))
		return "tcp"; /* refused by the caller already */
	for (int r = 1; r < ranks && one; r++) {
		if (epf_nccl_handle_read(handles[r], EPF_NCCL_HANDLE_GROUP, &h))
			return "tcp";
		epf_net_set_port(&h.address, epf_net_port(&first.address));
		one = h.address.len == first.address.len &&
		      memcmp(&h.address.any, &first.address.any, h.address.len) == 0;
	}
	return epf_plug_nic(one);
}

static bool adds(const char *nic)
{
	return strcmp(nic, "emu") == 0 || strcmp(nic, "tcp") == 0;
}

bool epf_group_adds_to_gpus(void)
{
	enum epf_conf_nic nic = epf_plug.conf.nic;

	return nic == EPF_CONF_NIC_EMU || nic == EPF_CONF_NIC_TCP ||
	       (nic == EPF_CONF_NIC_AUTO && adds(epf_plug_nic(true)) && adds(epf_plug_nic(false)));
}

static int open_engine(struct epf_group *g, void *const *handles, int ranks)
{
	char regions[32], streams[40], nic[32];
	const char *settings[] = { "service=", "progress=thread", regions,
				   streams,    "signals=1",       nic,
				   NULL };
	struct epf_options o;

	snprintf(regions, sizeof(regions), "regions=%d", REGIONS);
	snprintf(streams, sizeof(streams), "streams-per-peer=%d", EPF_GIN_RINGS + 16);
	g->adds_to_gpus = epf_group_adds_to_gpus();
	if (epf_plug.conf.nic == EPF_CONF_NIC_AUTO) {
		const char *chosen = choose(handles, ranks);

		snprintf(nic, sizeof(nic), "nic=%s", chosen);
		g->adds_to_gpus = adds(chosen);
	} else {
		settings[5] = NULL;
	}
	epf_options_init(&o);
	o.settings = settings;
	return epf_open(&o, &g->ep);
}

static int meet(struct epf_group *g, const struct epf_nccl_handle *root,
		struct epf_group_listener *listener)
{
	struct epf_boot_opts o = {
		.size = sizeof(o),
		.rank = g->rank,
		.world = g->ranks,
		.job = "nccl-group",
		.secret = root->secret,
		.secret_len = sizeof(root->secret),
		.timeout_ns = epf_plug.conf.bootstrap_timeout_ns,
		.is_root = g->rank == 0,
		.notice_first_ns = UINT64_MAX
	}; /* its hints are for jobs that people start */
	char text[EPF_BOOT_ADDRESS_MAX];
	int rc;

	epf_net_print(&root->address, text, sizeof(text));
	o.rendezvous = text;
	rc = epf_boot_tcp_open(&o, &g->boot);
	if (o.is_root && listener->fd >= 0) { /* the server has the port */
		close(listener->fd);
		listener->fd = -1;
	}
	return rc ? rc : epf_join(g->ep, g->boot);
}

static int check(void *const *handles, int ranks, int rank, struct epf_nccl_handle *root)
{
	struct epf_nccl_handle h;
	int rc = 0;

	if (ranks < 1 || ranks > EPF_GIN_RANKS || rank < 0 || rank >= ranks)
		return epf_fail(EPF_R_NCCL_CALL,
				"nccl: rank %d of a group of %d, at most %d are possible", rank,
				ranks, EPF_GIN_RANKS);
	for (int r = ranks - 1; r >= 0 && !rc; r--)
		rc = epf_nccl_handle_read(handles[r], EPF_NCCL_HANDLE_GROUP, &h);
	*root = h;
	return rc;
}

int epf_group_connect(void *const *handles, int ranks, int rank,
		      struct epf_group_listener *listener, struct epf_group **out)
{
	struct epf_nccl_handle root;
	struct epf_group *g;
	int rc = check(handles, ranks, rank, &root);

	if (rc)
		return rc;
	g = calloc(1, sizeof(*g));
	if (!g)
		return no_memory("a group");
	g->ranks = (uint32_t)ranks;
	g->rank = (uint32_t)rank;
	pthread_mutex_init(&g->lock, NULL);
	rc = open_engine(g, handles, ranks);
	if (!rc)
		rc = meet(g, &root, listener);
	explicit_bzero(&root, sizeof(root));
	if (rc) {
		struct epf_error why;

		epf_error_get(&why);
		epf_group_close(g);
		epf_error_set(&why);
		return rc;
	}
	*out = g;
	return 0;
}

void epf_group_close(struct epf_group *group)
{
	if (!group)
		return;
	epf_gin_context_close(group->single);
	epf_close(group->ep);
	epf_boot_close(group->boot);
	pthread_mutex_destroy(&group->lock);
	free(group);
}

/* Every rank's region number, then the regions themselves. */
static int publish(struct epf_group *g, struct epf_group_mr *mr)
{
	int rc = epf_allgather(g->ep, &mr->region, sizeof(mr->region), mr->remote);

	return rc ? rc : epf_exchange(g->ep);
}

int epf_group_register(struct epf_group *group, void *data, size_t bytes, int type,
		       struct epf_group_mr **out)
{
	struct epf_group_mr *mr;
	unsigned access = EPF_REMOTE_WRITE | EPF_REMOTE_READ;
	int rc;

	if (!data || !bytes || (type != EPF_NCCL_HOST && type != EPF_NCCL_CUDA))
		return epf_fail(EPF_R_NCCL_CALL, "nccl: a registration of %zu bytes of kind %d",
				bytes, type);
	mr = calloc(1, sizeof(*mr) + group->ranks * sizeof(mr->remote[0]));
	if (!mr)
		return no_memory("a registration");
	mr->bytes = bytes;
	mr->is_gpu = type == EPF_NCCL_CUDA;
	rc = type == EPF_NCCL_HOST
		     ? epf_region_register(group->ep, data, bytes, access, &mr->region)
		     : epf_region_register_gpu(group->ep, data, bytes, access, &mr->region);
	if (!rc)
		rc = publish(group, mr);
	if (rc)
		free(mr);
	else
		*out = mr;
	return rc;
}

void epf_group_deregister(struct epf_group *group, struct epf_group_mr *mr)
{
	int rc;

	if (!mr)
		return;
	if (mr->window)
		__atomic_store_n(&group->window[mr->window - 1], NULL, __ATOMIC_RELEASE);
	rc = epf_region_withdraw(group->ep, mr->region, WITHDRAW_NS);
	if (rc && rc != -ECONNRESET) /* the loss of a rank was reported by what it failed */
		epf_warn("a registration ends: %s", epf_last_error());
	free(mr);
}

int epf_group_number(struct epf_group *group, struct epf_group_mr *mr)
{
	unsigned i = 0;

	pthread_mutex_lock(&group->lock);
	while (i < EPF_GIN_WINDOWS && group->window[i])
		i++;
	if (i < EPF_GIN_WINDOWS) {
		mr->window = i + 1;
		__atomic_store_n(&group->window[i], mr, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&group->lock);
	return i < EPF_GIN_WINDOWS
		       ? 0
		       : epf_fail(EPF_R_NCCL_LIMIT, "nccl: %d windows of a group are registered",
				  EPF_GIN_WINDOWS);
}

/* The first number that is free. */
static int open_ring(struct epf_group *g, uint32_t *number)
{
	struct epf_ring_options o = { .size = sizeof(o), .slots = EPF_GIN_SLOTS };
	int rc = 0;

	pthread_mutex_lock(&g->lock);
	for (*number = 0; *number < EPF_GIN_RINGS && g->ring[*number]; (*number)++)
		;
	if (*number == EPF_GIN_RINGS)
		rc = epf_fail(EPF_R_NCCL_LIMIT, "nccl: %d contexts of a group are in use",
			      EPF_GIN_RINGS);
	else
		rc = epf_ring_open(g->ep, &o, &g->ring[*number]);
	pthread_mutex_unlock(&g->lock);
	return rc;
}

int epf_gin_context_open(struct epf_group *group, int contexts, struct epf_gin_context **out)
{
	struct epf_gin_context *c;
	int rc = 0;

	if (contexts < 1 || contexts > EPF_GIN_RINGS)
		return epf_fail(EPF_R_NCCL_LIMIT, "nccl: %d contexts, 1 to %d are possible",
				contexts, EPF_GIN_RINGS);
	c = calloc(1, sizeof(*c) + (size_t)contexts * sizeof(c->ring[0]));
	if (!c)
		return no_memory("contexts");
	c->group = group;
	for (int i = 0; i < contexts && !rc; i++) {
		rc = open_ring(group, &c->ring[i]);
		c->n += !rc;
	}
	if (rc) {
		struct epf_error why;

		epf_error_get(&why);
		epf_gin_context_close(c);
		epf_error_set(&why);
		return rc;
	}
	*out = c;
	return 0;
}

void epf_gin_context_close(struct epf_gin_context *context)
{
	struct epf_group *g;

	if (!context)
		return;
	g = context->group;
	for (unsigned i = 0; i < context->n; i++) {
		struct epf_ring *ring = g->ring[context->ring[i]];

		epf_ring_close(ring);
		pthread_mutex_lock(&g->lock);
		g->ring[context->ring[i]] = NULL;
		pthread_mutex_unlock(&g->lock);
	}
	free(context);
}
