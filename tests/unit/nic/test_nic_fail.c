/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of tools/prove over every kind of NIC: what is refused, and what fails. */
#include "tests/unit/nic/nic_conform.h"

int main(void)
{
	const struct check *const tables[] = { checks_refusals, checks_failures, NULL };

	return nic_conform(tables);
}
