/* tests/fuzz/torch_file.c - a file of torch.save: the first byte of the input says whether the rest
 * is the whole archive, or the pickle of an archive with one storage of 64 bytes. Every tensor that
 * is accepted lies in its storage. */
#include <sys/mman.h>

#include "tests/fuzz/fuzz.h"
#include "torch/torch_tensor.h"

enum { STORAGE = 64, DEPTH = 200 };

static void check_tensor(const struct torch_file *f, const struct pickle_value *v)
{
    struct torch_tensor t;
    struct tp_err err = { 0 };
    int64_t last = 0, elements = 1;
    tp_status st = torch_tensor_read(&t, f, v, "x", &err);

    fuzz_check_error(st, &err);
    for (int d = 0; d < t.ndim && st == TP_OK; d++) {
        elements *= t.shape[d];
        last += t.shape[d] ? (t.shape[d] - 1) * t.stride[d] : 0;
    }
    if (st == TP_OK && t.dtype != DTYPE_COUNT && elements > 0)
        fuzz_must(t.begin >= t.storage->begin && elements <= t.storage->size &&
                      t.begin + (last + 1) * dtype_bytes(t.dtype) <=
                          t.storage->begin + t.storage->size,
                  "a tensor outside its storage");
}

/* Visit values, each at most a few times: shared ones would be visited without end. */
static void visit(const struct torch_file *f, const struct pickle_value *v, int depth, int *left)
{
    fuzz_must(depth < DEPTH, "values that nest too deeply");
    if (!v || --*left < 0)
        return;
    if (torch_tensor_is(v))
        check_tensor(f, v);
    for (int64_t i = 0; i < pickle_count(v); i++)
        visit(f, pickle_item(v, i), depth + 1, left);
    for (int64_t i = 0; i < pickle_entries(v); i++) {
        const char *key = pickle_text(pickle_key(v, i));

        fuzz_must(!key || pickle_get(v, key) != NULL, "a key that is not found");
        visit(f, pickle_entry(v, i), depth + 1, left);
    }
    if (pickle_is(v, PICKLE_OBJECT)) {
        visit(f, v->object.args, depth + 1, left);
        visit(f, v->object.state, depth + 1, left);
    }
}

static void read_pickle(const uint8_t *data, size_t size, struct arena *arena)
{
    struct zip_member member = { .name = "archive/data/0", .size = STORAGE };
    struct torch_file f = { .zip = { { OBJECT_NONE, "the file", 0, STORAGE }, &member, 1 },
                            .prefix = "archive/" };
    struct tp_err err = { 0 };
    int left = 5000;
    tp_status st = pickle_read(&f.root, data, size, "the file", arena, &err);

    fuzz_check_error(st, &err);
    fuzz_must(arena->used_bytes <= 200 * size + 1024, "memory is not bounded");
    if (st == TP_OK)
        visit(&f, f.root, 0, &left);
}

static void read_archive(const uint8_t *data, size_t size, struct arena *arena)
{
    struct file_part part = { object_of_file(memfd_create("file", MFD_CLOEXEC)), "the file", 0,
                              (int64_t)size };
    struct torch_file f;
    struct tp_err err = { 0 };
    int left = 5000;
    tp_status st;

    fuzz_must(write(part.object.fd, data, size) == (ssize_t)size, "no memory");
    st = torch_file_read(&f, &part, arena, &err);
    fuzz_check_error(st, &err);
    if (st == TP_OK)
        visit(&f, f.root, 0, &left);
    for (int i = 0; i < f.zip.n && st == TP_OK; i++)
        (void)zip_check(&f.zip, &f.zip.members[i], &err);
    close(part.object.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena = { 0 };

    if (fuzz_take(&data, &size) & 1)
        read_pickle(data, size, &arena);
    else
        read_archive(data, size, &arena);
    arena_free(&arena);
    return 0;
}
