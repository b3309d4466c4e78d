/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of TCP NIC with GPU memory at one end or both, for test_tcp_gpu*.c. The test holds fake copies back, so nothing depends on time. */
#ifndef EPF_TESTS_NIC_TCP_GPU_KINDS_H
#define EPF_TESTS_NIC_TCP_GPU_KINDS_H

#include "fabric/gpu/copy.h"
#include "fabric/nic/tcp/tcp.h"
#include "tests/unit/nic/gpu_kit.h"

static inline int open_one(const char *gpu, uint64_t (*now)(void *), void *arg,
			   struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	epf_tcp_opts_defaults(&opts);
	opts.gpu = gpu;
	return epf_tcp_open(&opts, now, arg, out);
}

static inline int open_fake(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			    void *arg, struct epf_nic **out)
{
	return open_one("fake", now, arg, out);
}

static const struct nic_kind both = { "tcp, GPU to GPU", 1, 1, 1, 1, 0, 0, 3, open_fake };
static const struct nic_kind to_gpu = { "tcp, host to GPU", 1, 1, 1, 1, 0, 0, 2, open_fake };
static const struct nic_kind from_gpu = { "tcp, GPU to host", 1, 1, 1, 1, 0, 0, 1, open_fake };

/* A teardown: no copy is held back any more. */
static inline int release(void **state)
{
	epf_copy_fake_hold(0);
	return 0;
}

#define CASE(name) cmocka_unit_test_teardown(name, release)

#endif
