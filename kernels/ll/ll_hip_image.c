/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the HIP kernels where there is no clang with its lld: a build with them takes the file that kernels/embed.py makes in place of this one.
 */
#include "kernels/ll/ll_image.h"

#include <stddef.h>

const void *const ll_hip_image = NULL;
