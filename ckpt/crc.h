/*
 * ckpt/crc.h - CRC32C whose parts can be computed in any order.
 *
 * Without its initial and final constants a CRC is linear: the CRC of a whole is the exclusive or
 * of the CRCs of its parts, each shifted by the number of bytes after the part. So threads and
 * processes that each see some ranges of a chunk need no order among themselves. ISA-L's
 * crc32_iscsi computes the CRCs; this module adds the shift, a multiplication by x^(8 n) modulo the
 * Castagnoli polynomial.
 */
#ifndef CKPT_CRC_H
#define CKPT_CRC_H

#include <stddef.h>
#include <stdint.h>

/* The usual CRC32C of n bytes (RFC 3720: initial value and final exclusive or are all ones). */
uint32_t crc32c(const void *data, size_t n);

/* What a range of n bytes contributes to the CRC of a whole in which `after` bytes follow it. */
uint32_t crc32c_part(const void *data, size_t n, uint64_t after);

/* The same, from the usual CRC32C of the range. */
uint32_t crc32c_part_of(uint32_t crc32c, uint64_t n, uint64_t after);

/* The usual CRC32C of a whole of `total` bytes, from the exclusive or of its parts. */
uint32_t crc32c_whole(uint32_t xor_of_parts, uint64_t total);

#endif
