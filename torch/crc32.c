/*
 * torch/crc32.c - see torch/crc32.h.
 *
 * Values are reflected: bit 31 is the coefficient of x^0. ISA-L's crc32_gzip_refl complements what
 * it gets and what it returns.
 */
#include "torch/crc32.h"

#include <isa-l/crc.h>

#define POLYNOMIAL 0xedb88320u

enum { POWERS = 32 };

/* x^(8 * 2^k) modulo the polynomial. The order of x is 2^32 - 1, so the powers repeat after 32. */
static const uint32_t power[POWERS] = {
    0x00800000, 0x00008000, 0xedb88320, 0xb1e6b092, 0xa06a2517, 0xed627dae, 0x88d14467, 0xd7bbfe6a,
    0xec447f11, 0x8e7ea170, 0x6427800e, 0x4d47bae0, 0x09fe548f, 0x83852d0f, 0x30362f1a, 0x7b5a9cc3,
    0x31fec169, 0x9fec022a, 0x6c8dedc4, 0x15d6874d, 0x5fde7a4e, 0xbad90e37, 0x2e4e5eef, 0x4eaba214,
    0xa8a472c0, 0x429a969e, 0x148d302a, 0xc40ba6d0, 0xc4e22c3c, 0x40000000, 0x20000000, 0x08000000
};

/* a times b modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (; a; a <<= 1) {
        product ^= b & -(a >> 31);
        b = (b >> 1) ^ (POLYNOMIAL & -(b & 1));
    }
    return product;
}

/* The CRC register after n_bytes more zero bytes. */
static uint32_t shift(uint32_t crc, uint64_t n_bytes)
{
    for (int k = 0; n_bytes && crc; n_bytes >>= 1, k = (k + 1) % POWERS)
        if (n_bytes & 1)
            crc = multiply(power[k], crc);
    return crc;
}

uint32_t crc32_of(const void *data, size_t n)
{
    return crc32_gzip_refl(0, data, n);
}

uint32_t crc32_part(const void *data, size_t n, uint64_t after)
{
    return shift(~crc32_gzip_refl(UINT32_MAX, data, n), after);
}

uint32_t crc32_whole(uint32_t xor_of_parts, uint64_t total)
{
    return ~(xor_of_parts ^ shift(UINT32_MAX, total));
}
