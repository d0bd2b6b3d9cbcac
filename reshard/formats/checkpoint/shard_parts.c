/* reshard/formats/checkpoint/shard_parts.c - see reshard/formats/checkpoint/shard_parts.h. */
#include "reshard/formats/checkpoint/shard_parts.h"

#include <stdlib.h>

#include "ckpt/crc.h"
#include "reshard/engine/reduce_sums.h"

/* The smallest range that contains everything this process read of a chunk. */
struct shard_parts_range {
    int64_t lo, end;
};

tp_status shard_parts_begin(struct shard_parts *p, struct tp_err *err)
{
    p->sums = calloc((size_t)p->n_chunks * PART_SUM_WORDS, sizeof *p->sums);
    p->ranges = calloc((size_t)p->n_chunks, sizeof *p->ranges);
    if (!p->sums || !p->ranges)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for checksums", p->dir);
    for (int64_t k = 0; k < p->n_chunks; k++)
        p->ranges[k].lo = p->chunks[k].raw_bytes;
    return TP_OK;
}

/* ---- reading ---- */

/* Extend a range to include lo .. end - 1. Several threads may do so at the same time. */
static void extend(struct shard_parts_range *r, int64_t lo, int64_t end)
{
    int64_t was = __atomic_load_n(&r->lo, __ATOMIC_RELAXED);

    while (lo < was &&
           !__atomic_compare_exchange_n(&r->lo, &was, lo, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    was = __atomic_load_n(&r->end, __ATOMIC_RELAXED);
    while (end > was && !__atomic_compare_exchange_n(&r->end, &was, end, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED))
        ;
}

tp_status shard_parts_read_unsummed(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf,
                                    int64_t n, struct tp_err *err)
{
    if (p->chunks[chunk].codec != CODEC_RAW)
        return chunk_cache_read(p->cache, p->reader, chunk, skip, buf, n, err);
    return shard_read_part(p->reader, chunk, skip, buf, n, err);
}

void shard_parts_add(struct shard_parts *p, int64_t chunk, int64_t skip, int64_t n, uint32_t crc)
{
    uint64_t *sums = &p->sums[chunk * PART_SUM_WORDS];

    if (p->chunks[chunk].codec != CODEC_RAW)
        return; /* it was checked before it was decompressed */
    __atomic_fetch_xor(&sums[PART_SUM_CRC], crc, __ATOMIC_RELAXED);
    __atomic_fetch_add(&sums[PART_SUM_BYTES], (uint64_t)n, __ATOMIC_RELAXED);
    extend(&p->ranges[chunk], skip, skip + n);
}

tp_status shard_parts_read(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf, int64_t n,
                           struct tp_err *err)
{
    int64_t after = p->chunks[chunk].raw_bytes - skip - n;
    tp_status st = shard_parts_read_unsummed(p, chunk, skip, buf, n, err);

    if (!st && p->chunks[chunk].codec == CODEC_RAW)
        shard_parts_add(p, chunk, skip, n, crc32c_part(buf, (size_t)n, (uint64_t)after));
    return st;
}

void shard_parts_will_read(struct shard_parts *p, int64_t chunk, int64_t skip, int64_t n)
{
    const struct chunk_entry *c = &p->chunks[chunk];

    if (c->codec == CODEC_RAW)
        shard_will_read_part(p->reader, chunk, skip, n);
    else if (skip == 0)
        shard_will_read_part(p->reader, chunk, 0, c->stored_bytes);
}

void shard_parts_resumed(struct shard_parts *p)
{
    for (int64_t k = 0; k < p->n_chunks; k++)
        if (p->sums[k * PART_SUM_WORDS + PART_SUM_BYTES] > 0)
            p->ranges[k] = (struct shard_parts_range){ 0, INT64_MAX };
}

/* ---- checking ---- */

static void add_sums(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += PART_SUM_WORDS) {
        into[i + PART_SUM_CRC] ^= from[i + PART_SUM_CRC];
        into[i + PART_SUM_BYTES] += from[i + PART_SUM_BYTES];
    }
}

/* Read what is missing of a chunk of which one range was read, so that its checksum is complete. */
static tp_status read_rest(struct shard_parts *p, int64_t chunk, char *buf, int64_t *more_bytes,
                           struct tp_err *err)
{
    const int64_t raw_bytes = p->chunks[chunk].raw_bytes;
    const struct shard_parts_range was = p->ranges[chunk];
    tp_status st = TP_OK;

    *more_bytes += raw_bytes - (was.end - was.lo);
    if (was.lo > 0)
        TP_TRY(shard_parts_read(p, chunk, 0, buf, was.lo, err));
    if (was.end < raw_bytes)
        TP_TRY(shard_parts_read(p, chunk, was.end, buf, raw_bytes - was.end, err));
done:
    return st;
}

static tp_status check_chunk(struct shard_parts *p, int64_t chunk, char **buf, int64_t *more_bytes,
                             struct tp_err *err)
{
    const struct chunk_entry *c = &p->chunks[chunk];
    const struct shard_parts_range *range = &p->ranges[chunk];
    const uint64_t *sums = &p->sums[chunk * PART_SUM_WORDS];
    uint64_t read = sums[PART_SUM_BYTES];
    uint32_t crc;
    tp_status st;

    if (read == 0)
        return TP_OK;
    if (read < (uint64_t)c->raw_bytes) {
        if (!*buf && !(*buf = malloc(CHUNK_BYTES_MAX)))
            return tp_fail(err, TP_E_NOMEM, "%s: no memory to check what was read", p->dir);
        if (read != (uint64_t)(range->end - range->lo)) { /* with gaps, or by other processes too */
            *more_bytes += c->raw_bytes;
            return shard_read_chunk(p->reader, chunk, *buf, err);
        }
        if ((st = read_rest(p, chunk, *buf, more_bytes, err)))
            return st;
    }
    crc = crc32c_whole((uint32_t)sums[PART_SUM_CRC], (uint64_t)c->raw_bytes);
    return crc == c->crc32c ? TP_OK : shard_crc_error(p->reader, chunk, crc, err);
}

tp_status shard_parts_check(struct shard_parts *p, struct comm_control *control, char **buf,
                            int64_t *more_bytes, struct tp_err *err)
{
    const struct reduce_sums sums = { p->sums, p->n_chunks * PART_SUM_WORDS, PART_SUM_WORDS,
                                      add_sums };
    tp_status st = TP_OK;

    if (control)
        TP_TRY(reduce_sums(control, &sums, err));
    if (control_rank(control) != 0)
        return TP_OK;
    for (int64_t k = 0; k < p->n_chunks; k++)
        TP_TRY(check_chunk(p, k, buf, more_bytes, err));
done:
    return st;
}

void shard_parts_close(struct shard_parts *p)
{
    if (p->reader)
        shard_reader_close(p->reader);
    free(p->sums);
    free(p->ranges);
    *p = (struct shard_parts){ 0 };
}
