/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says which parts of <infiniband/efadv.h> efadv_layout.c could compare with fabric/nic/efa/dv.h; it has compared them when it was compiled.
 * Exit 0.
 */
#include <stdio.h>

int main(void)
{
	puts("ok - structures, values and functions of the first releases");
#ifdef EFADV_HAS_RDMA_WRITE
	puts("ok - RDMA write");
#else
	puts("# this header has no RDMA write: fabric/nic/efa/dv.h stands alone there");
#endif
#ifdef EFADV_HAS_UNSOLICITED
	puts("ok - unsolicited write receives");
#else
	puts("# this header has no unsolicited write receives");
#endif
#ifdef EFADV_HAS_SL
	puts("ok - service level");
#else
	puts("# this header has no service level");
#endif
#ifdef EFADV_HAS_INLINE_WRITE
	puts("ok - inline writes");
#else
	puts("# this header has no inline writes");
#endif
	return 0;
}
