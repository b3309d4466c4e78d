/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `ep-fabric doctor` share: a table of checks, each of which looks at one thing that real hardware needs and
 * says what it found, why that matters, and the command that mends it. Checks read; nothing here changes the machine. What
 * belongs to the machine is read below two roots, so that a recorded tree of another machine can be examined.
 */
#ifndef EPF_TOOLS_DOCTOR_DOCTOR_H
#define EPF_TOOLS_DOCTOR_DOCTOR_H

#include "fabric/base/conf.h"
#include "fabric/place/place.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Longest text of a small file, of a finding and of a remedy. */
enum { DOCTOR_TEXT = 4096, DOCTOR_LINE = 512 };

enum doctor_state {
	DOCTOR_OK,
	DOCTOR_SKIP, /* does not apply here, or cannot be seen by this user; the finding says which */
	DOCTOR_WARN, /* works, but slower or more fragile */
	DOCTOR_FAIL, /* a job cannot run, or not with this NIC */
};

struct doctor {
	struct epf_conf conf;
	struct epf_place_map map; /* of sysfs; all zero when it cannot be read */
	const char *sysfs;        /* "/sys", or a recorded tree */
	const char *procfs;       /* "/proc", or a recorded tree */
	bool is_recorded;         /* then checks that need a live machine are skipped */
	bool wants_rdma;          /* nic is verbs or efa, or the machine has RDMA devices */
	bool needs_rdma;          /* nic is verbs or efa */

	/* What was found: the running check, and counts by state. */
	const char *check;
	json_t *list;
	unsigned int count[DOCTOR_FAIL + 1];
};

struct doctor_check {
	const char *name; /* one word, as printed */
	const char *doc;  /* what is looked at, for the manual page */
	void (*run)(struct doctor *d);
};

/* The checks in the order in which they are made; the last has no name. */
extern const struct doctor_check doctor_rdma_checks[];
extern const struct doctor_check doctor_pci_checks[];
extern const struct doctor_check doctor_host_checks[];
extern const struct doctor_check doctor_network_checks[];
extern const struct doctor_check doctor_fabric_checks[];
extern const struct doctor_check doctor_backend_checks[];

/**
 * doctor_say() - record a finding of the running check.
 * @fix: the command or setting that mends it; NULL or empty: nothing to mend. Longer texts are cut at DOCTOR_LINE.
 * @fmt: one line: what was seen, and what it costs if it is wrong.
 */
void doctor_say(struct doctor *d, enum doctor_state state, const char *fix, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/**
 * doctor_text() - read a small file below a root.
 * @root: d->sysfs or d->procfs.
 * @text: at least DOCTOR_TEXT bytes; what is read, cut at one line's end at the end, always terminated.
 *
 * Return: 0; minus errno, and an empty text.
 */
int doctor_text(const char *root, char *text, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* doctor_there() - whether a path below a root exists. */
bool doctor_there(const char *root, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/**
 * doctor_config() - read a PCI device's configuration space.
 * @pci: its address, "0000:1a:00.0".
 * @at: bytes from the start.
 *
 * Return: bytes read, at most @size: less than asked for where the kernel shows this user only the first 64 bytes; or minus errno.
 */
int doctor_config(const struct doctor *d, const char *pci, size_t at, void *buf, size_t size);

#endif
