/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of greet.h. HMAC, random numbers and comparing in constant time are libsodium's, by bootstrap/auth.h. Whoever accepts says nothing that depends on the key before the
 * other end has proven that it knows it.
 */
#include "fabric/nic/tcp/greet.h"

#include <errno.h>
#include <string.h>

static void say_hello(struct epf_tcp_greet *g, unsigned which)
{
	struct epf_tcp_hello h = { .version = EPF_TCP_VERSION, .mode = g->mode };

	epf_auth_nonce(h.nonce);
	memcpy(g->nonce[which], h.nonce, sizeof(h.nonce));
	epf_tcp_hello_encode(&h, g->hello[which]);
	memcpy(g->out, g->hello[which], EPF_TCP_HELLO_BYTES);
	g->out_len = EPF_TCP_HELLO_BYTES;
	g->sent = 0;
}

static void wait_for(struct epf_tcp_greet *g, enum epf_tcp_greet_state state, uint16_t want)
{
	g->state = (uint8_t)state;
	g->have = 0;
	g->want = want;
}

void epf_tcp_greet_dial(struct epf_tcp_greet *g, const struct epf_auth *auth, const uint8_t *id,
			const struct epf_tcp_claim *claim, uint16_t mode)
{
	*g = (struct epf_tcp_greet){ .auth = auth, .id = id, .claim = *claim, .mode = mode };
	say_hello(g, 0);
	wait_for(g, EPF_TCP_GREET_CHALLENGE, EPF_TCP_HELLO_BYTES);
}

void epf_tcp_greet_accept(struct epf_tcp_greet *g, const struct epf_auth *auth, const uint8_t *id,
			  uint16_t mode)
{
	*g = (struct epf_tcp_greet){ .auth = auth, .id = id, .mode = mode };
	wait_for(g, EPF_TCP_GREET_HELLO, EPF_TCP_HELLO_BYTES);
}

/* Over the direction, both hellos and the claim, by the key that only this connection has. */
static void prove(const struct epf_tcp_greet *g, bool by_accepting, const uint8_t *claim,
		  uint8_t proof[EPF_AUTH_HASH_BYTES])
{
	uint8_t key[EPF_AUTH_KEY_BYTES], digest[EPF_AUTH_HASH_BYTES];

	epf_auth_session_key(g->auth, g->nonce[0], g->nonce[1], key);
	epf_auth_digest(claim, EPF_TCP_CLAIM_BYTES, digest);
	epf_auth_proof(key, by_accepting, &g->hello[0][0], sizeof(g->hello), digest, proof);
	explicit_bzero(key, sizeof(key));
}

static int take_hello(struct epf_tcp_greet *g, unsigned which)
{
	struct epf_tcp_hello h;

	if (epf_tcp_hello_decode(g->in, &h) || h.mode > EPF_TCP_MODE_SEALED)
		return -EPROTO;
	g->peer_mode = h.mode;
	memcpy(g->hello[which], g->in, EPF_TCP_HELLO_BYTES);
	memcpy(g->nonce[which], h.nonce, sizeof(h.nonce));
	return 0;
}

static int challenged(struct epf_tcp_greet *g)
{
	int rc = take_hello(g, 1);

	if (!rc && g->mode != g->peer_mode)
		rc = -EPROTOTYPE;
	if (rc)
		return rc;
	epf_tcp_claim_encode(&g->claim, g->out);
	prove(g, false, g->out, g->out + EPF_TCP_CLAIM_BYTES);
	g->out_len = EPF_TCP_PROOF_BYTES;
	g->sent = 0;
	wait_for(g, EPF_TCP_GREET_ACCEPT, EPF_TCP_PROOF);
	return 0;
}

static int proven(struct epf_tcp_greet *g)
{
	uint8_t proof[EPF_AUTH_HASH_BYTES];

	prove(g, false, g->in, proof);
	if (!epf_auth_equal(proof, g->in + EPF_TCP_CLAIM_BYTES))
		return -EACCES;
	epf_tcp_claim_decode(g->in, &g->claim);
	if (memcmp(g->claim.to, g->id, EPF_TCP_ID) != 0)
		return -EACCES;
	/* The end that dials has read of it in CHALLENGE, and hangs up. */
	if (g->mode != g->peer_mode)
		return -EPROTOTYPE;
	prove(g, true, g->in, g->out);
	g->out_len = EPF_TCP_PROOF;
	g->sent = 0;
	wait_for(g, EPF_TCP_GREET_DONE, 0);
	return 0;
}

static int accepted(struct epf_tcp_greet *g)
{
	uint8_t claim[EPF_TCP_CLAIM_BYTES], proof[EPF_AUTH_HASH_BYTES];

	epf_tcp_claim_encode(&g->claim, claim);
	prove(g, true, claim, proof);
	if (!epf_auth_equal(proof, g->in))
		return -EACCES;
	wait_for(g, EPF_TCP_GREET_DONE, 0);
	return 0;
}

int epf_tcp_greet_step(struct epf_tcp_greet *g)
{
	int rc = -EPROTO;

	switch ((enum epf_tcp_greet_state)g->state) {
	case EPF_TCP_GREET_HELLO:
		rc = take_hello(g, 0);
		if (rc)
			break;
		say_hello(g, 1);
		wait_for(g, EPF_TCP_GREET_PROOF, EPF_TCP_PROOF_BYTES);
		break;
	case EPF_TCP_GREET_CHALLENGE:
		rc = challenged(g);
		break;
	case EPF_TCP_GREET_PROOF:
		rc = proven(g);
		break;
	case EPF_TCP_GREET_ACCEPT:
		rc = accepted(g);
		break;
	case EPF_TCP_GREET_DONE:
		break;
	}
	return rc;
}

/* An HMAC like a proof, by the same key, over bytes that no proof is over: another label in front. */
static void make_key(const struct epf_tcp_greet *g, bool of_acceptor, uint8_t out[EPF_TCP_SEAL_KEY])
{
	static const char label[16] = "wire-encryption";
	uint8_t key[EPF_AUTH_KEY_BYTES], digest[EPF_AUTH_HASH_BYTES];
	uint8_t head[sizeof(label) + sizeof(g->hello)], claim[EPF_TCP_CLAIM_BYTES];

	memcpy(head, label, sizeof(label));
	memcpy(head + sizeof(label), g->hello, sizeof(g->hello));
	epf_tcp_claim_encode(&g->claim, claim);
	epf_auth_session_key(g->auth, g->nonce[0], g->nonce[1], key);
	epf_auth_digest(claim, sizeof(claim), digest);
	epf_auth_proof(key, of_acceptor, head, sizeof(head), digest, out);
	explicit_bzero(key, sizeof(key));
}

void epf_tcp_greet_keys(const struct epf_tcp_greet *g, bool dialed, struct epf_tcp_seal_keys *out)
{
	make_key(g, !dialed, out->send);
	make_key(g, dialed, out->receive);
}
