/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients, part 3: the control socket. Connections that send nothing, noise, too little, too much, or a valid message at the wrong
 * time or in another's name. Each attack ends with a check that the daemon still answers others.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/proc/svc_hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { STRANGERS = 100, MOST_SENT = 1000 };

/* Checks that well-behaved clients are answered: raw_status() gives up if they are not. */
static void still_answers(const struct hostile *h)
{
	for (unsigned i = 0; i < 2; i++) {
		char *json = raw_status(h->path[i]);

		HOSTILE_CHECK(json && json[0] == '{');
		free(json);
	}
}

/* Connections that send nothing, or part of a message. The daemon's limits are 16 strangers, 500 ms. */
void hostile_strangers(const struct hostile *h)
{
	static struct raw c[STRANGERS];
	const uint8_t half[10] = { 'E', 'P', 'F', 'S', 1, 0, 0, 0, 40, 0 };
	struct epf_svc_head slow = { .type = EPF_SVC_HELLO, .bytes = 68 };
	uint8_t bytes[EPF_SVC_HEAD_BYTES];
	unsigned closed = 0, sent = 0;

	for (unsigned i = 0; i < STRANGERS; i++) {
		HOSTILE_CHECK(raw_open(&c[i], h->path[0]) == 0);
		if (i % 3 == 1)
			raw_send(&c[i], half, sizeof(half), NULL, 0);
		if (i % 10 == 0)
			still_answers(h);
	}
	still_answers(h);
	for (unsigned i = 0; i < STRANGERS; i++) {
		closed += raw_is_closed(&c[i], job_ms(30000));
		raw_close(&c[i]);
	}
	HOSTILE_CHECK(closed == STRANGERS);
	/* One byte at a time without end: closed by its deadline all the same. */
	epf_svc_head_encode(&slow, bytes);
	HOSTILE_CHECK(raw_open(&c[0], h->path[0]) == 0);
	while (sent < MOST_SENT &&
	       raw_send(&c[0], &bytes[sent < sizeof(bytes) ? sent : 8], 1, NULL, 0) == 1) {
		sent++;
		usleep(20000);
	}
	raw_close(&c[0]);
	HOSTILE_CHECK(sent < MOST_SENT);
	/* After HELLO the rest of a message has a deadline, too. */
	HOSTILE_CHECK(raw_connect(&c[0], h->path[0], 0) == 0);
	slow.type = EPF_SVC_WORLD;
	slow.bytes = EPF_SVC_BODY_MAX;
	HOSTILE_CHECK(raw_frame(&c[0], &slow, half, sizeof(half), NULL, 0) == 0);
	HOSTILE_CHECK(raw_is_closed(&c[0], job_ms(30000)));
	raw_close(&c[0]);
	still_answers(h);
	printf("# hostile: %u strangers connected and were closed\n", STRANGERS);
}

/* Noise, wrong headers, messages cut anywhere. */
void hostile_garbage(const struct hostile *h)
{
	uint64_t random = h->seed ^ 0x6a;
	uint8_t junk[2048];

	for (uint64_t i = 0; i < h->count; i++) {
		uint64_t x = job_random(&random);
		struct epf_svc_head head = { .type = (uint16_t)(x % (EPF_SVC_TYPES + 2)),
					     .bytes = (uint32_t)(x >> 20 & 1023),
					     .seq = (uint32_t)i };
		size_t n = 1 + (x >> 32) % sizeof(junk);
		struct raw c;
		int fd = -1;

		/* The test runs as the daemon's own user, who may drain it and cut its links. */
		if (head.type == EPF_SVC_DRAIN || head.type == EPF_SVC_LINK)
			head.type = EPF_SVC_TYPES;
		for (size_t k = 0; k < sizeof(junk); k += 8) {
			uint64_t y = job_random(&random);

			memcpy(junk + k, &y, 8);
		}
		switch (x >> 60) {
		case 0: /* only noise */
			break;
		case 1: /* huge, then silence */
			head.bytes = UINT32_MAX;
			epf_svc_head_encode(&head, junk);
			break;
		case 2: /* more descriptors than allowed */
			head.fds = (uint16_t)(x >> 8);
			epf_svc_head_encode(&head, junk);
			break;
		case 3: /* an answer in place of a request */
			head.type |= EPF_SVC_ANSWER;
			epf_svc_head_encode(&head, junk);
			break;
		default: /* a valid header, a body of noise, cut somewhere */
			epf_svc_head_encode(&head, junk);
		}
		/* Sometimes after HELLO, sometimes with an unexpected descriptor. */
		if (x & 1 ? raw_connect(&c, h->path[i & 1], x >> 1 & 1)
			  : raw_open(&c, h->path[i & 1])) {
			raw_close(&c);
			continue;
		}
		if (x & 4)
			fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		raw_send(&c, junk, n, &fd, fd >= 0);
		if (x & 8)
			shutdown(c.fd, SHUT_WR);
		if (x & 16)
			raw_recv(&c, 1);
		if (fd >= 0)
			close(fd);
		raw_close(&c);
		if (i % 256 == 0)
			still_answers(h);
	}
	still_answers(h);
	printf("# hostile: %llu connections of noise\n", (unsigned long long)h->count);
}

/* The request must be refused with a reason; the connection may be closed for it. */
static void must_refuse(struct raw *c, const char *path, unsigned type, const void *msg,
			uint32_t flags)
{
	int rc = raw_call(c, type, msg, NULL, 0, NULL);

	if (rc == 0) {
		fprintf(stderr, "%s: %s was served in the wrong state\n", path,
			epf_svc_type_name(type));
		_exit(1);
	}
	HOSTILE_CHECK(rc != -ETIMEDOUT);
	if (rc == -ECONNRESET || rc == -EPIPE) {
		raw_close(c);
		HOSTILE_CHECK(raw_connect(c, path, flags) == 0);
		return;
	}
	HOSTILE_CHECK(c->head.reason != 0 && c->text[0]);
}

/* Valid messages at the wrong time, and unknown ones. */
void hostile_states(const struct hostile *h)
{
	static const unsigned early[] = { EPF_SVC_WORLD,  EPF_SVC_CONNECT, EPF_SVC_DESCRIBE,
					  EPF_SVC_UPDATE, EPF_SVC_MASK,    EPF_SVC_COUNTER,
					  EPF_SVC_ATTACH, EPF_SVC_AWAKE,   EPF_SVC_HELLO };
	static const unsigned not_operators[] = { EPF_SVC_SIGNALS, EPF_SVC_RING, EPF_SVC_ATTACH,
						  EPF_SVC_WORLD, EPF_SVC_LEAVE };
	static const uint16_t unknown[] = { 0, EPF_SVC_TYPES, 999, 0x7fff, 0x8001, 0xffff };

	union {
		uint8_t zero[512];
		struct epf_svc_signals signals;
		struct epf_svc_ring ring;
		struct epf_svc_region_close close;
	} m;
	struct raw c;

	memset(&m, 0, sizeof(m));
	HOSTILE_CHECK(raw_connect(&c, h->path[0], 0) == 0);
	for (unsigned i = 0; i < sizeof(early) / sizeof(early[0]); i++)
		must_refuse(&c, h->path[0], early[i], &m, 0);
	/* Invalid numbers. */
	must_refuse(&c, h->path[0], EPF_SVC_SIGNALS, &m.signals, 0);
	m.signals.count = UINT32_MAX;
	must_refuse(&c, h->path[0], EPF_SVC_SIGNALS, &m.signals, 0);
	for (uint32_t log2 = 0; log2 < 256; log2 += 21) {
		memset(&m, 0, sizeof(m));
		m.ring.log2 = log2 < 4 || log2 > 20 ? log2 : 255;
		m.ring.weight = 1;
		must_refuse(&c, h->path[0], EPF_SVC_RING, &m.ring, 0);
	}
	m.close.region = 77;
	must_refuse(&c, h->path[0], EPF_SVC_REGION_CLOSE, &m.close, 0);
	must_refuse(&c, h->path[0], EPF_SVC_RING_CLOSE, &m.close, 0);
	raw_close(&c);
	memset(&m, 0, sizeof(m));
	HOSTILE_CHECK(raw_connect(&c, h->path[0], 1) == 0);
	for (unsigned i = 0; i < sizeof(not_operators) / sizeof(not_operators[0]); i++)
		must_refuse(&c, h->path[0], not_operators[i], &m, 1);
	raw_close(&c);
	for (unsigned i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		struct epf_svc_head head = { .type = unknown[i], .seq = 9 };

		HOSTILE_CHECK(raw_connect(&c, h->path[0], 0) == 0);
		HOSTILE_CHECK(raw_frame(&c, &head, NULL, 0, NULL, 0) == 0);
		HOSTILE_CHECK(raw_recv(&c, RAW_TIMEOUT_MS) != 0 || c.head.status < 0);
		raw_close(&c);
	}
	still_answers(h);
}

static int attach(const struct hostile *h, const char *job, uint64_t id_of, uint64_t key_of,
		  uint32_t rank, uint32_t world, uint32_t flags, unsigned *reason)
{
	uint8_t id[EPF_SVC_ID], key[EPF_SVC_KEY], other[EPF_SVC_KEY];
	struct raw_rank r;
	int rc;

	raw_job_names(id_of, id, other);
	raw_job_names(key_of, other, key);
	if (flags & EPF_SVC_REJOIN)
		memset(id, 0, sizeof(id));
	HOSTILE_CHECK(raw_rank_open(&r, h->path[0], EPF_SVC_MINOR, 0, 16) == 0);
	rc = raw_rank_attach(&r, job, id, key, rank, world, flags);
	*reason = r.c.head.reason;
	if (rc == -ECONNRESET || rc == -ETIMEDOUT)
		fprintf(stderr, "ATTACH to %s: no answer: %d\n", job, rc);
	raw_rank_close(&r, false);
	return rc;
}

/* In another's name: its job id with a wrong key, a rank in use, a rejoin as a living rank. */
void hostile_names(const struct hostile *h)
{
	struct raw_rank r[2];
	unsigned reason;

	hostile_job(h, r, "hostile-victim", 1);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed + 1, 1, 2, 0, &reason) < 0);
	HOSTILE_CHECK(reason == EPF_R_SVC_JOB);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed, 0, 2, 0, &reason) < 0);
	HOSTILE_CHECK(reason == EPF_R_SVC_RANK_TAKEN || reason == EPF_R_SVC_MESSAGE);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed, 1, 3, 0, &reason) < 0);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed, 2, 2, 0, &reason) < 0);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed, 4096, 5000, 0, &reason) < 0);
	HOSTILE_CHECK(attach(h, "hostile-none", h->seed + 9, h->seed, 0, 0, 0, &reason) < 0);
	HOSTILE_CHECK(attach(h, "hostile-none", h->seed + 9, h->seed, 0, UINT32_MAX, 0, &reason) <
		      0);
	/* The honest job by name, without its key. */
	for (uint32_t rank = 0; rank < 4; rank++)
		HOSTILE_CHECK(attach(h, h->honest, h->seed, h->seed, rank, 4, EPF_SVC_REJOIN,
				     &reason) < 0 &&
			      reason != 0);
	HOSTILE_CHECK(attach(h, "hostile-victim", h->seed, h->seed, 0, 2, EPF_SVC_REJOIN, &reason) <
		      0);
	/* The victim is undisturbed. */
	HOSTILE_CHECK(hostile_counter(&r[0], "lane_errors") == 0);
	HOSTILE_CHECK(r[0].peers->peers[1].state == EPF_PEER_UP &&
		      r[1].peers->peers[0].state == EPF_PEER_UP);
	hostile_end(r, true);
	still_answers(h);
}

/* Sends requests without reading the answers: only that connection suffers. */
void hostile_deaf(const struct hostile *h)
{
	struct epf_svc_head head = { .type = EPF_SVC_STATUS, .bytes = 4 };
	uint8_t frame[EPF_SVC_HEAD_BYTES + 4] = { 0 };
	uint64_t end = epf_now_ns() + h->count * 1000000, asked = 0;
	struct raw c[4];

	signal(SIGPIPE, SIG_IGN);
	epf_svc_head_encode(&head, frame);
	for (unsigned i = 0; i < 4; i++) {
		HOSTILE_CHECK(raw_connect(&c[i], h->path[0], 1) == 0);
		fcntl(c[i].fd, F_SETFL, O_NONBLOCK);
	}
	while (epf_now_ns() < end) {
		for (unsigned i = 0; i < 4; i++)
			asked += send(c[i].fd, frame, sizeof(frame), MSG_NOSIGNAL) == sizeof(frame);
		if (asked % 1024 == 0)
			still_answers(h);
	}
	still_answers(h);
	printf("# hostile: asked %llu times without reading\n", (unsigned long long)asked);
	for (unsigned i = 0; i < 4; i++)
		raw_close(&c[i]);
}
