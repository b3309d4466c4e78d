/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this endpoint: registration, exports, withdrawal, expiry. Slow path. */
#include "fabric/base/clock.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NAP_NS = 20 * 1000 };

/* Whether every page of a range belongs to some mapping: msync(2) looks at nothing else with MS_ASYNC. */
static bool is_mapped(const uint8_t *addr, uint64_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)addr & ~(page - 1);

	return msync((void *)at, (uintptr_t)addr + bytes - at, MS_ASYNC) == 0;
}

static struct block_memory *memory_of(struct epf_p2p *ep, const uint8_t *addr, uint64_t bytes)
{
	for (struct block_memory *m = ep->memory; m; m = m->next)
		if (addr >= m->addr && (uint64_t)(addr - m->addr) <= m->bytes &&
		    bytes <= m->bytes - (uint64_t)(addr - m->addr))
			return m;
	return NULL;
}

int epf_p2p_register(struct epf_p2p *ep, void *addr, uint64_t bytes, int device, uint64_t *region)
{
	struct epf_copy_handle *handle;
	struct region *r;
	int rc, holder;

	if (!addr || !bytes || bytes >> 48 || (uintptr_t)addr + bytes < (uintptr_t)addr)
		return epf_fail(EPF_R_P2P_ARGUMENT, "register: %llu bytes at %p",
				(unsigned long long)bytes, addr);
	if (device < EPF_P2P_AUTO)
		return epf_fail(EPF_R_P2P_ARGUMENT, "register: device %d", device);
	rc = epf_p2p_gpu_find(ep, addr, bytes, device, &holder, &handle);
	if (rc)
		return rc;
	if (holder == EPF_P2P_HOST && !is_mapped(addr, bytes))
		return epf_fail(EPF_R_P2P_ARGUMENT, "register: %llu bytes at %p are not all mapped",
				(unsigned long long)bytes, addr);
	r = calloc(1, sizeof(*r));
	if (!r)
		return epf_fail(EPF_R_NO_MEMORY, "register: a region");
	if (holder >= 0)
		epf_p2p_coder_find(ep, holder);
	r->refs = 1;
	r->ep = ep;
	r->addr = addr;
	r->bytes = bytes;
	r->device = holder;
	r->handle = handle;
	pthread_mutex_lock(&ep->lock);
	r->memory = memory_of(ep, addr, bytes);
	rc = epf_p2p_slot_add(&ep->regions, r, &r->number);
	if (!rc)
		*region = r->number;
	pthread_mutex_unlock(&ep->lock);
	if (rc)
		epf_p2p_region_put(r);
	return rc;
}

int epf_p2p_set_float(struct epf_p2p *ep, uint64_t region, enum epf_p2p_float type)
{
	struct region *r;

	if (type != EPF_P2P_NO_FLOAT && !epf_p2p_float_bytes(type))
		return epf_fail(EPF_R_P2P_ARGUMENT, "set_float: %d is no type of values",
				(int)type);
	pthread_mutex_lock(&ep->lock);
	r = epf_p2p_slot_get(&ep->regions, region);
	if (r)
		r->type = type;
	pthread_mutex_unlock(&ep->lock);
	return r ? 0
		 : epf_fail(EPF_R_P2P_STALE, "set_float: region %#llx does not exist",
			    (unsigned long long)region);
}

int epf_p2p_export_pin(struct conn *c, uint32_t slot, uint64_t generation, unsigned right,
		       bool is_gpu, struct export **out)
{
	struct epf_p2p *ep = c->ep;
	const struct engine_key *k = NULL;
	struct export *e;
	int rc = 0;

	pthread_mutex_lock(&ep->lock);
	e = slot < P2P_EXPORTS ? ep->export_at[slot] : NULL;
	if (!e || e->key.generation != generation || e->state == EXPORT_WITHDRAWN)
		rc = -EKEYREVOKED;
	else if (e->state == EXPORT_EXPIRED || epf_now_ns() >= e->expires_ns)
		rc = -EKEYEXPIRED;
	for (k = rc ? NULL : e->keys; k && k->conn != c->id; k = k->next)
		;
	/* Only what it has imported with the whole key. */
	if (!rc && (!k || !(e->key.rights & right) || (e->region->device >= 0) != is_gpu))
		rc = -EACCES;
	if (!rc)
		c->chunk = *out = e;
	pthread_mutex_unlock(&ep->lock);
	return rc;
}

void epf_p2p_export_unpin(struct conn *c)
{
	pthread_mutex_lock(&c->ep->lock);
	c->chunk = NULL;
	pthread_mutex_unlock(&c->ep->lock);
}

/* A peer that copies to or from an export now, or NULL. ep->lock held. */
static struct conn *toucher(struct epf_p2p *ep, uint32_t slot)
{
	for (struct conn *c = ep->all; c; c = c->next)
		if (c->chunk && c->chunk == ep->export_at[slot])
			return c;
	for (struct conn *c = ep->all; c; c = c->next)
		if (c->is_local && c->theirs && !EPF_LOAD_ACQUIRE(&c->is_dead) &&
		    (c->state == CONN_OPEN || c->pidfd >= 0) &&
		    __atomic_load_n(&c->theirs->inuse[slot], __ATOMIC_SEQ_CST)) /* W1 */
			return c;
	return NULL;
}

/* Waits until no peer touches an export whose state is not live any more. ep->lock held, and given up while it waits. */
static int settle(struct epf_p2p *ep, uint32_t slot, uint64_t end, const char *what)
{
	struct timespec nap = { 0, NAP_NS };
	struct conn *c;
	int rc = 0;

	while (!rc && (c = toucher(ep, slot))) {
		epf_p2p_conn_ref(c);
		pthread_mutex_unlock(&ep->lock);
		epf_p2p_stats_waits(&c->stats.releasing, &c->stats.releasing_seen);
		if (epf_p2p_conn_is_alive(c)) {
			if (epf_now_ns() >= end)
				rc = epf_fail(EPF_R_P2P_TIMEOUT,
					      "%s: %s still copies to or from the memory", what,
					      c->label);
			nanosleep(&nap, NULL);
		}
		epf_p2p_conn_put(c);
		pthread_mutex_lock(&ep->lock);
	}
	return rc;
}

static void set_state(struct epf_p2p *ep, struct export *e, enum export_state state)
{
	e->state = state;
	__atomic_store_n(&ep->table->word[e->key.slot], e->key.generation << 8 | (uint64_t)state,
			 __ATOMIC_SEQ_CST); /* W1 */
}

/*
 * Withdraws memory from the jobs of connections over NICs: each key that is withdrawn leaves the list, so that a later call goes on with the
 * rest. ep->lock held, and given up while it waits.
 */
static int withdraw_keys(struct epf_p2p *ep, struct engine_key **keys, uint64_t end)
{
	int rc = 0;

	while (*keys && !rc) {
		struct engine_key *k = *keys;
		uint64_t now = epf_now_ns();
		struct conn *c;

		for (c = ep->all; c && c->id != k->conn; c = c->next)
			;
		*keys = k->next;
		if (c) {
			epf_p2p_conn_ref(c);
			pthread_mutex_unlock(&ep->lock);
			rc = epf_p2p_engine_withdraw(c, k->region, end > now ? end - now : 1);
			if (!rc)
				epf_p2p_number_withdrawn(c, k->region);
			epf_p2p_conn_put(c);
			pthread_mutex_lock(&ep->lock);
		}
		if (rc) {
			k->next = *keys;
			*keys = k;
		} else {
			free(k);
		}
	}
	return rc;
}

/* Takes an export out of all lists and frees it. ep->lock held. */
static void forget(struct epf_p2p *ep, struct export *e)
{
	struct export **at = &e->region->exports;

	while (*at != e)
		at = &(*at)->of_region;
	*at = e->of_region;
	if (e->prev)
		e->prev->next = e->next;
	else
		ep->exports = e->next;
	if (e->next)
		e->next->prev = e->prev;
	ep->export_at[e->key.slot] = NULL;
	ep->n_exports--;
	epf_p2p_keys_free(e->keys);
	epf_p2p_region_put(e->region);
	free(e);
}

/* Waits until no peer uses an export that is not live any more, and forgets it. ep->lock held, and given up while it waits. */
static int let_go(struct epf_p2p *ep, struct export *e, uint64_t end, const char *what)
{
	struct timespec nap = { 0, NAP_NS };
	int rc;

	e->pins++;
	rc = settle(ep, e->key.slot, end, what);
	if (!rc)
		rc = withdraw_keys(ep, &e->keys, end);
	if (--e->pins == 0) {
		if (!rc)
			forget(ep, e);
		return rc;
	}
	/* Another call waits for the same, and forgets it. */
	pthread_mutex_unlock(&ep->lock);
	nanosleep(&nap, NULL);
	pthread_mutex_lock(&ep->lock);
	return rc;
}

int epf_p2p_deregister(struct epf_p2p *ep, uint64_t region, uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct timespec nap = { 0, NAP_NS };
	struct region *r;
	int rc = 0;

	pthread_mutex_lock(&ep->lock);
	r = epf_p2p_slot_get(&ep->regions, region);
	if (!r) {
		pthread_mutex_unlock(&ep->lock);
		return epf_fail(EPF_R_P2P_STALE, "deregister: region %#llx does not exist",
				(unsigned long long)region);
	}
	__atomic_fetch_add(&r->refs, 1u, __ATOMIC_RELAXED);
	__atomic_store_n(&r->gone, 1u, __ATOMIC_SEQ_CST); /* W1 */
	for (struct export *e = r->exports; e; e = e->of_region)
		set_state(ep, e, EXPORT_WITHDRAWN);
	while (!rc && r->exports)
		rc = let_go(ep, r->exports, end, "deregister");
	pthread_mutex_unlock(&ep->lock);
	while (!rc && __atomic_load_n(&r->users, __ATOMIC_SEQ_CST)) { /* W1 */
		if (epf_now_ns() >= end)
			rc = epf_fail(
				EPF_R_P2P_TIMEOUT,
				"deregister: a transfer of this endpoint still uses the region");
		nanosleep(&nap, NULL);
	}
	if (!rc) {
		pthread_mutex_lock(&ep->lock);
		rc = withdraw_keys(ep, &r->keys, end);
		if (!rc && epf_p2p_slot_get(&ep->regions, region)) {
			epf_p2p_slot_remove(&ep->regions, region);
			epf_p2p_region_put(r);
		}
		pthread_mutex_unlock(&ep->lock);
	}
	epf_p2p_region_put(r);
	return rc;
}

/* A free place in the table. ep->lock held. */
static int free_slot(struct epf_p2p *ep, uint32_t *slot)
{
	if (ep->n_exports == P2P_EXPORTS)
		return epf_fail(EPF_R_P2P_LIMIT, "export: an endpoint has at most %d exports",
				P2P_EXPORTS);
	while (ep->export_at[ep->export_next])
		ep->export_next = (ep->export_next + 1) % P2P_EXPORTS;
	*slot = ep->export_next;
	ep->export_next = (ep->export_next + 1) % P2P_EXPORTS;
	return 0;
}

static void fill_key(struct epf_p2p *ep, struct export *e, uint64_t offset, uint64_t bytes,
		     unsigned rights)
{
	uint8_t secret[EPF_AUTH_NONCE_BYTES];

	e->key.magic = P2P_MAGIC;
	e->key.generation =
		(__atomic_load_n(&ep->table->word[e->key.slot], __ATOMIC_RELAXED) >> 8) + 1;
	memcpy(e->key.endpoint, ep->meta.id, sizeof(e->key.endpoint));
	epf_auth_nonce(secret);
	memcpy(e->key.secret, secret, sizeof(e->key.secret));
	e->key.addr = (uint64_t)(uintptr_t)e->region->addr + offset;
	e->key.bytes = bytes;
	e->key.rights = rights;
}

int epf_p2p_export(struct epf_p2p *ep, uint64_t region, uint64_t offset, uint64_t bytes,
		   unsigned rights, uint64_t conn, uint64_t lifetime_ns,
		   uint8_t key[EPF_P2P_KEY_BYTES])
{
	struct export *e;
	struct region *r;
	int rc = 0;

	if (!bytes || !rights || rights & ~(unsigned)(EPF_P2P_READ | EPF_P2P_WRITE))
		return epf_fail(EPF_R_P2P_ARGUMENT, "export: %llu bytes with rights %#x",
				(unsigned long long)bytes, rights);
	e = calloc(1, sizeof(*e));
	if (!e)
		return epf_fail(EPF_R_NO_MEMORY, "export: no memory");
	pthread_mutex_lock(&ep->lock);
	r = epf_p2p_slot_get(&ep->regions, region);
	if (!r || __atomic_load_n(&r->gone, __ATOMIC_RELAXED))
		rc = epf_fail(EPF_R_P2P_STALE, "export: region %#llx does not exist",
			      (unsigned long long)region);
	else if (offset > r->bytes || bytes > r->bytes - offset)
		rc = epf_fail(EPF_R_P2P_RANGE, "export: %llu bytes at %llu of a region of %llu",
			      (unsigned long long)bytes, (unsigned long long)offset,
			      (unsigned long long)r->bytes);
	else if (conn && !epf_p2p_slot_get(&ep->conns, conn))
		rc = epf_fail(EPF_R_P2P_STALE, "export: connection %#llx does not exist",
			      (unsigned long long)conn);
	if (!rc)
		rc = free_slot(ep, &e->key.slot);
	if (rc) {
		pthread_mutex_unlock(&ep->lock);
		free(e);
		return rc;
	}
	e->region = r;
	__atomic_fetch_add(&r->refs, 1u, __ATOMIC_RELAXED);
	e->conn = conn;
	e->expires_ns = lifetime_ns ? epf_p2p_deadline(ep, lifetime_ns) : UINT64_MAX;
	fill_key(ep, e, offset, bytes, rights);
	e->of_region = r->exports;
	r->exports = e;
	e->next = ep->exports;
	if (e->next)
		e->next->prev = e;
	ep->exports = e;
	ep->export_at[e->key.slot] = e;
	ep->n_exports++;
	set_state(ep, e, EXPORT_LIVE);
	memcpy(key, &e->key, sizeof(e->key));
	if (e->expires_ns < ep->next_expiry_ns)
		ep->next_expiry_ns = e->expires_ns;
	pthread_mutex_unlock(&ep->lock);
	if (lifetime_ns)
		epf_p2p_kick(ep);
	return 0;
}

int epf_p2p_withdraw(struct epf_p2p *ep, const uint8_t key[EPF_P2P_KEY_BYTES], uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct export_key k;
	struct export *e;
	int rc;

	memcpy(&k, key, sizeof(k));
	pthread_mutex_lock(&ep->lock);
	e = k.slot < P2P_EXPORTS ? ep->export_at[k.slot] : NULL;
	if (!e || !epf_p2p_same_key(&e->key, &k)) {
		pthread_mutex_unlock(&ep->lock);
		return epf_fail(EPF_R_P2P_STALE,
				"withdraw: the key is of no export of this endpoint");
	}
	if (e->state == EXPORT_LIVE)
		set_state(ep, e, EXPORT_WITHDRAWN);
	rc = let_go(ep, e, end, "withdraw");
	/* Another call may be withdrawing it and still wait for a peer. */
	while (!rc && (e = ep->export_at[k.slot]) && epf_p2p_same_key(&e->key, &k))
		rc = epf_now_ns() < end
			     ? let_go(ep, e, end, "withdraw")
			     : epf_fail(EPF_R_P2P_TIMEOUT,
					"withdraw: another call still withdraws the same export");
	pthread_mutex_unlock(&ep->lock);
	return rc;
}

/* What has expired, for the thread of a connection over NICs. */
struct expired {
	uint32_t slot;
	uint32_t region;
	uint64_t generation;
};

/* On that thread: the engine refuses the export from now on. Nobody waits: its memory stays until it is withdrawn. */
static void expire_over_nics(struct conn *c, const void *data)
{
	const struct expired *x = data;
	const struct engine_key *k = NULL;
	struct export *e;

	pthread_mutex_lock(&c->ep->lock);
	e = c->ep->export_at[x->slot];
	if (e && e->key.generation == x->generation)
		for (k = e->keys; k && (k->conn != c->id || k->region != x->region); k = k->next)
			;
	pthread_mutex_unlock(&c->ep->lock);
	if (k) /* its number is given out again by this thread only */
		(void)epf_p2p_engine_withdraw(c, x->region, 1);
}

/* Tells the connections over NICs that have imported an export of its end. ep->lock held. */
static void expire_keys(struct epf_p2p *ep, const struct export *e)
{
	for (const struct engine_key *k = e->keys; k; k = k->next) {
		struct expired x = { e->key.slot, k->region, e->key.generation };

		for (struct conn *c = ep->all; c; c = c->next)
			if (c->id == k->conn && c->engine)
				(void)epf_p2p_engine_do(c, expire_over_nics, &x, sizeof(x));
	}
}

void epf_p2p_export_expire(struct epf_p2p *ep, uint64_t now, uint64_t *next)
{
	pthread_mutex_lock(&ep->lock);
	if (now >= ep->next_expiry_ns) {
		ep->next_expiry_ns = UINT64_MAX;
		for (struct export *e = ep->exports; e; e = e->next) {
			if (e->state != EXPORT_LIVE)
				continue;
			if (now >= e->expires_ns) {
				set_state(ep, e, EXPORT_EXPIRED);
				expire_keys(ep, e);
			} else if (e->expires_ns < ep->next_expiry_ns)
				ep->next_expiry_ns = e->expires_ns;
		}
	}
	if (ep->next_expiry_ns < *next)
		*next = ep->next_expiry_ns;
	pthread_mutex_unlock(&ep->lock);
}

void epf_p2p_regions_free(struct epf_p2p *ep)
{
	while (ep->exports)
		forget(ep, ep->exports);
	for (uint32_t i = 0; i < ep->regions.size; i++)
		if (ep->regions.object[i])
			epf_p2p_region_put(ep->regions.object[i]);
}
