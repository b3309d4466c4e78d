/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a link is made (join.h): dialed, or accepted and proven, then joined as a job of two ranks. When two processes dial each other at once, the one with the
 * lower number wins: its connection becomes the link, the other end gives up its own. What a link does when it is up is in serve.c.
 */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/join.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/serve.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREET_NS      10000000000ull
#define DIAL_AGAIN_NS 20000000ull

enum { STRANGERS = 64, STREAMS = 2 * EPF_LINK_SLOTS + 64 };

static bool is_self(const struct epf_link *l)
{
	return memcmp(l->peer.process, epf_plug.self.process, EPF_NCCL_ID_BYTES) == 0;
}

/* A process that is connected to itself has two links, one for each end. */
static struct epf_link *find(const uint8_t process[EPF_NCCL_ID_BYTES], bool dialed)
{
	struct epf_link *l;

	TAILQ_FOREACH(l, &epf_plug.links, entry) {
		if (l->state != EPF_LINK_GREETING &&
		    memcmp(l->peer.process, process, EPF_NCCL_ID_BYTES) == 0 &&
		    (!is_self(l) || l->dialed == dialed))
			return l;
	}
	return NULL;
}

static int cancelled(const struct epf_link *l)
{
	return epf_link_is_stopping(l) || l->state == EPF_LINK_DEAD ? -ECANCELED : 0;
}

/* -EINPROGRESS becomes a wait. */
static int connect_to(struct epf_link *l, uint64_t deadline_ns)
{
	struct pollfd p = { .events = POLLOUT };
	char text[EPF_NET_HOST_MAX];
	socklen_t len = sizeof(int);
	int err = 0;

	epf_net_print(&l->address, text, sizeof(text));
	l->fd = socket(l->address.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (l->fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: socket");
	if (connect(l->fd, &l->address.sa, l->address.len) && errno != EINPROGRESS)
		return epf_fail_sys(EPF_R_NCCL_PEER, errno, "nccl: connecting to %s", text);
	p.fd = l->fd;
	for (;;) {
		int n = poll(&p, 1, 100);

		if (n > 0)
			break;
		if (epf_link_is_stopping(l) || epf_now_ns() > deadline_ns)
			return epf_fail_sys(EPF_R_NCCL_PEER, ETIMEDOUT, "nccl: connecting to %s",
					    text);
	}
	if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err)
		return epf_fail_sys(EPF_R_NCCL_PEER, err ? err : errno, "nccl: connecting to %s",
				    text);
	epf_net_tune(l->fd);
	return 0;
}

/* Dials until the other end agrees, or has made a link to us meanwhile. */
static int dial(struct epf_link *l, struct epf_nccl_greeting *g)
{
	uint64_t end = epf_now_ns() + epf_plug.conf.bootstrap_timeout_ns;

	for (;;) {
		int rc = connect_to(l, end);

		if (!rc)
			rc = epf_nccl_greet_dial(l->fd, l->secret, &epf_plug.self,
						 epf_now_ns() + GREET_NS, g);
		if (!rc && memcmp(g->peer.process, l->peer.process, EPF_NCCL_ID_BYTES) != 0)
			rc = epf_fail(EPF_R_NCCL_PEER,
				      "nccl: another process answers at the handle's address");
		epf_plug_lock();
		rc = cancelled(l) ? -ECANCELED : rc;
		if (!rc && g->verdict == EPF_NCCL_GO) {
			l->peer = g->peer;
			l->state = EPF_LINK_JOINING;
			epf_plug_unlock();
			return 0;
		}
		if (!rc) {
			l->state = EPF_LINK_WAITING;
			epf_plug_wait(epf_now_ns() + DIAL_AGAIN_NS);
			rc = cancelled(l);
		}
		if (!rc)
			l->state = EPF_LINK_DIALING;
		epf_plug_unlock();
		close(l->fd);
		l->fd = -1;
		if (!rc && epf_now_ns() > end)
			rc = epf_fail(EPF_R_NCCL_PEER, "nccl: the other process stays busy");
		if (rc)
			return rc;
	}
}

static enum epf_nccl_verdict judge(struct epf_link *l)
{
	struct epf_link *have = find(l->peer.process, false);

	if (!have)
		return EPF_NCCL_GO;
	if (have->dialed && !is_self(have) &&
	    (have->state == EPF_LINK_DIALING || have->state == EPF_LINK_WAITING) &&
	    memcmp(l->peer.process, epf_plug.self.process, EPF_NCCL_ID_BYTES) < 0) {
		TAILQ_REMOVE(&epf_plug.links, have, entry);
		have->state = EPF_LINK_DEAD;
		return EPF_NCCL_GO;
	}
	return EPF_NCCL_BUSY;
}

static int start_server(struct epf_link *l, struct epf_nccl_greeting *g)
{
	struct epf_boot_server_opts o = { .size = sizeof(o),
					  .world = 2,
					  .job = "nccl",
					  .secret = g->key,
					  .secret_len = sizeof(g->key),
					  .timeout_ns = epf_plug.conf.bootstrap_timeout_ns,
					  .notice_first_ns = UINT64_MAX };
	struct epf_net_addr at = epf_plug.address;
	char text[EPF_BOOT_ADDRESS_MAX];
	int rc;

	epf_net_set_port(&at, 0);
	epf_net_print(&at, text, sizeof(text));
	o.listen = text;
	rc = epf_boot_server_start(&o, &l->server);
	if (!rc)
		g->port = epf_boot_server_port(l->server);
	return rc;
}

/* The accepting end, once the peer is known. */
static int decide(void *arg, struct epf_nccl_greeting *g)
{
	struct epf_link *l = arg;

	epf_plug_lock();
	l->peer = g->peer;
	g->verdict = judge(l);
	if (g->verdict == EPF_NCCL_GO)
		l->state = EPF_LINK_JOINING;
	epf_plug_notify();
	epf_plug_unlock();
	return g->verdict == EPF_NCCL_GO ? start_server(l, g) : 0;
}

static bool is_same_host(const struct epf_link *l)
{
	return memcmp(l->peer.host, epf_plug.self.host, EPF_NCCL_ID_BYTES) == 0;
}

static int open_engine(struct epf_link *l)
{
	char regions[32], streams[32], nic[32];
	const char *settings[] = { "service=", "progress=thread", regions,
				   streams,    "signals=1",       nic,
				   NULL };
	struct epf_options o;
	struct epf *ep;
	uint32_t region;
	int rc;

	snprintf(regions, sizeof(regions), "regions=%d", EPF_LINK_REGIONS);
	snprintf(streams, sizeof(streams), "streams-per-peer=%d", STREAMS);
	if (epf_plug.conf.nic == EPF_CONF_NIC_AUTO)
		snprintf(nic, sizeof(nic), "nic=%s", epf_plug_nic(is_same_host(l)));
	else
		settings[5] = NULL;
	epf_options_init(&o);
	o.settings = settings;
	rc = epf_open(&o, &ep);
	if (rc)
		return rc;
	epf_plug_lock();
	l->ep = ep;
	rc = cancelled(l);
	epf_plug_unlock();
	if (rc)
		return rc;
	l->control = mmap(NULL, EPF_NET_CONTROL_BYTES, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (l->control == MAP_FAILED) {
		l->control = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "nccl: %d bytes of control memory",
				EPF_NET_CONTROL_BYTES);
	}
	return epf_region_register(ep, l->control, EPF_NET_CONTROL_BYTES, EPF_REMOTE_WRITE,
				   &region);
}

/* What ends a wait for the rendezvous (struct epf_boot_opts). */
static int why_end(void *arg)
{
	const struct epf_link *l = arg;
	char c;

	if (epf_link_is_stopping(l))
		return epf_fail(EPF_R_NCCL_PEER, "nccl: the plug-in was finalized");
	if (recv(l->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
		return epf_link_fail(l, "has closed its connection");
	return 0;
}

static int join(struct epf_link *l, const struct epf_nccl_greeting *g)
{
	struct epf_boot_opts o = {
		.size = sizeof(o),
		.rank = l->dialed,
		.world = 2,
		.job = "nccl",
		.secret = g->key,
		.secret_len = sizeof(g->key),
		.timeout_ns = epf_plug.conf.bootstrap_timeout_ns,
		.why = why_end,
		.why_arg = l,
		.notice_first_ns = UINT64_MAX
	}; /* its hints are for jobs that people start */
	struct epf_net_addr at = l->dialed ? l->address : epf_plug.address;
	char text[EPF_BOOT_ADDRESS_MAX];
	int rc = open_engine(l);

	if (rc)
		return rc;
	epf_net_set_port(&at, g->port);
	epf_net_print(&at, text, sizeof(text));
	o.rendezvous = text;
	l->other = !o.rank;
	rc = epf_boot_tcp_open(&o, &l->boot);
	return rc ? rc : epf_join(l->ep, l->boot);
}

static int meet(struct epf_link *l)
{
	struct epf_nccl_greeting g = { 0 };
	int rc;

	if (l->dialed)
		rc = dial(l, &g);
	else
		rc = epf_nccl_greet_accept(l->fd, epf_plug.secret, &epf_plug.self,
					   epf_now_ns() + GREET_NS, decide, l, &g);
	if (!rc && g.verdict != EPF_NCCL_GO)
		rc = -ECANCELED;
	if (!rc)
		rc = join(l, &g);
	explicit_bzero(&g, sizeof(g));
	return rc;
}

static void *run(void *arg)
{
	struct epf_link *l = arg;
	int rc = meet(l);

	epf_plug_lock();
	if (!rc)
		rc = cancelled(l);
	if (!rc) {
		l->state = EPF_LINK_UP;
		l->was_up = true;
		epf_plug_notify();
	}
	epf_plug_unlock();
	if (!rc)
		epf_link_serve(l);
	else if (rc != -ECANCELED)
		epf_warn_ratelimited("%s", epf_last_error());
	epf_plug_lock();
	epf_link_die(l);
	epf_plug_unlock();
	if (l->fd >= 0)
		shutdown(l->fd, SHUT_RDWR);
	epf_link_unref(l);
	epf_plug_thread_ends();
	return NULL;
}

/* Under the lock: the thread takes the first reference. */
static int begin(struct epf_link *l)
{
	int rc = epf_plug.stopping ? epf_fail(EPF_R_NCCL_PEER, "nccl: the plug-in was finalized")
				   : epf_plug_thread(run, l);

	if (!rc)
		TAILQ_INSERT_TAIL(&epf_plug.links, l, entry);
	return rc;
}

int epf_link_accept(int fd)
{
	struct epf_link *l, *o;
	unsigned strangers = 0;
	int rc;

	l = epf_link_make(fd);
	if (!l)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: a link");
	epf_net_tune(fd);
	epf_plug_lock();
	TAILQ_FOREACH(o, &epf_plug.links, entry)
		strangers += o->state == EPF_LINK_GREETING;
	rc = strangers < STRANGERS
		     ? begin(l)
		     : epf_fail(EPF_R_NCCL_LIMIT, "nccl: %d connections have not proven themselves",
				STRANGERS);
	epf_plug_unlock();
	if (rc) {
		l->fd = -1;
		epf_link_unref(l);
	}
	return rc;
}

/* Under the lock. *out is a link in the table, or one that was made and did not get there: the caller's. */
static int dial_new(const struct epf_nccl_handle *h, struct epf_link **out)
{
	struct epf_link *l = epf_link_make(-1);

	*out = l;
	if (!l)
		return epf_fail(EPF_R_NO_MEMORY, "nccl: a link");
	l->dialed = true;
	l->state = EPF_LINK_DIALING;
	l->address = h->address;
	memcpy(l->peer.process, h->process, sizeof(h->process));
	memcpy(l->secret, h->secret, sizeof(h->secret));
	return begin(l);
}

int epf_link_get(const struct epf_nccl_handle *h, struct epf_link **out)
{
	struct epf_link *l, *unborn = NULL;
	int rc = -EAGAIN;

	epf_plug_lock();
	l = find(h->process, true);
	if (!l) {
		rc = dial_new(h, &l);
		unborn = rc ? l : NULL;
		rc = rc ? rc : -EAGAIN;
	} else if (l->state == EPF_LINK_UP) {
		epf_link_ref(l);
		*out = l;
		rc = 0;
	}
	epf_plug_unlock();
	if (unborn)
		epf_link_unref(unborn);
	return rc;
}
