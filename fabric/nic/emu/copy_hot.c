/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory in the emulated NIC's data path: which packets need the copier, what is under way for each lane, and what to do when it is
 * done. The NIC that receives bytes fetches them (a WRITE's target, a READ's sender), so that a NIC only ever writes its own memory
 * and keys, fences and faults stay where they are for host memory. Called by rx_hot.c, complete_hot.c, reap_hot.c and lane.c. It must
 * never allocate, lock, log or make a system call, and never touch GPU memory.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"

#include <errno.h>

enum { PREFETCH_SPANS = 32 }; /* the copier has read their entries a round ago */

/* A free record, or NULL: there is no copier (yet), or all are under way. */
static struct epf_emu_copy *take_record(struct epf_emu *e, uint8_t kind, uint16_t lane,
					uint32_t idx)
{
	struct epf_emu_copy *c;

	if (e->copier_state == EPF_EMU_COPIER_NONE)
		e->copier_state = EPF_EMU_COPIER_WANTED; /* the run loop makes it: wake_pending */
	if (e->copy_free == 0)
		return NULL;
	c = &e->copies[e->copy_free - 1];
	e->copy_free = c->next;
	c->next = 0;
	c->idx = idx;
	c->lane = lane;
	c->kind = kind;
	c->done = 0;
	return c;
}

static void free_record(struct epf_emu *e, struct epf_emu_copy *c)
{
	c->next = e->copy_free;
	e->copy_free = (uint32_t)(c - e->copies) + 1;
}

/* Pushes the job of a record; its spans are filled in. */
static void start(struct epf_emu *e, const struct epf_emu_copy *c, struct epf_emu_job *job)
{
	job->slot = (uint32_t)(c - e->copies);
	epf_emu_copier_push(e->copier, job);
	e->copies_count++;
	e->copies_pushed = true;
	e->lanes[c->lane].copies++;
}

/* The destination of a span: an address in a region of ours. */
static void aim(struct epf_emu_job_span *span, const struct epf_emu_region *r, uint64_t addr)
{
	span->dst_mem = r->mem;
	span->dst = r->mem ? addr - r->base : addr;
}

/* Joins a record to those of its lane that wait for their packet's turn. */
static void land_later(struct epf_emu *e, struct epf_emu_copy *c, const struct epf_emu_packet *h,
		       uint8_t status)
{
	struct epf_emu_lane *l = &e->lanes[c->lane];
	uint32_t at = (uint32_t)(c - e->copies) + 1;

	c->h = *h;
	c->status = status;
	if (l->copy_head)
		e->copies[l->copy_tail - 1].next = at;
	else
		l->copy_head = at;
	l->copy_tail = at;
}

/*
 * The spans of the writes that a packet names, as far as they are right: one that is not fails them all with *status, after those
 * before it. Returns how many.
 */
static uint32_t land_refs(struct epf_emu *e, const struct epf_emu_packet *h,
			  const unsigned char *payload, uint8_t *status)
{
	uint32_t k;

	for (k = 0; k < h->offset; k++) {
		struct epf_emu_job_span *span = epf_emu_copier_span(e->copier, k);
		const struct epf_emu_region *r;
		struct epf_emu_ref ref;

		if (k % 2 == 0)
			EPF_PREFETCH_WRITE(epf_emu_copier_span(e->copier, k + PREFETCH_SPANS));
		__builtin_memcpy(&ref, payload + k * sizeof(ref), sizeof(ref));
		r = epf_emu_covers(e, ref.dst_key, ref.dst, ref.bytes, EPF_MR_REMOTE_WRITE);
		if (EPF_UNLIKELY(!r || !ref.bytes || !ref.src_key)) {
			*status = EPF_S_REMOTE_ACCESS;
			break;
		}
		aim(span, r, ref.dst);
		span->src = ref.src;
		span->src_key = ref.src_key;
		span->bytes = ref.bytes;
	}
	return k;
}

uint8_t epf_emu_copy_land(struct epf_emu *e, uint16_t lane, uint32_t idx,
			  const struct epf_emu_packet *h, const struct epf_emu_packet *p,
			  const struct epf_emu_region *dst)
{
	const unsigned char *payload = (const unsigned char *)p + EPF_EMU_PACKET_HEADER;
	struct epf_emu_job job = { .spans = 1, .peer = e->lanes[lane].peer };
	struct epf_emu_job_span *span;
	struct epf_emu_copy *c;
	uint8_t status = EPF_S_OK;

	if (e->copier_state == EPF_EMU_COPIER_FAILED)
		return EPF_S_REMOTE_ACCESS;
	c = take_record(e, EPF_EMU_COPY_LAND, lane, idx);
	if (!c)
		return EPF_EMU_MOVE_FULL;
	if (!epf_emu_copier_has_room(e->copier, h->form == EPF_EMU_REFS ? h->offset : 1)) {
		free_record(e, c);
		return EPF_EMU_MOVE_FULL;
	}
	if (h->form == EPF_EMU_REFS) {
		job.spans = land_refs(e, h, payload, &status);
	} else {
		span = epf_emu_copier_span(e->copier, 0);
		aim(span, dst, h->raddr + h->offset);
		span->src = (uint64_t)(uintptr_t)payload;
		span->src_key = 0;
		span->bytes = h->len;
	}
	if (!job.spans) {
		free_record(e, c);
		return status;
	}
	c->good = (uint16_t)job.spans;
	land_later(e, c, h, status);
	start(e, c, &job);
	return EPF_EMU_MOVE_LATER;
}

struct epf_emu_copy *epf_emu_copy_of(struct epf_emu *e, const struct epf_emu_lane *l, uint32_t idx)
{
	struct epf_emu_copy *c = l->copy_head ? &e->copies[l->copy_head - 1] : NULL;

	return c && c->idx == idx ? c : NULL;
}

void epf_emu_copy_landed(struct epf_emu *e, struct epf_emu_lane *l)
{
	struct epf_emu_copy *c = &e->copies[l->copy_head - 1];

	l->copy_head = c->next;
	free_record(e, c);
}

/* Packets of READs that found no room wait in a separate list. */
static void home_later(struct epf_emu *e, uint32_t idx)
{
	e->slots[idx].link = e->home_head;
	e->home_head = idx + 1;
}

static bool home_start(struct epf_emu *e, uint32_t idx)
{
	struct epf_emu_slot *s = &e->slots[idx];
	const struct epf_emu_packet *p = epf_emu_pkt(e->seg, idx);
	struct epf_emu_lane *l = &e->lanes[s->lane];
	const struct epf_emu_region *r = epf_emu_covers(e, s->lkey, s->laddr, s->len, 0);
	struct epf_emu_job job = { .spans = 1 };
	struct epf_emu_job_span *span;
	struct epf_emu_copy *c;
	uint8_t status = r ? EPF_S_REMOTE_ACCESS : EPF_S_LOCAL;

	if (!r || e->copier_state == EPF_EMU_COPIER_FAILED) {
		s->flags &= (uint8_t)~EPF_EMU_HOME;
		epf_emu_returned(e, s->lane, idx, status);
		return true;
	}
	c = take_record(e, EPF_EMU_COPY_HOME, s->lane, idx);
	if (!c)
		return false;
	if (!epf_emu_copier_has_room(e->copier, 1)) {
		free_record(e, c);
		return false;
	}
	span = epf_emu_copier_span(e->copier, 0);
	aim(span, r, s->laddr);
	span->bytes = s->len;
	if (s->form == EPF_EMU_BY_REF) {
		job.peer = l->peer;
		span->src =
			p->raddr; /* the peer could have changed it, to the harm of its own bytes only */
		span->src_key = p->rkey;
	} else {
		job.peer = e->seg;
		span->src = (uint64_t)(uintptr_t)p + EPF_EMU_PACKET_HEADER;
		span->src_key = 0;
	}
	start(e, c, &job);
	return true;
}

void epf_emu_copy_home(struct epf_emu *e, uint32_t lane, uint32_t idx)
{
	(void)lane;
	e->slots[idx].flags |= EPF_EMU_HOME;
	if (!home_start(e, idx))
		home_later(e, idx);
}

/* A copy is done. */
static void done(struct epf_emu *e, struct epf_emu_copy *c, uint8_t status)
{
	struct epf_emu_lane *l = &e->lanes[c->lane];
	uint32_t idx = c->idx;

	e->copies_count--;
	if (c->kind == EPF_EMU_COPY_ADD) {
		e->adds--;
		if (status != EPF_S_OK)
			e->counters.errors++;
		free_record(e, c);
		return;
	}
	l->copies--;
	if (c->kind == EPF_EMU_COPY_LAND) {
		c->done = 1;
		if (status != EPF_S_OK)
			c->good = 0;
		if (c->status == EPF_S_OK)
			c->status = status;
		if (l->copy_head == (uint32_t)(c - e->copies) + 1 &&
		    l->rx_state == EPF_EMU_RX_COPY) {
			l->rx_state = EPF_EMU_RX_IDLE;
			epf_emu_make_ready(e, c->lane);
		}
		return;
	}
	free_record(e, c);
	e->slots[idx].flags &= (uint8_t)~EPF_EMU_HOME;
	epf_emu_returned(e, e->slots[idx].lane, idx, status);
}

void epf_emu_copies_reap(struct epf_emu *e)
{
	struct epf_emu_outcome o;
	uint32_t waiting = e->home_head, next;

	while (e->copier && epf_emu_copier_pop(e->copier, &o)) {
		done(e, &e->copies[o.slot], (uint8_t)o.status);
		epf_emu_count(e, EPF_EMU_JOBS, 1);
	}
	e->home_head = 0;
	for (; waiting; waiting = next) {
		next = e->slots[waiting - 1].link;
		if (!home_start(e, waiting - 1))
			home_later(e, waiting - 1);
	}
}

void epf_emu_copies_drop(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t *at = &e->home_head;

	while (l->copy_head)
		epf_emu_copy_landed(e, l);
	l->ahead = 0;
	while (*at) {
		uint32_t idx = *at - 1;

		if (e->slots[idx].lane != lane) {
			at = &e->slots[idx].link;
			continue;
		}
		*at = e->slots[idx].link;
		e->slots[idx].flags &= (uint8_t)~EPF_EMU_HOME;
		epf_emu_returned(e, lane, idx, EPF_S_FLUSHED);
	}
}

int epf_emu_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value)
{
	struct epf_emu *e = epf_emu_of(nic);
	const struct epf_emu_region *r =
		epf_emu_covers(e, mr->lkey, mr->raddr + offset, sizeof(uint64_t), 0);
	struct epf_emu_add_job job = { .value = value };
	struct epf_emu_copy *c;

	if (!r || !r->mem)
		return -EINVAL;
	c = take_record(e, EPF_EMU_COPY_ADD, 0, 0);
	if (!c)
		return -EAGAIN;
	job.dst_mem = r->mem;
	job.dst = mr->raddr + offset - r->base;
	job.slot = (uint32_t)(c - e->copies);
	epf_emu_copier_push_add(e->copier, &job);
	e->copies_count++;
	e->copies_pushed = true;
	e->adds++;
	return 0;
}

int epf_emu_add_pending(struct epf_nic *nic)
{
	struct epf_emu *e = epf_emu_of(nic);

	if (e->copies_count)
		epf_emu_copies_reap(e);
	return e->adds != 0;
}
