/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing an endpoint, its metadata, and its memory. Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/gpu.h"

#include "bootstrap/net.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, NAP_NS = 100 * 1000, CLOSE_NS = 2 * 1000 * 1000 * 1000, GPU_CLOSE_S = 5 };

void epf_p2p_options_init(struct epf_p2p_options *opts)
{
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->gpu = -1;
}

static int load_conf(struct epf_p2p *ep, const struct epf_p2p_options *o)
{
	struct epf_conf_places places = { .system_file = EPF_CONF_SYSTEM_FILE,
					  .named_file = o->config_file,
					  .environment = environ };
	int rc = 0;

	for (unsigned n = 0; o->settings && o->settings[n] && !rc; n++) {
		if (n == P2P_SETTINGS)
			return epf_fail(EPF_R_P2P_LIMIT, "p2p: at most %d settings", P2P_SETTINGS);
		rc = epf_conf_set_text(&ep->conf, o->settings[n]);
		ep->settings[n] = strdup(o->settings[n]); /* for the engines of connections */
		if (!ep->settings[n])
			return epf_fail(EPF_R_NO_MEMORY, "p2p: settings");
	}
	if (!rc)
		rc = epf_conf_load(&ep->conf, o->config_file ? &places : NULL);
	return rc;
}

static int load_keys(struct epf_p2p *ep, const struct epf_p2p_options *o)
{
	const char *secret = ep->conf.secret[0] ? ep->conf.secret : NULL;
	uint8_t label_key[EPF_AUTH_KEY_BYTES];
	const char *file = ep->conf.secret_file[0] ? ep->conf.secret_file : NULL;
	int rc = o->key ? epf_auth_load(o->key, o->key_bytes, NULL, NULL, NULL, &ep->auth)
			: epf_auth_load(secret, secret ? strlen(secret) : 0, file, NULL, NULL,
					&ep->auth);

	if (rc)
		return rc;
	epf_auth_nonce(ep->own.master);
	epf_auth_nonce(label_key);
	memcpy(ep->meta.id, label_key, sizeof(ep->meta.id));
	memcpy(ep->probe_token, label_key + sizeof(ep->meta.id), sizeof(ep->probe_token));
	if (ep->auth.has_secret) {
		ep->meta.flags = META_HAS_SECRET;
		epf_auth_job_key(&ep->auth, "p2p fingerprint", label_key);
		memcpy(ep->meta.fingerprint, label_key, sizeof(ep->meta.fingerprint));
	} else {
		ep->meta.flags = META_HAS_KEY;
		memcpy(ep->meta.key, ep->own.master, sizeof(ep->meta.key));
	}
	return 0;
}

/* The number of the kernel that runs now: the same for all processes of a machine, and for nobody else. */
static void find_machine(uint8_t machine[16])
{
	char text[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	unsigned n = 0;

	if (fd >= 0) {
		ssize_t len = read(fd, text, sizeof(text) - 1);

		close(fd);
		text[len > 0 ? len : 0] = 0;
	}
	for (const char *t = text; *t && n < 32; t++) {
		const char *digits = "0123456789abcdef", *d = strchr(digits, *t);

		if (!d)
			continue;
		machine[n / 2] = (uint8_t)(machine[n / 2] << 4 | (uint8_t)(d - digits));
		n++;
	}
}

static int listen_at(struct epf_net_addr *a, int *out)
{
	int one = 1;
	int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int err;

	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, &a->sa, a->len) == 0 && listen(fd, BACKLOG) == 0 &&
		    getsockname(fd, &a->sa, &a->len) == 0) {
			*out = fd;
			return 0;
		}
	}
	err = errno;
	if (fd >= 0)
		close(fd);
	return epf_fail_sys(EPF_R_BOOT_LISTEN, err, "p2p: cannot listen");
}

static int listen_tcp(struct epf_p2p *ep, const struct epf_p2p_options *o)
{
	const char *spec = ep->conf.socket_ifname[0] ? ep->conf.socket_ifname : NULL;
	struct epf_net_addr at[EPF_NET_ADDRS_MAX], any = { 0 };
	char host[EPF_NET_HOST_MAX], text[EPF_NET_HOST_MAX + 16];
	size_t count = 0;
	uint16_t port = 0;
	int rc;

	if (o->listen) {
		rc = epf_net_split(o->listen, host, &port);
		if (!rc)
			rc = epf_net_resolve(host, port, at, &count);
		if (!rc)
			any = at[0];
	} else {
		rc = epf_net_pick(spec, AF_UNSPEC, &at[0], NULL);
		if (!rc)
			any = epf_net_any(at[0].sa.sa_family, 0);
	}
	if (!rc)
		rc = listen_at(&any, &ep->listen_tcp);
	if (rc)
		return rc;
	ep->meta.port = epf_net_port(&any);
	epf_net_set_port(&at[0], ep->meta.port);
	epf_net_print(&at[0], text, sizeof(text));
	*strrchr(text, ':') = 0;
	snprintf(ep->meta.host, sizeof(ep->meta.host), "%.63s", text);
	return 0;
}

static int listen_unix(struct epf_p2p *ep)
{
	struct sockaddr_un a;
	socklen_t len;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	epf_p2p_unix_name(ep->meta.id, &a, &len);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&a, len) == 0 && listen(fd, BACKLOG) == 0) {
		ep->listen_unix = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	return epf_fail_sys(EPF_R_SYSTEM, errno, "p2p: the endpoint's Unix socket");
}

/* Under Yama a process reads and writes another one only if that allows it. */
static void allow_peers(void)
{
	char scope = '0';
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (read(fd, &scope, 1) == 1 && scope == '1')
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	close(fd);
}

static int share_memory(struct epf_p2p *ep)
{
	int rc = epf_p2p_new_memfd("epf-p2p-exports", sizeof(*ep->table), &ep->table_fd);

	if (!rc)
		rc = epf_p2p_new_memfd("epf-p2p-bell", sizeof(*ep->bell), &ep->bell_fd);
	if (rc)
		return rc;
	ep->table =
		mmap(NULL, sizeof(*ep->table), PROT_READ | PROT_WRITE, MAP_SHARED, ep->table_fd, 0);
	ep->bell =
		mmap(NULL, sizeof(*ep->bell), PROT_READ | PROT_WRITE, MAP_SHARED, ep->bell_fd, 0);
	if (ep->table == MAP_FAILED)
		ep->table = NULL;
	if (ep->bell == MAP_FAILED)
		ep->bell = NULL;
	if (!ep->table || !ep->bell)
		return epf_fail(EPF_R_NO_MEMORY, "p2p: the table of exports");
	/* Peers can map it to read only. Kernels before 5.1 have no such seal: then peers are trusted with it. */
	(void)fcntl(ep->table_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
	return 0;
}

static int watch_fd(struct epf_p2p *ep, int fd)
{
	/* No connection, whose events point to it; the thread tells a kick from a guest. */
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = fd == ep->kick ? &ep->kick : NULL };

	return epoll_ctl(ep->epoll, EPOLL_CTL_ADD, fd, &e)
		       ? epf_fail_sys(EPF_R_SYSTEM, errno, "p2p: epoll")
		       : 0;
}

static int start(struct epf_p2p *ep)
{
	int rc;

	ep->epoll = epoll_create1(EPOLL_CLOEXEC);
	ep->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ep->epoll < 0 || ep->kick < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "p2p: epoll and eventfd");
	rc = watch_fd(ep, ep->kick);
	if (!rc)
		rc = watch_fd(ep, ep->listen_tcp);
	if (!rc)
		rc = watch_fd(ep, ep->listen_unix);
	if (rc)
		return rc;
	rc = pthread_create(&ep->thread, NULL, epf_p2p_thread, ep);
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, rc, "p2p: cannot start the endpoint's thread");
	ep->has_thread = true;
	return 0;
}

static void init(struct epf_p2p *ep)
{
	pthread_condattr_t mono;

	pthread_condattr_init(&mono);
	pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
	pthread_mutex_init(&ep->lock, NULL);
	pthread_mutex_init(&ep->serving, NULL);
	pthread_mutex_init(&ep->run.lock, NULL);
	pthread_mutex_init(&ep->gpu.lock, NULL);
	pthread_mutex_init(&ep->events.lock, NULL);
	pthread_cond_init(&ep->changed, &mono);
	pthread_cond_init(&ep->run.idle, &mono);
	pthread_cond_init(&ep->events.arrived, &mono);
	pthread_condattr_destroy(&mono);
	ep->table_fd = ep->bell_fd = ep->epoll = ep->kick = ep->listen_tcp = ep->listen_unix = -1;
	ep->events.fd = -1;
	ep->conns.max = 1u << 16;
	ep->conns.what = "connections";
	ep->regions.max = 1u << 20;
	ep->regions.what = "regions";
	ep->imports.max = 1u << 20;
	ep->imports.what = "imports";
	ep->next_expiry_ns = UINT64_MAX;
}

static int name_self(struct epf_p2p *ep, const struct epf_p2p_options *o)
{
	char host[40] = "host";

	(void)gethostname(host, sizeof(host) - 1);
	if (o->name && strlen(o->name) >= EPF_P2P_NAME_BYTES)
		return epf_fail(EPF_R_P2P_ARGUMENT, "an endpoint's name has at most %u bytes",
				EPF_P2P_NAME_BYTES - 1);
	if (o->name)
		snprintf(ep->meta.name, sizeof(ep->meta.name), "%s", o->name);
	else
		snprintf(ep->meta.name, sizeof(ep->meta.name), "%s:%d", host, (int)getpid());
	ep->meta.gpu = o->gpu;
	ep->meta.pid = (uint32_t)getpid();
	find_machine(ep->meta.machine);
	return 0;
}

int epf_p2p_open(const struct epf_p2p_options *opts, struct epf_p2p **out)
{
	struct epf_p2p_options o;
	struct epf_p2p *ep = calloc(1, sizeof(*ep));
	int rc;

	if (!ep)
		return epf_fail(EPF_R_NO_MEMORY, "p2p: an endpoint");
	epf_p2p_options_init(&o);
	if (opts)
		memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
	init(ep);
	rc = epf_conf_init(&ep->conf);
	if (!rc)
		rc = load_conf(ep, &o);
	if (!rc)
		rc = name_self(ep, &o);
	if (!rc)
		rc = load_keys(ep, &o);
	if (!rc)
		rc = listen_tcp(ep, &o);
	if (!rc)
		rc = listen_unix(ep);
	if (!rc)
		rc = share_memory(ep);
	epf_p2p_meta_seal(&ep->meta);
	allow_peers();
	if (!rc && ep->conf.p2p_compress != EPF_CONF_COMPRESS_NONE && !epf_p2p_codec_exists())
		epf_warn(
			"p2p-compress has no effect: this build has no libzstd (Debian: libzstd-dev)");
	if (!rc)
		epf_p2p_coder_find(ep, ep->meta.gpu);
	if (!rc)
		epf_p2p_stats_open(ep);
	if (!rc)
		rc = start(ep);
	if (rc) {
		epf_p2p_close(ep);
		return rc;
	}
	*out = ep;
	return 0;
}

/* Ends what still is under way, so that nobody waits for it. */
static void leave(struct epf_p2p *ep)
{
	uint64_t number = 0;
	struct conn *c;

	pthread_mutex_lock(&ep->lock);
	EPF_STORE_RELEASE(&ep->is_closing, true);
	for (struct export *e = ep->exports; e; e = e->next)
		__atomic_store_n(&ep->table->word[e->key.slot],
				 e->key.generation << 8 | EXPORT_WITHDRAWN,
				 __ATOMIC_SEQ_CST); /* W1 */
	pthread_cond_broadcast(&ep->changed);
	pthread_mutex_unlock(&ep->lock);
	pthread_mutex_lock(&ep->events.lock);
	pthread_cond_broadcast(&ep->events.arrived);
	pthread_mutex_unlock(&ep->events.lock);
	for (;;) {
		pthread_mutex_lock(&ep->lock);
		for (c = ep->all; c && epf_p2p_slot_get(&ep->conns, c->number) != c; c = c->next)
			;
		number = c ? c->number : 0;
		pthread_mutex_unlock(&ep->lock);
		if (!number)
			break;
		(void)epf_p2p_disconnect(ep, number, CLOSE_NS);
	}
}

/* Waits for the copies of GPUs, and for what they compress. Returns false if they do not end. */
static bool end_copies(struct epf_p2p *ep)
{
	uint64_t end = epf_now_ns() + GPU_CLOSE_S * 1000000000ull;
	struct timespec nap = { 0, NAP_NS };

	while (!epf_p2p_gpu_is_quiet(ep) || EPF_LOAD_ACQUIRE(&ep->gpu.coding)) {
		if (epf_now_ns() > end)
			return false;
		nanosleep(&nap, NULL);
		epf_p2p_gpu_poll(ep);
	}
	return true;
}

static void free_parts(struct epf_p2p *ep)
{
	epf_p2p_gpu_close(ep);
	epf_p2p_xfers_free(ep);
	while (ep->guests)
		epf_p2p_guest_free(ep, ep->guests);
	while (ep->all)
		epf_p2p_conn_put(ep->all); /* the thread's own */
	epf_p2p_coders_close(ep);
	while (ep->events.first) {
		struct event *e = ep->events.first;

		ep->events.first = e->next;
		epf_p2p_event_free(&e->e);
		free(e);
	}
	epf_p2p_regions_free(ep);
	while (ep->memory)
		epf_p2p_free(ep, ep->memory->addr);
	if (ep->table)
		munmap(ep->table, sizeof(*ep->table));
	if (ep->bell)
		munmap(ep->bell, sizeof(*ep->bell));
	epf_p2p_slots_free(&ep->conns);
	epf_p2p_slots_free(&ep->regions);
	epf_p2p_slots_free(&ep->imports);
}

void epf_p2p_close(struct epf_p2p *ep)
{
	if (!ep)
		return;
	if (ep->has_thread) {
		leave(ep);
		while (__atomic_load_n(&ep->calls, __ATOMIC_SEQ_CST)) {
			struct timespec nap = { 0, NAP_NS };

			nanosleep(&nap, NULL);
		}
		__atomic_store_n(&ep->stop, 1u, __ATOMIC_RELEASE);
		epf_p2p_kick(ep);
		pthread_join(ep->thread, NULL);
	}
	if (!end_copies(ep)) {
		epf_warn(
			"close: a GPU has not ended its work after %d s; it may still write to regions of this endpoint, whose own memory is kept until the process ends",
			GPU_CLOSE_S);
		return;
	}
	free_parts(ep);
	for (int *fd = (int[]){ ep->table_fd, ep->bell_fd, ep->epoll, ep->kick, ep->listen_tcp,
				ep->listen_unix, ep->events.fd, -2 };
	     *fd != -2; fd++)
		if (*fd >= 0)
			close(*fd);
	epf_p2p_stats_close(ep);
	epf_auth_wipe(&ep->auth);
	epf_auth_wipe(&ep->own);
	epf_conf_destroy(&ep->conf);
	for (unsigned i = 0; ep->settings[i]; i++)
		free(ep->settings[i]);
	pthread_cond_destroy(&ep->changed);
	pthread_cond_destroy(&ep->run.idle);
	pthread_cond_destroy(&ep->events.arrived);
	pthread_mutex_destroy(&ep->lock);
	pthread_mutex_destroy(&ep->serving);
	pthread_mutex_destroy(&ep->run.lock);
	pthread_mutex_destroy(&ep->gpu.lock);
	pthread_mutex_destroy(&ep->events.lock);
	free(ep);
}
