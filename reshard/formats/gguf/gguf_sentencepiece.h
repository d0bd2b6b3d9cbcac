/*
 * reshard/formats/gguf/gguf_sentencepiece.h - a tokenizer.model of SentencePiece (Kudo and
 * Richardson 2018), as far as llama.cpp needs it. The file is a Protocol Buffers message,
 * sentencepiece_model.proto's ModelProto; fields that are not needed are passed over.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_SENTENCEPIECE_H
#define RESHARD_FORMATS_GGUF_GGUF_SENTENCEPIECE_H

#include <jansson.h>

#include "core/arena.h"
#include "core/err.h"
#include "reshard/formats/gguf/gguf_tokenizer.h"

/* Read the file for a model of `vocab` rows. Free by gguf_tokenizer_free, also after a failure.
 * TP_E_USAGE: its pieces are not those of BPE with byte fallback. TP_E_CORRUPT: it is damaged, or
 * has pieces beyond the model's rows. */
tp_status gguf_sentencepiece_read(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                                  struct arena *arena, struct tp_err *err);

/* Add the tokens that Hugging Face keeps beside the file: added_tokens.json (number by text), and
 * added_tokens_decoder of tokenizer_config.json (by number: content, special). NULL: there is none.
 * Errors as above; path is named in them. */
tp_status gguf_sentencepiece_add(struct gguf_tokenizer *t, const char *path, json_t *added,
                                 json_t *decoder, struct arena *arena, struct tp_err *err);

#endif
