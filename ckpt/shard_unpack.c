/* ckpt/shard_unpack.c - reads whole chunks of a shard, compressed or not; see ckpt/shard.h. */
#include <stdio.h>
#include <string.h>

#include "ckpt/crc.h"
#include "ckpt/shard.h"

static tp_status read_raw(const struct shard_reader *r, int64_t chunk, const struct chunk_entry *c,
                          void *buf, struct tp_err *err)
{
    tp_status st = shard_read_part(r, chunk, 0, buf, c->raw_bytes, err);
    uint32_t crc;

    if (st)
        return st;
    crc = crc32c(buf, (size_t)c->raw_bytes);
    return crc == c->crc32c ? TP_OK : shard_crc_error(r, chunk, crc, err);
}

/* The checksum is of what is stored. So also compare the digest of what came out. */
static tp_status check_digest(const struct shard_reader *r, int64_t chunk,
                              const struct chunk_entry *c, const void *buf, struct tp_err *err)
{
    const struct tensor *t = shard_chunk_tensor(r, chunk);
    struct digest found = digest_box(buf, &c->box, t->ndim, t->shape, dtype_bytes(t->dtype));
    char a[DIGEST_TEXT_MAX], b[DIGEST_TEXT_MAX], what[256];

    if (memcmp(&found, &c->digest, sizeof found) == 0)
        return TP_OK;
    snprintf(what, sizeof what, "what is in the zstd frame has the digest %s, expected %s",
             digest_format(a, &found), digest_format(b, &c->digest));
    return shard_chunk_error(r, chunk, what, err);
}

static tp_status read_frame(const struct shard_reader *r, int64_t chunk,
                            const struct chunk_entry *c, struct codec_decoder *d, void *buf,
                            struct tp_err *err)
{
    const struct codec_frame frame = {
        .codec = (enum codec_kind)c->codec,
        .stored_bytes = c->stored_bytes,
        .frame_bytes = c->frame_bytes,
        .raw_bytes = c->raw_bytes,
        .elem_bytes = dtype_bytes(shard_chunk_tensor(r, chunk)->dtype),
    };
    tp_status st = shard_read_part(r, chunk, 0, codec_decoder_input(d), c->stored_bytes, err);
    const char *bad;
    uint32_t crc;

    if (st)
        return st;
    crc = crc32c(codec_decoder_input(d), (size_t)c->stored_bytes);
    if (crc != c->crc32c)
        return shard_crc_error(r, chunk, crc, err);
    bad = codec_decode(d, &frame, buf);
    return bad ? shard_chunk_error(r, chunk, bad, err) : check_digest(r, chunk, c, buf, err);
}

tp_status shard_unpack_chunk(const struct shard_reader *r, int64_t chunk, struct codec_decoder **d,
                             void *buf, struct tp_err *err)
{
    int64_t n;
    const struct chunk_entry *chunks = shard_chunks(r, &n);
    tp_status st = TP_OK;

    if (chunk < 0 || chunk >= n)
        return tp_fail(err, TP_E_INTERNAL, "there is no chunk %lld", (long long)chunk);
    if (chunks[chunk].codec == CODEC_RAW)
        return read_raw(r, chunk, &chunks[chunk], buf, err);
    if (!*d)
        st = codec_decoder_new(d, err);
    return st ? st : read_frame(r, chunk, &chunks[chunk], *d, buf, err);
}

tp_status shard_read_chunk(const struct shard_reader *r, int64_t chunk, void *buf,
                           struct tp_err *err)
{
    struct codec_decoder *d = NULL;
    tp_status st = shard_unpack_chunk(r, chunk, &d, buf, err);

    codec_decoder_free(d);
    return st;
}
