/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says of itself at the join, as bytes. The bytes come over an authenticated connection, but from another
 * release perhaps: every field is checked, and nothing is believed about lengths.
 *
 * Layout, little-endian: magic u32 "EPFJ", version u32, then the fields in the order of struct epf_description, texts as
 * 64 and 16 bytes, the NIC address as length u32 and that many bytes, keys u32 and the second to last rkey of the control
 * words u32, tokens and regions as count u32 and elements (token u64; region raddr u64, bytes u64, rkey u32, access u32 and its
 * second to last rkey u32).
 */
#include "fabric/join/describe.h"

#include "fabric/base/err.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAGIC = 0x4a465045,
	MAX_TOKENS = 4096 * EPF_MAX_LANES_PER_NODE,
	MAX_REGIONS = EPF_MAX_REGIONS
};

struct cursor {
	const uint8_t *at;
	size_t left;
	bool bad;
};

static void put_u32(uint8_t **at, uint32_t value)
{
	value = htole32(value);
	memcpy(*at, &value, sizeof(value));
	*at += sizeof(value);
}

static void put_u64(uint8_t **at, uint64_t value)
{
	value = htole64(value);
	memcpy(*at, &value, sizeof(value));
	*at += sizeof(value);
}

static void get_bytes(struct cursor *c, void *to, size_t n)
{
	if (c->left < n) {
		c->bad = true;
		return;
	}
	memcpy(to, c->at, n);
	c->at += n;
	c->left -= n;
}

static uint32_t get_u32(struct cursor *c)
{
	uint32_t value = 0;

	get_bytes(c, &value, sizeof(value));
	return le32toh(value);
}

static uint64_t get_u64(struct cursor *c)
{
	uint64_t value = 0;

	get_bytes(c, &value, sizeof(value));
	return le64toh(value);
}

static size_t region_bytes(uint32_t keys)
{
	return 24 + 4 * (size_t)(keys - 1);
}

/* What no reader would take is not written. */
static int check_limits(const struct epf_description *d)
{
	if (d->n_tokens > MAX_TOKENS || d->n_regions > MAX_REGIONS || d->keys > EPF_NIC_LINKS ||
	    d->nic_addr_len > sizeof(d->nic_addr) || d->n_signals > EPF_WIDE_SIGNALS ||
	    !memchr(d->node, 0, sizeof(d->node)) || !memchr(d->nic, 0, sizeof(d->nic)))
		return epf_fail(
			EPF_R_CONF_RANGE,
			"join: %u lanes, %u regions, %u signals, an address of %zu bytes; at "
			"most %d, %d, %u, %zu can be described",
			d->n_tokens, d->n_regions, d->n_signals, d->nic_addr_len, MAX_TOKENS,
			MAX_REGIONS, EPF_WIDE_SIGNALS, sizeof(d->nic_addr));
	return 0;
}

int epf_description_encode(const struct epf_description *d, uint8_t **out, size_t *len)
{
	uint32_t keys = d->keys ? d->keys : 1;
	size_t bytes = 8 + 8 * 4 + 8 + sizeof(d->node) + sizeof(d->nic) + 4 + d->nic_addr_len + 4 +
		       8 * (size_t)d->n_tokens + 4 + region_bytes(keys) * (size_t)d->n_regions +
		       4 * (size_t)keys;
	uint8_t *buf, *at;
	int rc = check_limits(d);

	if (rc)
		return rc;
	buf = at = malloc(bytes);
	if (!buf)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %zu bytes", bytes);
	put_u32(&at, MAGIC);
	put_u32(&at, EPF_DESCRIBE_VERSION);
	put_u32(&at, d->rank);
	put_u32(&at, d->n_signals);
	put_u32(&at, d->streams);
	put_u32(&at, d->receives);
	put_u32(&at, d->depth);
	put_u32(&at, d->lanes);
	put_u32(&at, d->ordered);
	put_u32(&at, d->ctl_rkey);
	put_u64(&at, d->ctl_raddr);
	memcpy(at, d->node, sizeof(d->node));
	at += sizeof(d->node);
	memcpy(at, d->nic, sizeof(d->nic));
	at += sizeof(d->nic);
	put_u32(&at, (uint32_t)d->nic_addr_len);
	memcpy(at, d->nic_addr, d->nic_addr_len);
	at += d->nic_addr_len;
	put_u32(&at, keys);
	for (uint32_t k = 1; k < keys; k++)
		put_u32(&at, d->ctl_rkeys[k]);
	put_u32(&at, d->n_tokens);
	for (uint32_t i = 0; i < d->n_tokens; i++)
		put_u64(&at, d->tokens[i]);
	put_u32(&at, d->n_regions);
	for (uint32_t i = 0; i < d->n_regions; i++) {
		put_u64(&at, d->regions[i].raddr);
		put_u64(&at, d->regions[i].bytes);
		put_u32(&at, d->regions[i].rkey);
		put_u32(&at, d->regions[i].access);
		for (uint32_t k = 1; k < keys; k++)
			put_u32(&at, d->regions[i].rkeys[k]);
	}
	*out = buf;
	*len = bytes;
	return 0;
}

static int malformed(struct epf_description *d, const char *what)
{
	epf_description_free(d);
	return epf_fail(EPF_R_PEER_ANSWER, "join: a rank's description has %s", what);
}

static int no_memory(struct epf_description *d)
{
	epf_description_free(d);
	return epf_fail(EPF_R_NO_MEMORY, "join: no memory for a rank's description");
}

static int decode_lists(struct cursor *c, struct epf_description *d)
{
	d->keys = get_u32(c);
	if (c->bad || d->keys < 1 || d->keys > EPF_NIC_LINKS)
		return malformed(d, "a bad number of keys");
	for (uint32_t k = 1; k < d->keys; k++)
		d->ctl_rkeys[k] = get_u32(c);
	d->n_tokens = get_u32(c);
	if (c->bad || d->n_tokens > MAX_TOKENS || c->left < 8 * (size_t)d->n_tokens)
		return malformed(d, "a bad list of lanes");
	d->tokens = calloc(d->n_tokens ? d->n_tokens : 1, sizeof(*d->tokens));
	if (!d->tokens)
		return no_memory(d);
	for (uint32_t i = 0; i < d->n_tokens; i++)
		d->tokens[i] = get_u64(c);
	d->n_regions = get_u32(c);
	if (c->bad || d->n_regions > MAX_REGIONS ||
	    c->left != region_bytes(d->keys) * (size_t)d->n_regions)
		return malformed(d, "a bad list of regions");
	d->regions = calloc(d->n_regions ? d->n_regions : 1, sizeof(*d->regions));
	if (!d->regions)
		return no_memory(d);
	for (uint32_t i = 0; i < d->n_regions; i++) {
		struct epf_region_remote *r = &d->regions[i];
		uint32_t access;

		r->raddr = get_u64(c);
		r->bytes = get_u64(c);
		r->rkey = get_u32(c);
		access = get_u32(c);
		r->access = (uint16_t)access;
		for (uint32_t k = 1; k < d->keys; k++)
			r->rkeys[k] = get_u32(c);
		r->state = r->bytes ? EPF_REGION_LIVE : EPF_REGION_FREE;
		if (r->bytes > EPF_WIDE_REGION_BYTES || r->bytes > UINT64_MAX - r->raddr)
			return malformed(d, "a region beyond the limit");
		if (access & ~(uint32_t)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
			return malformed(d, "a region with an access of another release");
	}
	return 0;
}

int epf_description_decode(const uint8_t *buf, size_t len, struct epf_description *d)
{
	struct cursor c = { .at = buf, .left = len };

	memset(d, 0, sizeof(*d));
	if (get_u32(&c) != MAGIC)
		return malformed(d, "no magic number");
	if (get_u32(&c) != EPF_DESCRIBE_VERSION)
		return malformed(d, "another version");
	d->rank = get_u32(&c);
	d->n_signals = get_u32(&c);
	d->streams = get_u32(&c);
	d->receives = get_u32(&c);
	d->depth = get_u32(&c);
	d->lanes = get_u32(&c);
	d->ordered = get_u32(&c);
	d->ctl_rkey = get_u32(&c);
	d->ctl_raddr = get_u64(&c);
	get_bytes(&c, d->node, sizeof(d->node));
	get_bytes(&c, d->nic, sizeof(d->nic));
	d->nic_addr_len = get_u32(&c);
	if (c.bad || d->nic_addr_len > sizeof(d->nic_addr))
		return malformed(d, "a bad NIC address");
	get_bytes(&c, d->nic_addr, d->nic_addr_len);
	if (c.bad || memchr(d->node, 0, sizeof(d->node)) == NULL ||
	    memchr(d->nic, 0, sizeof(d->nic)) == NULL)
		return malformed(d, "fields cut short");
	if (d->lanes < 1 || d->lanes > EPF_MAX_LANES_PER_NODE ||
	    d->streams > EPF_MAX_STREAMS_PER_NODE || d->n_signals > EPF_WIDE_SIGNALS ||
	    d->receives > EPF_MAX_WINDOW || d->depth < 1 || d->depth > EPF_MAX_WINDOW ||
	    d->ordered > 1)
		return malformed(d, "numbers out of range");
	return decode_lists(&c, d);
}

void epf_description_free(struct epf_description *d)
{
	free(d->tokens);
	free(d->regions);
	memset(d, 0, sizeof(*d));
}
