/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How lanes of the ofi NIC fail. An endpoint goes on after an operation has failed; the contract of lanes does not: the rest of the lane's queue is flushed. What
 * the provider has cannot be taken back from it, so a lane has drained when the provider has reported all of it. Runs once for each failure, on the core's
 * thread.
 */
#define EPF_LOG_COMP "nic"
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/log.h"

#include <string.h>

unsigned epf_ofi_status_of_cold(int err)
{
	switch (err) {
	case FI_EACCES:
	case FI_EPERM:
	case FI_EKEYREJECTED:
	case FI_EREMOTEIO:
	case FI_ENOKEY:
		return EPF_S_REMOTE_ACCESS;
	case FI_EINVAL:
	case FI_EMSGSIZE:
	case FI_EFAULT:
	case FI_ENOSYS:
	case FI_EOPNOTSUPP:
		return EPF_S_LOCAL;
	case FI_ENORX:
		return EPF_S_RNR_EXCEEDED;
	default: /* the peer or the way to it; FI_ECANCELED too, since nothing is cancelled here */
		return EPF_S_RETRY_EXCEEDED;
	}
}

static void flush_queue(struct epf_ofi *v, struct epf_ofi_lane *l)
{
	struct epf_ofi_op *op;

	while ((op = epf_ofi_take(&l->queue)))
		epf_ofi_finish(v, op, EPF_S_FLUSHED);
}

void epf_ofi_lane_stop(struct epf_ofi *v, uint16_t lane)
{
	struct epf_ofi_lane *l = &v->lanes[lane];

	l->link = EPF_LANE_ERROR;
	l->has_failed = 1;
	flush_queue(v, l);
}

void epf_ofi_fail_cold(struct epf_ofi *v, struct epf_ofi_op *op, unsigned status)
{
	struct epf_ofi_lane *l = &v->lanes[op->lane];

	if (l->has_failed) {
		epf_ofi_finish(v, op, EPF_S_FLUSHED);
		return;
	}
	v->counters.errors += status != EPF_S_FLUSHED;
	v->counters.rnr_events += status == EPF_S_RNR_EXCEEDED;
	epf_ofi_finish(v, op, status);
	epf_ofi_lane_stop(v, op->lane);
}

/* Reports what the provider still has of a lane, before the provider does. */
static void orphan(struct epf_ofi *v, uint16_t lane, unsigned status)
{
	const struct epf_ofi_lane *l = &v->lanes[lane];

	for (const struct epf_ofi_chunk *c = v->chunks; c; c = c->next)
		for (uint32_t i = 0; c->ops && i < c->count; i++) {
			struct epf_ofi_op *op = &c->ops[i];

			if (op->stage != EPF_OFI_POSTED || op->lane != lane ||
			    op->generation != l->generation)
				continue;
			op->stage = EPF_OFI_ORPHANED;
			epf_ofi_report(v, op, status);
			status = EPF_S_FLUSHED;
		}
}

void epf_ofi_lane_lose(struct epf_ofi *v, uint16_t lane, unsigned status)
{
	struct epf_ofi_lane *l = &v->lanes[lane];
	struct epf_ofi_op *op;

	if (l->link != EPF_LANE_READY)
		return;
	v->counters.errors++;
	orphan(v, lane, EPF_S_RETRY_EXCEEDED);
	if (!l->in_provider && (op = epf_ofi_take(&l->queue)))
		epf_ofi_finish(v, op, EPF_S_RETRY_EXCEEDED);
	epf_ofi_lane_stop(v, lane);
	l->gone = (uint8_t)status;
	v->n_gone++;
}

void epf_ofi_queue_lost_cold(struct epf_ofi *v, int err)
{
	v->is_lost = 1;
	epf_warn("ofi: %s: the completion queue cannot be read: %s", v->name,
		 v->lib->strerror(err));
	for (uint32_t i = 0; i < v->lanes_end; i++)
		if (v->lanes[i].is_used)
			epf_ofi_lane_lose(v, (uint16_t)i, EPF_S_LINK_DOWN);
}

void epf_ofi_test_failure_cold(struct epf_ofi *v, uint16_t lane)
{
	struct epf_ofi_lane *l = &v->lanes[lane];

	if (lane % 2 || l->posted < v->opts.fail_after)
		return;
	l->posted = 0;
	epf_ofi_lane_lose(v, lane, EPF_S_RETRY_EXCEEDED);
}

/* ---- arrivals that are not reported ---- */

void epf_ofi_refuse_cold(struct epf_ofi *v, struct epf_ofi_slot *slot)
{
	v->counters.packets_dropped++;
	if (!slot)
		return;
	slot->next = v->free_slots;
	v->free_slots = slot;
}

void epf_ofi_hold_cold(struct epf_ofi *v, const struct epf_ofi_held *h)
{
	if (v->n_held < EPF_OFI_HELD) {
		v->held[v->n_held++] = *h;
		return;
	}
	/* More than anybody was granted: nothing of this lane may be used. */
	v->counters.errors++;
	v->lanes[h->lane].link = EPF_LANE_ERROR;
	v->lanes[h->lane].has_failed = 1;
	epf_ofi_refuse_cold(v, h->slot);
}

/* ---- errors of the completion queue ---- */

static void receive_failed(struct epf_ofi *v, struct epf_ofi_slot *slot)
{
	v->posted--;
	epf_ofi_refuse_cold(v, slot);
}

/* An operation has failed at the provider. */
static void operation_failed(struct epf_ofi *v, struct epf_ofi_op *op, int err)
{
	struct epf_ofi_lane *l = &v->lanes[op->lane];

	v->in_provider--;
	if (l->generation != op->generation || !l->is_used) {
		epf_ofi_op_free(v, op);
		return;
	}
	l->in_provider--;
	if (op->stage == EPF_OFI_ORPHANED) {
		op->stage = EPF_OFI_DONE;
		if (!op->is_listed)
			epf_ofi_op_free(v, op);
		return;
	}
	epf_ofi_fail_cold(v, op, epf_ofi_status_of_cold(err));
}

/* Whether a pointer that the provider returns is an operation of this NIC, and not a receive. */
static int is_op(const struct epf_ofi *v, const void *at)
{
	for (const struct epf_ofi_chunk *c = v->chunks; c; c = c->next)
		if (c->ops && (const char *)at >= (const char *)c->ops &&
		    (const char *)at < (const char *)(c->ops + c->count))
			return 1;
	return 0;
}

static int is_slot(const struct epf_ofi *v, const void *at)
{
	for (const struct epf_ofi_chunk *c = v->chunks; c; c = c->next)
		if (c->slots && (const char *)at >= (const char *)c->slots &&
		    (const char *)at < (const char *)(c->slots + c->count))
			return 1;
	return 0;
}

void epf_ofi_take_error_cold(struct epf_ofi *v)
{
	struct fi_cq_err_entry e = { 0 };

	if (fi_cq_readerr(v->cq, &e, 0) <= 0)
		return;
	epf_dbg("ofi: %s: an operation failed: %s (provider's code %d)", v->name,
		v->lib->strerror(e.err), e.prov_errno);
	if (is_op(v, e.op_context))
		operation_failed(v, e.op_context, e.err);
	else if (is_slot(v, e.op_context))
		receive_failed(v, e.op_context);
	else /* something of a peer's was refused here */
		v->counters.errors++;
}
