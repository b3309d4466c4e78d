/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process and a directory hold: svc_proc.h.
 */
#include "tests/proc/svc_proc.h"

#include "fabric/base/clock.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static unsigned count_fds(pid_t pid, FILE *list)
{
	char path[64], name[320], what[256];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		ssize_t len;

		if (e->d_name[0] == '.')
			continue;
		n++;
		if (!list)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		len = readlink(name, what, sizeof(what) - 1);
		what[len < 0 ? 0 : len] = 0;
		fprintf(list, "  %s: %s\n", e->d_name, what);
	}
	if (d)
		closedir(d);
	return n;
}

static unsigned count_mappings(pid_t pid, FILE *list)
{
	char path[64], line[512];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, "/memfd:"))
			continue;
		n++;
		if (list)
			fprintf(list, "  %s", line);
	}
	if (f)
		fclose(f);
	return n;
}

struct proc_holds proc_look(pid_t pid)
{
	return (struct proc_holds){ .fds = count_fds(pid, NULL),
				    .mappings = count_mappings(pid, NULL) };
}

int proc_settle(pid_t pid, struct proc_holds base, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct proc_holds now;

	for (;;) {
		now = proc_look(pid);
		if (now.fds <= base.fds && now.mappings <= base.mappings)
			return 0;
		if (epf_now_ns() > deadline)
			break;
		usleep(2000);
	}
	fprintf(stderr,
		"process %d holds %u descriptors, %u before, and maps %u memfds, %u before\n",
		(int)pid, now.fds, base.fds, now.mappings, base.mappings);
	count_fds(pid, stderr);
	count_mappings(pid, stderr);
	return -1;
}

unsigned proc_files(const char *dir, const char *prefix, char *text, size_t size)
{
	size_t at = 0;
	unsigned n = 0;
	DIR *d = opendir(dir);

	text[0] = 0;
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		if (e->d_name[0] == '.' || strncmp(e->d_name, prefix, strlen(prefix)) != 0)
			continue;
		n++;
		if (at < size)
			at += (size_t)snprintf(text + at, size - at, "%s ", e->d_name);
	}
	if (d)
		closedir(d);
	return n;
}
