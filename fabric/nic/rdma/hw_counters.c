/* SPDX-License-Identifier: Apache-2.0 */
/* See hw_counters.h. Slow path, on the core's thread. */
#include "fabric/nic/rdma/hw_counters.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CALLS_PER_READ = 10 };

/* Returns 0 if it cannot be read. */
static uint64_t read_number(int fd)
{
	char text[32];
	ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return strtoull(text, NULL, 10);
}

void epf_hw_counters_open(struct epf_hw_counters *h, const struct epf_hw_counter *table, uint32_t n,
			  const char *ibdev_path, uint32_t port)
{
	char path[4096];

	*h = (struct epf_hw_counters){ .table = table, .n = n };
	for (uint32_t i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/ports/%u/hw_counters/%s", ibdev_path, port,
			 table[i].name);
		h->files[i] = open(path, O_RDONLY | O_CLOEXEC);
		h->last[i] = read_number(h->files[i]);
	}
}

void epf_hw_counters_close(struct epf_hw_counters *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		if (h->files[i] >= 0)
			close(h->files[i]);
	h->n = 0;
}

void epf_hw_counters_sample(struct epf_hw_counters *h, struct epf_nic_counters *sums)
{
	if (h->calls++ % CALLS_PER_READ)
		return;
	for (uint32_t i = 0; i < h->n; i++) {
		uint64_t now = read_number(h->files[i]);
		uint64_t *sum = (uint64_t *)(void *)((char *)sums + h->table[i].field);

		/* A number that decreases was reset by an operator. */
		*sum += now >= h->last[i] ? now - h->last[i] : now;
		h->last[i] = now;
	}
}
