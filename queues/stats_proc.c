/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of a writing process, from /proc: pid, start time, pid name space and boot. Called by
 * the writer when it makes a file and by readers of one. It must never trust a pid alone: pids are
 * used again. Source: proc(5), pid_namespaces(7).
 */
#include "queues/stats_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define START_TIME_FIELD 22
#define STATE_FIELD      3

int epf_stats_say(char *reason, size_t bytes, int rc, const char *fmt, ...)
{
	va_list ap;

	if (bytes == 0)
		return rc;
	va_start(ap, fmt);
	vsnprintf(reason, bytes, fmt, ap);
	va_end(ap);
	return rc;
}

/* A small file of /proc as a string; returns its length or -errno. */
static int proc_text(const char *path, char *buf, size_t bytes)
{
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, bytes - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	buf[n > 0 ? n : 0] = '\0';
	return (int)n;
}

/* State letter and start time of a process. */
static int proc_stat(const char *path, char *state, uint64_t *start_ticks)
{
	char buf[1024];
	char *at;
	int rc, field;

	rc = proc_text(path, buf, sizeof(buf));
	if (rc < 0)
		return rc;
	/* The command's name is in parentheses and may hold any character: the last one ends it. */
	at = strrchr(buf, ')');
	if (!at || at[1] != ' ')
		return -EBADMSG;
	at += 2;
	*state = *at;
	for (field = STATE_FIELD; field < START_TIME_FIELD; field++) {
		at = strchr(at, ' ');
		if (!at)
			return -EBADMSG;
		at++;
	}
	*start_ticks = strtoull(at, NULL, 10);
	return 0;
}

static uint64_t pid_space(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

/* The 36-character text of the boot's identity as 16 bytes; zeros where there is none. */
static void boot_id(uint8_t out[16])
{
	char buf[64];
	unsigned nibbles = 0;
	int i;

	memset(out, 0, 16);
	if (proc_text("/proc/sys/kernel/random/boot_id", buf, sizeof(buf)) < 0)
		return;
	for (i = 0; buf[i] && nibbles < 32; i++) {
		static const char digits[] = "0123456789abcdef";
		const char *digit = strchr(digits, buf[i]);

		if (!digit)
			continue;
		out[nibbles / 2] = (uint8_t)(out[nibbles / 2] << 4 | (digit - digits));
		nibbles++;
	}
}

void epf_stats_proc_self(struct epf_stats_proc *out)
{
	char state;

	memset(out, 0, sizeof(*out));
	out->pid = (uint64_t)getpid();
	out->pid_space = pid_space();
	boot_id(out->boot_id);
	if (proc_stat("/proc/self/stat", &state, &out->start_ticks))
		out->start_ticks = 0;
}

enum epf_stats_alive epf_stats_proc_alive(const struct epf_stats_proc *writer)
{
	static const uint8_t no_boot[16];
	uint64_t start_ticks, space = pid_space();
	char path[64], state;
	uint8_t boot[16];
	int rc;

	boot_id(boot);
	if (memcmp(boot, no_boot, 16) != 0 && memcmp(writer->boot_id, no_boot, 16) != 0 &&
	    memcmp(boot, writer->boot_id, 16) != 0)
		return EPF_STATS_DEAD;
	if (writer->pid == 0 || writer->pid > INT_MAX || writer->pid_space == 0 ||
	    writer->pid_space != space)
		return EPF_STATS_UNKNOWN;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)writer->pid);
	rc = proc_stat(path, &state, &start_ticks);
	if (rc) /* gone, or hidden from us (hidepid): only "no such process" is certain */
		return kill((pid_t)writer->pid, 0) && errno == ESRCH ? EPF_STATS_DEAD
								     : EPF_STATS_UNKNOWN;
	if (state == 'Z' || state == 'X' || start_ticks != writer->start_ticks)
		return EPF_STATS_DEAD;
	return EPF_STATS_ALIVE;
}

char epf_stats_process_state(uint64_t pid, uint64_t space)
{
	uint64_t start_ticks;
	char path[64], state;

	if (pid == 0 || pid > INT_MAX || space == 0 || space != pid_space())
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (proc_stat(path, &state, &start_ticks))
		return kill((pid_t)pid, 0) && errno == ESRCH ? 'X' : 0;
	return state;
}
