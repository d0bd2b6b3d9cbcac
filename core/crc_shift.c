/* core/crc_shift.c - see core/crc_shift.h. */
#include "core/crc_shift.h"

/* a times b modulo the polynomial. */
static uint32_t multiply(uint32_t polynomial, uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        product ^= b & -(a >> 31);
        b = (b >> 1) ^ (polynomial & -(b & 1));
    }
    return product;
}

uint32_t crc_shift(const struct crc_shift_polynomial *p, uint32_t crc, uint64_t n_bytes)
{
    for (int k = 0; n_bytes && crc; n_bytes >>= 1, k = k + 1 == p->n_powers ? 0 : k + 1)
        if (n_bytes & 1)
            crc = multiply(p->bits, p->power[k], crc);
    return crc;
}
