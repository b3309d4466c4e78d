/* SPDX-License-Identifier: Apache-2.0 */
/* Values of 2 and 4 bytes as planes of bytes and back (codec.h). Loops for the compiler to vectorize. */
#ifndef EPF_FABRIC_P2P_PLANES_H
#define EPF_FABRIC_P2P_PLANES_H

#include <stdint.h>

/* from: n values of `size` bytes, 1, 2 or 4 (a byte is its own plane); planes of n bytes each follow one another. Plane 0 begins with the exponent's highest bit. */
void epf_p2p_planes_split(uint32_t size, const uint8_t *from, uint32_t n, uint8_t *planes);
/* plane: `size` planes of n bytes. */
void epf_p2p_planes_merge(uint32_t size, const uint8_t *const *plane, uint32_t n, uint8_t *to);

#endif
