/* tests/fuzz/safetensors_index.c - model.safetensors.index.json. The names that are accepted must
 * not lead to another folder. */
#include "reshard/formats/safetensors/safetensors_index.h"
#include "core/file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors_files files = { .n = 0 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };

    fuzz_write("index", data, size);
    fuzz_check_error(safetensors_index_read(&files, fuzz_path("index"), &arena, &err), &err);
    for (int i = 0; i < files.n; i++)
        fuzz_must(file_name_is_plain(files.names[i]) &&
                      (i == 0 || strcmp(files.names[i - 1], files.names[i]) < 0),
                  "a name that is not plain, or out of order");
    arena_free(&arena);
    return 0;
}
