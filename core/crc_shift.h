/*
 * core/crc_shift.h - what zero bytes do to a CRC register of 32 bits. A CRC is linear, so with this
 * the parts of a whole can be summed in any order.
 *
 * Values are reflected as in RFC 3720: bit 31 is the coefficient of x^0.
 */
#ifndef CORE_CRC_SHIFT_H
#define CORE_CRC_SHIFT_H

#include <stdint.h>

enum { CRC_SHIFT_POWERS_MAX = 32 };

struct crc_shift_polynomial {
    uint32_t bits;
    int n_powers; /* the powers repeat after so many, because the order of x is 2^n_powers - 1 */
    uint32_t power[CRC_SHIFT_POWERS_MAX]; /* x^(8 * 2^k) modulo the polynomial */
};

/* The CRC register after n_bytes more zero bytes. */
uint32_t crc_shift(const struct crc_shift_polynomial *p, uint32_t crc, uint64_t n_bytes);

#endif
