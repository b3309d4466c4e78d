/* SPDX-License-Identifier: Apache-2.0 */
/* The NIC of another host, as the host that runs the checks sees it: see far.h. */
#include "tools/prove/far.h"

#include "bootstrap/boot.h"
#include "fabric/base/err.h"
#include "fabric/nic/fill.h"
#include "tools/prove/far_wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OTHER = 1 }; /* the rank of the host that waits */

static struct far *far_of(const struct epf_nic *nic)
{
	return (struct far *)(void *)((char *)(uintptr_t)nic - offsetof(struct far, nic));
}

int far_greet(struct epf_boot *boot, const char *nic_name, char *host, size_t size)
{
	struct far_hello mine = { .magic = "EPFPROV",
				  .version = FAR_VERSION,
				  .sizes = sizeof(struct epf_wr) << 16 | sizeof(struct far_caps) };
	const struct far_hello *his;
	struct epf_blob *all;
	int rc;

	snprintf(mine.nic, sizeof(mine.nic), "%s", nic_name);
	if (gethostname(mine.host, sizeof(mine.host) - 1))
		snprintf(mine.host, sizeof(mine.host), "?");
	rc = epf_boot_allgather(boot, &mine, sizeof(mine), &all);
	if (rc)
		return rc;
	his = all[1 - epf_boot_rank(boot)].data;
	if (all[1 - epf_boot_rank(boot)].len != sizeof(mine) ||
	    memcmp(his, &mine, offsetof(struct far_hello, nic)) != 0)
		rc = epf_fail(EPF_R_BOOT_VERSION, "the other host runs another release");
	else if (strncmp(his->nic, mine.nic, sizeof(mine.nic)) != 0)
		rc = epf_fail(EPF_R_NIC_OPTION, "nic %s here, nic %.31s on the other host",
			      mine.nic, his->nic);
	else
		snprintf(host, size, "%.63s", his->host);
	epf_boot_free_blobs(all);
	return rc;
}

/* Two rounds: what this host asks, then what the other answers. The caller frees *all. */
static int exchange(struct far *far, const void *request, size_t len, struct epf_blob **all)
{
	int rc = epf_boot_allgather(far->boot, request, len, all);

	if (rc)
		return rc;
	epf_boot_free_blobs(*all);
	return epf_boot_allgather(far->boot, NULL, 0, all);
}

/* Asks; *head becomes the reply's. Copies at most @room bytes of its data and returns rc of the reply, or -errno where the host is gone. */
static int ask(struct far *far, struct far_head *head, const void *data, size_t len, void *to,
	       size_t room)
{
	unsigned char *request;
	struct epf_blob *all = NULL;
	int rc;

	if (far->lost)
		return far->lost;
	if (to)
		memset(to, 0, room); /* a reply may be shorter */
	request = malloc(sizeof(*head) + len);
	if (!request) {
		far->lost = epf_fail(EPF_R_NO_MEMORY, "a request to the other host");
		return far->lost;
	}
	memcpy(request, head, sizeof(*head));
	if (len)
		memcpy(request + sizeof(*head), data, len);
	rc = exchange(far, request, sizeof(*head) + len, &all);
	free(request);
	if (!rc && all[OTHER].len < sizeof(*head)) {
		rc = epf_fail(EPF_R_BOOT_VERSION, "the other host answers with %zu bytes",
			      all[OTHER].len);
		epf_boot_free_blobs(all);
	}
	if (rc) {
		far->lost = rc;
		return rc;
	}
	memcpy(head, all[OTHER].data, sizeof(*head));
	len = all[OTHER].len - sizeof(*head);
	if (to)
		memcpy(to, (const char *)all[OTHER].data + sizeof(*head), len < room ? len : room);
	epf_boot_free_blobs(all);
	return head->rc;
}

static int simple(const struct epf_nic *nic, enum far_op op, uint16_t lane, uint64_t a, uint32_t n)
{
	struct far_head h = { .op = op, .lane = lane, .a = a, .n = n };

	return ask(far_of(nic), &h, NULL, 0, NULL, 0);
}

static void far_close(struct epf_nic *nic)
{
	if (nic)
		simple(nic, FAR_CLOSE, 0, 0, 0);
}

static void far_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	*out = far_of(nic)->caps;
	out->name = far_of(nic)->name;
}

static int far_address(const struct epf_nic *nic, void *buf, size_t size)
{
	struct far_head h = { .op = FAR_ADDRESS, .a = size };

	return ask(far_of(nic), &h, NULL, 0, buf, size);
}

/* NULL is the whole of the memory there; any other address lies in it. */
static int far_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			struct epf_nic_mr *out)
{
	struct far *far = far_of(nic);
	struct far_head h = { .op = FAR_REGISTER,
			      .a = addr ? (uint64_t)(uintptr_t)addr - far->memory.base : 0,
			      .b = len,
			      .n = access };
	struct epf_nic_mr mr;
	int rc = ask(far, &h, NULL, 0, &mr, sizeof(mr));

	if (rc)
		return rc;
	mr.priv = (void *)(uintptr_t)h.a;
	*out = mr;
	return 0;
}

static void far_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	simple(nic, FAR_DEREGISTER, 0, (uint64_t)(uintptr_t)mr->priv, 0);
}

static int far_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct far_head h = { .op = FAR_LANE_CREATE, .lane = lane, .n = depth };
	int rc = ask(far_of(nic), &h, NULL, 0, NULL, 0);

	if (!rc)
		*token = h.a;
	return rc;
}

static int far_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			    uint64_t token)
{
	struct far_head h = { .op = FAR_LANE_CONNECT, .lane = lane, .a = token };

	return ask(far_of(nic), &h, addr, addr_len, NULL, 0);
}

static void far_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	simple(nic, FAR_LANE_FENCE, lane, 0, 0);
}

static int far_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	return simple(nic, FAR_LANE_DRAINED, lane, 0, 0);
}

static void far_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	simple(nic, FAR_LANE_DESTROY, lane, 0, 0);
}

static enum epf_lane_link far_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	return (enum epf_lane_link)simple(nic, FAR_LANE_LINK, lane, 0, 0);
}

static int far_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	unsigned char data[sizeof(*wr) + EPF_NIC_MSG_BYTES];
	struct far_head h = { .op = FAR_POST, .lane = lane, .n = 1 };
	size_t len = sizeof(*wr);

	if (!n)
		return 0;
	memcpy(data, wr, sizeof(*wr));
	if (wr->flags & EPF_WR_INLINE && wr->len <= EPF_NIC_MSG_BYTES) {
		memcpy(data + len, (const void *)(uintptr_t)wr->laddr, wr->len);
		len += wr->len;
	}
	return ask(far_of(nic), &h, data, len, NULL, 0);
}

static int far_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct far *far = far_of(nic);
	struct far_head h = { .op = FAR_REAP, .n = n < FAR_REAP_MOST ? n : FAR_REAP_MOST };

	struct {
		struct epf_wc wc[FAR_REAP_MOST];
		unsigned char msg[FAR_REAP_MOST][EPF_NIC_MSG_BYTES];
	} reply;

	int rc = ask(far, &h, NULL, 0, &reply, sizeof(reply));

	if (far->lost)
		rig_not_tried("the other host is gone");
	if (rc < 0 || (unsigned)rc > h.n)
		return 0;
	memcpy(far->msg, reply.msg, sizeof(far->msg));
	for (int i = 0; i < rc; i++) {
		wc[i] = reply.wc[i];
		wc[i].msg = far->msg[i];
	}
	return rc;
}

static void far_post_receives(struct epf_nic *nic, unsigned n)
{
	simple(nic, FAR_RECEIVES, 0, 0, n);
}

static void far_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	struct far_head h = { .op = FAR_COUNTERS };

	memset(out, 0, sizeof(*out));
	ask(far_of(nic), &h, NULL, 0, out, sizeof(*out));
}

static void far_watch(struct epf_nic *nic)
{
	simple(nic, FAR_WATCH, 0, 0, 0);
}

static void far_wake_peers(struct epf_nic *nic)
{
	simple(nic, FAR_WAKE_PEERS, 0, 0, 0);
}

static int far_set_link(struct epf_nic *nic, unsigned link, int up)
{
	return simple(nic, FAR_SET_LINK, 0, link, (uint32_t)up);
}

static void load(void *arg, uint64_t off, void *to, size_t len)
{
	struct far_head h = { .op = FAR_LOAD, .a = off, .b = len };

	memset(to, 0, len);
	ask(arg, &h, NULL, 0, to, len);
}

static void store(void *arg, uint64_t off, const void *from, size_t len)
{
	struct far_head h = { .op = FAR_STORE, .a = off, .b = len };

	ask(arg, &h, from, len, NULL, 0);
}

static struct epf_nic_ops far_ops = {
	.name = "far",
	.close = far_close,
	.describe = far_describe,
	.address = far_address,
	.region_register = far_register,
	.region_deregister = far_deregister,
	.lane_create = far_lane_create,
	.lane_connect = far_lane_connect,
	.lane_fence = far_lane_fence,
	.lane_drained = far_lane_drained,
	.lane_destroy = far_lane_destroy,
	.lane_link = far_lane_link,
	.post = far_post,
	.reap = far_reap,
	.post_receives = far_post_receives,
	.counters = far_counters,
	.set_link = far_set_link,
	.wake_peers = far_wake_peers,
	.watch = far_watch,
};

void far_init(struct far *far, struct epf_boot *boot)
{
	memset(far, 0, sizeof(*far));
	far->boot = boot;
	far->memory = (struct rig_far){ .load = load, .store = store, .arg = far };
	epf_nic_ops_fill(&far_ops);
}

int far_open(struct far *far, unsigned flags, struct epf_nic **out)
{
	struct far_head h = { .op = FAR_OPEN, .n = flags };
	struct far_caps caps;
	int rc = ask(far, &h, NULL, 0, &caps, sizeof(caps));

	if (far->lost)
		return rc;
	if (rc)
		return epf_fail(EPF_R_NIC_OPTION,
				"the other host cannot open its NIC, and says there why");
	far->caps = caps.caps;
	far->memory.base = caps.base;
	far->nic.ops = &far_ops;
	snprintf(far->name, sizeof(far->name), "the other host's");
	*out = &far->nic;
	return 0;
}

void far_end(struct far *far)
{
	struct far_head h = { .op = FAR_END };

	ask(far, &h, NULL, 0, NULL, 0);
}
