/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of greet.h, four messages of fixed length: HELLO and CHALLENGE (magic, version, nonce), PROOF (who dials, proof), ACCEPT (who accepts,
 * verdict, port, proof). A proof covers both first messages, the direction and what its message says. Nothing that depends on the secret leaves the accepting
 * end before the dialing end has proven itself.
 */
#include "tools/nccl/greet.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum {
	VERSION = 1,
	HELLO_BYTES = 8 + EPF_AUTH_NONCE_BYTES,
	SELF_BYTES = 2 * EPF_NCCL_ID_BYTES + 4 + EPF_NCCL_NAME_BYTES,
	AT_PID = 2 * EPF_NCCL_ID_BYTES,
	AT_NAME = AT_PID + 4,
	PROOF_BYTES = SELF_BYTES + EPF_AUTH_HASH_BYTES,
	ACCEPT_SAYS = SELF_BYTES + 4,
	ACCEPT_BYTES = ACCEPT_SAYS + EPF_AUTH_HASH_BYTES,
};

static const uint8_t magic[4] = { 'E', 'N', 'C', 'L' };

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t now = epf_now_ns();
		struct pollfd p = { .fd = fd, .events = events };
		int ms, n;

		if (now >= deadline_ns)
			return -ETIMEDOUT;
		ms = (deadline_ns - now) / 1000000 > 1000
			     ? 1000
			     : (int)((deadline_ns - now + 999999) / 1000000);
		n = poll(&p, 1, ms);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

static int move(int fd, uint8_t *at, size_t bytes, bool is_send, uint64_t deadline_ns)
{
	while (bytes) {
		ssize_t n = is_send ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
				    : recv(fd, at, bytes, MSG_DONTWAIT);
		int rc;

		if (n > 0) {
			at += n;
			bytes -= (size_t)n;
			continue;
		}
		if (n == 0)
			return -EPIPE;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			return -errno;
		rc = wait_for(fd, is_send ? POLLOUT : POLLIN, deadline_ns);
		if (rc)
			return rc;
	}
	return 0;
}

int epf_nccl_send_all(int fd, const void *buf, size_t bytes, uint64_t deadline_ns)
{
	return move(fd, (uint8_t *)(uintptr_t)buf, bytes, true, deadline_ns);
}

int epf_nccl_recv_all(int fd, void *buf, size_t bytes, uint64_t deadline_ns)
{
	return move(fd, buf, bytes, false, deadline_ns);
}

/* One end of one handshake. */
struct greet {
	int fd;
	uint64_t deadline_ns;
	struct epf_auth auth;
	uint8_t hello[2][HELLO_BYTES]; /* of the dialing end, of the accepting one */
};

static int broken(int rc)
{
	return epf_fail_sys(EPF_R_NCCL_PEER, -rc, "nccl: the handshake with another process");
}

static int not_ours(void)
{
	return epf_fail(EPF_R_NCCL_PEER, "nccl: another program answered, or another release");
}

static int say_hello(struct greet *g, unsigned which)
{
	uint8_t *b = g->hello[which];
	int rc;

	memset(b, 0, HELLO_BYTES);
	memcpy(b, magic, sizeof(magic));
	b[4] = VERSION;
	epf_auth_nonce(b + 8);
	rc = epf_nccl_send_all(g->fd, b, HELLO_BYTES, g->deadline_ns);
	return rc ? broken(rc) : 0;
}

static int take_hello(struct greet *g, unsigned which)
{
	uint8_t *b = g->hello[which];
	int rc = epf_nccl_recv_all(g->fd, b, HELLO_BYTES, g->deadline_ns);

	if (rc)
		return broken(rc);
	return memcmp(b, magic, sizeof(magic)) != 0 || b[4] != VERSION ? not_ours() : 0;
}

static void prove(const struct greet *g, bool by_accepting, const uint8_t *says, size_t bytes,
		  const uint8_t key[EPF_AUTH_KEY_BYTES], uint8_t proof[EPF_AUTH_HASH_BYTES])
{
	uint8_t digest[EPF_AUTH_HASH_BYTES];

	epf_auth_digest(says, bytes, digest);
	epf_auth_proof(key, by_accepting, &g->hello[0][0], sizeof(g->hello), digest, proof);
}

static int refused(void)
{
	return epf_fail(EPF_R_NCCL_SECRET,
			"nccl: a process that connected was not given the handle");
}

static int begin(struct greet *g, int fd, const uint8_t *secret, uint64_t deadline_ns)
{
	*g = (struct greet){ .fd = fd, .deadline_ns = deadline_ns };
	return epf_auth_load(secret, EPF_NCCL_SECRET_BYTES, NULL, NULL, NULL, &g->auth);
}

static void put_self(const struct epf_nccl_self *self, uint8_t *b)
{
	uint32_t pid = htole32(self->pid);

	memcpy(b, self->process, EPF_NCCL_ID_BYTES);
	memcpy(b + EPF_NCCL_ID_BYTES, self->host, EPF_NCCL_ID_BYTES);
	memcpy(b + AT_PID, &pid, sizeof(pid));
	memcpy(b + AT_NAME, self->name, EPF_NCCL_NAME_BYTES);
}

static void get_self(const uint8_t *b, struct epf_nccl_self *self)
{
	uint32_t pid;

	memcpy(self->process, b, EPF_NCCL_ID_BYTES);
	memcpy(self->host, b + EPF_NCCL_ID_BYTES, EPF_NCCL_ID_BYTES);
	memcpy(&pid, b + AT_PID, sizeof(pid));
	self->pid = le32toh(pid);
	memcpy(self->name, b + AT_NAME, EPF_NCCL_NAME_BYTES);
	self->name[EPF_NCCL_NAME_BYTES - 1] = 0;
}

static int dial(struct greet *g, const struct epf_nccl_self *self, struct epf_nccl_greeting *out)
{
	uint8_t mine[PROOF_BYTES], theirs[ACCEPT_BYTES], proof[EPF_AUTH_HASH_BYTES];
	uint16_t port;
	int rc = say_hello(g, 0);

	if (!rc)
		rc = take_hello(g, 1);
	if (rc)
		return rc;
	epf_auth_session_key(&g->auth, g->hello[0] + 8, g->hello[1] + 8, out->key);
	put_self(self, mine);
	prove(g, false, mine, SELF_BYTES, out->key, mine + SELF_BYTES);
	rc = epf_nccl_send_all(g->fd, mine, sizeof(mine), g->deadline_ns);
	if (!rc)
		rc = epf_nccl_recv_all(g->fd, theirs, sizeof(theirs), g->deadline_ns);
	if (rc)
		return broken(rc);
	prove(g, true, theirs, ACCEPT_SAYS, out->key, proof);
	if (!epf_auth_equal(proof, theirs + ACCEPT_SAYS))
		return refused();
	get_self(theirs, &out->peer);
	out->verdict = theirs[SELF_BYTES] == EPF_NCCL_GO ? EPF_NCCL_GO : EPF_NCCL_BUSY;
	memcpy(&port, theirs + SELF_BYTES + 2, sizeof(port));
	out->port = le16toh(port);
	return 0;
}

int epf_nccl_greet_dial(int fd, const uint8_t secret[EPF_NCCL_SECRET_BYTES],
			const struct epf_nccl_self *self, uint64_t deadline_ns,
			struct epf_nccl_greeting *out)
{
	struct greet g;
	int rc = begin(&g, fd, secret, deadline_ns);

	if (!rc)
		rc = dial(&g, self, out);
	epf_auth_wipe(&g.auth);
	return rc;
}

static int accept_greeting(struct greet *g, const struct epf_nccl_self *self,
			   int (*decide)(void *arg, struct epf_nccl_greeting *greeting), void *arg,
			   struct epf_nccl_greeting *out)
{
	uint8_t mine[ACCEPT_BYTES] = { 0 }, theirs[PROOF_BYTES], proof[EPF_AUTH_HASH_BYTES];
	uint16_t port;
	int rc = take_hello(g, 0);

	if (!rc)
		rc = say_hello(g, 1);
	if (rc)
		return rc;
	rc = epf_nccl_recv_all(g->fd, theirs, sizeof(theirs), g->deadline_ns);
	if (rc)
		return broken(rc);
	epf_auth_session_key(&g->auth, g->hello[0] + 8, g->hello[1] + 8, out->key);
	prove(g, false, theirs, SELF_BYTES, out->key, proof);
	if (!epf_auth_equal(proof, theirs + SELF_BYTES))
		return refused();
	get_self(theirs, &out->peer);
	rc = decide(arg, out);
	if (rc)
		return rc;
	put_self(self, mine);
	mine[SELF_BYTES] = (uint8_t)out->verdict;
	port = htole16(out->port);
	memcpy(mine + SELF_BYTES + 2, &port, sizeof(port));
	prove(g, true, mine, ACCEPT_SAYS, out->key, mine + ACCEPT_SAYS);
	rc = epf_nccl_send_all(g->fd, mine, sizeof(mine), g->deadline_ns);
	return rc ? broken(rc) : 0;
}

int epf_nccl_greet_accept(int fd, const uint8_t secret[EPF_NCCL_SECRET_BYTES],
			  const struct epf_nccl_self *self, uint64_t deadline_ns,
			  int (*decide)(void *arg, struct epf_nccl_greeting *greeting), void *arg,
			  struct epf_nccl_greeting *out)
{
	struct greet g;
	int rc = begin(&g, fd, secret, deadline_ns);

	if (!rc)
		rc = accept_greeting(&g, self, decide, arg, out);
	epf_auth_wipe(&g.auth);
	return rc;
}
