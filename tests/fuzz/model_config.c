/* tests/fuzz/model_config.c - a model's config.json. The tensors of a small model that is accepted
 * are listed. */
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = { 0 };
    struct tensor *tensors;
    struct model m;
    struct tp_err err = { 0 };
    int n;
    tp_status st = model_config_parse(&m, (const char *)data, size, "config.json", &arena, &err);

    fuzz_check_error(st, &err);
    if (st == TP_OK && m.layers < 100)
        fuzz_check_error(model_params(&tensors, &n, &m, DTYPE_F32, &arena, &err), &err);
    arena_free(&arena);
    return 0;
}
