/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the control socket's frames share: connected pairs, frames by hand that no well-behaved end would send, and a look at
 * whether descriptors are left over.
 */
#ifndef EPF_TEST_FRAME_KIT_H
#define EPF_TEST_FRAME_KIT_H

#include "fabric/base/err.h"
#include "fabric/protocol/channel.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MS      1000000ull
#define LONG_NS (20000 * MS)

#define assert_ok(rc)                                                      \
 do {                                                                      \
  int ok_rc = (rc);                                                        \
  if (ok_rc)                                                               \
   fail_msg("%s:%d: %d: %s", __FILE__, __LINE__, ok_rc, epf_last_error()); \
 } while (0)

#define assert_error(rc, want, r, words)                                            \
 do {                                                                               \
  assert_int_equal(rc, want);                                                       \
  assert_int_equal(epf_last_reason(), EPF_R_##r);                                   \
  if (!strstr(epf_last_error(), words))                                             \
   fail_msg("%s:%d: '%s' lacks '%s'", __FILE__, __LINE__, epf_last_error(), words); \
 } while (0)

/* In other threads than cmocka's. */
static inline void must(bool rule)
{
	if (!rule)
		abort();
}

static inline int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	must(d != NULL);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int fds_before;

static inline int remember_fds(void **state)
{
	fds_before = count_fds();
	return 0;
}

static inline int no_fds_left(void **state)
{
	int now = count_fds();

	if (now != fds_before)
		print_error("%d descriptors are open, %d were\n", now, fds_before);
	return now != fds_before;
}

/* A pair whose ends neither wait nor raise a signal. */
static inline void make_pair(int fd[2])
{
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) == 0);
}

static inline void close_pair(int fd[2])
{
	close(fd[0]);
	close(fd[1]);
}

/* Bytes and descriptors in one sendmsg(2). */
static inline void send_raw(int fd, const void *bytes, size_t len, const int *fds, unsigned n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(16 * sizeof(int))];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)bytes, .iov_len = len };
	struct msghdr mh = { .msg_iov = &part, .msg_iovlen = 1 };

	if (n_fds) {
		mh.msg_control = &control;
		mh.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, n_fds * sizeof(int));
	}
	must(sendmsg(fd, &mh, MSG_NOSIGNAL) == (ssize_t)len);
}

/* A frame of a header and a body in one block: its bytes; out has room. */
static inline size_t make_frame(struct epf_svc_head h, const void *body, size_t len, uint8_t *out)
{
	h.bytes = (uint32_t)len;
	epf_svc_head_encode(&h, out);
	if (len)
		memcpy(out + EPF_SVC_HEAD_BYTES, body, len);
	return EPF_SVC_HEAD_BYTES + len;
}

/* Whether two descriptors are of one file. */
static inline bool same_file(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

#endif
