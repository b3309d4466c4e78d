/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank gets to its rendezvous: options, secret, address, connection, handshake. A server
 * that does not run yet is waited for until the deadline; a server that refuses, or that cannot
 * prove that it knows the secret, is an error at once. Without a secret only loopback is tried.
 */
#include "bootstrap/client_priv.h"

#define EPF_LOG_COMP "boot"
#include "fabric/base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ATTEMPT_NS   5000000000ull /* for one address */
#define PAUSE_MIN_NS 20000000ull
#define PAUSE_MAX_NS 500000000ull

/* Where to connect to, and why the last attempt failed. */
struct target {
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	size_t count;
	const char *ifname;
	bool strict;    /* the user chose the interface for us, and not for NCCL */
	uint32_t turns; /* attempts at all addresses */
	uint64_t deadline_ns;
	uint64_t timeout_ns;
	char last[512];
	struct epf_boot_notice notice;
};

static int check_opts(const struct epf_boot_opts *o)
{
	if (!o->world || o->world > EPF_BOOT_WORLD_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "a world of %u ranks is outside 1 to %u",
				o->world, EPF_BOOT_WORLD_MAX);
	if (o->rank >= o->world)
		return epf_fail(EPF_R_BOOT_WORLD, "rank %u is outside a world of %u", o->rank,
				o->world);
	if (o->job && strlen(o->job) > EPF_BOOT_NAME_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "the job's name is longer than %u bytes",
				EPF_BOOT_NAME_MAX);
	return 0;
}

static int host_server(struct tcp_boot *t, const struct epf_boot_opts *o, struct target *to)
{
	struct epf_boot_server_opts so = {
		.size = sizeof(so),
		.world = o->world,
		.listen = o->rendezvous,
		.any_address = true,
		.job = o->job ? o->job : "",
		.secret = o->secret,
		.secret_len = o->secret_len,
		.secret_file = o->secret_file,
		/* NCCL's interface need not be the rendezvous': all interfaces include it. */
		.ifname = to->strict ? to->ifname : NULL,
		.timeout_ns = o->timeout_ns,
		.notice_first_ns = o->notice_first_ns,
		.notice_again_ns = o->notice_again_ns,
	};
	char host[EPF_NET_HOST_MAX];
	uint16_t port;
	int rc = epf_boot_server_start(&so, &t->server);

	if (!rc)
		rc = epf_net_split(epf_boot_server_address(t->server), host, &port);
	if (rc)
		return rc;
	/* The way to our own server does not lead over the network: a listener on all addresses
	 * has loopback too. */
	if (!strcmp(host, "::"))
		strcpy(host, "::1");
	else if (!strcmp(host, "0.0.0.0"))
		strcpy(host, "127.0.0.1");
	to->ifname = NULL;
	return epf_net_resolve(host, port, to->at, &to->count);
}

static int find_server(struct tcp_boot *t, const struct epf_boot_opts *o, struct target *to)
{
	char host[EPF_NET_HOST_MAX];
	uint16_t port;
	size_t kept = 0;
	int rc;

	if (o->is_root)
		return host_server(t, o, to);
	rc = epf_net_split(o->rendezvous, host, &port);
	if (!rc && !port)
		rc = epf_fail(EPF_R_BOOT_ADDRESS, "address '%s' has port 0", o->rendezvous);
	if (!rc)
		rc = epf_net_resolve(host, port, to->at, &to->count);
	if (rc || t->auth.has_secret)
		return rc;
	for (size_t i = 0; i < to->count; i++)
		if (epf_net_is_loopback(&to->at[i]))
			to->at[kept++] = to->at[i];
	to->count = kept;
	if (!kept)
		return epf_fail(EPF_R_BOOT_NO_SECRET,
				"no secret is set, so rank %u may not use the rendezvous at %s",
				o->rank, o->rendezvous);
	return 0;
}

/* An interface chosen for us must be used; one chosen for NCCL is preferred every other time. */
static int bind_source(struct tcp_boot *t, struct target *to, const struct epf_net_addr *at)
{
	struct epf_net_addr from;
	int rc;

	if (!to->ifname || !*to->ifname || epf_net_is_loopback(at))
		return 0;
	if (!to->strict && to->turns % 2)
		return 0;
	rc = epf_net_pick(to->ifname, at->sa.sa_family, &from, NULL);
	if (!rc) {
		epf_net_set_port(&from, 0);
		if (bind(t->fd, &from.sa, from.len))
			rc = epf_fail_sys(EPF_R_BOOT_INTERFACE, errno, "binding to interface '%s'",
					  to->ifname);
	}
	return to->strict ? rc : 0;
}

static void note_last(struct target *to, const struct epf_net_addr *at, const char *why)
{
	char address[80];

	epf_net_print(at, address, sizeof(address));
	snprintf(to->last, sizeof(to->last), "%s%s%s: %.400s", address,
		 to->strict ? " by socket-ifname " : "", to->strict ? to->ifname : "", why);
}

/* The caller's own reason, which it has just given, ends the opening. */
static int interrupted(void)
{
	char text[512];

	epf_last_detail(text, sizeof(text));
	return epf_fail(epf_last_reason(), "%s", text);
}

/* Says what is waited for, when it is time. */
static void notice(const struct tcp_boot *t, struct target *to)
{
	if (epf_boot_notice_due(&to->notice))
		epf_note(
			"rank %u of %u: waiting for the rendezvous at %s (%s): start rank 0 or ep-fabric bootstrap serve there, or correct EPF_RENDEZVOUS",
			t->base.rank, t->base.world, t->where, to->last);
}

/* As tcp_wait(), with a notice now and then. */
static int wait_ready(struct tcp_boot *t, struct target *to, short events, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t until_ns = epf_boot_deadline(EPF_BOOT_ASK_MS * 1000000ull);
		int rc;

		notice(t, to);
		if (until_ns < to->notice.next_ns)
			until_ns = to->notice.next_ns;
		rc = tcp_wait(t, events, deadline_ns < until_ns ? deadline_ns : until_ns);
		if (rc != -ETIMEDOUT || epf_now_ns() >= deadline_ns)
			return rc;
		if (to->strict)
			snprintf(to->last, sizeof(to->last), "no answer yet by socket-ifname %s",
				 to->ifname);
		else
			snprintf(to->last, sizeof(to->last), "no answer yet");
	}
}

/* -EAGAIN: this address does not answer now; others: give up. */
static int try_address(struct tcp_boot *t, struct target *to, const struct epf_net_addr *at)
{
	uint64_t deadline_ns = epf_boot_deadline(ATTEMPT_NS);
	socklen_t len = sizeof(int);
	int err = 0, rc;

	t->fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (t->fd < 0) {
		note_last(to, at, strerror(errno));
		return -EAGAIN;
	}
	epf_net_tune(t->fd);
	rc = bind_source(t, to, at);
	if (rc)
		return rc;
	if (connect(t->fd, &at->sa, at->len) == 0)
		return 0;
	err = errno;
	if (err == EINPROGRESS) {
		err = ETIMEDOUT;
		if (deadline_ns > to->deadline_ns)
			deadline_ns = to->deadline_ns;
		rc = wait_ready(t, to, POLLOUT, deadline_ns);
		if (rc == -EINTR)
			return interrupted();
		if (rc == 0)
			getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &err, &len);
	}
	if (!err)
		return 0;
	note_last(to, at, strerror(err));
	return -EAGAIN;
}

static uint64_t left_ns(const struct target *to)
{
	uint64_t now = epf_now_ns();

	return now < to->deadline_ns ? to->deadline_ns - now : 0;
}

/*
 * The server's CHALLENGE, with the proof that it knows the secret. Its nonce is needed to check
 * the proof, so it is read before: it is nothing but a number until then.
 */
static int receive_challenge(struct tcp_boot *t, struct target *to, const uint8_t *hello)
{
	enum epf_wire_verdict v;
	struct epf_wire_head head;
	struct epf_wire_msg msg;
	int rc;

	while ((v = epf_wire_head_read(&t->session, t->in, t->in_len, EPF_WIRE_EARLY_MAX, &head)) ==
		       EPF_WIRE_V_MORE ||
	       (v == EPF_WIRE_V_OK && t->in_len < EPF_WIRE_OVERHEAD + head.length)) {
		rc = tcp_fill(t);
		if (rc == -EAGAIN) {
			int waited = wait_ready(t, to, POLLIN, to->deadline_ns);

			if (waited == -EINTR)
				return interrupted();
			if (waited)
				return tcp_fail(t, EPF_R_BOOT_SERVER_LOST, "it said nothing");
		}
		if (rc && rc != -EAGAIN)
			return rc;
	}
	if (v == EPF_WIRE_V_OK && head.type == EPF_WIRE_CHALLENGE) {
		epf_wire_session_rekey(&t->session, &t->auth, hello, t->in + EPF_WIRE_HEAD_BYTES);
		if (epf_wire_open(&t->session, t->in, t->in_len, EPF_WIRE_EARLY_MAX, &msg,
				  &t->in_at) == EPF_WIRE_V_OK)
			return 0;
	}
	if (v == EPF_WIRE_V_OK && head.type == EPF_WIRE_REFUSE)
		return epf_fail(
			EPF_R_BOOT_AUTH,
			"rank %u: the server at %s refused our proof, our secret (from %s) is not its secret",
			t->base.rank, t->where, t->auth.origin);
	return epf_fail(
		EPF_R_BOOT_AUTH,
		"rank %u: what answers at %s did not prove that it knows our secret (from %s)",
		t->base.rank, t->where, t->auth.origin);
}

/* The client half of the handshake. -EAGAIN: the connection ended without an answer. */
static int handshake(struct tcp_boot *t, const struct epf_boot_opts *o, struct target *to)
{
	uint8_t hello[EPF_AUTH_NONCE_BYTES], buf[EPF_WIRE_EARLY_MAX];
	struct epf_wire_join join = { .rank = o->rank,
				      .world = o->world,
				      .timeout_ns = t->timeout_ns };
	struct epf_wire_msg msg;
	int rc;

	snprintf(join.job, sizeof(join.job), "%s", o->job ? o->job : "");
	if (o->node)
		snprintf(join.node, sizeof(join.node), "%s", o->node);
	else if (gethostname(join.node, sizeof(join.node) - 1))
		join.node[0] = 0;
	t->in_at = t->in_len = 0;
	epf_wire_session_init(&t->session, &t->auth, o->rank);
	epf_auth_nonce(hello);
	rc = tcp_send(t, EPF_WIRE_HELLO, hello, sizeof(hello), left_ns(to));
	if (!rc)
		rc = receive_challenge(t, to, hello);
	if (rc)
		return rc;
	rc = tcp_send(t, EPF_WIRE_JOIN, buf, epf_wire_put_join(buf, &join), left_ns(to));
	if (!rc)
		rc = tcp_receive(t, left_ns(to), &msg);
	if (rc)
		return rc;
	if (msg.head.type != EPF_WIRE_WELCOME || epf_wire_get_u32(msg.payload) != o->world)
		return tcp_fail(t, EPF_R_BOOT_WIRE,
				"rank %u: the server at %s answers JOIN with %s", o->rank, t->where,
				epf_wire_type_text(msg.head.type));
	return 0;
}

/* 0, or the reason to stop that came meanwhile. */
static int pause_ns(const struct tcp_boot *t, uint64_t ns)
{
	const uint64_t most = (uint64_t)EPF_BOOT_ASK_MS * 1000000;

	while (ns) {
		uint64_t part = ns < most ? ns : most;
		struct timespec ts = { 0, (long)part };

		nanosleep(&ts, NULL);
		ns -= part;
		if (t->base.why && t->base.why(t->base.why_arg))
			return interrupted();
	}
	return 0;
}

static int reach_server(struct tcp_boot *t, const struct epf_boot_opts *o, struct target *to)
{
	uint64_t pause = PAUSE_MIN_NS;
	char time[32];
	int rc;

	epf_boot_notice_begin(&to->notice);
	for (;;) {
		for (size_t i = 0; i < to->count; i++) {
			rc = try_address(t, to, &to->at[i]);
			if (!rc) {
				rc = handshake(t, o, to);
				/* A server that is short of room closes; so does one that ends. */
				if (rc && epf_last_reason() == EPF_R_BOOT_SERVER_LOST) {
					note_last(to, &to->at[i], t->detail);
					rc = -EAGAIN;
				}
			}
			if (rc != -EAGAIN)
				return rc;
			notice(t, to);
			if (t->fd >= 0)
				close(t->fd);
			t->fd = -1;
		}
		to->turns++;
		if (left_ns(to) <= pause)
			break;
		rc = pause_ns(t, pause);
		if (rc)
			return rc;
		pause = pause * 2 < PAUSE_MAX_NS ? pause * 2 : PAUSE_MAX_NS;
	}
	epf_boot_time_text(to->timeout_ns, time, sizeof(time));
	return epf_fail(EPF_R_BOOT_CONNECT,
			"rank %u: no rendezvous server answered at %s within %s (%s)", o->rank,
			o->rendezvous, time, to->last);
}

static struct tcp_boot *new_boot(const struct epf_boot_opts *o)
{
	struct tcp_boot *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->base = (struct epf_boot){ &tcp_ops, o->rank, o->world };
	t->base.why = o->why;
	t->base.why_arg = o->why_arg;
	t->fd = -1;
	t->in_cap = EPF_WIRE_FRAME_MAX;
	t->in = malloc(EPF_WIRE_FRAME_MAX);
	t->out = malloc(EPF_WIRE_FRAME_MAX);
	if (!t->in || !t->out) {
		tcp_free(t);
		return NULL;
	}
	t->timeout_ns = o->timeout_ns ? o->timeout_ns : EPF_BOOT_TIMEOUT_NS;
	snprintf(t->where, sizeof(t->where), "%s", o->rendezvous ? o->rendezvous : "");
	return t;
}

/*
 * The option, else NCCL's variable, which users of this field have set already. NCCL's choice may
 * also come in as the option, by way of the configuration's alias.
 */
static void choose_interface(const struct epf_boot_opts *o, struct target *to)
{
	const char *nccl = getenv("NCCL_SOCKET_IFNAME");

	to->strict = o->ifname && *o->ifname && (!nccl || strcmp(nccl, o->ifname));
	to->ifname = to->strict ? o->ifname : nccl;
	if (!to->strict && to->ifname)
		epf_info("interface choice '%s' comes from NCCL_SOCKET_IFNAME", to->ifname);
}

int epf_boot_tcp_open(const struct epf_boot_opts *opts, struct epf_boot **out)
{
	struct target to = { .last = "not tried" };
	struct epf_boot_opts o;
	struct tcp_boot *t;
	int rc = epf_boot_copy_opts("bootstrap", &o, sizeof(o), opts);

	if (!rc)
		rc = check_opts(&o);
	if (rc)
		return rc;
	t = new_boot(&o);
	if (!t)
		return epf_fail(EPF_R_NO_MEMORY, "the bootstrap of rank %u", o.rank);
	choose_interface(&o, &to);
	to.timeout_ns = t->timeout_ns;
	to.notice = (struct epf_boot_notice){ o.notice_first_ns, o.notice_again_ns, UINT64_MAX };
	to.deadline_ns = epf_boot_deadline(t->timeout_ns);
	rc = epf_auth_load(o.secret, o.secret_len, o.secret_file, NULL, NULL, &t->auth);
	if (!rc)
		rc = find_server(t, &o, &to);
	if (!rc)
		rc = reach_server(t, &o, &to);
	if (rc) {
		tcp_free(t);
		return rc;
	}
	epf_boot_interrupt(&t->base, NULL, NULL);
	*out = &t->base;
	return 0;
}
