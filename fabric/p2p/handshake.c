/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of a handshake do (wire.h). Slow path. */
#include "fabric/p2p/p2p_priv.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/uio.h>

enum { GONE_MS = 1500 };

void epf_p2p_tune(int fd)
{
	int one = 1, ms = GONE_MS;

	/* A machine that is gone is noticed within 2 s: probes each second, none answered for 1.5 s. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

void epf_p2p_session(struct epf_p2p *ep, const struct metadata *acceptor,
		     const struct msg_hello *first, const struct msg_hello *second,
		     uint8_t key[EPF_AUTH_KEY_BYTES])
{
	struct epf_auth given = { .has_secret = true };
	const struct epf_auth *auth = ep->auth.has_secret ? &ep->auth : &ep->own;

	if (acceptor) {
		memcpy(given.master, acceptor->key, sizeof(given.master));
		auth = acceptor->flags & META_HAS_KEY ? &given : &ep->auth;
	}
	epf_auth_session_key(auth, first->nonce, second->nonce, key);
	explicit_bzero(&given, sizeof(given));
}

enum codec_strategy epf_p2p_strategy(const struct epf_p2p *ep)
{
	if (!epf_p2p_codec_exists())
		return CODEC_NONE;
	switch (ep->conf.p2p_compress) {
	case EPF_CONF_COMPRESS_SPLIT:
		return CODEC_SPLIT;
	case EPF_CONF_COMPRESS_FULL:
		return CODEC_FULL;
	default:
		return CODEC_NONE;
	}
}

enum codec_strategy epf_p2p_agree(const struct msg_hello *a, const struct msg_hello *b)
{
	uint32_t of_a = a->compress & HELLO_STRATEGY, of_b = b->compress & HELLO_STRATEGY;
	uint32_t weaker = of_a < of_b ? of_a : of_b;

	return weaker < CODEC_FULL ? (enum codec_strategy)weaker : CODEC_FULL;
}

void epf_p2p_conn_agree(struct conn *c, const struct msg_hello *a, const struct msg_hello *b)
{
	uint32_t both = a->compress & b->compress;

	c->compress = epf_p2p_agree(a, b);
	c->packs_gpu = c->compress && (both & HELLO_NVCOMP);
	c->packs_fp8 = both & HELLO_FP8;
	c->reuses_numbers = both & HELLO_REUSE;
}

void epf_p2p_hello_make(const struct epf_p2p *ep, bool is_local, struct msg_hello *out)
{
	memset(out, 0, sizeof(*out));
	epf_auth_nonce(out->nonce);
	out->meta = ep->meta;
	memset(out->meta.key, 0, sizeof(out->meta.key));
	epf_p2p_meta_seal(&out->meta);
	out->is_local = is_local;
	out->compress = is_local ? CODEC_NONE : epf_p2p_strategy(ep);
	if (out->compress)
		out->compress |= HELLO_FP8 | (EPF_LOAD_ACQUIRE(&ep->gpu.coder) ? HELLO_NVCOMP : 0);
	if (!is_local)
		out->compress |= HELLO_REUSE;
}

int epf_p2p_can_copy(pid_t pid, const struct probe *probe)
{
	uint8_t token[sizeof(probe->token)];
	struct iovec mine = { token, sizeof(token) };
	struct iovec theirs = { (void *)(uintptr_t)probe->addr, sizeof(token) };

	return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == (ssize_t)sizeof(token) &&
	       memcmp(token, probe->token, sizeof(token)) == 0;
}
