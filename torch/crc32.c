/*
 * torch/crc32.c - see torch/crc32.h.
 *
 * ISA-L's crc32_gzip_refl complements what it gets and what it returns.
 */
#include "torch/crc32.h"

#include <isa-l/crc.h>

#include "core/crc_shift.h"

static const struct crc_shift_polynomial ieee = {
    .bits = 0xedb88320,
    .n_powers = 32,
    .power = { 0x00800000, 0x00008000, 0xedb88320, 0xb1e6b092, 0xa06a2517, 0xed627dae, 0x88d14467,
               0xd7bbfe6a, 0xec447f11, 0x8e7ea170, 0x6427800e, 0x4d47bae0, 0x09fe548f, 0x83852d0f,
               0x30362f1a, 0x7b5a9cc3, 0x31fec169, 0x9fec022a, 0x6c8dedc4, 0x15d6874d, 0x5fde7a4e,
               0xbad90e37, 0x2e4e5eef, 0x4eaba214, 0xa8a472c0, 0x429a969e, 0x148d302a, 0xc40ba6d0,
               0xc4e22c3c, 0x40000000, 0x20000000, 0x08000000 },
};

uint32_t crc32_of(const void *data, size_t n)
{
    return crc32_gzip_refl(0, data, n);
}

uint32_t crc32_part(const void *data, size_t n, uint64_t after)
{
    return crc_shift(&ieee, ~crc32_gzip_refl(UINT32_MAX, data, n), after);
}

uint32_t crc32_whole(uint32_t xor_of_parts, uint64_t total)
{
    return ~(xor_of_parts ^ crc_shift(&ieee, UINT32_MAX, total));
}
