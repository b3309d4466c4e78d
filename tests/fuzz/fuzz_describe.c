/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a rank's description of itself. Byte 0 chooses: 0 the rest is what came from another rank; else the rest
 * fills a legal description that is written and read again. It aborts when a number beyond its limit gets through, when
 * what is read is not what was written, or when a refusal leaves something behind or says nothing.
 */
#include "fabric/base/err.h"
#include "fabric/join/describe.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool rule)
{
	if (!rule)
		abort();
}

static void check_numbers(const struct epf_description *d)
{
	must(d->lanes >= 1 && d->lanes <= EPF_MAX_LANES_PER_NODE && d->ordered <= 1);
	must(d->streams <= EPF_MAX_STREAMS_PER_NODE && d->n_signals <= EPF_WIDE_SIGNALS);
	must(d->depth >= 1 && d->depth <= EPF_MAX_WINDOW);
	must(d->receives <= EPF_MAX_WINDOW && d->nic_addr_len <= EPF_NIC_ADDR_BYTES);
	must(strnlen(d->node, sizeof(d->node)) < sizeof(d->node));
	must(strnlen(d->nic, sizeof(d->nic)) < sizeof(d->nic));
	for (uint32_t i = 0; i < d->n_regions; i++) {
		const struct epf_region_remote *r = &d->regions[i];

		must(r->bytes <= EPF_WIDE_REGION_BYTES && r->raddr + r->bytes >= r->raddr);
		must(r->state == (r->bytes ? EPF_REGION_LIVE : EPF_REGION_FREE));
		must((r->access & ~(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ)) == 0);
	}
}

static void any_bytes(const uint8_t *data, size_t size)
{
	static const struct epf_description nothing;
	struct epf_description d;
	size_t len;
	uint8_t *out;

	if (epf_description_decode(data, size, &d)) {
		must(!memcmp(&d, &nothing, sizeof(d)));
		must(epf_last_reason() == EPF_R_PEER_ANSWER && strstr(epf_last_error(), "[EPF-"));
		return;
	}
	check_numbers(&d);
	must(epf_description_encode(&d, &out, &len) == 0);
	must(len == size && !memcmp(out, data, size));
	free(out);
	epf_description_free(&d);
}

/* Numbers from the input, zeros when it is at its end. */
static uint64_t take(const uint8_t **data, size_t *size, uint64_t limit)
{
	uint64_t value = 0;
	size_t n = *size < sizeof(value) ? *size : sizeof(value);

	memcpy(&value, *data, n);
	*data += n;
	*size -= n;
	return limit ? value % limit : value;
}

static void legal_one(const uint8_t *data, size_t size)
{
	struct epf_region_remote regions[16];
	uint64_t tokens[16];
	struct epf_description d = { .tokens = tokens, .regions = regions }, back;
	uint8_t *out;
	size_t len;

	d.rank = (uint32_t)take(&data, &size, 1ull << 32);
	d.n_signals = (uint32_t)take(&data, &size, EPF_WIDE_SIGNALS + 1);
	d.streams = (uint32_t)take(&data, &size, EPF_MAX_STREAMS_PER_NODE + 1);
	d.receives = (uint32_t)take(&data, &size, EPF_MAX_WINDOW + 1);
	d.depth = 1 + (uint32_t)take(&data, &size, EPF_MAX_WINDOW);
	d.lanes = 1 + (uint32_t)take(&data, &size, EPF_MAX_LANES_PER_NODE);
	d.ordered = (uint32_t)take(&data, &size, 2);
	d.ctl_raddr = take(&data, &size, 0);
	d.keys = 1 + (uint32_t)take(&data, &size, EPF_NIC_LINKS);
	for (uint32_t k = 0; k < d.keys; k++)
		d.ctl_rkeys[k] = (uint32_t)take(&data, &size, 1ull << 32);
	memset(d.node, 'a', take(&data, &size, sizeof(d.node)));
	memset(d.nic, 'b', take(&data, &size, sizeof(d.nic)));
	d.nic_addr_len = take(&data, &size, EPF_NIC_ADDR_BYTES + 1);
	memset(d.nic_addr, (int)take(&data, &size, 256), d.nic_addr_len);
	d.n_tokens = (uint32_t)take(&data, &size, 17);
	for (uint32_t i = 0; i < d.n_tokens; i++)
		tokens[i] = take(&data, &size, 0);
	d.n_regions = (uint32_t)take(&data, &size, 17);
	for (uint32_t i = 0; i < d.n_regions; i++) {
		regions[i] = (struct epf_region_remote){
			.raddr = take(&data, &size, 1ull << 63),
			.bytes = take(&data, &size, EPF_WIDE_REGION_BYTES + 1),
			.access = (uint16_t)take(&data, &size, 4),
		};
		for (uint32_t k = 0; k < d.keys; k++)
			regions[i].rkeys[k] = (uint32_t)take(&data, &size, 1ull << 32);
		regions[i].state = regions[i].bytes ? EPF_REGION_LIVE : EPF_REGION_FREE;
	}
	must(epf_description_encode(&d, &out, &len) == 0);
	must(epf_description_decode(out, len, &back) == 0);
	check_numbers(&back);
	must(d.rank == back.rank && d.n_signals == back.n_signals && d.streams == back.streams);
	must(d.receives == back.receives && d.depth == back.depth && d.lanes == back.lanes &&
	     d.ordered == back.ordered);
	must(d.ctl_raddr == back.ctl_raddr && !memcmp(d.node, back.node, sizeof(d.node)));
	must(d.nic_addr_len == back.nic_addr_len && !memcmp(d.nic, back.nic, sizeof(d.nic)));
	must(!memcmp(d.tokens, back.tokens, d.n_tokens * sizeof(*tokens)));
	for (uint32_t i = 0; i < d.n_regions; i++) {
		const struct epf_region_remote *a = &regions[i], *b = &back.regions[i];

		must(a->raddr == b->raddr && a->bytes == b->bytes && a->access == b->access &&
		     a->state == b->state && !memcmp(a->rkeys, b->rkeys, sizeof(a->rkeys)));
	}
	free(out);
	epf_description_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (data[0] == 0)
		any_bytes(data + 1, size - 1);
	else
		legal_one(data + 1, size - 1);
	return 0;
}
