/*
 * reshard/formats/safetensors/quantized.h - weights that safetensors files have in fewer bits, with
 * scales; they are read as bf16.
 *
 * Names are those of DeepSeek-V3, transformers (finegrained_fp8, fbgemm_fp8, mxfp4) and
 * compressed-tensors: NAME in FP8 and NAME_scale_inv or NAME_scale; NAME_blocks in MXFP4 and
 * NAME_scales.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_QUANTIZED_H
#define RESHARD_FORMATS_SAFETENSORS_QUANTIZED_H

#include "core/arena.h"
#include "core/err.h"
#include "reshard/formats/pieces/file_table.h"
#include "reshard/formats/safetensors/mxfp4.h"
#include "reshard/formats/safetensors/safetensors_header.h"

enum quantized_form { QUANTIZED_NOT, QUANTIZED_FP8, QUANTIZED_MXFP4 };

struct quantized {
    struct safetensors_tensor weight; /* what it is read as */
    enum quantized_form form;
    struct file_table_range elements, scales; /* all that is stored */
    enum fp8_type scale_type; /* how scales are stored: as this, or, if it is FP8_NONE, as
                                 scale_dtype */
    enum dtype scale_dtype;
    struct fp8_grid grid;       /* of FP8 */
    struct mxfp4_blocks blocks; /* of MXFP4 */
};

/* The form of a tensor, if it has scales. */
enum quantized_form quantized_form_of(const struct safetensors_entry *e);

/* The name that the scales of a tensor of this form may have, in the arena; i: 0, 1, ... NULL:
 * there are no more, or no memory. */
const char *quantized_scales_name(enum quantized_form form, const char *name, int i,
                                  struct arena *arena);

/* A weight from what is stored of it. Its name is in the arena. TP_E_CORRUPT: the scales do not
 * divide it, or have a type that is not supported. */
tp_status quantized_make(struct quantized *q, const struct safetensors_entry *elements,
                         const struct file_table_range *element_bytes,
                         const struct safetensors_entry *scales,
                         const struct file_table_range *scale_bytes, struct arena *arena,
                         struct tp_err *err);

/* Read a run of the weight as bf16. Thread safe. */
tp_status quantized_read(const struct quantized *q, const struct box *run, void *buf,
                         struct tp_err *err);

/* What is stored of a run will be read. */
void quantized_will_read(const struct quantized *q, const struct box *run);

#endif
