/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian numbers and a checksum, for the addresses that NICs exchange. Inline and pure.
 */
#ifndef EPF_FABRIC_NIC_BYTES_H
#define EPF_FABRIC_NIC_BYTES_H

#include <stddef.h>
#include <stdint.h>

static inline void epf_bytes_put(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t epf_bytes_get(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

/* Notices damage, not intent. */
static inline uint32_t epf_bytes_sum(const uint8_t *at, size_t n)
{
	uint32_t sum = 1;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + at[i];
	return sum;
}

#endif
