/* SPDX-License-Identifier: Apache-2.0 */
/* Runs checks of tools/prove over all kinds of NIC that this machine can run (nic_rig.h). */
#ifndef EPF_TESTS_NIC_CONFORM_H
#define EPF_TESTS_NIC_CONFORM_H

#include "tools/prove/check.h"

/* tables: ends with NULL. EPF_TEST_CHECK: key of the only check. Returns the exit status. */
int nic_conform(const struct check *const *tables);

#endif
