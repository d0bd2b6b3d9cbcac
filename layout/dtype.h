/*
 * layout/dtype.h - element types, named as safetensors and PyTorch users know them.
 */
#ifndef LAYOUT_DTYPE_H
#define LAYOUT_DTYPE_H

#include <stdbool.h>

enum dtype {
    DTYPE_F32,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_U8,
    DTYPE_COUNT,
};

/* Bytes of one element. */
int dtype_bytes(enum dtype t);

/* "f32", "bf16", ...: what manifests and messages say. */
const char *dtype_name(enum dtype t);

/* "F32", "BF16", ...: what safetensors headers say. */
const char *dtype_safetensors(enum dtype t);

/* Read any of: f32 fp32 float32 F32, bf16 bfloat16, f16 fp16 float16, ... False: none of them. */
bool dtype_parse(enum dtype *t, const char *text);

/* Whether elements are floating point, so that a cast means something. */
bool dtype_is_float(enum dtype t);

#endif
