/* tests/fuzz/safetensors_header.c - a safetensors file: the input is a byte that says how much data
 * follows the header, and the JSON of the header. */
#include <endian.h>
#include <sys/mman.h>

#include "reshard/formats/safetensors/safetensors_header.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t zeros[256];
    size_t extra = fuzz_take(&data, &size);
    uint64_t length = htole64(size);
    struct safetensors_header_file file = { object_of_file(memfd_create("header", MFD_CLOEXEC)),
                                            (int64_t)(sizeof length + size + extra), "the file" };
    struct safetensors_entry *entries = NULL;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    int n = 0;
    tp_status st;

    fuzz_must(write(file.object.fd, &length, sizeof length) == (ssize_t)sizeof length &&
                  write(file.object.fd, data, size) == (ssize_t)size &&
                  write(file.object.fd, zeros, extra) == (ssize_t)extra,
              "no memory");
    st = safetensors_header_read(&entries, &n, &file, &arena, &err);
    fuzz_check_error(st, &err);
    for (int i = 0; i < n && st == TP_OK; i++)
        fuzz_must(entries[i].begin >= 0 && entries[i].begin <= entries[i].end &&
                      entries[i].end <= file.size && entries[i].tensor.name[0] != 1,
                  "a tensor outside the file");
    close(file.object.fd);
    arena_free(&arena);
    return 0;
}
