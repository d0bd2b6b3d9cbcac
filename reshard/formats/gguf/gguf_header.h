/*
 * reshard/formats/gguf/gguf_header.h - what a GGUF file has before the data of its tensors.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_HEADER_H
#define RESHARD_FORMATS_GGUF_GGUF_HEADER_H

#include "reshard/formats/gguf/gguf.h"
#include "reshard/formats/gguf/gguf_bytes.h"
#include "reshard/formats/gguf/gguf_model.h"
#include "reshard/formats/gguf/gguf_tensors.h"

/* Append the header: the keys of the model and of its tokenizer, and the list of tensors. Texts of
 * the tokenizer live in the arena. TP_E_USAGE: the model or the tokenizer has no form in GGUF. */
tp_status gguf_header_make(struct gguf_bytes *b, const struct gguf_tensors *tensors,
                           const struct gguf_arch *a, const struct export_contents *q,
                           struct arena *arena, struct tp_err *err);

/* Note what llama.cpp computes in another way, and its own converter does not mention. */
void gguf_header_notes(const struct export_contents *q);

#endif
