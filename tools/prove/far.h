/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a rig on another host: a NIC whose every operation is carried out there, and that host's side. Both go over an allgather of
 * the two (bootstrap/boot.h), so each end has proven the job's secret. Slow: one round trip for each operation.
 */
#ifndef EPF_TOOLS_PROVE_FAR_H
#define EPF_TOOLS_PROVE_FAR_H

#include "fabric/nic/nic.h"
#include "tools/prove/rig.h"

struct epf_boot;

struct far {
	struct epf_boot *boot;
	struct rig_far memory; /* for rig.far */
	struct epf_nic nic;
	struct epf_nic_caps caps; /* as of the last open */
	char name[32];
	int lost; /* -errno: the other host is gone, and every operation fails */
	unsigned char msg[16][EPF_NIC_MSG_BYTES];
};

/* far_greet() - meet the other host once: both must run this release and the same kind of NIC. Return: 0 or -errno with epf_last_error(). */
int far_greet(struct epf_boot *boot, const char *nic_name, char *host, size_t size);

void far_init(struct far *far, struct epf_boot *boot);
/* Opens the other host's NIC and its memory for a check with these flags; @far->nic is then used as any NIC, and its close() closes both. -errno with epf_last_error(). */
int far_open(struct far *far, unsigned flags, struct epf_nic **out);
/* Tells the other host that there is nothing more to do. */
void far_end(struct far *far);

/**
 * far_serve() - carry out what the other host asks for, until it has no more to ask.
 * @open: opens this host's NIC for a check with these flags (check.h).
 *
 * It touches its own memory of RIG_BYTES only. Return: 0 or -errno with epf_last_error() set.
 */
int far_serve(struct epf_boot *boot, int (*open)(void *arg, unsigned flags, struct epf_nic **out),
	      void *arg);

#endif
