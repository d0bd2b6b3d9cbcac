/*
 * tests/unit/ckpt_codec.c - chunks come back from their frames, and frames that are not what the
 * index says are refused before they are decoded.
 *
 * covers: ckpt/codec ckpt/byte_shuffle
 */
#include "ckpt/codec.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "ckpt/byte_shuffle.h"
#include "tests/unit/random.h"

/* ---- the shuffle ---- */

Test(byte_shuffle, is_that_of_hdf5_and_has_an_inverse)
{
    struct rng r = rng_start("byte_shuffle");
    static unsigned char in[8 * 5000], out[sizeof in], back[sizeof in];

    for (int elem = 1; elem <= 8; elem *= 2)
        for (int round = 0; round < 20; round++) {
            const int64_t n = rng_int(&r, 0, 5000), first = rng_int(&r, 0, n);

            for (int64_t i = 0; i < n * elem; i++)
                in[i] = (unsigned char)rng_next(&r);
            byte_shuffle(out, in, n, elem);
            for (int64_t i = 0; i < n; i++)
                for (int j = 0; j < elem; j++)
                    cr_assert_eq(out[j * n + i], in[i * elem + j]);
            byte_unshuffle(back, out, first, n, elem);
            cr_assert_eq(memcmp(back, in, (size_t)(first * elem)), 0);
        }
}

/* ---- round trips ---- */

/* Numbers as weights have them: random mantissas, few exponents. */
static void fill_numbers(unsigned char *data, int64_t n_bytes, int elem, struct rng *r)
{
    for (int64_t i = 0; i < n_bytes; i++) {
        data[i] = (unsigned char)rng_next(r);
        if (i % elem == elem - 1)
            data[i] = (unsigned char)(0x3c + rng_next(r) % 3);
    }
}

static tp_status encode(struct codec_stored *out, int level, unsigned char *data, int64_t n,
                        int elem, bool always)
{
    const struct codec_chunk chunk = { data, n, elem, always };
    struct codec_encoder *e = NULL;
    struct tp_err err = { 0 };
    tp_status st = codec_encoder_new(&e, level, &err);

    if (!st)
        st = codec_encode(out, e, &chunk, &err);
    codec_encoder_free(e);
    return st;
}

/* Decode `stored` bytes; *out has room for raw bytes. */
static const char *decode(struct codec_decoder *d, const void *in, struct codec_frame f, void *out)
{
    memcpy(codec_decoder_input(d), in, (size_t)f.stored_bytes);
    return codec_decode(d, &f, out);
}

Test(codec, chunks_come_back)
{
    struct rng r = rng_start("codec/round trip");
    struct codec_decoder *d = NULL;
    struct tp_err err = { 0 };

    cr_assert_eq(codec_decoder_new(&d, &err), TP_OK);
    for (int round = 0; round < 60; round++) {
        const int elem = 1 << rng_int(&r, 0, 3);
        const int64_t all = rng_int(&r, 1, 20000) * elem;
        const int64_t raw = rng_int(&r, 0, 1) ? all : rng_int(&r, 1, all / elem) * elem;
        unsigned char *data = malloc((size_t)codec_stored_bound(all)), *copy = malloc((size_t)all);
        unsigned char *back = malloc((size_t)raw);
        struct codec_stored s;

        fill_numbers(data, all, elem, &r);
        memset(data + raw, 0, (size_t)(all - raw));
        memcpy(copy, data, (size_t)all);
        cr_assert_eq(encode(&s, (int)rng_int(&r, 1, 5), data, all, elem, raw < all), TP_OK);
        if (s.codec == CODEC_RAW) {
            cr_assert_eq(raw, all, "a chunk with zeros after it must be a frame");
            cr_assert(s.bytes == all && memcmp(data, copy, (size_t)all) == 0);
        } else {
            const struct codec_frame f = { s.codec, s.bytes, all, raw, elem };

            cr_assert_null(decode(d, data, f, back));
            cr_assert_eq(memcmp(back, copy, (size_t)raw), 0);
        }
        free(data);
        free(copy);
        free(back);
    }
    codec_decoder_free(d);
}

Test(codec, a_shuffle_is_used_where_it_helps_and_noise_stays_raw)
{
    enum { N = 1 << 20 };
    struct rng r = rng_start("codec/choice");
    unsigned char *data = malloc((size_t)codec_stored_bound(N));
    struct codec_stored s;

    fill_numbers(data, N, 4, &r);
    cr_assert_eq(encode(&s, 1, data, N, 4, false), TP_OK);
    cr_assert_eq(s.codec, CODEC_SHUFFLED_ZSTD);
    cr_assert_lt(s.bytes, N * 85 / 100);
    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)rng_next(&r);
    cr_assert_eq(encode(&s, 1, data, N, 4, false), TP_OK);
    cr_assert(s.codec == CODEC_RAW && s.bytes == N);
    for (int i = 0; i < N; i++)
        data[i] = (unsigned char)"the same text again and again "[i % 30];
    cr_assert_eq(encode(&s, 1, data, N, 4, false), TP_OK);
    cr_assert_eq(s.codec, CODEC_ZSTD);
    free(data);
}

/* ---- hostile frames ---- */

enum { CHUNK = 40000 };

struct hostile {
    struct codec_decoder *d;
    unsigned char frame[2 * CHUNK], out[CHUNK];
    size_t n;
};

/* A good frame of text, made by the options of zstd. */
static void make_frame(struct hostile *h, bool with_size, size_t n)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    unsigned char *text = malloc(n);

    for (size_t i = 0; i < n; i++)
        text[i] = (unsigned char)(i / 7);
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, with_size);
    h->n = ZSTD_compress2(c, h->frame, sizeof h->frame, text, n);
    cr_assert_not(ZSTD_isError(h->n));
    ZSTD_freeCCtx(c);
    free(text);
}

static const char *try(struct hostile *h, enum codec_kind codec)
{
    const struct codec_frame f = { codec, (int64_t)h->n, CHUNK, CHUNK, 4 };

    return decode(h->d, h->frame, f, h->out);
}

#define REFUSED(h, text)                                                             \
    do {                                                                             \
        const char *why_ = try(h, CODEC_ZSTD);                                       \
        cr_expect(why_ &&strstr(why_, text), "%s", why_ ? why_ : "it was accepted"); \
    } while (0)

Test(codec, frames_that_are_not_what_the_index_says_are_refused)
{
    static const unsigned char skippable[12] = { 0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0 };
    struct hostile *h = calloc(1, sizeof *h);
    struct tp_err err = { 0 };

    cr_assert_eq(codec_decoder_new(&h->d, &err), TP_OK);
    make_frame(h, true, CHUNK);
    cr_expect_null(try(h, CODEC_ZSTD));
    cr_expect_null(try(h, CODEC_SHUFFLED_ZSTD));
    h->n--; /* truncated */
    REFUSED(h, "not one whole");
    h->n += 2; /* a byte after it */
    REFUSED(h, "not one whole");
    make_frame(h, true, CHUNK);
    memcpy(h->frame + h->n, skippable, sizeof skippable);
    h->n += sizeof skippable;
    REFUSED(h, "not one whole");
    memcpy(h->frame, skippable, sizeof skippable);
    h->n = sizeof skippable;
    REFUSED(h, "is not a zstd frame");
    h->n = 3;
    REFUSED(h, "is not a zstd frame");
    make_frame(h, false, CHUNK);
    REFUSED(h, "state the length");
    make_frame(h, true, CHUNK - 1);
    REFUSED(h, "state the length");
    make_frame(h, true, (size_t)1 << 23); /* a bomb: 8 MiB of few bytes */
    cr_assert_lt(h->n, CHUNK);
    REFUSED(h, "state the length");
    codec_decoder_free(h->d);
    free(h);
}

Test(codec, a_frame_that_needs_a_dictionary_is_refused)
{
    struct hostile *h = calloc(1, sizeof *h);
    struct tp_err err = { 0 };

    cr_assert_eq(codec_decoder_new(&h->d, &err), TP_OK);
    make_frame(h, true, CHUNK);
    /* set the flag of a dictionary id of one byte, and insert it after the descriptor */
    memmove(h->frame + 6, h->frame + 5, h->n - 5);
    h->frame[4] |= 1;
    if (!(h->frame[4] & 0x20)) { /* it has a window descriptor: the id is after it */
        h->frame[5] = h->frame[6];
        h->frame[6] = 9;
    } else {
        h->frame[5] = 9;
    }
    h->n++;
    REFUSED(h, "dictionary");
    codec_decoder_free(h->d);
    free(h);
}

Test(codec, bytes_after_the_chunk_must_be_zero)
{
    struct rng r = rng_start("codec/padding");
    struct hostile *h = calloc(1, sizeof *h);
    unsigned char *data = malloc((size_t)codec_stored_bound(CHUNK));
    struct tp_err err = { 0 };

    cr_assert_eq(codec_decoder_new(&h->d, &err), TP_OK);
    for (int elem = 1; elem <= 4; elem *= 4)
        for (int bad = 0; bad <= 1; bad++) {
            struct codec_stored s;
            struct codec_frame f;
            const char *why;

            fill_numbers(data, CHUNK, elem, &r);
            memset(data + CHUNK / 2, 0, CHUNK / 2);
            if (bad)
                data[rng_int(&r, CHUNK / 2, CHUNK - 1)] = 1;
            cr_assert_eq(encode(&s, 1, data, CHUNK, elem, true), TP_OK);
            f = (struct codec_frame){ s.codec, s.bytes, CHUNK, CHUNK / 2, elem };
            why = decode(h->d, data, f, h->out);
            if (bad)
                cr_expect(why && strstr(why, "not zero"));
            else
                cr_expect_null(why);
        }
    free(data);
    codec_decoder_free(h->d);
    free(h);
}

Test(codec, damaged_frames_never_crash)
{
    struct rng r = rng_start("codec/damage");
    struct hostile *h = calloc(1, sizeof *h);
    struct tp_err err = { 0 };

    cr_assert_eq(codec_decoder_new(&h->d, &err), TP_OK);
    for (int round = 0; round < 3000; round++) {
        if (round % 50 == 0)
            make_frame(h, true, CHUNK);
        h->frame[rng_int(&r, 0, (int64_t)h->n - 1)] ^= (unsigned char)(1 << rng_int(&r, 0, 7));
        try(h, round % 2 ? CODEC_ZSTD : CODEC_SHUFFLED_ZSTD);
    }
    codec_decoder_free(h->d);
    free(h);
}

Test(codec, levels_are_checked)
{
    struct tp_err err = { 0 };
    int level = -1;

    cr_expect(codec_parse_level(&level, "--zstd", NULL, &err) == TP_OK &&
              level == CODEC_LEVEL_DEFAULT);
    cr_expect(codec_parse_level(&level, "--zstd", "", &err) == TP_OK &&
              level == CODEC_LEVEL_DEFAULT);
    cr_expect(codec_parse_level(&level, "--zstd", "19", &err) == TP_OK && level == 19);
    for (int i = 0; i < 4; i++) {
        const char *bad[] = { "0", "20", "-1", "fast" };

        cr_expect_eq(codec_parse_level(&level, "--zstd", bad[i], &err), TP_E_USAGE);
        cr_expect(strstr(err.msg, "--zstd") != NULL);
    }
}
