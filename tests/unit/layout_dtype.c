/* tests/unit/layout_dtype.c - all usual names of types are read. */
#include "layout/dtype.h"

#include <criterion/criterion.h>

Test(dtype, names_are_read_back_in_any_case)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype t = DTYPE_COUNT;

        cr_expect(dtype_parse(&t, dtype_name((enum dtype)i)) && (int)t == i);
        t = DTYPE_COUNT;
        cr_expect(dtype_parse(&t, dtype_safetensors((enum dtype)i)) && (int)t == i);
    }
}

Test(dtype, reads_the_names_of_pytorch)
{
    static const struct {
        const char *name;
        enum dtype dtype;
        int bytes;
    } names[] = {
        { "fp32", DTYPE_F32, 4 },  { "float32", DTYPE_F32, 4 }, { "bfloat16", DTYPE_BF16, 2 },
        { "fp16", DTYPE_F16, 2 },  { "float64", DTYPE_F64, 8 }, { "int64", DTYPE_I64, 8 },
        { "int32", DTYPE_I32, 4 }, { "uint8", DTYPE_U8, 1 },
    };
    enum dtype t = DTYPE_U8;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cr_expect(dtype_parse(&t, names[i].name) && t == names[i].dtype, "%s", names[i].name);
        cr_expect_eq(dtype_bytes(t), names[i].bytes);
        cr_expect_eq(dtype_is_float(t), names[i].name[0] == 'f' || names[i].name[0] == 'b');
    }
    cr_expect_not(dtype_parse(&t, "float8"));
    cr_expect_not(dtype_parse(&t, ""));
    cr_expect_eq(dtype_bytes(DTYPE_COUNT), 0);
}
