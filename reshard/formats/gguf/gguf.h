/*
 * reshard/formats/gguf/gguf.h - writes model.gguf, the file that llama.cpp loads: weights in
 * llama.cpp's names and order, the metadata of the model, and its tokenizer.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_H
#define RESHARD_FORMATS_GGUF_GGUF_H

#include "reshard/formats/export_writer.h"
#include "reshard/formats/upload_set.h"

/* A row of reshard/formats/export_format.c. TP_E_USAGE: llama.cpp does not compute the model, or
 * does not know its tokenizer. */
tp_status gguf_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err);
tp_status gguf_export_send(struct export_writer *w, struct upload_set *to, struct tp_err *err);
tp_status gguf_export_finish(struct export_writer *w, struct tp_err *err);
void gguf_export_close(struct export_writer *w);

#endif
