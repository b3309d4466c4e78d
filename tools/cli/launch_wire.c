/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between launcher and agent: kind, rank and length, 4 bytes each, little-endian, then the bytes. Both ends are of one release, which the first frame
 * says. Trusts the other end no more than to be bounded.
 */
#include "tools/cli/launch_priv.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD = 12, READ_BYTES = 65536 };

long launch_receive(struct launch_stream *s, int fd)
{
	ssize_t n;

	if (s->at) {
		memmove(s->buf, s->buf + s->at, s->have - s->at);
		s->have -= s->at;
		s->at = 0;
	}
	if (s->room - s->have < READ_BYTES) {
		char *larger = realloc(s->buf, s->have + READ_BYTES);

		if (!larger)
			return -ENOMEM;
		s->buf = larger;
		s->room = s->have + READ_BYTES;
	}
	n = read(fd, s->buf + s->have, READ_BYTES);
	if (n < 0)
		return errno == EINTR ? -EAGAIN : -errno;
	s->have += (size_t)n;
	return n;
}

static uint32_t word(const char *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

int launch_next(struct launch_stream *s, struct launch_frame *out)
{
	const char *p = s->buf + s->at;
	uint32_t len;

	if (s->have - s->at < HEAD)
		return 0;
	len = word(p + 8);
	if (len > LAUNCH_FRAME_MAX)
		return -EPROTO;
	if (s->have - s->at < HEAD + (size_t)len)
		return 0;
	*out = (struct launch_frame){ (enum launch_kind)word(p), word(p + 4), len, p + HEAD };
	s->at += HEAD + (size_t)len;
	return 1;
}

static int write_all(int fd, const char *p, size_t len)
{
	while (len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EAGAIN) {
			struct pollfd room = { .fd = fd, .events = POLLOUT };

			(void)poll(&room, 1, -1);
		} else if (n < 0 && errno != EINTR) {
			return -errno;
		} else if (n > 0) {
			p += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

int launch_send(int fd, enum launch_kind kind, uint32_t rank, const void *bytes, size_t len)
{
	uint32_t head[3] = { htole32((uint32_t)kind), htole32(rank), htole32((uint32_t)len) };
	int rc;

	if (len > LAUNCH_FRAME_MAX)
		return -E2BIG;
	rc = write_all(fd, (const char *)head, sizeof(head));
	return rc || !len ? rc : write_all(fd, bytes, len);
}
