/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of an endpoint (queues/epf_stats.h), for ep-fabric why and ep-top: totals, and what waits for which peer. The endpoint's thread
 * writes them, ten times a second while transfers are under way; other threads only count in their own objects. Slow path.
 */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/engine.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t tick_ns = 100 * 1000 * 1000, beat_ns = 1000 * 1000 * 1000;

/* Resets what walk() sums up for one connection. */
static void clear(struct conn_stats *s)
{
	s->left = s->marks = 0;
	s->kind = EPF_STATS_CONN_NONE;
}

/* Makes a label of the printable characters that fit. */
static struct epf_stats_label text_label(const char *text, char *room)
{
	size_t n = 0;

	for (; *text && n + 1 < EPF_STATS_LABEL_BYTES; text++)
		if (isprint((unsigned char)*text))
			room[n++] = *text;
	room[n] = '\0';
	return (struct epf_stats_label){ room, 0 };
}

void epf_p2p_stats_open(struct epf_p2p *ep)
{
	struct epf_stats_opts o = { .size = sizeof(o), .tsc_hz = epf_tsc_hz() };
	char dir[4096], reason[256] = "", name[64], text[EPF_STATS_LABEL_BYTES];
	struct epf_stats_label label = text_label(ep->meta.name, text);

	snprintf(name, sizeof(name), "p2p-%d-%llx", (int)getpid(),
		 (unsigned long long)(uintptr_t)ep >> 4);
	o.instance = name;
	o.dir = dir;
	o.blocks[EPF_STATS_ENDPOINT] = 1;
	o.blocks[EPF_STATS_CONN] = (uint32_t)ep->conf.stats_blocks;
	if (epf_conf_stats_dir(&ep->conf, dir, sizeof(dir)))
		snprintf(reason, sizeof(reason), "%s", epf_last_error());
	if (*reason || epf_stats_make_dir(dir, reason, sizeof(reason)) ||
	    epf_stats_create(&o, &ep->stats.file, reason, sizeof(reason)) ||
	    epf_stats_add_block(ep->stats.file, EPF_STATS_ENDPOINT, &label, 1, &ep->stats.block)) {
		epf_note("statistics: %s: ep-fabric why will not see this endpoint", reason);
		epf_stats_destroy(ep->stats.file, 0);
		ep->stats.file = NULL;
	}
}

void epf_p2p_stats_close(struct epf_p2p *ep)
{
	epf_stats_destroy(ep->stats.file, 0);
	ep->stats.file = NULL;
}

static void add_block(struct epf_p2p *ep, struct conn *c)
{
	char name[EPF_STATS_LABEL_BYTES], peer[EPF_STATS_LABEL_BYTES], host[EPF_STATS_LABEL_BYTES];
	bool is_here = memcmp(c->peer.machine, ep->meta.machine, sizeof(c->peer.machine)) == 0;
	struct epf_stats_label labels[4] = { text_label(ep->meta.name, name),
					     text_label(c->peer.name, peer),
					     { NULL, c->peer.pid },
					     text_label(c->peer.host, host) };

	if (!is_here)
		labels[2] = EPF_STATS_NO_LABEL; /* a process of another machine */
	if (epf_stats_add_block(ep->stats.file, EPF_STATS_CONN, labels, 4, &c->stats.block))
		c->stats.block = NULL;
	else
		epf_stat_set(c->stats.block, EPF_STAT_CONN_LOCAL, c->is_local);
}

void epf_p2p_stats_remove(struct conn *c)
{
	if (c->stats.block)
		epf_stats_remove_block(c->ep->stats.file, c->stats.block);
	c->stats.block = NULL;
}

static enum epf_stats_conn_wait kind_of(const struct epf_p2p_xfer *x, uint32_t state)
{
	if (state == XFER_NOTING)
		return EPF_STATS_CONN_NOTE;
	if (x->conn->engine)
		return EPF_STATS_CONN_NIC;
	return x->flights ? EPF_STATS_CONN_GPU : EPF_STATS_CONN_COPY;
}

/* Sums up the transfers under way, by connection. */
static void walk(struct epf_p2p *ep)
{
	pthread_mutex_lock(&ep->run.lock);
	for (const struct epf_p2p_xfer *x = ep->run.all; x; x = x->after) {
		uint32_t state = EPF_LOAD_ACQUIRE(&x->state);
		struct conn_stats *s = &x->conn->stats;
		uint64_t left = EPF_LOAD_RELAXED(&x->left);

		if (state == XFER_IDLE || state == XFER_DONE)
			continue;
		s->left += left;
		s->marks += left + EPF_LOAD_RELAXED(&x->cursor) + state;
		if (s->kind < kind_of(x, state))
			s->kind = kind_of(x, state);
	}
	pthread_mutex_unlock(&ep->run.lock);
}

void epf_p2p_stats_waits(uint64_t *since, uint64_t *seen)
{
	uint64_t now = epf_now_ns();

	if (now - EPF_LOAD_RELAXED(seen) > tick_ns)
		EPF_STORE_RELAXED(since, now);
	EPF_STORE_RELAXED(seen, now);
}

/* Returns when a call began to wait, if it has polled within the last tick; 0 otherwise. */
static uint64_t waits_since(const uint64_t *since, const uint64_t *seen, uint64_t now)
{
	return now < EPF_LOAD_RELAXED(seen) + tick_ns ? EPF_LOAD_RELAXED(since) : 0;
}

/* Decides what a connection waits for and since when, from its progress since the last look. ep->lock held. */
static void conclude(struct conn *c, uint64_t now)
{
	struct conn_stats *s = &c->stats;
	uint64_t releasing = waits_since(&s->releasing, &s->releasing_seen, now);
	uint64_t noting = waits_since(&s->noting, &s->noting_seen, now), asked = 0;

	for (const struct request *q = c->requests; q; q = q->next)
		if (!q->done && (!asked || q->begun_ns < asked))
			asked = q->begun_ns;
	s->marks += EPF_LOAD_RELAXED(&c->transfers) + EPF_LOAD_RELAXED(&c->failed) +
		    (c->engine ? epf_p2p_engine_retired(c) : 0);
	if (s->marks != s->last_marks || s->kind == EPF_STATS_CONN_NONE)
		s->moved_ns = now;
	s->last_marks = s->marks;
	s->since_ns = s->moved_ns;
	if (noting && (s->kind != EPF_STATS_CONN_NOTE || noting < s->since_ns)) {
		s->kind = EPF_STATS_CONN_NOTE;
		s->since_ns = noting;
	}
	if (asked) {
		s->kind = EPF_STATS_CONN_ANSWER;
		s->since_ns = asked;
	}
	if (releasing) {
		s->kind = EPF_STATS_CONN_RELEASE;
		s->since_ns = releasing;
	}
}

static void write_conn(struct conn *c)
{
	struct epf_stats_block *b = c->stats.block;
	uint32_t state = c->state == CONN_OPEN   ? EPF_STATS_CONN_OPEN
			 : c->state == CONN_LOST ? EPF_STATS_CONN_LOST
						 : EPF_STATS_CONN_CLOSED;

	epf_stat_state(b, EPF_STAT_CONN_STATE, state, 0);
	epf_stat_set(b, EPF_STAT_CONN_TRANSFERS, EPF_LOAD_RELAXED(&c->transfers));
	epf_stat_set(b, EPF_STAT_CONN_FAILED, EPF_LOAD_RELAXED(&c->failed));
	epf_stat_set(b, EPF_STAT_CONN_BYTES_WRITTEN, EPF_LOAD_RELAXED(&c->bytes_written));
	epf_stat_set(b, EPF_STAT_CONN_BYTES_READ, EPF_LOAD_RELAXED(&c->bytes_read));
	epf_stat_set(b, EPF_STAT_CONN_UNDER_WAY, EPF_LOAD_RELAXED(&c->under_way));
	epf_stat_set(b, EPF_STAT_CONN_BYTES_LEFT, c->stats.left);
	epf_stat_state(b, EPF_STAT_CONN_COMPRESS, c->pack ? epf_p2p_pack_state(c) : PACK_NONE, 0);
	epf_stat_set(b, EPF_STAT_CONN_PACKED_FROM, EPF_LOAD_RELAXED(&c->packed_from));
	epf_stat_set(b, EPF_STAT_CONN_PACKED_TO, EPF_LOAD_RELAXED(&c->packed_to));
	epf_stat_state(b, EPF_STAT_CONN_WAIT, c->stats.kind, c->stats.since_ns);
}

static void write_endpoint(struct epf_p2p *ep, uint32_t open, uint32_t waits, uint32_t hidden)
{
	struct epf_stats_block *b = ep->stats.block;

	epf_stat_set(b, EPF_STAT_ENDPOINT_CONNECTIONS, open);
	epf_stat_set(b, EPF_STAT_ENDPOINT_CONNECTED, ep->stats.connected);
	epf_stat_set(b, EPF_STAT_ENDPOINT_LOST, ep->stats.lost);
	epf_stat_set(b, EPF_STAT_ENDPOINT_REGIONS, ep->regions.used);
	epf_stat_set(b, EPF_STAT_ENDPOINT_EXPORTS, ep->n_exports);
	epf_stat_set(b, EPF_STAT_ENDPOINT_IMPORTS, ep->imports.used);
	epf_stat_set(b, EPF_STAT_ENDPOINT_UNDER_WAY, EPF_LOAD_RELAXED(&ep->run.active));
	epf_stat_set(b, EPF_STAT_ENDPOINT_UNREAD, EPF_LOAD_RELAXED(&ep->events.count));
	epf_stat_set(b, EPF_STAT_ENDPOINT_WAITS, waits);
	epf_stat_set(b, EPF_STAT_ENDPOINT_CONNS_HIDDEN, hidden);
}

/* Frees the block of a connection that waits for nothing. Returns false if all of them wait. ep->lock held. */
static bool make_room(struct epf_p2p *ep)
{
	for (struct conn *c = ep->all; c; c = c->next)
		if (c->stats.block && c->stats.kind == EPF_STATS_CONN_NONE) {
			epf_p2p_stats_remove(c);
			return true;
		}
	return false;
}

static void look(struct epf_p2p *ep, uint64_t now)
{
	uint32_t open = 0, waits = 0, hidden = 0;

	pthread_mutex_lock(&ep->lock);
	for (struct conn *c = ep->all; c; c = c->next)
		clear(&c->stats);
	if (EPF_LOAD_RELAXED(&ep->run.active))
		walk(ep);
	for (struct conn *c = ep->all; c; c = c->next)
		conclude(c, now);
	for (struct conn *c = ep->all; c; c = c->next) {
		bool is_waiting = c->stats.kind != EPF_STATS_CONN_NONE;

		open += c->state == CONN_OPEN;
		waits += is_waiting;
		if (!c->stats.block && !c->is_reaped)
			add_block(ep, c);
		if (!c->stats.block && is_waiting && make_room(ep))
			add_block(ep, c);
		if (c->stats.block)
			write_conn(c);
		else
			hidden++;
	}
	write_endpoint(ep, open, waits, hidden);
	ep->stats.period_ns = waits || EPF_LOAD_RELAXED(&ep->run.active) ? tick_ns : beat_ns;
	pthread_mutex_unlock(&ep->lock);
}

void epf_p2p_stats_tick(struct epf_p2p *ep, uint64_t now, uint64_t *next)
{
	if (!ep->stats.file)
		return;
	if (now >= ep->stats.next_ns) {
		look(ep, now);
		epf_stats_beat(ep->stats.file, now);
		ep->stats.next_ns = now + ep->stats.period_ns;
	}
	/* A post may have happened since without waking this thread. */
	if (ep->stats.next_ns > now + tick_ns && EPF_LOAD_RELAXED(&ep->run.active))
		ep->stats.next_ns = now + tick_ns;
	if (ep->stats.next_ns < *next)
		*next = ep->stats.next_ns;
}
