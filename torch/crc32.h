/*
 * torch/crc32.h - the CRC-32 of zip archives, whose parts can be computed in any order.
 *
 * As ckpt/crc.h, with another polynomial: the CRC of a whole is the exclusive or of what its parts
 * contribute. Bytes that are zero contribute nothing, so holes of a file need not be summed.
 */
#ifndef TORCH_CRC32_H
#define TORCH_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* The usual CRC-32 of n bytes (APPNOTE.TXT, 4.4.7). */
uint32_t crc32_of(const void *data, size_t n);

/* What a range of n bytes contributes to the CRC of a whole in which `after` bytes follow it. */
uint32_t crc32_part(const void *data, size_t n, uint64_t after);

/* The usual CRC-32 of a whole of `total` bytes, from the exclusive or of its parts. */
uint32_t crc32_whole(uint32_t xor_of_parts, uint64_t total);

#endif
