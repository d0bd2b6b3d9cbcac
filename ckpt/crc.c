/*
 * ckpt/crc.c - see ckpt/crc.h.
 *
 * ISA-L's crc32_iscsi applies neither the initial nor the final complement.
 */
#include "ckpt/crc.h"

#include <isa-l/crc.h>

#include "core/crc_shift.h"

enum { ISAL_MAX = 1 << 30 };

static const struct crc_shift_polynomial castagnoli = {
    .bits = 0x82f63b78,
    .n_powers = 31,
    .power = { 0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955,
               0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564,
               0xbf455269, 0xe2ea32dc, 0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915,
               0x734d5309, 0xbc1ac763, 0x7d0722cc, 0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42,
               0x40000000, 0x20000000, 0x08000000 },
};

/* The CRC register after n bytes, starting from `init`, without complements. */
static uint32_t run(const unsigned char *p, size_t n, uint32_t init)
{
    while (n > 0) {
        size_t part = n < ISAL_MAX ? n : ISAL_MAX;

        init = crc32_iscsi((unsigned char *)p, (int)part, init); /* not const, but only read */
        p += part;
        n -= part;
    }
    return init;
}

uint32_t crc32c(const void *data, size_t n)
{
    return ~run(data, n, UINT32_MAX);
}

uint32_t crc32c_part(const void *data, size_t n, uint64_t after)
{
    return crc_shift(&castagnoli, run(data, n, 0), after);
}

uint32_t crc32c_part_of(uint32_t crc32c, uint64_t n, uint64_t after)
{
    return crc_shift(&castagnoli, ~crc32c ^ crc_shift(&castagnoli, UINT32_MAX, n), after);
}

uint32_t crc32c_whole(uint32_t xor_of_parts, uint64_t total)
{
    return ~(xor_of_parts ^ crc_shift(&castagnoli, UINT32_MAX, total));
}
