/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding, decoding and checking of rendezvous messages; see wire.h for the layout and the rules.
 * The order of checks matters: what costs nothing first (magic, type, length, sender), the proof
 * next, and only what is proven is looked at (sequence, payload).
 */
#include "bootstrap/wire.h"

#include <assert.h>
#include <string.h>

struct type_rule {
	uint16_t type;
	bool from_client;
	bool from_server;
	bool handshake;
	uint32_t min;
	uint32_t max;
	const char *name;
};

static const struct type_rule rules[] = {
#define W(name, number, c, s, min, max, hs) { number, c, s, hs, min, max, #name },
	EPF_WIRE_TYPES(W)
#undef W
};

#define W(name, number, c, s, min, max, hs)                                             \
 static_assert((max) <= EPF_WIRE_PAYLOAD_MAX && (!(hs) || (max) <= EPF_WIRE_EARLY_MAX), \
	       #name " fits its buffers");
EPF_WIRE_TYPES(W)
#undef W

static void put_le(uint8_t *p, uint64_t v, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, unsigned int bytes)
{
	uint64_t v = 0;

	for (unsigned int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static const struct type_rule *rule_of(uint16_t type)
{
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].type == type)
			return &rules[i];
	return NULL;
}

const char *epf_wire_verdict_text(enum epf_wire_verdict v)
{
	static const char *const texts[] = {
#define V(name, text) text,
		EPF_WIRE_VERDICTS(V)
#undef V
	};

	return (unsigned int)v < EPF_WIRE_V_COUNT ? texts[v] : "unknown";
}

const char *epf_wire_type_text(uint16_t type)
{
	const struct type_rule *rule = rule_of(type);

	return rule ? rule->name : "unknown";
}

void epf_wire_session_init(struct epf_wire_session *s, const struct epf_auth *auth, uint32_t self)
{
	memset(s, 0, sizeof(*s));
	s->self = self;
	s->peer = self == EPF_WIRE_SERVER ? EPF_WIRE_ANY_RANK : EPF_WIRE_SERVER;
	s->version = EPF_WIRE_VERSION;
	epf_auth_hello_key(auth, s->key);
}

void epf_wire_session_rekey(struct epf_wire_session *s, const struct epf_auth *auth,
			    const uint8_t nonce_client[EPF_AUTH_NONCE_BYTES],
			    const uint8_t nonce_server[EPF_AUTH_NONCE_BYTES])
{
	epf_auth_session_key(auth, nonce_client, nonce_server, s->key);
}

static void head_write(uint8_t *buf, const struct epf_wire_head *head)
{
	put_le(buf, EPF_WIRE_MAGIC, 4);
	put_le(buf + 4, head->version, 2);
	put_le(buf + 6, head->type, 2);
	put_le(buf + 8, head->length, 4);
	put_le(buf + 12, head->sender, 4);
	put_le(buf + 16, head->sequence, 8);
}

static bool sender_fits(const struct epf_wire_session *s, uint32_t sender)
{
	if (s->peer == EPF_WIRE_ANY_RANK)
		return sender != EPF_WIRE_SERVER && sender != EPF_WIRE_ANY_RANK;
	return sender == s->peer;
}

enum epf_wire_verdict epf_wire_head_read(const struct epf_wire_session *s, const uint8_t *buf,
					 size_t len, uint32_t payload_max,
					 struct epf_wire_head *out)
{
	bool from_server = s->self != EPF_WIRE_SERVER;
	const struct type_rule *rule;
	struct epf_wire_head head;

	for (size_t i = 0; i < 4 && i < len; i++)
		if (buf[i] != (uint8_t)(EPF_WIRE_MAGIC >> (8 * i)))
			return EPF_WIRE_V_MAGIC;
	if (len < EPF_WIRE_HEAD_BYTES)
		return EPF_WIRE_V_MORE;
	head.version = (uint16_t)get_le(buf + 4, 2);
	head.type = (uint16_t)get_le(buf + 6, 2);
	head.length = (uint32_t)get_le(buf + 8, 4);
	head.sender = (uint32_t)get_le(buf + 12, 4);
	head.sequence = get_le(buf + 16, 8);

	rule = rule_of(head.type);
	if (!sender_fits(s, head.sender))
		return EPF_WIRE_V_SENDER;
	if (!rule || !(from_server ? rule->from_server : rule->from_client))
		return EPF_WIRE_V_TYPE;
	if (head.version != s->version && !rule->handshake)
		return EPF_WIRE_V_VERSION;
	if (head.length > payload_max || head.length < rule->min || head.length > rule->max)
		return EPF_WIRE_V_LENGTH;
	*out = head;
	return EPF_WIRE_V_OK;
}

enum epf_wire_verdict epf_wire_open(struct epf_wire_session *s, const uint8_t *buf, size_t len,
				    uint32_t payload_max, struct epf_wire_msg *out,
				    size_t *frame_bytes)
{
	uint8_t digest[EPF_AUTH_HASH_BYTES], proof[EPF_AUTH_HASH_BYTES];
	const uint8_t *payload = buf + EPF_WIRE_HEAD_BYTES;
	enum epf_wire_verdict v;
	struct epf_wire_head head;
	size_t frame;

	v = epf_wire_head_read(s, buf, len, payload_max, &head);
	if (v != EPF_WIRE_V_OK)
		return v;
	frame = EPF_WIRE_OVERHEAD + (size_t)head.length;
	if (len < frame)
		return EPF_WIRE_V_MORE;
	epf_auth_digest(payload, head.length, digest);
	epf_auth_proof(s->key, s->self != EPF_WIRE_SERVER, buf, EPF_WIRE_HEAD_BYTES, digest, proof);
	if (!epf_auth_equal(proof, payload + head.length))
		return EPF_WIRE_V_PROOF;
	if (head.sequence > s->rx_sequence)
		return EPF_WIRE_V_GAP;
	*frame_bytes = frame;
	if (head.sequence < s->rx_sequence)
		return EPF_WIRE_V_DUPLICATE;
	s->rx_sequence++;
	out->head = head;
	out->payload = payload;
	return EPF_WIRE_V_OK;
}

static void head_fill(struct epf_wire_session *s, uint16_t type, size_t len, uint8_t *buf)
{
	struct epf_wire_head head = {
		.version = s->version,
		.type = type,
		.length = (uint32_t)len,
		.sender = s->self,
		.sequence = s->tx_sequence++,
	};

	head_write(buf, &head);
}

size_t epf_wire_seal(struct epf_wire_session *s, enum epf_wire_type type, const void *payload,
		     size_t len, const uint8_t *digest, uint8_t *buf)
{
	uint8_t own[EPF_AUTH_HASH_BYTES];

	head_fill(s, (uint16_t)type, len, buf);
	if (len && payload != buf + EPF_WIRE_HEAD_BYTES)
		memcpy(buf + EPF_WIRE_HEAD_BYTES, payload, len);
	if (!digest) {
		epf_auth_digest(buf + EPF_WIRE_HEAD_BYTES, len, own);
		digest = own;
	}
	epf_auth_proof(s->key, s->self == EPF_WIRE_SERVER, buf, EPF_WIRE_HEAD_BYTES, digest,
		       buf + EPF_WIRE_HEAD_BYTES + len);
	return EPF_WIRE_OVERHEAD + len;
}

size_t epf_wire_refuse_stranger(struct epf_wire_session *s, uint8_t *buf)
{
	head_fill(s, EPF_WIRE_REFUSE, 6, buf);
	memset(buf + EPF_WIRE_HEAD_BYTES, 0, 6 + EPF_WIRE_PROOF_BYTES);
	return EPF_WIRE_OVERHEAD + 6;
}

/* A name or text: @len bytes without a 0, copied with one at the end. */
static bool get_text(const uint8_t *p, size_t len, size_t max, char *out)
{
	if (len > max || memchr(p, 0, len))
		return false;
	memcpy(out, p, len);
	out[len] = 0;
	return true;
}

size_t epf_wire_put_join(uint8_t *buf, const struct epf_wire_join *in)
{
	size_t job = strnlen(in->job, EPF_WIRE_NAME_MAX);
	size_t node = strnlen(in->node, EPF_WIRE_NAME_MAX);

	put_le(buf, in->rank, 4);
	put_le(buf + 4, in->world, 4);
	put_le(buf + 8, in->timeout_ns, 8);
	put_le(buf + 16, job, 2);
	put_le(buf + 18, node, 2);
	memcpy(buf + 20, in->job, job);
	memcpy(buf + 20 + job, in->node, node);
	return 20 + job + node;
}

enum epf_wire_verdict epf_wire_get_join(const struct epf_wire_msg *msg, struct epf_wire_join *out)
{
	const uint8_t *p = msg->payload;
	size_t job = (size_t)get_le(p + 16, 2), node = (size_t)get_le(p + 18, 2);
	struct epf_wire_join join = { 0 };

	if (20 + job + node != msg->head.length)
		return EPF_WIRE_V_PAYLOAD;
	join.rank = (uint32_t)get_le(p, 4);
	join.world = (uint32_t)get_le(p + 4, 4);
	join.timeout_ns = get_le(p + 8, 8);
	if (!get_text(p + 20, job, EPF_WIRE_NAME_MAX, join.job) ||
	    !get_text(p + 20 + job, node, EPF_WIRE_NAME_MAX, join.node))
		return EPF_WIRE_V_PAYLOAD;
	*out = join;
	return EPF_WIRE_V_OK;
}

size_t epf_wire_put_note(uint8_t *buf, enum epf_wire_type type, const struct epf_wire_note *in)
{
	size_t text = strnlen(in->text, EPF_WIRE_TEXT_MAX);
	uint8_t *p = buf;

	put_le(p, in->reason, 4);
	p += 4;
	if (type == EPF_WIRE_FAIL) {
		put_le(p, in->rank, 4);
		p += 4;
	}
	put_le(p, text, 2);
	memcpy(p + 2, in->text, text);
	return (size_t)(p + 2 - buf) + text;
}

enum epf_wire_verdict epf_wire_get_note(const struct epf_wire_msg *msg, struct epf_wire_note *out)
{
	bool fail = msg->head.type == EPF_WIRE_FAIL;
	const uint8_t *p = msg->payload;
	size_t fixed = fail ? 10 : 6;
	struct epf_wire_note note = { .rank = EPF_WIRE_SERVER };
	size_t text;

	note.reason = (uint32_t)get_le(p, 4);
	if (fail)
		note.rank = (uint32_t)get_le(p + 4, 4);
	text = (size_t)get_le(p + fixed - 2, 2);
	if (fixed + text != msg->head.length ||
	    !get_text(p + fixed, text, EPF_WIRE_TEXT_MAX, note.text))
		return EPF_WIRE_V_PAYLOAD;
	*out = note;
	return EPF_WIRE_V_OK;
}

size_t epf_wire_put_leave(uint8_t buf[8], const struct epf_wire_leave *in)
{
	put_le(buf, in->reason, 4);
	put_le(buf + 4, in->rank, 4);
	return 8;
}

enum epf_wire_verdict epf_wire_get_leave(const struct epf_wire_msg *msg, struct epf_wire_leave *out)
{
	*out = (struct epf_wire_leave){ 0 };
	if (msg->head.length == 0)
		return EPF_WIRE_V_OK;
	if (msg->head.length != 8)
		return EPF_WIRE_V_PAYLOAD;
	out->reason = (uint32_t)get_le(msg->payload, 4);
	out->rank = (uint32_t)get_le(msg->payload + 4, 4);
	return EPF_WIRE_V_OK;
}

void epf_wire_put_part(uint8_t head[EPF_WIRE_PART_HEAD], uint64_t round, uint64_t total,
		       uint64_t offset)
{
	put_le(head, round, 8);
	put_le(head + 8, total, 8);
	put_le(head + 16, offset, 8);
}

enum epf_wire_verdict epf_wire_get_part(const struct epf_wire_msg *msg, struct epf_wire_part *out)
{
	struct epf_wire_part part = {
		.round = get_le(msg->payload, 8),
		.total = get_le(msg->payload + 8, 8),
		.offset = get_le(msg->payload + 16, 8),
		.data = msg->payload + EPF_WIRE_PART_HEAD,
		.bytes = msg->head.length - EPF_WIRE_PART_HEAD,
	};

	if (part.offset > part.total || part.bytes > part.total - part.offset)
		return EPF_WIRE_V_PAYLOAD;
	/* Only an empty stream has an empty part: others could go on forever without progress. */
	if (part.bytes == 0 && part.total != 0)
		return EPF_WIRE_V_PAYLOAD;
	*out = part;
	return EPF_WIRE_V_OK;
}

size_t epf_wire_put_u64(uint8_t buf[8], uint64_t value)
{
	put_le(buf, value, 8);
	return 8;
}

uint64_t epf_wire_get_u64(const uint8_t buf[8])
{
	return get_le(buf, 8);
}

size_t epf_wire_put_u32(uint8_t buf[4], uint32_t value)
{
	put_le(buf, value, 4);
	return 4;
}

uint32_t epf_wire_get_u32(const uint8_t buf[4])
{
	return (uint32_t)get_le(buf, 4);
}
