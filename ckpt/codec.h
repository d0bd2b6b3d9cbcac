/*
 * ckpt/codec.h - how the bytes of a chunk are stored: as they are, or as a zstd frame, often after
 * a byte shuffle (first the lowest bytes of all elements, then the next ones, ...). The HDF5
 * filters shuffle and zstd (registered id 32015) do the same. docs/FORMAT.md specifies it.
 *
 * Frames of anyone are decoded: a frame must have the length that the index says, and exactly that
 * many bytes in it, before anything is decoded. No memory depends on what a frame says.
 */
#ifndef CKPT_CODEC_H
#define CKPT_CODEC_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* The numbers are those of the file. */
enum codec_kind { CODEC_RAW, CODEC_ZSTD, CODEC_SHUFFLED_ZSTD, CODECS };

enum {
    CODEC_RAW_MAX = 4 << 20,                                      /* of a chunk */
    CODEC_STORED_MAX = CODEC_RAW_MAX + (CODEC_RAW_MAX >> 8) + 64, /* of its frame */
    CODEC_LEVEL_DEFAULT = 1,                                      /* docs/PERFORMANCE.md says why */
    CODEC_LEVEL_MAX = 19,
};

/* Parse the argument of a --zstd option: a level from 1 to CODEC_LEVEL_MAX, or NULL or "" for the
 * default. TP_E_USAGE names the option. */
tp_status codec_parse_level(int *level, const char *flag, const char *text, struct tp_err *err);

/* The most bytes of the frame of n bytes. */
int64_t codec_stored_bound(int64_t n_bytes);

/* ---- encoding ---- */

struct codec_encoder;

/* An encoder, for one thread at a time. */
tp_status codec_encoder_new(struct codec_encoder **out, int level, struct tp_err *err);
void codec_encoder_free(struct codec_encoder *e);

/* Upper estimate of what an encoder makes resident with chunks of at most chunk_bytes. */
int64_t codec_encoder_bytes(int level, int64_t chunk_bytes);

struct codec_chunk {
    unsigned char *data; /* with room for codec_stored_bound(n_bytes) */
    int64_t n_bytes;     /* at most CODEC_RAW_MAX */
    int elem_bytes;
    bool always; /* store a frame also where it is no smaller */
};

/* How a chunk was stored. */
struct codec_stored {
    enum codec_kind codec;
    int64_t bytes;
};

/* Replace the chunk's data by what is stored. It stays as it is (CODEC_RAW) unless a frame saves at
 * least a thirty-second. The same data always give the same bytes with the same libzstd. */
tp_status codec_encode(struct codec_stored *out, struct codec_encoder *e,
                       const struct codec_chunk *chunk, struct tp_err *err);

/* ---- decoding ---- */

struct codec_decoder;

/* A decoder, for one thread at a time. */
tp_status codec_decoder_new(struct codec_decoder **out, struct tp_err *err);
void codec_decoder_free(struct codec_decoder *d);

/* Upper estimate of what a decoder makes resident with chunks of at most chunk_bytes. */
int64_t codec_decoder_bytes(int64_t chunk_bytes);

/* Where the stored bytes are read to: CODEC_STORED_MAX bytes. */
void *codec_decoder_input(struct codec_decoder *d);

struct codec_frame {
    enum codec_kind codec; /* not CODEC_RAW */
    int64_t stored_bytes;  /* of the input */
    int64_t frame_bytes;   /* that must be in the frame; the bytes from raw_bytes on are zero */
    int64_t raw_bytes;     /* of the chunk; a multiple of elem_bytes, as frame_bytes is */
    int elem_bytes;
};

/* Decode the input to `out`, which has room for raw_bytes. Returns NULL, or what is wrong with the
 * frame, as the rest of a sentence. */
const char *codec_decode(struct codec_decoder *d, const struct codec_frame *f, void *out);

#endif
