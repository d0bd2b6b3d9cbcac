/* tests/fuzz/token_file.c - Megatron-LM's token files: the input is a byte that says how long the
 * .bin is, and the .idx. Of what is accepted, every token is read. */
#include "trainer/data/token_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t tokens[256] = { 1, 2, 3, 255, 127, 128, 255, 255 };
    size_t bytes = fuzz_take(&data, &size);
    struct token_file t;
    struct tp_err err = { 0 };
    tp_status st;
    int64_t out[64];

    fuzz_write("data.bin", tokens, bytes);
    fuzz_write("data.idx", data, size);
    st = token_file_open(&t, fuzz_path("data"), &err);
    fuzz_check_error(st, &err);
    if (st)
        return 0;
    for (int64_t i = 0; i < t.n; i += 64)
        fuzz_must(token_file_read(&t, i, t.n - i < 64 ? t.n - i : 64, out, &err) == TP_OK, err.msg);
    token_file_close(&t);
    return 0;
}
