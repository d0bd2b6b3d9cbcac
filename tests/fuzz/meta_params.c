/* tests/fuzz/meta_params.c - params.json of Meta's checkpoints: the input is the file. */
#include "reshard/formats/meta/meta_params.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct meta_params p;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    tp_status st;

    fuzz_write("params.json", data, size);
    st = meta_params_read(&p, fuzz_dir(), &arena, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK)
        fuzz_must(p.dim > 0 && p.layers > 0 && p.heads > 0 && p.head_dim > 0 &&
                      meta_params_ffn(&p) >= 0,
                  "sizes that no model has");
    arena_free(&arena);
    return 0;
}
