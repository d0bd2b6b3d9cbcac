/*
 * ckpt/crc.h - CRC32C whose parts can be computed in any order.
 *
 * A CRC without its initial and final constants is linear: the CRC of a whole is the exclusive or
 * of its parts' CRCs, each shifted by the number of bytes that follow it. So threads and processes
 * that each see some ranges of an extent need no order among themselves.
 * Bytes are hashed by ISA-L's crc32_iscsi; this file adds the shift (multiplication by x^(8 n)
 * modulo the Castagnoli polynomial).
 */
#ifndef CKPT_CRC_H
#define CKPT_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The usual CRC32C (RFC 3720: initial and final value all ones) of n bytes. */
uint32_t crc32c(const void *data, size_t n);

/* What a range contributes to the CRC of a whole when `after` bytes of the whole follow it. */
uint32_t crc32c_part(const void *data, size_t n, uint64_t after);

/* The usual CRC32C of a whole of `total` bytes from the exclusive or of its parts. */
uint32_t crc32c_whole(uint32_t xor_of_parts, uint64_t total);

#endif
