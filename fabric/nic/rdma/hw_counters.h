/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only an RDMA device counts: packets that arrived twice or out of order, and those it sent again. Drivers keep such numbers in sysfs
 * (rdma(8) statistic shows the same) under their own names, for all users of a port together. What a driver does not have stays 0.
 */
#ifndef EPF_FABRIC_NIC_RDMA_HW_COUNTERS_H
#define EPF_FABRIC_NIC_RDMA_HW_COUNTERS_H

#include "fabric/nic/nic.h"

#include <stddef.h>
#include <stdint.h>

enum { EPF_HW_COUNTERS_MAX = 16 };

/* A file below hw_counters, and the field of struct epf_nic_counters to which it adds; several files may add to one field. */
struct epf_hw_counter {
	const char *name;
	size_t field;
};

struct epf_hw_counters {
	const struct epf_hw_counter *table;
	uint32_t n;
	uint32_t calls;
	int files[EPF_HW_COUNTERS_MAX]; /* -1: not there */
	uint64_t last[EPF_HW_COUNTERS_MAX];
};

/* Opens the files of a port; ibdev_path: the device's folder in sysfs. Counting begins here. table has n rows and stays the caller's. */
void epf_hw_counters_open(struct epf_hw_counters *h, const struct epf_hw_counter *table, uint32_t n,
			  const char *ibdev_path, uint32_t port);
/* Closes the files. Does nothing if they were never opened. */
void epf_hw_counters_close(struct epf_hw_counters *h);
/* Adds what is new to *sums, in one of ten calls: about once a second. Makes system calls, so only the watch calls it. */
void epf_hw_counters_sample(struct epf_hw_counters *h, struct epf_nic_counters *sums);

#endif
