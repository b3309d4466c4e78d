/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layouts of wire.h. Reads what strangers and peers send; must never read beyond the length that the caller has.
 */
#include "fabric/nic/tcp/wire.h"

#include "fabric/nic/nic.h"

#include <errno.h>
#include <string.h>

#define HELLO_MAGIC 0x54465045u /* "EPFT" in memory order */
#define TRAIN_MAGIC 0x52545045u /* "EPTR" */

static void put(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

void epf_tcp_hello_encode(const struct epf_tcp_hello *h, uint8_t *out)
{
	put(out, HELLO_MAGIC, 4);
	put(out + 4, h->version, 2);
	put(out + 6, h->mode, 2);
	memcpy(out + 8, h->nonce, EPF_TCP_NONCE);
}

int epf_tcp_hello_decode(const uint8_t *in, struct epf_tcp_hello *out)
{
	if (get(in, 4) != HELLO_MAGIC || get(in + 4, 2) != EPF_TCP_VERSION)
		return -EPROTO;
	out->version = EPF_TCP_VERSION;
	out->mode = (uint16_t)get(in + 6, 2);
	memcpy(out->nonce, in + 8, EPF_TCP_NONCE);
	return 0;
}

void epf_tcp_claim_encode(const struct epf_tcp_claim *c, uint8_t *out)
{
	memcpy(out, c->to, EPF_TCP_ID);
	memcpy(out + EPF_TCP_ID, c->from, EPF_TCP_ID);
	put(out + 2 * EPF_TCP_ID, c->to_token, 8);
	put(out + 2 * EPF_TCP_ID + 8, c->from_token, 8);
}

void epf_tcp_claim_decode(const uint8_t *in, struct epf_tcp_claim *out)
{
	memcpy(out->to, in, EPF_TCP_ID);
	memcpy(out->from, in + EPF_TCP_ID, EPF_TCP_ID);
	out->to_token = get(in + 2 * EPF_TCP_ID, 8);
	out->from_token = get(in + 2 * EPF_TCP_ID + 8, 8);
}

void epf_tcp_head_encode(const struct epf_tcp_head *h, uint8_t *out)
{
	put(out, TRAIN_MAGIC, 4);
	put(out + 4, h->count, 4); /* and the 0 behind it */
	put(out + 8, h->ack, 4);
	put(out + 12, h->bytes, 4);
}

int epf_tcp_head_decode(const uint8_t *in, struct epf_tcp_head *out)
{
	uint32_t count = (uint32_t)get(in + 4, 4);

	if (get(in, 4) != TRAIN_MAGIC || count > EPF_TCP_TRAIN)
		return -EPROTO;
	out->count = count;
	out->ack = (uint32_t)get(in + 8, 4);
	out->bytes = (uint32_t)get(in + 12, 4);
	return 0;
}

void epf_tcp_desc_encode(const struct epf_tcp_desc *d, uint8_t *out)
{
	out[0] = d->kind;
	out[1] = d->status;
	put(out + 2, 0, 2);
	put(out + 4, d->len, 4);
	put(out + 8, d->raddr, 8);
	put(out + 16, d->rkey, 4);
	put(out + 20, d->imm, 4);
}

static int is_possible(const struct epf_tcp_desc *d)
{
	switch (d->kind) {
	case EPF_TCP_SEND:
		return d->len <= EPF_NIC_MSG_BYTES && d->status == 0;
	case EPF_TCP_WRITE:
	case EPF_TCP_WRITE_IMM:
	case EPF_TCP_READ:
	case EPF_TCP_BYTES:
		return d->len <= EPF_TCP_MSG_MAX && d->status == 0;
	case EPF_TCP_NAK:
		return d->status == EPF_S_REMOTE_ACCESS || d->status == EPF_S_RNR_EXCEEDED;
	default:
		return 0;
	}
}

int epf_tcp_descs_decode(const struct epf_tcp_head *h, const uint8_t *in, struct epf_tcp_desc *out)
{
	uint64_t bytes = 0;
	unsigned sends = 0;

	for (uint32_t i = 0; i < h->count; i++, in += EPF_TCP_DESC_BYTES) {
		struct epf_tcp_desc *d = &out[i];

		d->kind = in[0];
		d->status = in[1];
		d->len = (uint32_t)get(in + 4, 4);
		d->raddr = get(in + 8, 8);
		d->rkey = (uint32_t)get(in + 16, 4);
		d->imm = (uint32_t)get(in + 20, 4);
		if (get(in + 2, 2) || !is_possible(d))
			return -EPROTO;
		sends += d->kind == EPF_TCP_SEND;
		bytes += epf_tcp_payload(d);
	}
	return sends > EPF_TCP_TRAIN_SENDS || bytes != h->bytes ? -EPROTO : 0;
}
