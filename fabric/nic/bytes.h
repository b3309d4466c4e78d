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

/* FNV-1a: notices damage, not intent. */
static inline uint32_t epf_bytes_hash(const uint8_t *at, size_t n)
{
	uint32_t hash = 0x811c9dc5u;

	for (size_t i = 0; i < n; i++)
		hash = (hash ^ at[i]) * 0x01000193u;
	return hash;
}

#endif
