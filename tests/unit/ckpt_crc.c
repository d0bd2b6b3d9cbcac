/*
 * tests/unit/ckpt_crc.c - CRC32C from the parts of a buffer, against a simple one.
 *
 * covers: core/crc_shift
 */
#include <criterion/criterion.h>

#include "ckpt/crc.h"
#include "tests/unit/random.h"

/* CRC32C of RFC 3720, one bit at a time. */
static uint32_t slow_crc(const unsigned char *p, size_t n)
{
    uint32_t crc = UINT32_MAX;

    while (n--) {
        crc ^= *p++;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
}

Test(crc, matches_the_check_value_of_the_standard)
{
    unsigned char zeros[32] = { 0 };

    cr_expect_eq(crc32c("123456789", 9), 0xe3069283u);
    cr_expect_eq(crc32c(zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
    cr_expect_eq(crc32c("", 0), 0u);
}

Test(crc, parts_in_any_order_make_the_whole)
{
    struct rng r = rng_start("crc/parts");
    unsigned char data[5000];

    for (int round = 0; round < 400; round++) {
        size_t n = (size_t)rng_int(&r, 0, sizeof data), cuts[16];
        int n_cuts = (int)rng_int(&r, 1, 15), first = (int)rng_int(&r, 0, n_cuts - 1);
        uint32_t sum = 0;

        for (size_t i = 0; i < n; i++)
            data[i] = (unsigned char)rng_next(&r);
        cuts[0] = 0;
        for (int i = 1; i < n_cuts; i++)
            cuts[i] = cuts[i - 1] + (size_t)rng_int(&r, 0, (int64_t)(n - cuts[i - 1]));
        cuts[n_cuts] = n;
        for (int i = 0; i < n_cuts; i++) { /* starting at a random part, backwards in odd rounds */
            int k = (round & 1 ? first - i + n_cuts : first + i) % n_cuts;

            sum ^= crc32c_part(data + cuts[k], cuts[k + 1] - cuts[k], n - cuts[k + 1]);
        }
        cr_assert_eq(crc32c_whole(sum, n), slow_crc(data, n));
        cr_assert_eq(crc32c(data, n), slow_crc(data, n));
    }
}

Test(crc, shifts_by_more_bytes_than_memory_has)
{
    const uint64_t far = (UINT64_C(1) << 40) + 12345;
    uint32_t once = crc32c_part("tensor", 6, far), twice;

    /* a shift by a + b bytes equals a shift by a and then one by b, done here bit by bit */
    twice = crc32c_part("tensor", 6, far - 3);
    for (int i = 0; i < 24; i++)
        twice = twice >> 1 ^ (0x82f63b78u & -(twice & 1));
    cr_expect_eq(once, twice);
}
