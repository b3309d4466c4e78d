/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of tools/prove/rig.h under cmocka, and the kinds of NIC that the conformance suite runs over (nic_kinds.c). To put another NIC
 * under the suite, add a row there.
 *
 * Devices run on the real clock: they are there when EPF_TEST_VERBS_DEVICES names one or two RDMA devices that reach each
 * other ("rxe0,rxe1"). EPF_TEST_NIC limits the kinds to those whose name begins with it ("verbs"). The EFA kinds run over fake
 * adapters (fake_efa.h) on the virtual clock; EPF_TEST_SEED chooses another order for them.
 * Used by test_nic*.c, emu/test_emu*.c and tcp/test_tcp_gpu*.c only.
 */
#ifndef EPF_TESTS_NIC_RIG_H
#define EPF_TESTS_NIC_RIG_H

#include "fabric/nic/emu/opts.h"
#include "tools/prove/rig.h"

/* All kinds that this machine can run; *count of them. */
const struct nic_kind *nic_rig_kinds(size_t *count);

/* Opens a rig; tune may change the options before (NULL: defaults and a small pool). */
struct rig *rig_open(const struct nic_kind *kind, void (*tune)(struct epf_emu_opts *));

#endif
