/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a rank (nccl_play_priv.h): what is in one and how long it is follows from who sends which. */
#include "tests/proc/nccl_play_priv.h"

#include <signal.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Slot of message k: how far from the start of the buffer. */
static size_t slot_at(const struct play *p, uint64_t k, unsigned part)
{
	return (k % STEPS * p->parts + part) * slot_bytes(p);
}

static uint8_t *slot_of(const struct play *p, const struct side *s, uint64_t k, unsigned part)
{
	return s->seen + slot_at(p, k, part);
}

static void *address_of(const struct play *p, const struct side *s, uint64_t k, unsigned part)
{
	return (uint8_t *)s->buffer + slot_at(p, k, part);
}

static uint64_t key_of(const struct rank *r, const struct side *s, uint64_t k, unsigned part)
{
	uint64_t x = r->p->seed * 31 + r->comm;

	x = mix(x * 64 + s->from * PLAY_RANKS + s->to);
	return mix(x + ((uint64_t)s->channel << 32) + k * PLAY_PARTS + part);
}

static uint32_t length_of(const struct rank *r, const struct side *s, uint64_t k, unsigned part)
{
	uint64_t key = key_of(r, s, k, part);

	if (key % 7 == 0)
		return 0;
	if (key % 5 == 0)
		return r->p->most_bytes;
	return (uint32_t)(mix(key) % (r->p->most_bytes + 1));
}

static void fill(uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		memcpy(at + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

static bool is_right(const uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		if (memcmp(at + i, &v, bytes - i < 8 ? bytes - i : 8) != 0)
			return false;
	}
	return true;
}

/* Parts are sent in an order that changes: the receiver's tags sort them. */
static int step_send(struct rank *r, struct side *s, bool *moved)
{
	const struct play *p = r->p;

	for (unsigned n = 0; n < p->parts; n++) {
		unsigned part = (unsigned)((n + mix(s->next[0] + s->channel)) % p->parts);
		uint64_t k = s->next[part];
		int done, rc;

		if (s->over[part] < s->next[part]) {
			void **request = &s->request[s->over[part] % STEPS][part];
			int bytes = -1;

			rc = CALL(r, test, *request, &done, &bytes);
			if (rc)
				return play_failed(r, "test of a send", rc);
			if (done) {
				if (bytes != (int)length_of(r, s, s->over[part], part))
					play_quit(r, "a send of the wrong length");
				memset(slot_of(p, s, s->over[part], part), 0xee, 8);
				s->over[part]++;
				*moved = true;
			}
		}
		if (k < p->messages && k < s->over[part] + STEPS) {
			uint32_t bytes = length_of(r, s, k, part);
			uint8_t *at = slot_of(p, s, k, part);
			void *request = NULL;

			fill(at, bytes, key_of(r, s, k, part));
			rc = CALL(r, isend, s->comm, address_of(p, s, k, part), bytes,
				  BASE_TAG + (int)part, s->mr, NULL, &request);
			if (rc)
				return play_failed(r, "isend", rc);
			if (request) {
				s->request[k % STEPS][part] = request;
				s->next[part]++;
				*moved = true;
			}
		}
	}
	return 0;
}

static int post(struct rank *r, struct side *s)
{
	const struct play *p = r->p;
	void *data[PLAY_PARTS], *mrs[PLAY_PARTS], *profiles[PLAY_PARTS] = { NULL };
	size_t bytes[PLAY_PARTS];
	int tags[PLAY_PARTS];
	/* NCCL's hint that it does not need to know when this is over (LL protocols). */
	void *request = p->parts == 1 && s->channel % 2 ? (void *)1 : NULL;
	int rc;

	for (unsigned i = 0; i < p->parts; i++) {
		data[i] = address_of(p, s, s->next[0], i);
		memset(slot_of(p, s, s->next[0], i), 0xdd, p->most_bytes);
		mrs[i] = s->mr;
		bytes[i] = p->most_bytes;
		tags[i] = BASE_TAG + (int)i;
	}
	rc = CALL(r, irecv, s->comm, (int)p->parts, data, bytes, tags, mrs, profiles, &request);
	if (rc)
		return play_failed(r, "irecv", rc);
	if (request) {
		s->request[s->next[0] % STEPS][0] = request;
		s->next[0]++;
	}
	return 0;
}

static int step_recv(struct rank *r, struct side *s, bool *moved)
{
	const struct play *p = r->p;
	int bytes[PLAY_PARTS] = { 0 }, done, rc;
	uint64_t k = s->over[0], posted = s->next[0];

	if (s->next[0] < p->messages && s->next[0] < s->over[0] + STEPS) {
		rc = post(r, s);
		if (rc)
			return rc;
		*moved |= s->next[0] > posted;
	}
	if (k == s->next[0])
		return 0;
	rc = CALL(r, test, s->request[k % STEPS][0], &done, bytes);
	if (rc)
		return play_failed(r, "test of a receive", rc);
	if (!done)
		return 0;
	for (unsigned i = 0; i < p->parts; i++) {
		uint32_t want = length_of(r, s, k, i);
		void *data = address_of(p, s, k, i), *request = NULL;
		int n = (int)want;

		if (bytes[i] != (int)want)
			play_quit(r, "a message of the wrong length");
		rc = CALL(r, iflush, s->comm, 1, &data, &n, &s->mr, &request);
		if (rc || request)
			play_quit(r, "iflush");
		if (!is_right(slot_of(p, s, k, i), want, key_of(r, s, k, i)))
			play_quit(r, "wrong bytes");
	}
	s->over[0]++;
	*moved = true;
	return 0;
}

static bool is_over(const struct rank *r, const struct side *s)
{
	unsigned n = is_recv(r, s) ? 1 : r->p->parts;

	for (unsigned i = 0; i < n; i++) {
		if (s->over[i] < r->p->messages)
			return false;
	}
	return true;
}

void *play_messages(void *arg)
{
	struct rank *r = arg;
	unsigned left = r->sides;

	play_doing = "messages";
	play_keep_alive(r, true);
	while (left) {
		bool moved = false;

		left = 0;
		for (unsigned i = 0; i < r->sides; i++) {
			struct side *s = &r->side[i];
			int rc = is_recv(r, s) ? step_recv(r, s, &moved) : step_send(r, s, &moved);

			if (rc)
				return (void *)(intptr_t)rc;
			left += !is_over(r, s);
			if (r->p->killed == (int)r->me && s->over[0] == r->p->messages / 2)
				raise(SIGKILL);
		}
		play_keep_alive(r, moved);
	}
	return NULL;
}
