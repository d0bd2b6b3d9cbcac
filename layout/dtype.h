/*
 * layout/dtype.h - the types of tensor elements.
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

/* Bytes of one element; 0 of DTYPE_COUNT, which stands for a type that is not read. */
int dtype_bytes(enum dtype t);

/* The name in manifests and messages: "f32", "bf16", ... */
const char *dtype_name(enum dtype t);

/* The name in safetensors headers: "F32", "BF16", ... */
const char *dtype_safetensors(enum dtype t);

/* Read a name: f32, fp32, float32, bf16, bfloat16, ..., in any case. False: it is unknown. */
bool dtype_parse(enum dtype *t, const char *text);

/* Whether it is a floating-point type, so that casts are possible. */
bool dtype_is_float(enum dtype t);

#endif
