/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec of the control protocol: one table of messages and fields, one loop each way. Called by the channel and the daemon;
 * pure functions over bytes, so that a fuzzer can drive them. It must never read beyond the bytes given, believe a
 * length before it is checked, or write to the caller's struct when it refuses.
 */
#include "fabric/protocol/proto.h"

#include "bootstrap/boot.h"
#include "fabric/base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind { U16, U32, U64, RAW, TEXT, BYTES };

/* Bytes on the wire of the kinds without a separate length; of TEXT and BYTES: of the length in front. */
static const size_t kind_bytes[] = { [U16] = 2, [U32] = 4, [U64] = 8, [TEXT] = 2, [BYTES] = 4 };

struct field {
	const char *name;
	uint8_t kind;
	uint8_t since; /* the minor it came with */
	uint16_t offset;
	uint16_t size; /* in the struct */
};

struct message {
	const struct field *fields;
	unsigned n_fields;
	unsigned size; /* of the struct */
	unsigned fds;
};

/* Holds any message while it is decoded. */
union scratch {
	uint64_t align;
	uint8_t bytes[EPF_SVC_STRUCT_MAX];
};

#define F(s, m, k, minor)                                                             \
 {                                                                                    \
#  m, k, minor, offsetof(struct epf_svc_##s, m), sizeof(((struct epf_svc_##s *)0)->m) \
 }
#define FIELDS(s, ...)                                     \
 static const struct field s##_fields[] = { __VA_ARGS__ }; \
 static_assert(sizeof(struct epf_svc_##s) <= sizeof(union scratch), "scratch holds " #s)

/* clang-format off */
FIELDS(hello, F(hello, major, U16, 0), F(hello, minor, U16, 0), F(hello, flags, U32, 0), F(hello, program, TEXT, 0));
FIELDS(hello_reply, F(hello_reply, major, U16, 0), F(hello_reply, minor, U16, 0), F(hello_reply, node_id, RAW, 0),
       F(hello_reply, instance, TEXT, 0), F(hello_reply, version, TEXT, 0), F(hello_reply, max_regions, U32, 0),
       F(hello_reply, max_rings, U32, 0), F(hello_reply, max_jobs, U32, 1));
FIELDS(signals, F(signals, count, U32, 0));
FIELDS(signals_reply, F(signals_reply, count, U32, 0), F(signals_reply, bytes, U64, 0), F(signals_reply, wakeup_offset, U64, 0));
FIELDS(region, F(region, offset, U64, 0), F(region, bytes, U64, 0), F(region, access, U32, 0));
FIELDS(gpu_region, F(gpu_region, kind, U32, 0), F(gpu_region, access, U32, 0), F(gpu_region, bytes, U64, 0),
       F(gpu_region, whole, U64, 0), F(gpu_region, offset, U64, 0), F(gpu_region, ipc, RAW, 0), F(gpu_region, pci, TEXT, 0));
FIELDS(region_reply, F(region_reply, region, U32, 0));
FIELDS(region_close, F(region_close, region, U32, 0));
FIELDS(region_close_reply, F(region_close_reply, done, U32, 0), F(region_close_reply, missing, U32, 0));
FIELDS(ring, F(ring, log2, U32, 0), F(ring, weight, U32, 0), F(ring, start, U64, 0));
FIELDS(ring_reply, F(ring_reply, ring, U32, 0), F(ring_reply, bytes, U64, 0));
FIELDS(ring_close, F(ring_close, ring, U32, 0));
FIELDS(attach, F(attach, job_id, RAW, 0), F(attach, job_key, RAW, 0), F(attach, job, TEXT, 0), F(attach, rank, U32, 0),
       F(attach, world, U32, 0), F(attach, flags, U32, 0), F(attach, weight, U32, 1),
       F(attach, route, TEXT, 4));
FIELDS(attach_reply, F(attach_reply, node_id, RAW, 0), F(attach_reply, nonce, RAW, 0), F(attach_reply, job_id, RAW, 0),
       F(attach_reply, epoch, U32, 0), F(attach_reply, peers_bytes, U64, 0), F(attach_reply, kick_bytes, U64, 0));
FIELDS(world, F(world, table, BYTES, 0));
FIELDS(world_reply, F(world_reply, n_nodes, U32, 0), F(world_reply, node, U32, 0), F(world_reply, sealed, BYTES, 0));
FIELDS(connect, F(connect, sealed, BYTES, 0));
FIELDS(describe_reply, F(describe_reply, sealed, BYTES, 0));
FIELDS(mask, F(mask, rank, U32, 0), F(mask, masked, U32, 0));
FIELDS(awake, F(awake, on, U32, 0));
FIELDS(counter, F(counter, name, TEXT, 0));
FIELDS(counter_reply, F(counter_reply, value, U64, 0));
FIELDS(status, F(status, flags, U32, 0));
FIELDS(status_reply, F(status_reply, json, BYTES, 0));
FIELDS(drain, F(drain, on, U32, 0));
FIELDS(drain_reply, F(drain_reply, jobs, U32, 0));
FIELDS(link, F(link, job, TEXT, 0), F(link, link, U32, 0), F(link, up, U32, 0));
FIELDS(reconnect, F(reconnect, step, U32, 0), F(reconnect, sealed, BYTES, 0));
FIELDS(reconnect_reply, F(reconnect_reply, done, U32, 0), F(reconnect_reply, sealed, BYTES, 0));
FIELDS(link_reply, F(link_reply, nics, U32, 0));

#define M(s, n_fds) { s##_fields, sizeof(s##_fields) / sizeof(s##_fields[0]), sizeof(struct epf_svc_##s), n_fds }
#define NONE { NULL, 0, 0, 0 }

/* A row: name, request, answer; the last number is that of descriptors. */
static const struct row {
	const char *name;
	struct message request, answer;
} rows[EPF_SVC_TYPES] = {
	[EPF_SVC_HELLO] = { "HELLO", M(hello, 0), M(hello_reply, 0) },
	[EPF_SVC_SIGNALS] = { "SIGNALS", M(signals, 0), M(signals_reply, 1) },
	[EPF_SVC_REGION] = { "REGION", M(region, 1), M(region_reply, 0) },
	[EPF_SVC_REGION_CLOSE] = { "REGION_CLOSE", M(region_close, 0), M(region_close_reply, 0) },
	[EPF_SVC_RING] = { "RING", M(ring, 0), M(ring_reply, 1) },
	[EPF_SVC_RING_CLOSE] = { "RING_CLOSE", M(ring_close, 0), NONE },
	[EPF_SVC_ATTACH] = { "ATTACH", M(attach, 0), M(attach_reply, 2) },
	[EPF_SVC_WORLD] = { "WORLD", M(world, 0), M(world_reply, 0) },
	[EPF_SVC_CONNECT] = { "CONNECT", M(connect, 0), NONE },
	[EPF_SVC_DESCRIBE] = { "DESCRIBE", NONE, M(describe_reply, 0) },
	[EPF_SVC_UPDATE] = { "UPDATE", M(connect, 0), NONE },
	[EPF_SVC_MASK] = { "MASK", M(mask, 0), NONE },
	[EPF_SVC_COUNTER] = { "COUNTER", M(counter, 0), M(counter_reply, 0) },
	[EPF_SVC_LEAVE] = { "LEAVE", NONE, NONE },
	[EPF_SVC_STATUS] = { "STATUS", M(status, 0), M(status_reply, 0) },
	[EPF_SVC_DRAIN] = { "DRAIN", M(drain, 0), M(drain_reply, 0) },
	[EPF_SVC_LINK] = { "LINK", M(link, 0), M(link_reply, 0) },
	[EPF_SVC_RECONNECT] = { "RECONNECT", M(reconnect, 0), M(reconnect_reply, 0) },
	[EPF_SVC_GPU_REGION] = { "GPU_REGION", M(gpu_region, 1), M(region_reply, 0) },
	[EPF_SVC_AWAKE] = { "AWAKE", M(awake, 0), NONE },
};

/* clang-format on */

static const struct row *row_of(unsigned type)
{
	return type < EPF_SVC_TYPES && rows[type].name ? &rows[type] : NULL;
}

const char *epf_svc_type_name(unsigned type)
{
	const struct row *row = row_of(type);

	return row ? row->name : "?";
}

unsigned epf_svc_type_fds(unsigned type, bool answer)
{
	const struct row *row = row_of(type);

	return !row ? 0 : answer ? row->answer.fds : row->request.fds;
}

static void put(uint8_t *p, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *p, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes; i++)
		value |= (uint64_t)p[i] << (8 * i);
	return value;
}

void epf_svc_head_encode(const struct epf_svc_head *h, uint8_t out[EPF_SVC_HEAD_BYTES])
{
	put(out, EPF_SVC_MAGIC, 4);
	put(out + 4, h->type, 2);
	put(out + 6, h->fds, 2);
	put(out + 8, h->bytes, 4);
	put(out + 12, h->seq, 4);
	put(out + 16, (uint32_t)h->status, 4);
	put(out + 20, h->reason, 4);
}

int epf_svc_head_decode(const uint8_t in[EPF_SVC_HEAD_BYTES], struct epf_svc_head *out)
{
	struct epf_svc_head h = {
		.type = (uint16_t)get(in + 4, 2),
		.fds = (uint16_t)get(in + 6, 2),
		.bytes = (uint32_t)get(in + 8, 4),
		.seq = (uint32_t)get(in + 12, 4),
		.status = (int32_t)(uint32_t)get(in + 16, 4),
		.reason = (uint32_t)get(in + 20, 4),
	};

	if (get(in, 4) != EPF_SVC_MAGIC)
		return epf_fail(EPF_R_SVC_MESSAGE, "a header begins with 0x%08x, not EPFS",
				(unsigned)get(in, 4));
	if (h.fds > EPF_SVC_FDS_MAX)
		return epf_fail(EPF_R_SVC_MESSAGE,
				"a header announces %u descriptors, the most is %d", h.fds,
				EPF_SVC_FDS_MAX);
	if (h.bytes > EPF_SVC_BODY_MAX)
		return epf_fail(EPF_R_SVC_MESSAGE, "a header announces %u bytes, the most is %d",
				h.bytes, EPF_SVC_BODY_MAX);
	*out = h;
	return 0;
}

/* Bytes of the UTF-8 character at p, which ends at end; 0 when it is none, or a control character (C0, DEL, C1). */
static size_t char_bytes(const uint8_t *p, const uint8_t *end)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc0 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t code = n == 1 ? p[0] : p[0] & (0x7fu >> n);

	if (n == 0 || p[0] > 0xf7 || n > (size_t)(end - p))
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (p[i] & 0x3f);
	}
	if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	return code < 0x20 || (code >= 0x7f && code < 0xa0) ? 0 : n;
}

/* Texts end up in logs, JSON and file names. */
static bool is_clean(const uint8_t *p, size_t len)
{
	const uint8_t *end = p + len;
	size_t n = 1;

	while (p < end && (n = char_bytes(p, end)) > 0)
		p += n;
	return n > 0;
}

/* The message of a type; NULL with the error when there is none, or the caller forgot its struct. */
static const struct message *find(unsigned type, bool answer, const void *msg)
{
	const struct row *row = row_of(type);
	const struct message *m = row ? (answer ? &row->answer : &row->request) : NULL;

	if (!m)
		epf_fail(EPF_R_SVC_MESSAGE, "type %u is not known", type);
	else if (m->n_fields && !msg)
		epf_fail(EPF_R_SVC_MESSAGE, "%s: no struct for its fields", row->name);
	return m && m->n_fields && !msg ? NULL : m;
}

static uint64_t load(const uint8_t *at, enum kind kind)
{
	uint16_t u16 = 0;
	uint32_t u32 = 0;
	uint64_t u64 = 0;

	if (kind == U16)
		memcpy(&u16, at, sizeof(u16));
	else if (kind == U32)
		memcpy(&u32, at, sizeof(u32));
	else
		memcpy(&u64, at, sizeof(u64));
	return kind == U16 ? u16 : kind == U32 ? u32 : u64;
}

static void store(uint8_t *at, enum kind kind, uint64_t value)
{
	uint16_t u16 = (uint16_t)value;
	uint32_t u32 = (uint32_t)value;

	if (kind == U16)
		memcpy(at, &u16, sizeof(u16));
	else if (kind == U32)
		memcpy(at, &u32, sizeof(u32));
	else
		memcpy(at, &value, sizeof(value));
}

/* Bytes of the part of a field that varies, and where they are. */
static size_t varying(const struct field *f, const uint8_t *at, const void **data)
{
	struct epf_svc_bytes b;

	*data = at;
	if (f->kind == RAW)
		return f->size;
	if (f->kind == TEXT)
		return strnlen((const char *)at, f->size);
	if (f->kind != BYTES)
		return 0;
	memcpy(&b, at, sizeof(b));
	*data = b.data;
	return b.len;
}

/* Writes the fields to out, or only counts and checks them when it is NULL. */
static int write_fields(const char *name, const struct message *m, unsigned minor,
			const uint8_t *msg, uint8_t *out, size_t *len)
{
	size_t at = 0;

	for (unsigned i = 0; i < m->n_fields; i++) {
		const struct field *f = &m->fields[i];
		const void *data;
		size_t n = varying(f, msg + f->offset, &data), fixed = kind_bytes[f->kind];
		bool counted = f->kind == TEXT || f->kind == BYTES;

		if (f->since > minor)
			continue;
		if (f->kind == TEXT && (n == f->size || !is_clean(data, n)))
			return epf_fail(
				EPF_R_SVC_MESSAGE,
				"%s: %s is no UTF-8 text of at most %u bytes without control characters",
				name, f->name, f->size - 1u);
		if (out && fixed)
			put(out + at, counted ? n : load(msg + f->offset, f->kind), fixed);
		if (out && n)
			memcpy(out + at + fixed, data, n);
		at += fixed + n;
		if (at > EPF_SVC_BODY_MAX)
			return epf_fail(EPF_R_SVC_LIMIT, "%s: %s makes more than %d bytes", name,
					f->name, EPF_SVC_BODY_MAX);
	}
	*len = at;
	return 0;
}

int epf_svc_encode(unsigned type, bool answer, unsigned minor, const void *msg, uint8_t **out,
		   size_t *len)
{
	const struct message *m = find(type, answer, msg);
	size_t bytes = 0;
	uint8_t *buf;
	int rc;

	if (!m)
		return -EBADMSG;
	rc = write_fields(rows[type].name, m, minor, msg, NULL, &bytes);
	if (rc)
		return rc;
	buf = malloc(bytes ? bytes : 1);
	if (!buf)
		return epf_fail(EPF_R_NO_MEMORY, "%s: %zu bytes", rows[type].name, bytes);
	(void)write_fields(rows[type].name, m, minor, msg, buf, &bytes);
	*out = buf;
	*len = bytes;
	return 0;
}

/* One field from the bytes at p, of which `room` are left: bytes used, or -EBADMSG. */
static ssize_t read_field(const char *name, const struct field *f, const uint8_t *p, size_t room,
			  uint8_t *to)
{
	size_t fixed = kind_bytes[f->kind], n = f->kind == RAW ? f->size : 0;
	struct epf_svc_bytes b = { 0 };

	if (room < fixed + n)
		return epf_fail(EPF_R_SVC_MESSAGE, "%s: the body ends inside %s", name, f->name);
	if (f->kind == TEXT || f->kind == BYTES) {
		n = (size_t)get(p, fixed);
		if (n > room - fixed)
			return epf_fail(EPF_R_SVC_MESSAGE, "%s: %s has %zu bytes, %zu are there",
					name, f->name, n, room - fixed);
	}
	switch ((enum kind)f->kind) {
	case TEXT:
		if (n >= f->size || !is_clean(p + fixed, n))
			return epf_fail(
				EPF_R_SVC_MESSAGE,
				"%s: %s is no UTF-8 text of at most %u bytes without control characters",
				name, f->name, f->size - 1u);
		memcpy(to, p + fixed, n);
		break;
	case RAW:
		memcpy(to, p, n);
		break;
	case BYTES:
		b.data = n ? p + fixed : NULL;
		b.len = (uint32_t)n;
		memcpy(to, &b, sizeof(b));
		break;
	default:
		store(to, f->kind, get(p, fixed));
	}
	return (ssize_t)(fixed + n);
}

int epf_svc_decode(unsigned type, bool answer, unsigned minor, const uint8_t *body, size_t len,
		   void *msg)
{
	const struct message *m = find(type, answer, msg);
	union scratch s = { 0 };
	size_t at = 0;

	if (!m)
		return -EBADMSG;
	/* An empty body may be NULL, which nothing can be added to. */
	if (!len)
		body = s.bytes;
	for (unsigned i = 0; i < m->n_fields; i++) {
		const struct field *f = &m->fields[i];
		ssize_t n;

		/* HELLO says itself what it is; of another major only the two numbers in front are known. */
		if (type == EPF_SVC_HELLO && i == 2) {
			if (load(s.bytes, U16) != EPF_SVC_MAJOR)
				break;
			minor = 0;
		}
		if (at == len && f->since > minor)
			break;
		n = read_field(rows[type].name, f, body + at, len - at, s.bytes + f->offset);
		if (n < 0)
			return (int)n;
		at += (size_t)n;
	}
	if (m->size)
		memcpy(msg, s.bytes, m->size);
	return 0;
}

int epf_svc_version_check(const char *who, unsigned major, unsigned minor)
{
	unsigned apart = minor > EPF_SVC_MINOR ? minor - EPF_SVC_MINOR : EPF_SVC_MINOR - minor;

	if (major == EPF_SVC_MAJOR && apart <= 1)
		return 0;
	return epf_fail(EPF_R_SVC_VERSION,
			"%s speaks version %u.%u of the control protocol, this end %u.%u", who,
			major, minor, EPF_SVC_MAJOR, EPF_SVC_MINOR);
}

unsigned epf_svc_minor(unsigned theirs)
{
	return theirs < EPF_SVC_MINOR ? theirs : EPF_SVC_MINOR;
}

int epf_svc_pack(const struct epf_blob *blobs, uint32_t world, uint8_t **out, size_t *len)
{
	size_t bytes = (size_t)world * 4, at = 0;
	uint8_t *buf;

	for (uint32_t r = 0; r < world; r++) {
		if (blobs[r].len > EPF_SVC_BODY_MAX ||
		    (bytes += blobs[r].len) > EPF_SVC_BODY_MAX - 4)
			return epf_fail(EPF_R_SVC_LIMIT,
					"the descriptions of %u ranks have more than %d bytes",
					world, EPF_SVC_BODY_MAX - 4);
	}
	buf = malloc(bytes ? bytes : 1);
	if (!buf)
		return epf_fail(EPF_R_NO_MEMORY, "the descriptions of %u ranks: %zu bytes", world,
				bytes);
	for (uint32_t r = 0; r < world; r++) {
		put(buf + at, blobs[r].len, 4);
		if (blobs[r].len)
			memcpy(buf + at + 4, blobs[r].data, blobs[r].len);
		at += 4 + blobs[r].len;
	}
	*out = buf;
	*len = bytes;
	return 0;
}

/* The end of entry `rank`, which begins at `at`; len + 1 when it does not fit. */
static size_t entry_end(const uint8_t *data, size_t len, size_t at)
{
	size_t n;

	if (len - at < 4)
		return len + 1;
	n = (size_t)get(data + at, 4);
	return n > len - at - 4 ? len + 1 : at + 4 + n;
}

int epf_svc_unpack(const void *data, size_t len, uint32_t world, struct epf_blob *out)
{
	const uint8_t *p = data;
	size_t at = 0;

	/* All is checked before the first entry is written. */
	for (uint32_t r = 0; r < world; r++) {
		at = entry_end(p, len, at);
		if (at > len)
			return epf_fail(EPF_R_SVC_MESSAGE,
					"the list of %u descriptions ends inside that of rank %u",
					world, r);
	}
	if (at != len)
		return epf_fail(EPF_R_SVC_MESSAGE,
				"the list of %u descriptions has %zu bytes too many", world,
				len - at);
	at = 0;
	for (uint32_t r = 0; r < world; r++) {
		size_t end = entry_end(p, len, at);

		out[r] = (struct epf_blob){ .data = p + at + 4, .len = end - at - 4 };
		at = end;
	}
	return 0;
}
