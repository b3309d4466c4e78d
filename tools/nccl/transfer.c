/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages over a connection (net.h, layout.h): two commands each way, no lock, no copy. A receive is a description put into the sender's memory and an
 * addition to its bell; a message is a put and an addition that says how long it was. The engine does the rest: credits, order, failover.
 */
#include "fabric/base/err.h"
#include "tools/nccl/net.h"

#include <endian.h>
#include <errno.h>

/* Messages from here on are throughput traffic, which leaves room for shorter ones. */
enum { BULK_BYTES = 128 * 1024 };

static uint64_t load(const uint8_t *word)
{
	return le64toh(__atomic_load_n((const uint64_t *)(const void *)word, __ATOMIC_ACQUIRE));
}

static uint8_t *control(const struct epf_comm *c, uint64_t at)
{
	return c->link->control + at;
}

/* Nothing has come: whether anything can. */
static int check(struct epf_comm *c)
{
	struct epf_ring_failure f;

	if (epf_ring_error(c->ring, &f))
		return epf_link_fail(c->link, "cannot be reached: %s", epf_last_error());
	return epf_link_is_lost(c->link) ? epf_link_why(c->link) : 0;
}

/* Finds the part of the request at the head of the queue that a tag goes to. -1: none yet. */
static int match(const struct epf_send *s, const struct epf_net_part *parts, unsigned n, int tag)
{
	for (unsigned i = 0; i < n; i++) {
		if (!(s->matched >> i & 1) && le32toh(parts[i].tag) == (uint32_t)tag)
			return (int)i;
	}
	return -1;
}

static struct epf_request *free_request(struct epf_request *all, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (!all[i].used)
			return &all[i];
	}
	return NULL;
}

static int push(struct epf_send *s, const struct epf_net_part *to, unsigned part, uint64_t bytes,
		uint64_t offset, const struct epf_mr *mr)
{
	struct epf_comm *c = &s->comm;
	uint32_t rank = c->link->other;
	int rc = 0;

	if (bytes)
		rc = epf_put(c->ring, rank, mr->region, offset, le32toh(to->region),
			     le64toh(to->offset), bytes, bytes >= BULK_BYTES ? EPF_BULK : 0);
	if (!rc)
		rc = epf_add(c->ring, rank, EPF_LINK_CONTROL,
			     epf_net_word_at(c->peer_slot, s->next, part), bytes + 1, 0);
	return rc;
}

static int is_inside(const struct epf_comm *c, const struct epf_mr *mr, const void *data,
		     size_t bytes)
{
	uintptr_t at = (uintptr_t)data;

	return mr && mr->link == c->link && at >= mr->addr && bytes <= mr->bytes &&
	       at - mr->addr <= mr->bytes - bytes;
}

static int outside(size_t bytes)
{
	return epf_fail(EPF_R_NCCL_CALL, "nccl: a message of %zu bytes outside its registration",
			bytes);
}

int epf_net_isend(struct epf_send *s, void *data, size_t bytes, int tag, struct epf_mr *mr,
		  struct epf_request **request)
{
	const struct epf_comm *c = &s->comm;
	const struct epf_net_part *parts;
	struct epf_request *r;
	unsigned n;
	int i, rc;

	*request = NULL;
	if (bytes && !is_inside(c, mr, data, bytes))
		return outside(bytes);
	if (load(control(c, epf_net_bell_at(c->slot))) <= s->next)
		return check(&s->comm);
	parts = (const void *)control(c, epf_net_request_at(EPF_NET_FIFO, c->slot, s->next));
	n = le32toh(parts->parts);
	if (n == 0 || n > EPF_NET_PARTS)
		return epf_link_fail(c->link, "posts %u receives at once", n);
	i = match(s, parts, n, tag);
	r = free_request(s->requests, EPF_NET_POSTED * EPF_NET_PARTS);
	if (i < 0 || !r)
		return check(&s->comm);
	if (bytes > le64toh(parts[i].bytes))
		bytes = le64toh(parts[i].bytes);
	rc = push(s, &parts[i], (unsigned)i, bytes, bytes ? (uintptr_t)data - mr->addr : 0, mr);
	if (rc)
		return rc;
	*r = (struct epf_request){ .comm = &s->comm,
				   .number = epf_ring_pushed(c->ring),
				   .bytes = bytes,
				   .parts = 1,
				   .used = true };
	s->matched |= 1u << i;
	if (s->matched == (1u << n) - 1) {
		s->matched = 0;
		s->next++;
	}
	*request = r;
	return 0;
}

int epf_net_irecv(struct epf_recv *v, int n, void *const *data, const size_t *bytes,
		  const int *tags, struct epf_mr *const *mrs, struct epf_request **request)
{
	struct epf_comm *c = &v->comm;
	struct epf_request *r = &v->requests[v->posted % EPF_NET_POSTED];
	uint64_t mirror = epf_net_request_at(EPF_NET_MIRROR, c->slot, v->posted);
	struct epf_net_part *parts = (void *)control(c, mirror);
	int rc;

	*request = NULL;
	if (n < 1 || n > EPF_NET_PARTS)
		return epf_fail(EPF_R_NCCL_CALL,
				"nccl: %d receives in one request, 1 to %d are possible", n,
				EPF_NET_PARTS);
	for (int i = 0; i < n; i++) {
		if (bytes[i] && !is_inside(c, mrs[i], data[i], bytes[i]))
			return outside(bytes[i]);
	}
	if (r->used)
		return check(c);
	for (int i = 0; i < n; i++) {
		uint8_t *word = control(c, epf_net_word_at(c->slot, v->posted, (unsigned)i));

		/* The engine adds to it after the peer has seen what follows. */
		__atomic_store_n((uint64_t *)(void *)word, 0, __ATOMIC_RELAXED);
		parts[i] = (struct epf_net_part){
			.offset = htole64(bytes[i] ? (uintptr_t)data[i] - mrs[i]->addr : 0),
			.bytes = htole64(bytes[i]),
			.region = htole32(bytes[i] ? mrs[i]->region : 0),
			.tag = htole32((uint32_t)tags[i]),
			.parts = htole32((uint32_t)n),
		};
	}
	rc = epf_put(c->ring, c->link->other, EPF_LINK_CONTROL, mirror, EPF_LINK_CONTROL,
		     epf_net_request_at(EPF_NET_FIFO, c->peer_slot, v->posted),
		     (uint64_t)n * sizeof(*parts), 0);
	if (!rc)
		rc = epf_add(c->ring, c->link->other, EPF_LINK_CONTROL,
			     epf_net_bell_at(c->peer_slot), 1, 0);
	if (rc)
		return rc;
	*r = (struct epf_request){
		.comm = c, .number = v->posted, .parts = (unsigned)n, .used = true
	};
	v->posted++;
	*request = r;
	return 0;
}

/* A completion that is there counts, whatever has happened since. */
int epf_net_test(struct epf_request *r, int *done, int *bytes)
{
	struct epf_comm *c = r->comm;
	struct epf_ring_failure f;

	*done = 0;
	if (c->kind == EPF_COMM_SEND) {
		if (epf_ring_done(c->ring) < r->number)
			return check(c);
		if (epf_ring_error(c->ring, &f))
			return epf_link_fail(c->link, "cannot be reached: %s", epf_last_error());
		if (bytes)
			bytes[0] = (int)r->bytes;
	} else {
		uint64_t came[EPF_NET_PARTS];

		for (unsigned i = 0; i < r->parts; i++) {
			came[i] = load(control(c, epf_net_word_at(c->slot, r->number, i)));
			if (!came[i])
				return check(c);
		}
		for (unsigned i = 0; bytes && i < r->parts; i++)
			bytes[i] = (int)(came[i] - 1);
	}
	r->used = false;
	*done = 1;
	return 0;
}
