/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: rendezvous messages. Byte 0 chooses the form, the rest is its input:
 *   0  any bytes to a server that expects a stranger, to a server's member, and to a client
 *   1  a message that is sealed with the right key, byte 1 its type, the rest its payload: what
 *      comes out is what went in, and payloads that contradict themselves are refused
 *   2  as 1, and then one byte is changed (bytes 2 and 3 say which and how): never accepted
 *   3  as 1, sent twice, and sent back
 *   4  structures written and read again
 * It aborts when a rule of wire.h is broken. No socket, no clock, fixed keys.
 */
#include "bootstrap/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RANK 7u

static uint8_t frame[EPF_WIRE_FRAME_MAX];

static void must(bool rule)
{
	if (!rule)
		abort();
}

static void setup(struct epf_wire_session *client, struct epf_wire_session *server)
{
	static const char secret[] = "the secret of the fuzzer";
	uint8_t nc[EPF_AUTH_NONCE_BYTES] = { 1 }, ns[EPF_AUTH_NONCE_BYTES] = { 2 };
	static struct epf_auth auth;

	if (!auth.has_secret)
		must(!epf_auth_load(secret, sizeof(secret) - 1, NULL, NULL, NULL, &auth));
	epf_wire_session_init(client, &auth, RANK);
	epf_wire_session_init(server, &auth, EPF_WIRE_SERVER);
	epf_wire_session_rekey(client, &auth, nc, ns);
	epf_wire_session_rekey(server, &auth, nc, ns);
}

/* Reads what a message says, and nothing beyond its payload: the sanitizer looks on. */
static void read_payload(const struct epf_wire_msg *msg)
{
	struct epf_wire_join join;
	struct epf_wire_note note;
	struct epf_wire_part part;

	switch (msg->head.type) {
	case EPF_WIRE_JOIN:
		if (epf_wire_get_join(msg, &join) == EPF_WIRE_V_OK)
			must(strlen(join.job) + strlen(join.node) + 20 == msg->head.length);
		break;
	case EPF_WIRE_REFUSE:
	case EPF_WIRE_FAIL:
		if (epf_wire_get_note(msg, &note) == EPF_WIRE_V_OK)
			must(strlen(note.text) <= EPF_WIRE_TEXT_MAX);
		break;
	case EPF_WIRE_PART:
		if (epf_wire_get_part(msg, &part) == EPF_WIRE_V_OK)
			must(part.offset + part.bytes <= part.total &&
			     part.data + part.bytes == msg->payload + msg->head.length);
		break;
	default:
		break;
	}
}

static void try_bytes(struct epf_wire_session *s, const uint8_t *data, size_t size, uint32_t max)
{
	uint8_t *exact = malloc(size ? size : 1);
	enum epf_wire_verdict v;
	struct epf_wire_msg msg;
	size_t n = 0;

	must(exact != NULL);
	if (size)
		memcpy(exact, data, size);
	v = epf_wire_open(s, exact, size, max, &msg, &n);
	must(epf_wire_verdict_text(v)[0]);
	if (v == EPF_WIRE_V_OK) {
		must(n <= size);
		read_payload(&msg);
	}
	free(exact);
}

static void any_bytes(const uint8_t *data, size_t size)
{
	struct epf_wire_session client, server;

	setup(&client, &server);
	try_bytes(&server, data, size, EPF_WIRE_EARLY_MAX);
	server.peer = RANK;
	try_bytes(&server, data, size, EPF_WIRE_PAYLOAD_MAX);
	try_bytes(&client, data, size, EPF_WIRE_PAYLOAD_MAX);
}

static bool is_from_client(uint8_t type)
{
	switch (type) {
#define W(name, number, c, s, min, max, hs) \
 case number:                               \
  return c;
		EPF_WIRE_TYPES(W)
#undef W
	}
	return false;
}

static bool fits_type(uint8_t type, size_t len)
{
	switch (type) {
#define W(name, number, c, s, min, max, hs) \
 case number:                               \
  return len >= (min) && len <= (max);
		EPF_WIRE_TYPES(W)
#undef W
	}
	return false;
}

/* A frame as its sender would make it; returns its size. */
static size_t seal(uint8_t type, const uint8_t *payload, size_t len, struct epf_wire_session *from)
{
	if (len > EPF_WIRE_PAYLOAD_MAX)
		len = EPF_WIRE_PAYLOAD_MAX;
	return epf_wire_seal(from, (enum epf_wire_type)type, payload, len, NULL, frame);
}

static void sealed(const uint8_t *data, size_t size, uint8_t form)
{
	struct epf_wire_session client, server, *from, *to;
	struct epf_wire_msg msg;
	size_t len = size - 3, n, got = 0;
	uint8_t type = data[0];
	enum epf_wire_verdict v;

	setup(&client, &server);
	server.peer = RANK;
	from = is_from_client(type) ? &client : &server;
	to = from == &client ? &server : &client;
	n = seal(type, data + 3, len, from);
	if (form == 2) {
		size_t at = ((size_t)data[1] << 8 | data[2]) % n;

		frame[at] ^= (uint8_t)(data[2] ? data[2] : 1);
		v = epf_wire_open(to, frame, n, EPF_WIRE_PAYLOAD_MAX, &msg, &got);
		must(v != EPF_WIRE_V_OK && v != EPF_WIRE_V_DUPLICATE);
		return;
	}
	v = epf_wire_open(to, frame, n, EPF_WIRE_PAYLOAD_MAX, &msg, &got);
	must((v == EPF_WIRE_V_OK) == fits_type(type, n - EPF_WIRE_OVERHEAD));
	must(epf_wire_type_text(type)[0]);
	if (v != EPF_WIRE_V_OK)
		return;
	must(got == n && msg.head.length == n - EPF_WIRE_OVERHEAD);
	must(!msg.head.length || !memcmp(msg.payload, data + 3, msg.head.length));
	read_payload(&msg);
	if (form != 3)
		return;
	must(epf_wire_open(to, frame, n, EPF_WIRE_PAYLOAD_MAX, &msg, &got) == EPF_WIRE_V_DUPLICATE);
	must(epf_wire_open(from, frame, n, EPF_WIRE_PAYLOAD_MAX, &msg, &got) != EPF_WIRE_V_OK);
	/* A later message first: the one between was lost. */
	from->tx_sequence++;
	n = seal(type, data + 3, len, from);
	must(epf_wire_open(to, frame, n, EPF_WIRE_PAYLOAD_MAX, &msg, &got) == EPF_WIRE_V_GAP);
	n = epf_wire_refuse_stranger(&server, frame);
	must(epf_wire_open(&client, frame, n, EPF_WIRE_EARLY_MAX, &msg, &got) != EPF_WIRE_V_OK);
}

static void fill_text(char *out, size_t max, const uint8_t *data, size_t size)
{
	size_t n = size < max ? size : max;

	memset(out, 0, max + 1);
	for (size_t i = 0; i < n; i++)
		out[i] = data[i] ? (char)data[i] : '0';
}

static void structures(const uint8_t *data, size_t size)
{
	struct epf_wire_join join = { 0 }, join2;
	struct epf_wire_note note = { 0 }, note2;
	uint8_t buf[EPF_WIRE_EARLY_MAX];
	struct epf_wire_msg msg = { .payload = buf };

	join.rank = epf_wire_get_u32(data);
	join.timeout_ns = epf_wire_get_u64(data);
	fill_text(join.job, EPF_WIRE_NAME_MAX, data, size / 2);
	fill_text(join.node, EPF_WIRE_NAME_MAX, data + size / 2, size - size / 2);
	msg.head.type = EPF_WIRE_JOIN;
	msg.head.length = (uint32_t)epf_wire_put_join(buf, &join);
	must(epf_wire_get_join(&msg, &join2) == EPF_WIRE_V_OK &&
	     !memcmp(&join, &join2, sizeof(join)));
	note.reason = epf_wire_get_u32(data);
	note.rank = EPF_WIRE_SERVER;
	fill_text(note.text, EPF_WIRE_TEXT_MAX, data, size);
	msg.head.type = size % 2 ? EPF_WIRE_FAIL : EPF_WIRE_REFUSE;
	msg.head.length =
		(uint32_t)epf_wire_put_note(buf, (enum epf_wire_type)msg.head.type, &note);
	must(epf_wire_get_note(&msg, &note2) == EPF_WIRE_V_OK &&
	     !memcmp(&note, &note2, sizeof(note)));
	must(epf_wire_put_u32(buf, note.reason) == 4 && epf_wire_get_u32(buf) == note.reason);
	must(epf_wire_put_u64(buf, join.timeout_ns) == 8 &&
	     epf_wire_get_u64(buf) == join.timeout_ns);
	epf_wire_put_part(buf, join.timeout_ns, 1, 0);
	must(epf_wire_get_u64(buf) == join.timeout_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (data[0] == 0)
		any_bytes(data + 1, size - 1);
	else if (data[0] <= 3 && size >= 4)
		sealed(data + 1, size - 1, data[0]);
	else if (data[0] == 4 && size >= 9)
		structures(data + 1, size - 1);
	return 0;
}
