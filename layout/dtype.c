/* layout/dtype.c - see layout/dtype.h. */
#include "layout/dtype.h"

#include <stddef.h>
#include <strings.h>

static const struct {
    int bytes;
    bool is_float;
    const char *name, *safetensors, *aliases[3];
} types[DTYPE_COUNT + 1] = {
    [DTYPE_F32] = { 4, true, "f32", "F32", { "fp32", "float32" } },
    [DTYPE_BF16] = { 2, true, "bf16", "BF16", { "bfloat16" } },
    [DTYPE_F16] = { 2, true, "f16", "F16", { "fp16", "float16" } },
    [DTYPE_F64] = { 8, true, "f64", "F64", { "fp64", "float64" } },
    [DTYPE_I64] = { 8, false, "i64", "I64", { "int64" } },
    [DTYPE_I32] = { 4, false, "i32", "I32", { "int32" } },
    [DTYPE_U8] = { 1, false, "u8", "U8", { "uint8" } },
};

int dtype_bytes(enum dtype t)
{
    return types[t].bytes;
}

const char *dtype_name(enum dtype t)
{
    return types[t].name;
}

const char *dtype_safetensors(enum dtype t)
{
    return types[t].safetensors;
}

bool dtype_is_float(enum dtype t)
{
    return types[t].is_float;
}

bool dtype_parse(enum dtype *t, const char *text)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        bool found = strcasecmp(text, types[i].name) == 0;

        for (int j = 0; j < 3 && types[i].aliases[j]; j++)
            found = found || strcasecmp(text, types[i].aliases[j]) == 0;
        if (found) {
            *t = (enum dtype)i;
            return true;
        }
    }
    return false;
}
