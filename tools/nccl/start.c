/* SPDX-License-Identifier: Apache-2.0 */
/* See start.h: identity, configuration and the door come with the first user; links and threads end with the last. */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/start.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/epf.h"
#include "tools/nccl/door.h"
#include "tools/nccl/link.h"
#include "tools/nccl/net.h"
#include "tools/nccl/plug.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef EPF_TEST_HOOKS
/* fabric/engine/lane_hot.h: the mistake to make, so that a test on GPUs can fail (tests/gpu/nccl_clients.sh). No release has this. */
extern int epf_hook;
#endif

/* Serializes open and close: the last close waits for threads with the plug's lock released. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* The software NIC reaches processes of the same boot, PID namespace and user: what such processes have in common, as a digest. */
static int find_host(uint8_t out[EPF_NCCL_ID_BYTES])
{
	uint8_t sum[EPF_AUTH_HASH_BYTES];
	char text[256] = "";
	struct stat st;
	ssize_t n;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: /proc/sys/kernel/random/boot_id");
	n = read(fd, text, 64);
	close(fd);
	if (n < 0 || stat("/proc/self/ns/pid", &st))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: /proc/self/ns/pid");
	snprintf(text + n, sizeof(text) - (size_t)n, " %llu %u", (unsigned long long)st.st_ino,
		 (unsigned)geteuid());
	epf_auth_digest(text, strlen(text), sum);
	memcpy(out, sum, EPF_NCCL_ID_BYTES);
	return 0;
}

static int load(struct epf_plug *p)
{
	uint8_t nonce[EPF_AUTH_NONCE_BYTES];
	struct epf_auth auth;
	int rc = epf_conf_init(&p->conf);

#ifdef EPF_TEST_HOOKS
	epf_hook = getenv("NCCL_TEST_HOOK") ? (int)strtol(getenv("NCCL_TEST_HOOK"), NULL, 10) : 0;
#endif
	if (!rc)
		rc = epf_conf_load(&p->conf, NULL);
	if (!rc)
		rc = find_host(p->self.host);
	/* Also starts the source of random numbers. */
	if (!rc)
		rc = epf_auth_load("0123456789abcdef", 16, NULL, NULL, NULL, &auth);
	if (rc)
		return rc;
	epf_auth_nonce(nonce);
	memcpy(p->self.process, nonce, sizeof(p->self.process));
	p->self.pid = (uint32_t)getpid();
	if (gethostname(p->self.name, sizeof(p->self.name)))
		p->self.name[0] = 0;
	p->self.name[sizeof(p->self.name) - 1] = 0;
	epf_auth_nonce(p->secret);
	return 0;
}

static int start(struct epf_plug *p)
{
	pthread_condattr_t attr;
	int rc;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->changed, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&p->listeners);
	TAILQ_INIT(&p->links);
	TAILQ_INIT(&p->connecting);
	p->stopping = false;
	p->events = &epf_net_events;
	rc = load(p);
	if (rc)
		return rc;
	p->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->stop_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "nccl: eventfd");
	rc = epf_door_open();
	if (rc)
		return rc;
	epf_plug_lock();
	rc = epf_plug_thread(epf_door_run, NULL);
	epf_plug_unlock();
	return rc;
}

static void stop(struct epf_plug *p)
{
	uint64_t one = 1;

	epf_plug_lock();
	p->stopping = true;
	if (p->stop_fd >= 0 && write(p->stop_fd, &one, sizeof(one)) < 0)
		epf_warn("the door's thread cannot be woken: %s", strerror(errno));
	epf_links_stop();
	while (p->threads)
		epf_plug_wait(epf_now_ns() + 1000000000);
	epf_plug_unlock();
	if (p->door_fd >= 0)
		close(p->door_fd);
	if (p->stop_fd >= 0)
		close(p->stop_fd);
	p->door_fd = p->stop_fd = -1;
	epf_conf_destroy(&p->conf);
	pthread_cond_destroy(&p->changed);
}

int epf_plug_open(epf_nccl_log_fn log)
{
	int rc = 0;

	pthread_mutex_lock(&opening);
	if (log)
		__atomic_store_n(&epf_plug.log, log, __ATOMIC_RELAXED);
	if (epf_plug.users == 0) {
		rc = start(&epf_plug);
		if (rc) {
			struct epf_error why;

			epf_error_get(&why);
			stop(&epf_plug);
			epf_error_set(&why);
		}
		/* A newer NCCL takes the newest of these, and its log is where somebody looks for why it does no more. */
		if (!rc)
			epf_plug_info("EP fabric %s: net tables 10 to 12, GIN 11 to 14, RMA 14",
				      epf_version());
	}
	epf_plug.users += !rc;
	pthread_mutex_unlock(&opening);
	return rc;
}

void epf_plug_close(void)
{
	pthread_mutex_lock(&opening);
	if (epf_plug.users && --epf_plug.users == 0)
		stop(&epf_plug);
	pthread_mutex_unlock(&opening);
}
