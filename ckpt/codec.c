/* ckpt/codec.c - see ckpt/codec.h. */
#include "ckpt/codec.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "ckpt/byte_shuffle.h"

enum {
    SAVING = 32,             /* a frame saves at least this part of a chunk */
    SAMPLE_BYTES = 32 << 10, /* of a chunk, from its middle: decides whether a shuffle helps */
    SAMPLE_PART = 16,        /* and not more than this part of it, unless that is very little */
    SAMPLE_BYTES_MIN = 4 << 10,
    PLANE_MATCH = 7,           /* bytes of the shortest match; measured with trained weights */
    CONTEXT_BYTES = 256 << 10, /* of a decoder: ZSTD_sizeof_DCtx, rounded up */
};

tp_status codec_parse_level(int *level, const char *flag, const char *text, struct tp_err *err)
{
    char *end;
    long n;

    *level = CODEC_LEVEL_DEFAULT;
    if (!text || !*text)
        return TP_OK;
    n = strtol(text, &end, 10);
    if (*end || n < 1 || n > CODEC_LEVEL_MAX)
        return tp_fail(err, TP_E_USAGE, "%s=%s: the level is from 1 to %d", flag, text,
                       CODEC_LEVEL_MAX);
    *level = (int)n;
    return TP_OK;
}

int64_t codec_stored_bound(int64_t n_bytes)
{
    return (int64_t)ZSTD_COMPRESSBOUND((size_t)n_bytes);
}

/* ---- encoding ---- */

struct codec_encoder {
    ZSTD_CCtx *ctx;
    int level;
    unsigned char *shuffled; /* CODEC_RAW_MAX */
    unsigned char *frame;    /* CODEC_STORED_MAX */
};

tp_status codec_encoder_new(struct codec_encoder **out, int level, struct tp_err *err)
{
    struct codec_encoder *e = calloc(1, sizeof *e);

    if (e) {
        e->level = level;
        e->ctx = ZSTD_createCCtx();
        e->shuffled = malloc(CODEC_RAW_MAX);
        e->frame = malloc(CODEC_STORED_MAX);
    }
    if (e && e->ctx)
        ZSTD_CCtx_setParameter(e->ctx, ZSTD_c_compressionLevel, level);
    if (!e || !e->ctx || !e->shuffled || !e->frame) {
        codec_encoder_free(e);
        return tp_fail(err, TP_E_NOMEM, "no memory to compress");
    }
    *out = e;
    return TP_OK;
}

void codec_encoder_free(struct codec_encoder *e)
{
    if (!e)
        return;
    ZSTD_freeCCtx(e->ctx);
    free(e->shuffled);
    free(e->frame);
    free(e);
}

int64_t codec_encoder_bytes(int level, int64_t chunk_bytes)
{
    /* ZSTD_sizeof_CCtx after a chunk of 4 MiB, libzstd 1.5.4, rounded up */
    int64_t context = level <= 3 ? 4 : level <= 6 ? 9 : level <= 8 ? 12 : level <= 11 ? 30 : 70;

    return (context << 20) + chunk_bytes + codec_stored_bound(chunk_bytes);
}

/* Compress n bytes into e->frame. Shuffled bytes come in `planes` of equal length, of which each
 * has frequencies of its own: a block of the frame ends with each plane, because blocks have
 * separate codes. In planes of mantissas, short matches cost more than they save. Returns the
 * frame's length; 0: libzstd has no memory. */
static size_t compress(struct codec_encoder *e, const unsigned char *data, size_t n, int planes)
{
    ZSTD_outBuffer out = { e->frame, (size_t)codec_stored_bound((int64_t)n), 0 };
    size_t left = 0;

    ZSTD_CCtx_reset(e->ctx, ZSTD_reset_session_only);
    ZSTD_CCtx_setParameter(e->ctx, ZSTD_c_minMatch, planes > 1 ? PLANE_MATCH : 0);
    ZSTD_CCtx_setPledgedSrcSize(e->ctx, n);
    for (int i = 0; i < planes && left == 0; i++) {
        ZSTD_inBuffer in = { data + (size_t)i * (n / (size_t)planes), n / (size_t)planes, 0 };

        left = ZSTD_compressStream2(e->ctx, &out, &in, i < planes - 1 ? ZSTD_e_flush : ZSTD_e_end);
    }
    return left ? 0 : out.pos; /* an error is not 0 either */
}

/* Whether a part of the chunk becomes smaller when it is shuffled first. */
static bool shuffle_helps(struct codec_encoder *e, const struct codec_chunk *c)
{
    const int64_t elem = c->elem_bytes;
    int64_t n = c->n_bytes / SAMPLE_PART;
    const unsigned char *data;
    size_t plain, shuffled;

    if (elem == 1)
        return false;
    if (n > SAMPLE_BYTES)
        n = SAMPLE_BYTES;
    if (n < SAMPLE_BYTES_MIN)
        n = c->n_bytes < SAMPLE_BYTES_MIN ? c->n_bytes : SAMPLE_BYTES_MIN;
    n = n / elem * elem;
    data = c->data + (c->n_bytes - n) / 2 / elem * elem;
    plain = compress(e, data, (size_t)n, 1);
    byte_shuffle(e->shuffled, data, n / elem, (int)elem);
    shuffled = compress(e, e->shuffled, (size_t)n, (int)elem);
    return shuffled < plain;
}

tp_status codec_encode(struct codec_stored *out, struct codec_encoder *e,
                       const struct codec_chunk *chunk, struct tp_err *err)
{
    const int64_t n = chunk->n_bytes, most = chunk->always ? INT64_MAX : n - n / SAVING - 1;
    const bool shuffle = shuffle_helps(e, chunk);
    size_t size;

    if (shuffle)
        byte_shuffle(e->shuffled, chunk->data, n / chunk->elem_bytes, chunk->elem_bytes);
    size = compress(e, shuffle ? e->shuffled : chunk->data, (size_t)n,
                    shuffle ? chunk->elem_bytes : 1);
    if (size == 0)
        return tp_fail(err, TP_E_NOMEM, "no memory to compress at level %d", e->level);
    *out = (struct codec_stored){ CODEC_RAW, n };
    if ((int64_t)size > most)
        return TP_OK;
    memcpy(chunk->data, e->frame, size);
    *out = (struct codec_stored){ shuffle ? CODEC_SHUFFLED_ZSTD : CODEC_ZSTD, (int64_t)size };
    return TP_OK;
}

/* ---- decoding ---- */

struct codec_decoder {
    ZSTD_DCtx *ctx;
    unsigned char *input;   /* CODEC_STORED_MAX */
    unsigned char *decoded; /* CODEC_RAW_MAX */
};

tp_status codec_decoder_new(struct codec_decoder **out, struct tp_err *err)
{
    struct codec_decoder *d = calloc(1, sizeof *d);

    if (d) {
        d->ctx = ZSTD_createDCtx();
        d->input = malloc(CODEC_STORED_MAX);
        d->decoded = malloc(CODEC_RAW_MAX);
    }
    if (!d || !d->ctx || !d->input || !d->decoded) {
        codec_decoder_free(d);
        return tp_fail(err, TP_E_NOMEM, "no memory to read compressed chunks");
    }
    *out = d;
    return TP_OK;
}

void codec_decoder_free(struct codec_decoder *d)
{
    if (!d)
        return;
    ZSTD_freeDCtx(d->ctx);
    free(d->input);
    free(d->decoded);
    free(d);
}

int64_t codec_decoder_bytes(int64_t chunk_bytes)
{
    return CONTEXT_BYTES + chunk_bytes + codec_stored_bound(chunk_bytes);
}

void *codec_decoder_input(struct codec_decoder *d)
{
    return d->input;
}

/* What is wrong with the frame before it is decoded. */
static const char *check_frame(const unsigned char *in, const struct codec_frame *f)
{
    static const unsigned char magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
    const size_t n = (size_t)f->stored_bytes;

    if (f->stored_bytes < 4 || f->stored_bytes > CODEC_STORED_MAX ||
        memcmp(in, magic, sizeof magic) != 0)
        return "is not a zstd frame";
    if (ZSTD_getDictID_fromFrame(in, n) != 0)
        return "is a zstd frame that needs a dictionary";
    if (ZSTD_getFrameContentSize(in, n) != (unsigned long long)f->frame_bytes)
        return "is a zstd frame that does not state the length of the chunk";
    if (ZSTD_findFrameCompressedSize(in, n) != n)
        return "is not one whole zstd frame";
    return NULL;
}

static bool all_zero(const unsigned char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* Take the chunk out of the decoded frame. */
static bool unpack(const struct codec_decoder *d, const struct codec_frame *f, unsigned char *out)
{
    const int elem = f->codec == CODEC_SHUFFLED_ZSTD ? f->elem_bytes : 1;
    const int64_t n = f->raw_bytes / elem, all = f->frame_bytes / elem;

    byte_unshuffle(out, d->decoded, n, all, elem);
    for (int j = 0; j < elem; j++)
        if (!all_zero(d->decoded + j * all + n, all - n))
            return false;
    return true;
}

const char *codec_decode(struct codec_decoder *d, const struct codec_frame *f, void *out)
{
    const bool whole = f->codec == CODEC_ZSTD && f->frame_bytes == f->raw_bytes;
    const char *bad = check_frame(d->input, f);
    size_t size;

    if (bad)
        return bad;
    size = ZSTD_decompressDCtx(d->ctx, whole ? out : d->decoded, (size_t)f->frame_bytes, d->input,
                               (size_t)f->stored_bytes);
    if (ZSTD_isError(size) || size != (size_t)f->frame_bytes)
        return "is a zstd frame that cannot be decoded";
    if (!whole && !unpack(d, f, out))
        return "has bytes after its end that are not zero";
    return NULL;
}
