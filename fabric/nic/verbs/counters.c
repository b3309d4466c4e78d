/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only the device can count: packets that came twice or out of turn, and those it had to send again. Drivers keep such numbers in
 * sysfs (rdma(8) statistic shows the same), under names of their own, for all users of the port together. Read by the
 * watch about once a second; what a driver does not have stays 0. It must never be read by a step.
 */
#include "fabric/nic/verbs/verbs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WATCHES_PER_READ = 10 };

/* Names that add up in one number. */
static const struct {
	const char *name;
	size_t at;
} files[] = {

#define F(name, field)                           \
 {                                               \
  name, offsetof(struct epf_nic_counters, field) \
 }
	F("duplicate_request", packets_duplicated), /* soft-RoCE, mlx5, bnxt_re, irdma */
	F("out_of_seq_request", packets_reordered), /* soft-RoCE */
	F("out_of_sequence", packets_reordered),    /* mlx5 */
	F("completer_retry_err", retransmits),      /* soft-RoCE */
	F("local_ack_timeout_err", retransmits),    /* mlx5 */
	F("packet_seq_err", retransmits),           /* mlx5 */
	F("to_retransmits", retransmits),           /* bnxt_re */
	F("seq_err_naks_rcvd", retransmits),        /* bnxt_re */
	F("send_rnr_err", rnr_events),              /* soft-RoCE */
	F("out_of_buffer", rnr_events),             /* mlx5 */
	F("rnr_naks_rcvd", rnr_events),             /* bnxt_re */
#undef F
};

_Static_assert(sizeof(files) / sizeof(files[0]) == EPF_VERBS_FILES, "one descriptor for each file");

/* 0 where it cannot be read. */
static uint64_t read_number(int fd)
{
	char text[32];
	ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return strtoull(text, NULL, 10);
}

void epf_verbs_counters_open(struct epf_verbs *v)
{
	char path[sizeof(v->ctx->device->ibdev_path) + 80];

	for (int i = 0; i < EPF_VERBS_FILES; i++) {
		snprintf(path, sizeof(path), "%s/ports/%u/hw_counters/%s",
			 v->ctx->device->ibdev_path, v->port, files[i].name);
		v->files[i] = open(path, O_RDONLY | O_CLOEXEC);
		v->files_last[i] = read_number(v->files[i]);
	}
}

void epf_verbs_counters_close(struct epf_verbs *v)
{
	for (int i = 0; i < EPF_VERBS_FILES; i++)
		if (v->files[i] >= 0)
			close(v->files[i]);
}

void epf_verbs_counters_look(struct epf_verbs *v)
{
	if (v->looks++ % WATCHES_PER_READ)
		return;
	for (int i = 0; i < EPF_VERBS_FILES; i++) {
		uint64_t now = read_number(v->files[i]);
		uint64_t *sum = (uint64_t *)(void *)((char *)&v->counters + files[i].at);

		/* A number that goes back was set to 0 by an operator. */
		*sum += now >= v->files_last[i] ? now - v->files_last[i] : now;
		v->files_last[i] = now;
	}
}
