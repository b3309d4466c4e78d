/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that every file of this folder uses: deadlines, waking the endpoint's thread, memfds, names. Slow path. */
#include "fabric/base/clock.h"
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t epf_p2p_deadline(const struct epf_p2p *ep, uint64_t timeout_ns)
{
	uint64_t now = epf_now_ns();

	if (timeout_ns == EPF_P2P_NOW)
		return now;
	if (timeout_ns == 0)
		timeout_ns = ep->conf.wait_timeout_ns;
	return timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
}

void epf_p2p_kick(struct epf_p2p *ep)
{
	uint64_t one = 1;
	ssize_t n = write(ep->kick, &one, sizeof(one));

	(void)n; /* full: it will wake anyway */
}

void epf_p2p_enter(struct epf_p2p *ep)
{
	__atomic_fetch_add(&ep->calls, 1u, __ATOMIC_SEQ_CST);
}

void epf_p2p_leave(struct epf_p2p *ep)
{
	__atomic_fetch_sub(&ep->calls, 1u, __ATOMIC_SEQ_CST);
}

int epf_p2p_new_memfd(const char *name, uint64_t bytes, int *out)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
		*out = fd;
		return 0;
	}
	err = errno;
	if (fd >= 0)
		close(fd);
	return epf_fail_sys(EPF_R_SYSTEM, err, "p2p: memfd %s of %llu bytes", name,
			    (unsigned long long)bytes);
}

/* An abstract name: reachable by the processes of this machine and network namespace. */
void epf_p2p_unix_name(const uint8_t id[16], struct sockaddr_un *a, socklen_t *len)
{
	int n = 0;

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "epf-p2p-");
	for (unsigned i = 0; i < 16; i++)
		n += snprintf(a->sun_path + 1 + n, 3, "%02x", id[i]);
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (unsigned)n);
}
