/*
 * reshard/formats/gguf/gguf_tokenizer.h - a tokenizer.json of Hugging Face's tokenizers, as far as
 * llama.cpp needs it.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_TOKENIZER_H
#define RESHARD_FORMATS_GGUF_GGUF_TOKENIZER_H

#include "core/arena.h"
#include "core/err.h"
#include "reshard/formats/gguf/gguf_bytes.h"

/* llama.cpp's types of tokens. */
enum gguf_token {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};

struct gguf_tokenizer {
    bool bytes;           /* byte-level BPE; else BPE with byte fallback */
    const char *pre;      /* llama.cpp's name of the rule that cuts text into words */
    const char **tokens;  /* [n]; NULL: the model has a row for it, the tokenizer no token */
    unsigned char *types; /* [n] enum gguf_token */
    float *scores;        /* [n] of BPE with byte fallback: minus the rank of its merge, or what
                             SentencePiece has */
    int64_t n;
    struct gguf_bytes merges; /* "a b" as strings of GGUF */
    int64_t n_merges;
    bool space_prefix;  /* a space is put before a text */
    int64_t first;      /* the token that is put before a text; -1: none */
    const char *beyond; /* an added token for which the model has no row; NULL: there is none */
};

/* An empty one for a model of `vocab` rows, to be filled from `path`. TP_E_NOMEM. */
tp_status gguf_tokenizer_make(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                              struct arena *arena, struct tp_err *err);

/* Read the file for a model of `vocab` rows. Free also after a failure. TP_E_USAGE: llama.cpp has
 * no such tokenizer. TP_E_CORRUPT: it is damaged, or its vocabulary goes beyond the model's
 * rows. */
tp_status gguf_tokenizer_read(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                              struct arena *arena, struct tp_err *err);
void gguf_tokenizer_free(struct gguf_tokenizer *t);

/* Whether an added token has no row in the model, as Gemma 3's <image_soft_token>, which stands for
 * what another part of the model computes. It is left out, and noted. */
bool gguf_tokenizer_is_beyond(struct gguf_tokenizer *t, int64_t number, const char *text,
                              struct arena *arena);

/* The token of a text; -1: there is none. */
int64_t gguf_tokenizer_find(const struct gguf_tokenizer *t, const char *text);

#endif
