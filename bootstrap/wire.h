/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of the rendezvous, byte by byte. Server and client of the bootstrap build and read
 * every message here and nowhere else. All functions are pure: they look at bytes and at the state
 * of one session, never at a socket or a clock, so that a fuzzer can drive them.
 * They must never trust a length before it is checked, and never say yes to a message whose
 * authentication, sequence number, direction or sender is not the expected one.
 *
 * A frame, all numbers little-endian:
 *
 *	 0  magic     4  bytes 'E' 'P' 'F' 'B'
 *	 4  version   2  of the sender
 *	 6  type      2  enum epf_wire_type
 *	 8  length    4  payload bytes
 *	12  sender    4  rank, or EPF_WIRE_SERVER
 *	16  sequence  8  counts the frames of one direction of one connection from 0
 *	24  payload
 *	..  proof    32  HMAC-SHA-256(key, direction | header | SHA-256(payload))
 *
 * The frame layout, the handshake (HELLO, CHALLENGE, JOIN, REFUSE) and the computation of keys and
 * proofs never change; everything else may with the version. So two versions can always tell each
 * other, authenticated, that they differ.
 */
#ifndef EPF_BOOTSTRAP_WIRE_H
#define EPF_BOOTSTRAP_WIRE_H

#include "bootstrap/auth.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EPF_WIRE_MAGIC       0x42465045u
#define EPF_WIRE_VERSION     2u /* 2: LEAVE says whose loss it follows from */
#define EPF_WIRE_OLDEST      1u /* of a client that this server serves */
#define EPF_WIRE_HEAD_BYTES  24u
#define EPF_WIRE_PROOF_BYTES 32u
#define EPF_WIRE_OVERHEAD    (EPF_WIRE_HEAD_BYTES + EPF_WIRE_PROOF_BYTES)
#define EPF_WIRE_EARLY_MAX   512u   /* payload of any handshake message */
#define EPF_WIRE_NAME_MAX    128u   /* job and node names, bytes */
#define EPF_WIRE_TEXT_MAX    400u   /* text of REFUSE and FAIL, bytes */
#define EPF_WIRE_PART_HEAD   24u    /* round, total, offset in front of a part */
#define EPF_WIRE_PART_BYTES  65536u /* data in one part */
#define EPF_WIRE_PAYLOAD_MAX (EPF_WIRE_PART_HEAD + EPF_WIRE_PART_BYTES)
#define EPF_WIRE_FRAME_MAX   (EPF_WIRE_OVERHEAD + EPF_WIRE_PAYLOAD_MAX)
#define EPF_WIRE_SERVER      0xffffffffu /* sender: the rendezvous server */
#define EPF_WIRE_ANY_RANK    0xfffffffeu /* expected sender: a rank not known yet */

/*
 * Every type: W(NAME, number, from clients, from the server, payload min, payload max, handshake)
 * A handshake type is readable whatever the version in its header.
 */
/* clang-format off */
#define EPF_WIRE_TYPES(W)                                                              \
 W(HELLO,     1, 1, 0, EPF_AUTH_NONCE_BYTES, EPF_AUTH_NONCE_BYTES, 1) /* client nonce */ \
 W(CHALLENGE, 2, 0, 1, EPF_AUTH_NONCE_BYTES, EPF_AUTH_NONCE_BYTES, 1) /* server nonce */ \
 W(JOIN,      3, 1, 0, 20, 20 + 2 * EPF_WIRE_NAME_MAX, 1)             /* who I am */     \
 W(WELCOME,   4, 0, 1, 8, 8, 0)                                                          \
 W(REFUSE,    5, 0, 1, 6, 6 + EPF_WIRE_TEXT_MAX, 1)                                      \
 W(PART,      6, 1, 1, EPF_WIRE_PART_HEAD, EPF_WIRE_PAYLOAD_MAX, 0)   /* allgather */    \
 W(BARRIER,   7, 1, 0, 8, 8, 0)                                                          \
 W(RELEASE,   8, 0, 1, 8, 8, 0)                                                          \
 W(LEAVE,     9, 1, 0, 0, 8, 0)                                                          \
 W(FAIL,     10, 0, 1, 10, 10 + EPF_WIRE_TEXT_MAX, 0)                 /* job is over */

/* clang-format on */

enum epf_wire_type {

#define W(name, number, c, s, min, max, hs) EPF_WIRE_##name = number,
	EPF_WIRE_TYPES(W)
#undef W
};

/* What epf_wire_open() thinks of bytes. Everything but OK and MORE is a refusal. */
/* clang-format off */
#define EPF_WIRE_VERDICTS(V)                                                    \
 V(OK,        "accepted")                                                       \
 V(MORE,      "not complete yet")                                               \
 V(MAGIC,     "not an EP fabric bootstrap message")                             \
 V(VERSION,   "a version this program does not speak")                          \
 V(TYPE,      "an unknown message type, or one that this side may not send")    \
 V(LENGTH,    "a length outside the limits of its type")                        \
 V(SENDER,    "the wrong sender number (another rank's or a reflected message)") \
 V(PROOF,     "a wrong proof (another secret, tampering, or a replay)")         \
 V(DUPLICATE, "a message that was already received")                            \
 V(GAP,       "a message out of sequence")                                      \
 V(PAYLOAD,   "a payload that contradicts itself")                              \
 V(STATE,     "a message that does not belong here")

/* clang-format on */

enum epf_wire_verdict {

#define V(name, text) EPF_WIRE_V_##name,
	EPF_WIRE_VERDICTS(V)
#undef V
		EPF_WIRE_V_COUNT
};

/* epf_wire_verdict_text() - the words for a verdict, never NULL. */
const char *epf_wire_verdict_text(enum epf_wire_verdict v);

/* epf_wire_type_text() - the name of a type, "unknown" for others. */
const char *epf_wire_type_text(uint16_t type);

struct epf_wire_head {
	uint16_t version;
	uint16_t type;
	uint32_t length;
	uint32_t sender;
	uint64_t sequence;
};

/* One frame that was accepted; @payload points into the bytes given to epf_wire_open(). */
struct epf_wire_msg {
	struct epf_wire_head head;
	const uint8_t *payload;
};

/* One end of one connection: key, counters, who we are and which peer we expect. */
struct epf_wire_session {
	uint8_t key[EPF_AUTH_KEY_BYTES];
	uint64_t tx_sequence;
	uint64_t rx_sequence;
	uint32_t self;    /* EPF_WIRE_SERVER or our rank */
	uint32_t peer;    /* EPF_WIRE_SERVER, a rank, or EPF_WIRE_ANY_RANK */
	uint16_t version; /* of frames after the handshake, both ways */
};

/**
 * epf_wire_session_init() - start a connection: counters at 0, the key that protects HELLO.
 * @self: EPF_WIRE_SERVER, or the rank of a client.
 */
void epf_wire_session_init(struct epf_wire_session *s, const struct epf_auth *auth, uint32_t self);

/* epf_wire_session_rekey() - go over to the session key, which needs both nonces. */
void epf_wire_session_rekey(struct epf_wire_session *s, const struct epf_auth *auth,
			    const uint8_t nonce_client[EPF_AUTH_NONCE_BYTES],
			    const uint8_t nonce_server[EPF_AUTH_NONCE_BYTES]);

/**
 * epf_wire_head_read() - read and check a header without its proof.
 * @s: says which direction and sender are expected.
 * @buf, @len: the bytes received so far; fewer than a header are checked as far as they go.
 * @payload_max: refuse longer payloads (EPF_WIRE_EARLY_MAX before the handshake is over).
 * @out: written on OK only.
 *
 * Return: OK, MORE, or why these bytes can never become a message.
 */
enum epf_wire_verdict epf_wire_head_read(const struct epf_wire_session *s, const uint8_t *buf,
					 size_t len, uint32_t payload_max,
					 struct epf_wire_head *out);

/**
 * epf_wire_open() - accept one frame from the front of the received bytes.
 * @frame_bytes: set to the size of the frame on OK and DUPLICATE: the caller drops so many bytes.
 *
 * On OK the sequence counter advances. DUPLICATE is a frame with a good proof and an old sequence
 * number: harmless, to be dropped and counted. After any other refusal the stream has lost its
 * meaning and must be closed.
 */
enum epf_wire_verdict epf_wire_open(struct epf_wire_session *s, const uint8_t *buf, size_t len,
				    uint32_t payload_max, struct epf_wire_msg *out,
				    size_t *frame_bytes);

/**
 * epf_wire_seal() - write one frame with its proof; the sequence counter advances.
 * @payload, @len: within the limits of @type (an error of the caller otherwise).
 * @digest: SHA-256 of the payload when the caller has it (one payload sent to many), or NULL.
 * @buf: room for EPF_WIRE_OVERHEAD + @len bytes; @payload may lie in it at its final place.
 *
 * Return: bytes written.
 */
size_t epf_wire_seal(struct epf_wire_session *s, enum epf_wire_type type, const void *payload,
		     size_t len, const uint8_t *digest, uint8_t *buf);

/**
 * epf_wire_refuse_stranger() - a REFUSE with no text and no proof, for who has proven nothing.
 * @buf: room for EPF_WIRE_OVERHEAD + 6 bytes.
 *
 * Its proof is all zero, so that a stranger gets nothing computed with the secret to guess on.
 *
 * Return: bytes written.
 */
size_t epf_wire_refuse_stranger(struct epf_wire_session *s, uint8_t *buf);

/* JOIN. Names are bytes without a 0 inside; they are shown only after cleaning. */
struct epf_wire_join {
	uint32_t rank;
	uint32_t world;
	uint64_t timeout_ns;
	char job[EPF_WIRE_NAME_MAX + 1];
	char node[EPF_WIRE_NAME_MAX + 1];
};

/* REFUSE and FAIL: a number of enum epf_reason, the rank concerned (FAIL), a line of text. */
struct epf_wire_note {
	uint32_t reason;
	uint32_t rank;
	char text[EPF_WIRE_TEXT_MAX + 1];
};

/* LEAVE, since version 2: the lost rank because of which the sender leaves, and why it was lost. */
struct epf_wire_leave {
	uint32_t reason; /* 0: the sender says no cause */
	uint32_t rank;
};

/* PART: @bytes of data at @offset of a stream of @total, in exchange number @round. */
struct epf_wire_part {
	uint64_t round;
	uint64_t total;
	uint64_t offset;
	const uint8_t *data;
	uint32_t bytes;
};

/*
 * Payload writers return the bytes written into @buf (room: the type's maximum), readers return
 * OK or PAYLOAD and write @out on OK only. Readers expect a payload that epf_wire_open() accepted.
 */
size_t epf_wire_put_join(uint8_t *buf, const struct epf_wire_join *in);
enum epf_wire_verdict epf_wire_get_join(const struct epf_wire_msg *msg, struct epf_wire_join *out);
size_t epf_wire_put_note(uint8_t *buf, enum epf_wire_type type, const struct epf_wire_note *in);
enum epf_wire_verdict epf_wire_get_note(const struct epf_wire_msg *msg, struct epf_wire_note *out);
size_t epf_wire_put_leave(uint8_t buf[8], const struct epf_wire_leave *in);
enum epf_wire_verdict epf_wire_get_leave(const struct epf_wire_msg *msg,
					 struct epf_wire_leave *out);
void epf_wire_put_part(uint8_t head[EPF_WIRE_PART_HEAD], uint64_t round, uint64_t total,
		       uint64_t offset);
enum epf_wire_verdict epf_wire_get_part(const struct epf_wire_msg *msg, struct epf_wire_part *out);
size_t epf_wire_put_u64(uint8_t buf[8], uint64_t value);
uint64_t epf_wire_get_u64(const uint8_t buf[8]);
size_t epf_wire_put_u32(uint8_t buf[4], uint32_t value);
uint32_t epf_wire_get_u32(const uint8_t buf[4]);

#endif
