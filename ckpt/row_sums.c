/* ckpt/row_sums.c - see ckpt/row_sums.h. */
#include "ckpt/row_sums.h"

#include <stddef.h>

#include "ckpt/crc.h"

enum { TRACE, DIGEST_0, DIGEST_1 };

/* A fixed 32-bit scramble of a position (the finalizer of MurmurHash3), in the upper half. */
static uint64_t mark(int64_t position)
{
    uint32_t h = (uint32_t)position + 1;

    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return (uint64_t)(h ^ h >> 16) << 32;
}

void row_sums_of(uint64_t sum[ROW_SUM_WORDS], const void *data, int64_t skip, int64_t n,
                 int64_t row_bytes, struct digest digest)
{
    uint32_t crc = crc32c_part(data, (size_t)n, (uint64_t)(row_bytes - skip - n));

    sum[TRACE] = (mark(skip) ^ mark(skip + n)) | crc;
    sum[DIGEST_0] = digest.d[0];
    sum[DIGEST_1] = digest.d[1];
}

void row_sums_add(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += ROW_SUM_WORDS) {
        struct digest sum = row_sum_digest(into + i), part = row_sum_digest(from + i);

        into[i + TRACE] ^= from[i + TRACE];
        digest_add(&sum, &part);
        into[i + DIGEST_0] = sum.d[0];
        into[i + DIGEST_1] = sum.d[1];
    }
}

struct digest row_sum_digest(const uint64_t *sum)
{
    return (struct digest){ { sum[DIGEST_0], sum[DIGEST_1] } };
}

bool row_sum_crc(uint32_t *crc32c, const uint64_t *sum, int64_t row_bytes)
{
    if (sum[TRACE] >> 32 != (mark(0) ^ mark(row_bytes)) >> 32)
        return false;
    *crc32c = crc32c_whole((uint32_t)sum[TRACE], (uint64_t)row_bytes);
    return true;
}
