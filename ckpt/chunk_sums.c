/* ckpt/chunk_sums.c - see ckpt/chunk_sums.h. */
#include "ckpt/chunk_sums.h"

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

void chunk_sums_given(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part, uint32_t crc)
{
    sum[TRACE] = (mark(part->skip) ^ mark(part->skip + part->n)) | crc;
    sum[DIGEST_0] = part->digest.d[0];
    sum[DIGEST_1] = part->digest.d[1];
}

void chunk_sums_of(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part,
                   int64_t chunk_bytes)
{
    const int64_t after = chunk_bytes - part->skip - part->n;

    chunk_sums_given(sum, part, crc32c_part(part->data, (size_t)part->n, (uint64_t)after));
}

void chunk_sums_known(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part, uint32_t crc32c,
                      int64_t chunk_bytes)
{
    const int64_t after = chunk_bytes - part->skip - part->n;

    chunk_sums_given(sum, part, crc32c_part_of(crc32c, (uint64_t)part->n, (uint64_t)after));
}

void chunk_sums_add(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CHUNK_SUM_WORDS) {
        struct digest sum = chunk_sums_digest(into + i), part = chunk_sums_digest(from + i);

        into[i + TRACE] ^= from[i + TRACE];
        digest_add(&sum, &part);
        into[i + DIGEST_0] = sum.d[0];
        into[i + DIGEST_1] = sum.d[1];
    }
}

struct digest chunk_sums_digest(const uint64_t *sum)
{
    return (struct digest){ { sum[DIGEST_0], sum[DIGEST_1] } };
}

bool chunk_sums_crc(uint32_t *crc32c, const uint64_t *sum, int64_t chunk_bytes)
{
    if (sum[TRACE] >> 32 != (mark(0) ^ mark(chunk_bytes)) >> 32)
        return false;
    *crc32c = crc32c_whole((uint32_t)sum[TRACE], (uint64_t)chunk_bytes);
    return true;
}
