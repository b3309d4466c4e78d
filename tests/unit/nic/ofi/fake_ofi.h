/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libfabric within one process: one provider whose modes, limits and failures a test chooses. Operations are carried out when they are posted; their completions come
 * out of the next read of the queue, or when the test releases them. Misuse fails the test: an operation without the registration of its local memory where
 * that is required, a registration that is used before it is enabled, a receive or an operation whose context is still in use.
 * Used by tests/unit/nic/ofi and by the conformance suite (nic_kinds.c).
 */
#ifndef EPF_TESTS_FAKE_OFI_H
#define EPF_TESTS_FAKE_OFI_H

#include "fabric/nic/ofi/lib.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_OFI_INFOS = 12 };

struct fake_ofi {
	/* What there is; the first without a provider's name ends the list. */
	struct {
		const char *provider, *domain;
	} infos[FAKE_OFI_INFOS];

	uint64_t mode;       /* FI_RX_CQ_DATA ... */
	int mr_mode;         /* FI_MR_ENDPOINT ... */
	size_t cq_data_size; /* remote CQ data */
	size_t tx_size, rx_size;
	bool wide_keys;        /* FI_MR_PROV_KEY: keys of 64 bits */
	int again;             /* so many posts return -FI_EAGAIN, negative: all */
	int fail;              /* error code of the next operation that is posted */
	int fail_post;         /* what the next post returns, positive */
	bool hold;             /* completions of operations stay inside */
	bool is_lost;          /* queues cannot be read */
	const char *fail_open; /* the call that fails, "cq" ... */

	/* What was seen. */
	unsigned posts, messages, data_writes, live, bound, prov_key_asked;
};

extern struct fake_ofi fake_ofi;
extern const struct epf_ofi_lib fake_ofi_lib;

/* One domain "fake0" of provider "fake" with 8 bytes of remote CQ data and nothing special. */
void fake_ofi_reset(void);
/* Sends bytes to the endpoint with this address, as a stranger. */
void fake_ofi_message(const void *name, const void *bytes, size_t len);
/* Raises a remote CQ data completion there. */
void fake_ofi_data(const void *name, uint64_t data);

#endif
