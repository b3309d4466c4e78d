/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of tools/prove over every kind of NIC: the data path and the kinds of memory. */
#include "tests/unit/nic/nic_conform.h"

int main(void)
{
	const struct check *const tables[] = { checks_data, checks_memory, NULL };

	return nic_conform(tables);
}
