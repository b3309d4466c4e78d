/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: handles that NCCL's bootstrap brings from elsewhere (tools/nccl/handle.h). Byte 0: 1 makes the checksum right, as an attacker can. It aborts when
 * a handle is taken that, written again, gives other bytes than it had where it has a meaning.
 */
#include "tools/nccl/abi.h"
#include "tools/nccl/handle.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SUMMED = 96, SUM = 16 };

static void read_one(const uint8_t *bytes, enum epf_nccl_handle_kind kind)
{
	uint8_t again[EPF_NCCL_HANDLE_BYTES];
	struct epf_nccl_handle h, same;

	if (epf_nccl_handle_read(bytes, kind, &h))
		return;
	epf_nccl_handle_write(&h, again);
	if (epf_nccl_handle_read(again, kind, &same) || same.listener != h.listener ||
	    epf_net_port(&same.address) != epf_net_port(&h.address) ||
	    memcmp(same.process, bytes + 48, sizeof(same.process)) != 0 ||
	    memcmp(same.secret, bytes + 64, sizeof(same.secret)) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t bytes[EPF_NCCL_HANDLE_BYTES] = { 0 }, sum[EPF_AUTH_HASH_BYTES];

	if (size < 1)
		return 0;
	memcpy(bytes, data + 1, size - 1 < sizeof(bytes) ? size - 1 : sizeof(bytes));
	if (data[0] == 1) {
		epf_auth_digest(bytes, SUMMED, sum);
		memcpy(bytes + SUMMED, sum, SUM);
	}
	read_one(bytes, EPF_NCCL_HANDLE_NET);
	read_one(bytes, EPF_NCCL_HANDLE_GROUP);
	return 0;
}
