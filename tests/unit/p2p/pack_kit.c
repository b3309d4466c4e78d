/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints of this process that compress (pack_kit.h). */
#include "tests/unit/p2p/pack_kit.h"

#include "fabric/gpu/copy.h"

#include <unistd.h>

const char *pack_nic;
bool pack_gpu;

const char *pack_settings(const char *more)
{
	static char text[200];

	snprintf(text, sizeof(text), "nic=%s p2p-local=no p2p-compress-min=1 %s%s", pack_nic,
		 pack_gpu ? "gpu-backend=fake " : "", more);
	return text;
}

struct conn *pack_conn(struct epf_p2p *ep, uint64_t number)
{
	struct conn *c = epf_p2p_conn_get(ep, number);

	assert_non_null(c);
	epf_p2p_conn_put(c);
	return c;
}

void pack_force(struct epf_p2p *ep, uint64_t conn, enum gain_way way)
{
	struct pack *p = pack_conn(ep, conn)->pack;

	assert_non_null(p);
	pthread_mutex_lock(&p->lock);
	for (int i = 0; i < PACK_GAINS; i++)
		p->gain[i].forced = way;
	pthread_mutex_unlock(&p->lock);
}

struct epf_p2p_peer pack_about(struct epf_p2p *ep, uint64_t conn)
{
	struct epf_p2p_peer peer = { .size = sizeof(peer) };

	assert_ok(epf_p2p_peer(ep, conn, &peer));
	return peer;
}

void pack_export(struct pair *p, unsigned rights, uint64_t lifetime_ns)
{
	assert_ok(epf_p2p_export(p->far, p->far_region, 0, BYTES, rights, 0, lifetime_ns, p->key));
	assert_ok(epf_p2p_import(p->near, p->conn, p->key, 10 * SECOND, &p->import));
}

static void *take(bool is_gpu)
{
	void *memory = NULL;

	if (!is_gpu)
		memory = malloc(BYTES);
	else
		assert_ok(epf_copy_fake.mem_alloc(0, BYTES, &memory));
	assert_non_null(memory);
	return memory;
}

static uint8_t *bytes_of(void *memory)
{
	void *at = epf_copy_fake_bytes(memory, BYTES);

	return at ? at : memory;
}

static void give_back(void *memory, const uint8_t *bytes)
{
	if (bytes == memory)
		free(memory);
	else
		epf_copy_fake.mem_free(memory);
}

void pair_begin(struct pair *p, const char *near, const char *far)
{
	pair_begin_in(p, near, pack_gpu, far, pack_gpu);
}

void pair_begin_in(struct pair *p, const char *near, bool near_gpu, const char *far, bool far_gpu)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	int n;

	p->near = endpoint_with("near", pack_settings(near));
	p->far = endpoint_with("far-away", pack_settings(far));
	n = epf_p2p_metadata(p->far, meta, sizeof(meta));
	assert_ok(n);
	assert_ok(epf_p2p_connect(p->near, meta, (size_t)n, 10 * SECOND, &p->conn));
	p->here_memory = take(near_gpu);
	p->there_memory = take(far_gpu);
	p->here = bytes_of(p->here_memory);
	p->there = bytes_of(p->there_memory);
	memset(p->there, 0, BYTES);
	for (uint64_t i = 0; i < BYTES; i++) /* values of bf16 near 1, with some NaNs */
		p->here[i] = i % 2 ? (i % 1024 == 1 ? 0xff : 0x3f) : pattern(i);
	assert_ok(epf_p2p_register(p->near, p->here_memory, BYTES, near_gpu ? 0 : EPF_P2P_HOST,
				   &p->region));
	assert_ok(epf_p2p_register(p->far, p->there_memory, BYTES, far_gpu ? 0 : EPF_P2P_HOST,
				   &p->far_region));
	assert_ok(epf_p2p_set_float(p->near, p->region, EPF_P2P_BF16));
	pack_export(p, EPF_P2P_READ | EPF_P2P_WRITE, 0);
}

void pair_end(struct pair *p)
{
	epf_p2p_close(p->near);
	epf_p2p_close(p->far);
	give_back(p->here_memory, p->here);
	give_back(p->there_memory, p->there);
}

bool pack_ends(struct epf_p2p *ep, uint64_t conn)
{
	for (int i = 0; i < 2000 && !pack_about(ep, conn).state; i++)
		usleep(10000);
	return pack_about(ep, conn).state != 0;
}

void must_match(const struct pair *p, uint64_t bytes)
{
	if (SEES_NICS)
		assert_memory_equal(p->here, p->there, bytes);
}

int write_some(struct pair *p, uint64_t bytes)
{
	return epf_p2p_write(p->near, p->conn, p->region, 0, p->import, 0, bytes, 10 * SECOND);
}

int read_some(struct pair *p, uint64_t bytes)
{
	return epf_p2p_read(p->near, p->conn, p->region, 0, p->import, 0, bytes, 10 * SECOND);
}
