/* SPDX-License-Identifier: Apache-2.0 */
/* See plug.h: the lock, threads, and the lines in two logs. */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/plug.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/place/place.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

struct epf_plug epf_plug = { .lock = PTHREAD_MUTEX_INITIALIZER, .door_fd = -1, .stop_fd = -1 };

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

const char *epf_plug_nic(bool within_host)
{
	struct epf_place_map map = { 0 };
	const char *nic = NULL;

	if (within_host)
		return "emu";
	if (!epf_plug.conf.wire_encryption && epf_place_read(NULL, &map) == 0)
		nic = epf_place_rdma(&map);
	epf_place_map_destroy(&map);
	return nic ? nic : "tcp";
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
