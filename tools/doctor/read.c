/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `ep-fabric doctor` reads the machine, and keeps what its checks say (doctor.h). Called by the checks. It must never open
 * anything for writing, nor wait: what is no plain file is opened without blocking.
 */
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int path_of(char *path, const char *root, const char *fmt, va_list ap)
{
	int n = snprintf(path, PATH_MAX, "%s/", root);

	if (n < 0 || n >= PATH_MAX)
		return -ENAMETOOLONG;
	return vsnprintf(path + n, PATH_MAX - (size_t)n, fmt, ap) >= PATH_MAX - n ? -ENAMETOOLONG
										  : 0;
}

int doctor_text(const char *root, char *text, const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	ssize_t n;
	int fd, rc;

	*text = '\0';
	va_start(ap, fmt);
	rc = path_of(path, root, fmt, ap);
	va_end(ap);
	if (rc)
		return rc;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	n = read(fd, text, DOCTOR_TEXT - 1);
	rc = n < 0 ? -errno : 0;
	close(fd);
	n = n < 0 ? 0 : n;
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		n--;
	text[n] = '\0';
	return rc;
}

bool doctor_there(const char *root, const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	int rc;

	va_start(ap, fmt);
	rc = path_of(path, root, fmt, ap);
	va_end(ap);
	return !rc && access(path, F_OK) == 0;
}

int doctor_config(const struct doctor *d, const char *pci, size_t at, void *buf, size_t size)
{
	char path[PATH_MAX];
	ssize_t n;
	int fd;

	if (snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/config", d->sysfs, pci) >=
	    (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	n = pread(fd, buf, size, (off_t)at);
	n = n < 0 ? -errno : n;
	close(fd);
	return (int)n;
}

void doctor_say(struct doctor *d, enum doctor_state state, const char *fix, const char *fmt, ...)
{
	static const char *const words[] = { "ok", "skip", "warn", "FAIL" };
	char line[DOCTOR_LINE];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	d->count[state]++;
	if (fix && !*fix)
		fix = NULL;
	if (d->list) {
		json_t *fixing = fix ? json_string(fix) : json_null();

		json_array_append_new(d->list,
				      json_pack("{s:s, s:s, s:s, s:o}", "check", d->check, "state",
						state == DOCTOR_FAIL ? "fail" : words[state],
						"found", line, "fix", fixing));
		return;
	}
	printf("%-4s  %-12s %s\n", words[state], d->check, line);
	if (fix && state >= DOCTOR_WARN)
		printf("      %-12s   to mend it: %s\n", "", fix);
}
