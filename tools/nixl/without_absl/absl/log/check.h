/* SPDX-License-Identifier: Apache-2.0 */
/* As log.h. */
#include "absl/log/log.h"
