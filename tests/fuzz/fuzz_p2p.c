/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: what a point-to-point endpoint is given. Byte 0 chooses the form, the rest is its input:
 *   0  any bytes as metadata; and metadata of these fields, which is read as it was written
 *   1  any bytes on a control connection, in pieces
 *   2  a sealed message, byte 1 and 2 say which byte of it is changed and how: never accepted if one is, else what was sent
 *   3  vectors of blocks between two endpoints of this process: refused exactly if one leaves its range, else every byte is the right one
 *      and no other changes
 *   4  any bytes as an export key
 * It aborts when a rule is broken.
 */
#include "fabric/base/err.h"
#include "fabric/p2p/epf_p2p.h"
#include "fabric/p2p/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES = 4096, BLOCKS = 64, VECTORS = 3 };

static void must(bool rule)
{
	if (!rule)
		abort();
}

static void metadata(const uint8_t *data, size_t size)
{
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	struct metadata meta = { .gpu = -1 }, back;

	if (epf_p2p_describe(data, size, &peer) == 0)
		must(strlen(peer.name) < sizeof(peer.name) &&
		     strlen(peer.host) < sizeof(peer.host));
	memcpy((uint8_t *)&meta + offsetof(struct metadata, flags), data,
	       size < offsetof(struct metadata, check) - offsetof(struct metadata, flags)
		       ? size
		       : offsetof(struct metadata, check) - offsetof(struct metadata, flags));
	meta.name[sizeof(meta.name) - 1] = meta.host[sizeof(meta.host) - 1] = 0;
	epf_p2p_meta_seal(&meta);
	must(epf_p2p_meta_read(&meta, sizeof(meta), &back) == 0 &&
	     memcmp(&meta, &back, sizeof(meta)) == 0);
	must(epf_p2p_describe(&meta, sizeof(meta), &peer) == 0 && peer.port == meta.port);
	meta.version += size % 3;
	meta.flags += size % 5;
	must((epf_p2p_meta_read(&meta, sizeof(meta), &back) == 0) ==
	     (size % 3 == 0 && size % 5 == 0));
}

static void begin_streams(struct stream *a, struct stream *b)
{
	int fd[2];

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
	epf_p2p_stream_init(a, fd[0], false, false);
	epf_p2p_stream_init(b, fd[1], false, true);
}

static void any_stream(const uint8_t *data, size_t size)
{
	struct stream a, b;
	struct received m;
	size_t piece = size ? data[0] % 61 + 1u : 1;
	int rc = 0;

	begin_streams(&a, &b);
	for (size_t at = 0; at < size && rc >= 0; at += piece) {
		size_t n = size - at < piece ? size - at : piece;

		must(send(a.fd, data + at, n, MSG_DONTWAIT) == (ssize_t)n);
		while ((rc = epf_p2p_receive(&b, &m)) == 1) {
			must(m.bytes <= P2P_PAYLOAD_MAX && m.fds[0] == -1);
			for (uint32_t i = 0; i < m.bytes; i++) /* all can be read */
				(void)*(const volatile uint8_t *)&m.data[i];
		}
	}
	epf_p2p_stream_close(&a);
	epf_p2p_stream_close(&b);
}

static void sealed_stream(const uint8_t *data, size_t size)
{
	static const uint8_t key[EPF_AUTH_KEY_BYTES] = { 1, 2, 3 };
	uint8_t frame[1024];
	struct stream a, b;
	struct received m;
	size_t bytes = size - 2 < 512 ? size - 2 : 512;
	ssize_t n;
	int rc;

	begin_streams(&a, &b);
	epf_p2p_stream_seal(&a, key);
	epf_p2p_stream_seal(&b, key);
	must(epf_p2p_send(&a, MSG_NOTE, data + 2, bytes, NULL, 0) == 0);
	n = recv(b.fd, frame, sizeof(frame), MSG_DONTWAIT);
	must(n > (ssize_t)sizeof(struct msg_head));
	frame[data[0] * 5 % (size_t)n] ^= data[1];
	must(send(a.fd, frame, (size_t)n, MSG_DONTWAIT) == n);
	rc = epf_p2p_receive(&b, &m);
	/* A changed length may wait for more: not accepted, either. */
	must((rc == 1) == (data[1] == 0));
	if (rc == 1)
		must(m.type == MSG_NOTE && m.bytes == bytes &&
		     memcmp(m.data, data + 2, bytes) == 0);
	epf_p2p_stream_close(&a);
	epf_p2p_stream_close(&b);
}

/* Two endpoints of this process, each with a range between two guards. */
static struct {
	struct epf_p2p *a, *b;
	uint64_t conn, region, import;
	uint8_t here[3 * BYTES], there[3 * BYTES], was[3 * BYTES], times[3 * BYTES];
} pair;

static void begin_pair(void)
{
	uint8_t meta[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES];
	uint64_t region;
	int n;

	if (pair.a)
		return;
	must(epf_p2p_open(NULL, &pair.a) == 0 && epf_p2p_open(NULL, &pair.b) == 0);
	must(epf_p2p_register(pair.a, pair.here + BYTES, BYTES, EPF_P2P_HOST, &pair.region) == 0);
	must(epf_p2p_register(pair.b, pair.there + BYTES, BYTES, EPF_P2P_HOST, &region) == 0);
	must(epf_p2p_export(pair.b, region, 0, BYTES, EPF_P2P_READ | EPF_P2P_WRITE, 0, 0, key) ==
	     0);
	n = epf_p2p_metadata(pair.b, meta, sizeof(meta));
	must(n > 0 && epf_p2p_connect(pair.a, meta, (size_t)n, 0, &pair.conn) == 0);
	must(epf_p2p_import(pair.a, pair.conn, key, 0, &pair.import) == 0);
}

static uint64_t number(const uint8_t *data, unsigned bytes)
{
	uint64_t n = 0;

	memcpy(&n, data, bytes);
	return n;
}

/* How often each byte of the destination is written, by plain loops; whether all blocks are inside. */
static bool model(const struct epf_p2p_block *b, uint32_t n, bool is_read)
{
	memset(pair.times, 0, sizeof(pair.times));
	for (uint32_t i = 0; i < n; i++) {
		uint64_t local = b[i].lo & 0xffffffffffffull, remote = b[i].hi & 0xffffffffffffull;
		uint64_t len = b[i].lo >> 48 | b[i].hi >> 48 << 16;

		if (local + len > BYTES || remote + len > BYTES)
			return false;
		for (uint64_t k = 0; k < len; k++)
			pair.times[BYTES + (is_read ? local : remote) + k] +=
				pair.times[BYTES + (is_read ? local : remote) + k] < 2;
	}
	return true;
}

static void check(const struct epf_p2p_block *b, uint32_t n, bool is_read)
{
	const uint8_t *to = is_read ? pair.here : pair.there;
	const uint8_t *from = is_read ? pair.there : pair.here;

	for (uint32_t i = 0; i < 3 * BYTES; i++)
		must(pair.times[i] || to[i] == pair.was[i]);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t local = b[i].lo & 0xffffffffffffull, remote = b[i].hi & 0xffffffffffffull;
		uint64_t len = b[i].lo >> 48 | b[i].hi >> 48 << 16;

		for (uint64_t k = 0; k < len; k++) {
			uint64_t t = BYTES + k + (is_read ? local : remote);
			uint64_t f = BYTES + k + (is_read ? remote : local);

			must(pair.times[t] > 1 || to[t] == from[f]);
		}
	}
}

static void blocks(const uint8_t *data, size_t size)
{
	struct epf_p2p_block b[BLOCKS];
	struct epf_p2p_vector v[VECTORS];
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .priority = data[1] % 4u };
	bool is_read = data[0] & 1, is_far = data[0] & 2, fits;
	uint32_t n = 0, n_vectors = 1 + data[0] / 4 % VECTORS;
	struct epf_p2p_xfer *x;
	int rc;

	begin_pair();
	for (size_t at = 2; at + 6 <= size && n < BLOCKS; at += 6, n++) /* few leave the range */
		b[n] = epf_p2p_block(number(data + at, 2) % (is_far ? BYTES + 2u : 2048),
				     number(data + at + 2, 2) % (is_far ? BYTES + 2u : 2048),
				     (uint32_t)number(data + at + 4, 2) % 2049);
	for (uint32_t i = 0; i < n_vectors; i++)
		v[i] = (struct epf_p2p_vector){ pair.region, pair.import, b + n * i / n_vectors,
						n * (i + 1) / n_vectors - n * i / n_vectors };
	if (data[1] == 255)
		v[0].region++;
	if (data[1] == 254)
		v[0].import++;
	if (data[1] == 253)
		v[0].blocks = NULL;
	fits = model(b, n, is_read);
	for (uint32_t i = 0; i < 3 * BYTES; i++) {
		pair.here[i] = (uint8_t)(i * 7);
		pair.there[i] = (uint8_t)(i * 11 + 3);
	}
	memcpy(pair.was, is_read ? pair.here : pair.there, sizeof(pair.was));
	rc = epf_p2p_prepare(pair.a, pair.conn, is_read ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE, v,
			     n_vectors, data[1] % 7 ? &o : NULL, &x);
	if (data[1] >= 253 || (data[1] % 7 && o.priority > EPF_P2P_BACKGROUND)) {
		must(rc < 0 || (data[1] == 253 && !v[0].count));
		if (!rc)
			epf_p2p_xfer_free(x);
		return;
	}
	must(rc == (fits ? 0 : -ERANGE));
	if (rc)
		return;
	must(epf_p2p_post(x, NULL, 0) == 0 && epf_p2p_wait(x, 0) == 0);
	epf_p2p_xfer_free(x);
	check(b, n, is_read);
}

static void key(const uint8_t *data, size_t size)
{
	struct export_key k = { .magic = P2P_MAGIC };
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	uint8_t bytes[EPF_P2P_KEY_BYTES];
	uint64_t import;

	begin_pair();
	must(epf_p2p_peer(pair.a, pair.conn, &peer) == 0);
	memcpy(k.endpoint, peer.id, sizeof(k.endpoint));
	memcpy(bytes, &k, sizeof(bytes));
	for (size_t i = 0; i < size && i < 2 * sizeof(bytes); i++)
		bytes[i % sizeof(bytes)] ^= data[i];
	must(epf_p2p_import(pair.a, pair.conn, bytes, 0, &import) < 0);
	must(epf_p2p_withdraw(pair.b, bytes, 0) == -ENOENT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 4)
		return 0;
	switch (data[0]) {
	case 0:
		metadata(data + 1, size - 1);
		break;
	case 1:
		any_stream(data + 1, size - 1);
		break;
	case 2:
		sealed_stream(data + 1, size - 1);
		break;
	case 3:
		blocks(data + 1, size - 1);
		break;
	case 4:
		key(data + 1, size - 1);
		break;
	default:
		break;
	}
	return 0;
}
