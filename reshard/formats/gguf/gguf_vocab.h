/*
 * reshard/formats/gguf/gguf_vocab.h - the tokenizer of a GGUF file, from Hugging Face's
 * tokenizer.json, or where there is none from SentencePiece's tokenizer.model.
 *
 * llama.cpp has code of its own for tokenizers: byte-level BPE ("gpt2"), where the file names the
 * rule by which text is cut into words, and BPE with byte fallback ("llama"), where it has a score
 * for each token.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_VOCAB_H
#define RESHARD_FORMATS_GGUF_GGUF_VOCAB_H

#include "core/arena.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/gguf/gguf_bytes.h"

/* Add the keys of the tokenizer in q->assets; without one, those of a model that has none, with a
 * note. TP_E_USAGE: it is none that llama.cpp knows. TP_E_CORRUPT: it does not fit the model. */
tp_status gguf_vocab_keys(struct gguf_bytes *b, const struct export_contents *q,
                          struct arena *arena, struct tp_err *err);

#endif
