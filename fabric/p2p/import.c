/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of peers: importing exports, and answering peers who do. Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct import **bucket(struct conn *c, const struct export_key *key)
{
	return &c->imports[key->slot % P2P_BUCKETS];
}

static struct import *find(struct conn *c, const struct export_key *key)
{
	for (struct import *i = *bucket(c, key); i; i = i->next)
		if (epf_p2p_same_key(&i->key, key))
			return i;
	return NULL;
}

/* What an export is to a peer who asks. ep->lock held. */
static int judge(struct conn *c, const struct msg_import *m, struct export **out)
{
	struct epf_p2p *ep = c->ep;
	struct export *e = m->key.slot < P2P_EXPORTS ? ep->export_at[m->key.slot] : NULL;

	if (!e || e->key.generation != m->key.generation)
		return m->key.slot < P2P_EXPORTS &&
				       m->key.generation <=
					       __atomic_load_n(&ep->table->word[m->key.slot],
							       __ATOMIC_RELAXED) >>
					       8 &&
				       m->key.generation
			       ? -EKEYREVOKED
			       : -EBADMSG;
	if (!epf_p2p_same_key(&e->key, &m->key))
		return -EBADMSG;
	if (e->state == EXPORT_EXPIRED)
		return -EKEYEXPIRED;
	if (e->state != EXPORT_LIVE)
		return -EKEYREVOKED;
	if (e->conn && e->conn != c->number)
		return -EACCES;
	*out = e;
	return 0;
}

/* Registers an export in the job of a connection over NICs: the range and the rights of the key, no more. */
static int register_export(struct conn *c, const struct msg_import *m, int device,
			   struct msg_imported *a)
{
	struct epf_p2p *ep = c->ep;
	struct engine_key *k;
	struct export *e = NULL;
	bool is_shared;
	int rc;

	pthread_mutex_lock(&ep->lock);
	rc = judge(c, m, &e);
	is_shared = !rc && epf_p2p_number_share(c, e, &a->engine_region);
	pthread_mutex_unlock(&ep->lock);
	if (rc || is_shared)
		return rc;
	k = calloc(1, sizeof(*k));
	if (!k)
		return -ENOMEM;
	k->conn = c->id;
	k->opened = 1;
	rc = epf_p2p_engine_register(c, (void *)(uintptr_t)m->key.addr, m->key.bytes, device,
				     m->key.rights, &k->region);
	if (rc) {
		free(k);
		return rc;
	}
	a->engine_region = k->region;
	pthread_mutex_lock(&ep->lock);
	rc = judge(c, m, &e); /* withdrawn meanwhile? */
	if (!rc) {
		k->next = e->keys;
		e->keys = k;
	}
	pthread_mutex_unlock(&ep->lock);
	if (rc) {
		if (!epf_p2p_engine_withdraw(c, k->region, 0))
			epf_p2p_number_withdrawn(c, k->region);
		free(k);
	}
	return rc;
}

/* On the connection's own thread: answers an import over NICs, and publishes the region together with the peer. */
static void answer_over_nics(struct conn *c, const void *data)
{
	const struct msg_import *m = data;
	struct msg_imported a = { .request = m->request, .engine_region = UINT32_MAX };
	struct export *e;
	int device;

	pthread_mutex_lock(&c->ep->lock);
	a.status = judge(c, m, &e);
	device = a.status ? EPF_P2P_HOST : e->region->device;
	a.kind = device == EPF_P2P_HOST ? MEMORY_PROCESS : MEMORY_GPU;
	pthread_mutex_unlock(&c->ep->lock);
	if (!a.status) {
		a.status = register_export(c, m, device, &a);
		if (a.status)
			epf_warn("%s: export of %llu bytes: %s", c->label,
				 (unsigned long long)m->key.bytes, epf_last_error());
	}
	if (epf_p2p_send(&c->stream, MSG_IMPORTED, &a, sizeof(a), NULL, 0) ||
	    epf_p2p_engine_exchange(c))
		epf_p2p_conn_end(c, CONN_LOST, "its engine does not answer");
}

static void deliver(struct conn *c, const struct msg_imported *m, int file, uint32_t tag);

/* The other end of answer_over_nics(). */
static void take_over_nics(struct conn *c, const void *data)
{
	const struct msg_imported *m = data;

	if (epf_p2p_engine_exchange(c))
		epf_p2p_conn_end(c, CONN_LOST, "its engine does not answer");
	else
		deliver(c, m, -1, epf_p2p_number_tag(c, m->engine_region));
}

void epf_p2p_answer_import(struct conn *c, const struct msg_import *m)
{
	struct epf_p2p *ep = c->ep;
	struct msg_imported a = { .request = m->request, .engine_region = UINT32_MAX };
	struct export *e;
	int fd = -1, rc;

	if (c->engine) {
		if (epf_p2p_engine_do(c, answer_over_nics, m, sizeof(*m)))
			epf_p2p_conn_end(c, CONN_LOST, "no memory for its requests");
		return;
	}
	pthread_mutex_lock(&ep->lock);
	a.status = judge(c, m, &e);
	if (!a.status && c->is_local && e->region->memory) {
		a.kind = MEMORY_FILE;
		a.file_offset = e->key.addr - (uint64_t)(uintptr_t)e->region->memory->addr;
		fd = e->region->memory->fd;
	} else if (!a.status && c->is_local && e->region->device >= 0) {
		fd = epf_p2p_gpu_answer(e->region, &e->key, &a);
	}
	rc = epf_p2p_send(&c->stream, MSG_IMPORTED, &a, sizeof(a), &fd, fd >= 0);
	pthread_mutex_unlock(&ep->lock);
	if (rc)
		epf_p2p_conn_end(c, CONN_LOST, "it does not take the answers that it asks for");
}

static void deliver(struct conn *c, const struct msg_imported *m, int file, uint32_t tag)
{
	struct epf_p2p *ep = c->ep;
	struct request *q;

	pthread_mutex_lock(&ep->lock);
	for (q = c->requests; q && q->number != m->request; q = q->next)
		;
	if (q && !q->done) {
		q->answer = *m;
		q->file = file;
		q->engine_tag = tag;
		q->done = 1;
		file = -1;
		pthread_cond_broadcast(&ep->changed);
	}
	pthread_mutex_unlock(&ep->lock);
	if (file >= 0)
		close(file);
}

void epf_p2p_take_answer(struct conn *c, const struct msg_imported *m, int file)
{
	if (!c->engine)
		deliver(c, m, file, 0);
	else if (epf_p2p_engine_do(c, take_over_nics, m, sizeof(*m)))
		epf_p2p_conn_end(c, CONN_LOST, "no memory for its answers");
	if (c->engine && file >= 0)
		close(file);
}

/* Asks, and waits for the answer. */
static int ask(struct conn *c, const struct export_key *key, uint64_t end, struct request *q)
{
	struct epf_p2p *ep = c->ep;
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	struct msg_import m = { .key = *key };
	struct request **at;
	int rc;

	*q = (struct request){ .file = -1, .begun_ns = epf_now_ns() };
	pthread_mutex_lock(&ep->lock);
	q->number = m.request = ++ep->next_request;
	q->next = c->requests;
	c->requests = q;
	pthread_mutex_unlock(&ep->lock);
	rc = epf_p2p_send(&c->stream, MSG_IMPORT, &m, sizeof(m), NULL, 0);
	pthread_mutex_lock(&ep->lock);
	while (!q->done && c->state == CONN_OPEN && !ep->is_closing && rc == 0)
		rc = pthread_cond_timedwait(&ep->changed, &ep->lock, &until);
	for (at = &c->requests; *at != q; at = &(*at)->next)
		;
	*at = q->next;
	pthread_mutex_unlock(&ep->lock);
	if (q->done)
		return 0;
	if (EPF_LOAD_ACQUIRE(&c->state) != CONN_OPEN)
		return epf_p2p_conn_error(c);
	if (rc == ETIMEDOUT)
		return epf_fail(EPF_R_P2P_TIMEOUT, "import: %s did not answer in time", c->label);
	return epf_fail(EPF_R_P2P_CANCELLED, "import: the endpoint was closed");
}

static int explain(const struct conn *c, int status)
{
	switch (status) {
	case -EKEYREVOKED:
		return epf_fail(EPF_R_P2P_REVOKED, "import: %s has withdrawn it", c->label);
	case -EKEYEXPIRED:
		return epf_fail(EPF_R_P2P_EXPIRED, "import: the export of %s has expired",
				c->label);
	case -EACCES:
		return epf_fail(EPF_R_P2P_ACCESS, "import: %s has exported it to another peer",
				c->label);
	case -EBADMSG:
		return epf_fail(EPF_R_P2P_METADATA, "import: %s has never given that key",
				c->label);
	case -ENOSPC:
		return epf_fail(EPF_R_P2P_LIMIT,
				"import: %s offers no more memory over this connection at a time; "
				"release imports, or have it withdraw exports",
				c->label);
	default:
		return epf_fail_sys(
			EPF_R_SYSTEM, -status,
			"import: %s cannot offer this memory over its NIC; its log says why",
			c->label);
	}
}

/* Maps the memory of an import, if its owner has it from epf_p2p_alloc(). Without success copies go through the kernel. */
static void map(struct import *i, const struct msg_imported *a, int file)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = a->file_offset / page * page;
	uint64_t bytes = a->file_offset - at + i->key.bytes;
	int prot = PROT_READ | (i->key.rights & EPF_P2P_WRITE ? PROT_WRITE : 0);
	int seals = fcntl(file, F_GET_SEALS);
	struct stat st;
	void *base;

	if (fstat(file, &st) || seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    at > (uint64_t)st.st_size || bytes > (uint64_t)st.st_size - at)
		return;
	base = mmap(NULL, bytes, prot, MAP_SHARED, file, (off_t)at);
	if (base == MAP_FAILED)
		return;
	i->map_base = base;
	i->map_bytes = bytes;
	i->mapped = i->map_base ? (uint8_t *)base + (a->file_offset - at) : NULL;
	i->kind = MEMORY_FILE;
}

/* Keeps an import, unless another thread was faster with the same key. ep->lock held. */
static int keep(struct conn *c, struct import *i, uint64_t *number)
{
	struct epf_p2p *ep = c->ep;
	struct import *other = find(c, &i->key);
	int rc = 0;

	if (c->state != CONN_OPEN)
		return epf_p2p_conn_error(c);
	if (!other) {
		rc = epf_p2p_slot_add(&ep->imports, i, &i->number);
		if (rc)
			return rc;
		i->next = *bucket(c, &i->key);
		*bucket(c, &i->key) = i;
		__atomic_fetch_add(&i->refs, 1u, __ATOMIC_RELAXED);
		other = i;
	}
	other->opened++;
	*number = other->number;
	return 0;
}

static int import_key(struct epf_p2p *ep, uint64_t conn, const uint8_t key[EPF_P2P_KEY_BYTES],
		      uint64_t timeout_ns, uint64_t *import)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct conn *c = epf_p2p_conn_get(ep, conn);
	struct export_key k;
	struct request q = { .file = -1 };
	struct import *i;
	int rc = 0;

	if (!c)
		return -ENOENT;
	memcpy(&k, key, sizeof(k));
	if (k.magic != P2P_MAGIC || memcmp(k.endpoint, c->peer.id, sizeof(k.endpoint)) != 0 ||
	    k.slot >= P2P_EXPORTS || !k.bytes || k.bytes >> 48 || k.addr + k.bytes < k.addr)
		rc = epf_fail(EPF_R_P2P_METADATA, "import: not a key of %s", c->label);
	i = rc ? NULL : calloc(1, sizeof(*i));
	if (!rc && !i)
		rc = epf_fail(EPF_R_NO_MEMORY, "import: no memory");
	if (!rc)
		rc = ask(c, &k, end, &q);
	if (!rc && q.answer.status)
		rc = explain(c, q.answer.status);
	if (!rc) {
		i->refs = 1;
		i->conn = c;
		i->key = k;
		i->engine_region = q.answer.engine_region;
		i->engine_tag = q.engine_tag;
		if (q.answer.kind == MEMORY_FILE && q.file >= 0)
			map(i, &q.answer, q.file);
		else if (q.answer.kind == MEMORY_GPU && c->is_local)
			rc = epf_p2p_gpu_take(i, &q.answer, q.file);
		else if (q.answer.kind == MEMORY_GPU)
			i->kind = MEMORY_GPU; /* its chunks are not compressed */
		if (!rc) {
			pthread_mutex_lock(&ep->lock);
			rc = keep(c, i, import);
			pthread_mutex_unlock(&ep->lock);
		}
		epf_p2p_import_put(i);
	} else {
		free(i);
	}
	if (q.file >= 0)
		close(q.file);
	epf_p2p_conn_put(c);
	return rc;
}

int epf_p2p_import(struct epf_p2p *ep, uint64_t conn, const uint8_t key[EPF_P2P_KEY_BYTES],
		   uint64_t timeout_ns, uint64_t *import)
{
	int rc;

	epf_p2p_enter(ep);
	rc = import_key(ep, conn, key, timeout_ns, import);
	epf_p2p_leave(ep);
	return rc;
}

int epf_p2p_import_info(struct epf_p2p *ep, uint64_t import, uint64_t *addr, uint64_t *bytes,
			unsigned *rights)
{
	const struct import *i;

	pthread_mutex_lock(&ep->lock);
	i = epf_p2p_slot_get(&ep->imports, import);
	if (i && addr)
		*addr = i->key.addr;
	if (i && bytes)
		*bytes = i->key.bytes;
	if (i && rights)
		*rights = i->key.rights;
	pthread_mutex_unlock(&ep->lock);
	return i ? 0
		 : epf_fail(EPF_R_P2P_STALE, "import %#llx does not exist",
			    (unsigned long long)import);
}

void epf_p2p_release(struct epf_p2p *ep, uint64_t import)
{
	struct import *i, **at;
	struct conn *c;

	pthread_mutex_lock(&ep->lock);
	i = epf_p2p_slot_get(&ep->imports, import);
	if (i && --i->opened == 0) {
		epf_p2p_conn_ref(i->conn);
		for (at = bucket(i->conn, &i->key); *at != i; at = &(*at)->next)
			;
		*at = i->next;
		epf_p2p_slot_remove(&ep->imports, import);
	} else {
		i = NULL;
	}
	pthread_mutex_unlock(&ep->lock);
	if (!i)
		return;
	c = i->conn;
	epf_p2p_import_put(i);
	epf_p2p_conn_put(c);
}
