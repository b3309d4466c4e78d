/* SPDX-License-Identifier: Apache-2.0 */
/* The order of streams: one or two calls of the driver each. Allocates nothing. */
#include "kernels/ht/ht.h"

static bool on_gpu(const struct epf_ht *ht)
{
	return ht->ll->opts.device >= 0;
}

int epf_ht_record(struct epf_ht *ht, void *event, void *stream)
{
	int err = on_gpu(ht) ? epf_gpu_event_record(ht->ll->gpu, event, stream) : 0;

	return err ? ll_fail_fabric(err, "recording an event") : 0;
}

int epf_ht_wait(struct epf_ht *ht, void *event, void *stream)
{
	int err = on_gpu(ht) ? epf_gpu_event_wait(ht->ll->gpu, event, stream) : 0;

	return err ? ll_fail_fabric(err, "a stream's wait for an event") : 0;
}

/* A wait keeps the record it was made with, so one event orders any number of streams. */
int epf_ht_order(struct epf_ht *ht, void *from, void *to)
{
	int err = epf_ht_record(ht, ht->between, from);

	return err ? err : epf_ht_wait(ht, ht->between, to);
}
