/* SPDX-License-Identifier: Apache-2.0 */
/* See plug.h: what starts with the first communicator and ends with the last, and the lines in two logs. */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/plug.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct epf_plug epf_plug = { .lock = PTHREAD_MUTEX_INITIALIZER, .door_fd = -1, .stop_fd = -1 };

/* Serializes open and close: the last close waits for threads with the plug's lock released. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

void epf_plug_lock(void)
{
	pthread_mutex_lock(&epf_plug.lock);
}

void epf_plug_unlock(void)
{
	pthread_mutex_unlock(&epf_plug.lock);
}

void epf_plug_notify(void)
{
	pthread_cond_broadcast(&epf_plug.changed);
}

int epf_plug_wait(uint64_t deadline_ns)
{
	struct timespec at = { .tv_sec = (time_t)(deadline_ns / 1000000000),
			       .tv_nsec = (long)(deadline_ns % 1000000000) };

	return -pthread_cond_timedwait(&epf_plug.changed, &epf_plug.lock, &at);
}

int epf_plug_thread(void *(*run)(void *arg), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, run, arg);
	pthread_attr_destroy(&attr);
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, rc, "nccl: a thread");
	epf_plug.threads++;
	return 0;
}

void epf_plug_thread_ends(void)
{
	epf_plug_lock();
	epf_plug.threads--;
	epf_plug_notify();
	epf_plug_unlock();
}

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

static int number_of(int rc)
{
	switch (-rc) {
	case ECONNRESET:
	case EPIPE:
	case ETIMEDOUT:
	case EACCES:
	case EIO:
	case ECONNREFUSED:
	case EHOSTUNREACH:
		return EPF_NCCL_REMOTE;
	case EINVAL:
	case E2BIG:
	case ERANGE:
		return EPF_NCCL_ARGUMENT;
	default:
		return EPF_NCCL_SYSTEM;
	}
}

static void tell(int level, const char *text)
{
	epf_nccl_log_fn log = __atomic_load_n(&epf_plug.log, __ATOMIC_RELAXED);

	if (log)
		log(level, EPF_NCCL_SUB_INIT | EPF_NCCL_SUB_NET, "epf", 0, "NET/epf : %s", text);
}

int epf_plug_result(const char *what, int rc)
{
	char line[EPF_ERROR_BYTES + 64];

	if (!rc)
		return EPF_NCCL_OK;
	snprintf(line, sizeof(line), "%s: %s", what, epf_last_error());
	epf_err("%s", line);
	tell(EPF_NCCL_LOG_WARN, line);
	return number_of(rc);
}

void epf_plug_info(const char *format, ...)
{
	char line[EPF_ERROR_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	epf_info("%s", line);
	tell(EPF_NCCL_LOG_INFO, line);
}
