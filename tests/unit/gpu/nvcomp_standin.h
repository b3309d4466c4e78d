/* SPDX-License-Identifier: Apache-2.0 */
/* What tests can make the stand-in for nvCOMP do (nvcomp_standin.c). They link it, so that the product finds it loaded. All are atomic. */
#ifndef EPF_TESTS_NVCOMP_STANDIN_H
#define EPF_TESTS_NVCOMP_STANDIN_H

struct nvcomp_standin {
	int hold;                 /* expansions wait while it is 1 */
	int hang;                 /* compressions wait while it is 1 */
	int stick;                /* 1: the next compression never ends; then 2 */
	int held;                 /* so many of both have begun to wait */
	int fail;                 /* compressions return an error */
	int damage;               /* compressions change a byte of what they have made */
	int compressed, expanded; /* parts so far */
};

extern struct nvcomp_standin nvcomp_standin;

#endif
