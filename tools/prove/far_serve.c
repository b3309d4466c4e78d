/* SPDX-License-Identifier: Apache-2.0 */
/* The host that waits: carries out on its own NIC what the other asks: see far.h. It believes no offset and no number. */
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tools/prove/far.h"
#include "tools/prove/far_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAP_NS 1000000ull /* a reap that finds nothing looks for so long */

enum { ASKING = 0 }; /* the rank of the host that asks */

struct serve {
	int (*open)(void *arg, unsigned flags, struct epf_nic **out);
	void *arg;
	struct epf_nic *nic; /* NULL: not open */
	unsigned char *mem;
	struct epf_nic_mr mr[FAR_REGIONS];
	unsigned char used[FAR_REGIONS];
	unsigned char reply[sizeof(struct far_head) + RIG_BYTES];
};

static void close_nic(struct serve *s)
{
	if (s->nic)
		s->nic->ops->close(s->nic);
	s->nic = NULL;
	memset(s->used, 0, sizeof(s->used));
}

static int in_memory(uint64_t off, uint64_t len)
{
	return off <= RIG_BYTES && len <= RIG_BYTES - off;
}

static int open_nic(struct serve *s, unsigned flags, void *data, size_t *len)
{
	struct far_caps caps = { 0 };
	int rc;

	close_nic(s);
	memset(s->mem, 0, RIG_BYTES);
	rc = s->open(s->arg, flags, &s->nic);
	if (rc) {
		s->nic = NULL;
		return rc;
	}
	s->nic->ops->describe(s->nic, &caps.caps);
	caps.caps.name = NULL;
	caps.base = (uint64_t)(uintptr_t)s->mem;
	memcpy(data, &caps, sizeof(caps));
	*len = sizeof(caps);
	return 0;
}

static int do_register(struct serve *s, struct far_head *h, void *data, size_t *len)
{
	unsigned i = 0;
	int rc;

	while (i < FAR_REGIONS && s->used[i])
		i++;
	if (i == FAR_REGIONS || !in_memory(h->a, h->b))
		return -EINVAL;
	rc = s->nic->ops->region_register(s->nic, s->mem + h->a, h->b, h->n, &s->mr[i]);
	if (rc)
		return rc;
	s->used[i] = 1;
	h->a = i;
	memcpy(data, &s->mr[i], sizeof(s->mr[i]));
	*len = sizeof(s->mr[i]);
	return 0;
}

static int do_post(struct serve *s, const struct far_head *h, unsigned char *data, size_t len)
{
	struct epf_wr wr;

	if (len < sizeof(wr))
		return -EINVAL;
	memcpy(&wr, data, sizeof(wr));
	if (wr.flags & EPF_WR_INLINE) {
		if (wr.len > EPF_NIC_MSG_BYTES || len - sizeof(wr) < wr.len)
			return -EINVAL;
		wr.laddr = (uint64_t)(uintptr_t)(data + sizeof(wr));
	}
	return s->nic->ops->post(s->nic, h->lane, &wr, 1);
}

static int do_reap(struct serve *s, const struct far_head *h, unsigned char *data, size_t *len)
{
	unsigned most = h->n < FAR_REAP_MOST ? h->n : FAR_REAP_MOST;
	uint64_t since = epf_now_ns();
	struct epf_wc wc[FAR_REAP_MOST];
	int n;

	for (;;) {
		n = s->nic->ops->reap(s->nic, wc, most);
		if (n || epf_now_ns() - since > REAP_NS)
			break;
		s->nic->ops->wake_peers(s->nic);
		usleep(20);
	}
	*len = sizeof(wc) + (size_t)FAR_REAP_MOST * EPF_NIC_MSG_BYTES;
	memset(data, 0, *len);
	for (int i = 0; i < n; i++) {
		if (wc[i].op == EPF_WC_RECV && wc[i].len <= EPF_NIC_MSG_BYTES)
			memcpy(data + sizeof(wc) + (size_t)i * EPF_NIC_MSG_BYTES, wc[i].msg,
			       wc[i].len);
		wc[i].msg = NULL;
	}
	memcpy(data, wc, sizeof(wc));
	return n;
}

static int do_lane(struct serve *s, struct far_head *h, const void *data, size_t len)
{
	struct epf_nic *nic = s->nic;

	switch (h->op) {
	case FAR_LANE_CREATE:
		return nic->ops->lane_create(nic, h->lane, h->n, &h->a);
	case FAR_LANE_CONNECT:
		return nic->ops->lane_connect(nic, h->lane, data, len, h->a);
	case FAR_LANE_FENCE:
		nic->ops->lane_fence(nic, h->lane);
		return 0;
	case FAR_LANE_DRAINED:
		return nic->ops->lane_drained(nic, h->lane);
	case FAR_LANE_DESTROY:
		nic->ops->lane_destroy(nic, h->lane);
		return 0;
	default:
		return (int)nic->ops->lane_link(nic, h->lane);
	}
}

static int do_memory(struct serve *s, const struct far_head *h, void *out, const void *in,
		     size_t *len, size_t in_len)
{
	if (!in_memory(h->a, h->b) || (h->op == FAR_STORE && in_len != h->b))
		return -EINVAL;
	if (h->op == FAR_STORE) {
		memcpy(s->mem + h->a, in, h->b);
	} else {
		memcpy(out, s->mem + h->a, h->b);
		*len = h->b;
	}
	return 0;
}

/* Operations of an open NIC. @data, @len: in and out. */
static int carry_out(struct serve *s, struct far_head *h, unsigned char *in, size_t in_len,
		     unsigned char *out, size_t *len)
{
	struct epf_nic *nic = s->nic;
	int rc;

	switch (h->op) {
	case FAR_ADDRESS:
		rc = nic->ops->address(nic, out,
				       h->a < EPF_NIC_ADDR_BYTES ? h->a : EPF_NIC_ADDR_BYTES);
		*len = rc > 0 ? (size_t)rc : 0;
		return rc;
	case FAR_REGISTER:
		return do_register(s, h, out, len);
	case FAR_DEREGISTER:
		if (h->a >= FAR_REGIONS || !s->used[h->a])
			return -EINVAL;
		nic->ops->region_deregister(nic, &s->mr[h->a]);
		s->used[h->a] = 0;
		return 0;
	case FAR_LANE_CREATE:
	case FAR_LANE_CONNECT:
	case FAR_LANE_FENCE:
	case FAR_LANE_DRAINED:
	case FAR_LANE_DESTROY:
	case FAR_LANE_LINK:
		return do_lane(s, h, in, in_len);
	case FAR_POST:
		return do_post(s, h, in, in_len);
	case FAR_REAP:
		return do_reap(s, h, out, len);
	case FAR_RECEIVES:
		nic->ops->post_receives(nic, h->n);
		return 0;
	case FAR_COUNTERS:
		nic->ops->counters(nic, (struct epf_nic_counters *)(void *)out);
		*len = sizeof(struct epf_nic_counters);
		return 0;
	case FAR_WATCH:
		nic->ops->watch(nic);
		return 0;
	case FAR_WAKE_PEERS:
		nic->ops->wake_peers(nic);
		return 0;
	case FAR_SET_LINK:
		return nic->ops->set_link(nic, (unsigned)h->a, h->n != 0);
	case FAR_LOAD:
	case FAR_STORE:
		return do_memory(s, h, out, in, len, in_len);
	default:
		return -ENOSYS;
	}
}

/* Fills s->reply. Returns its length; *end: nothing more comes. */
static size_t answer(struct serve *s, unsigned char *request, size_t bytes, int *end)
{
	unsigned char *out = s->reply + sizeof(struct far_head);
	struct far_head h = { .op = 0 };
	size_t len = 0;

	if (bytes >= sizeof(h))
		memcpy(&h, request, sizeof(h));
	if (h.op == FAR_OPEN) {
		h.rc = open_nic(s, h.n, out, &len);
	} else if (h.op == FAR_CLOSE || h.op == FAR_END) {
		close_nic(s);
		h.rc = 0;
		*end = h.op == FAR_END;
	} else {
		h.rc = s->nic && h.op
			       ? carry_out(s, &h, request + sizeof(h), bytes - sizeof(h), out, &len)
			       : -EINVAL;
	}
	memcpy(s->reply, &h, sizeof(h));
	return sizeof(h) + len;
}

static int serve_one(struct serve *s, struct epf_boot *boot, int *end)
{
	struct epf_blob *all;
	unsigned char *request;
	size_t len;
	int rc = epf_boot_allgather(boot, NULL, 0, &all);

	if (rc)
		return rc;
	/* A copy, for inline payload is read from it. */
	len = all[ASKING].len;
	request = malloc(len + 1);
	if (request && len)
		memcpy(request, all[ASKING].data, len);
	epf_boot_free_blobs(all);
	if (!request)
		return epf_fail(EPF_R_NO_MEMORY, "a request of the other host");
	len = answer(s, request, len, end);
	free(request);
	rc = epf_boot_allgather(boot, s->reply, len, &all);
	if (!rc)
		epf_boot_free_blobs(all);
	return rc;
}

int far_serve(struct epf_boot *boot, int (*open)(void *arg, unsigned flags, struct epf_nic **out),
	      void *arg)
{
	struct serve *s = calloc(1, sizeof(*s));
	int rc = 0, end = 0;

	if (!s)
		return epf_fail(EPF_R_NO_MEMORY, "the other end of --prove");
	s->open = open;
	s->arg = arg;
	s->mem = calloc(1, RIG_BYTES);
	if (!s->mem)
		rc = epf_fail(EPF_R_NO_MEMORY, "the other end of --prove");
	while (!rc && !end)
		rc = serve_one(s, boot, &end);
	close_nic(s);
	free(s->mem);
	free(s);
	return rc;
}
