/* SPDX-License-Identifier: Apache-2.0 */
/* What ep-bench xfer moves: one byte all over, or values of bf16, which compress as weights do. */
#ifndef EPF_BENCH_XFER_VALUES_H
#define EPF_BENCH_XFER_VALUES_H

#include <stdbool.h>
#include <stdint.h>

/* Fills memory. which: 1 or 2, of the target or the initiator; are_values: normally distributed bf16 instead of one byte. */
void xfer_fill(uint8_t *memory, uint64_t bytes, int which, bool are_values);
/* Returns how many bytes of memory[from, from + bytes) are not as xfer_fill() left them at that place. */
uint64_t xfer_wrong(const uint8_t *memory, uint64_t from, uint64_t bytes, int which,
		    bool are_values);

#endif
