/* torch/torch_save.c - see torch/torch_save.h. What torch.save writes: torch/serialization.py. */
#include "torch/torch_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The classes of storages, and the names of types. */
static const struct {
    const char *storage, *dtype;
} types[DTYPE_COUNT] = {
    [DTYPE_F32] = { "FloatStorage", "float32" }, [DTYPE_BF16] = { "BFloat16Storage", "bfloat16" },
    [DTYPE_F16] = { "HalfStorage", "float16" },  [DTYPE_F64] = { "DoubleStorage", "float64" },
    [DTYPE_I64] = { "LongStorage", "int64" },    [DTYPE_I32] = { "IntStorage", "int32" },
    [DTYPE_U8] = { "ByteStorage", "uint8" },
};

enum { KEY_TEXT = 16 };

const char *torch_save_dtype(enum dtype dtype)
{
    return types[dtype].dtype;
}

void torch_save_begin(struct torch_save *s)
{
    *s = (struct torch_save){ 0 };
    pickle_write_begin(&s->pickle);
}

void torch_save_free(struct torch_save *s)
{
    pickle_writer_free(&s->pickle);
    zip_plan_free(&s->zip);
    arena_free(&s->arena);
    free(s->storages);
    *s = (struct torch_save){ 0 };
}

/* Add a storage; without memory the pickle fails. */
static int add_storage(struct torch_save *s, int64_t bytes)
{
    if (s->n == s->room) {
        const int room = s->room ? 2 * s->room : 8;
        struct torch_save_storage *grown = realloc(s->storages, (size_t)room * sizeof *grown);

        if (!grown) {
            s->pickle.failed = true;
            return 0;
        }
        s->storages = grown;
        s->room = room;
    }
    s->storages[s->n] = (struct torch_save_storage){ .bytes = bytes };
    return s->n++;
}

/* Push the storage, which the pickle names by a tuple. */
static void push_storage(struct torch_save *s, int storage, enum dtype dtype, int64_t elements)
{
    struct pickle_writer *w = &s->pickle;
    char key[KEY_TEXT];

    snprintf(key, sizeof key, "%d", storage);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_text(w, "storage");
    pickle_write_global(w, "torch", types[dtype].storage);
    pickle_write_text(w, key);
    pickle_write_text(w, "cpu");
    pickle_write_int(w, elements);
    pickle_write_op(w, PICKLE_OP_TUPLE);
    pickle_write_op(w, PICKLE_OP_PERSID);
}

int torch_save_tensor(struct torch_save *s, enum dtype dtype, int ndim, const int64_t *shape)
{
    struct pickle_writer *w = &s->pickle;
    int64_t stride[BOX_NDIM_MAX], step = 1, elements = 1;
    int storage;

    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape[d] > 1 ? shape[d] : 1; /* as torch: also without elements it is not 0 */
        elements *= shape[d];
    }
    storage = add_storage(s, elements * dtype_bytes(dtype));
    pickle_write_global(w, "torch._utils", "_rebuild_tensor_v2");
    pickle_write_op(w, PICKLE_OP_MARK);
    push_storage(s, storage, dtype, elements);
    pickle_write_int(w, 0);
    pickle_write_ints(w, shape, ndim);
    pickle_write_ints(w, stride, ndim);
    pickle_write_op(w, PICKLE_OP_FALSE); /* requires_grad */
    pickle_write_global(w, "collections", "OrderedDict");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_REDUCE);
    pickle_write_op(w, PICKLE_OP_TUPLE);
    pickle_write_op(w, PICKLE_OP_REDUCE);
    return storage;
}

enum dtype torch_save_number_dtype(int64_t value)
{
    return (double)(float)value == (double)value ? DTYPE_F32 : DTYPE_F64;
}

void torch_save_number(struct torch_save *s, int64_t value)
{
    const enum dtype dtype = torch_save_number_dtype(value);
    const int storage = torch_save_tensor(s, dtype, 0, NULL);
    const float f32 = (float)value;
    const double f64 = (double)value;

    if (s->pickle.failed)
        return;
    s->storages[storage].known = true;
    if (dtype == DTYPE_F32)
        memcpy(s->storages[storage].data, &f32, sizeof f32);
    else
        memcpy(s->storages[storage].data, &f64, sizeof f64);
}

void torch_save_range(struct torch_save *s, int ndim, const int64_t *shape)
{
    const int storage = torch_save_tensor(s, DTYPE_I32, ndim, shape);
    int64_t n = 1;
    int32_t *numbers;

    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    numbers = arena_array(&s->arena, (size_t)n, sizeof *numbers);
    if (!numbers)
        s->pickle.failed = true;
    if (s->pickle.failed)
        return;
    for (int64_t i = 0; i < n; i++)
        numbers[i] = (int32_t)i;
    s->storages[storage].more = (const char *)numbers;
}

void torch_save_zeros(struct torch_save *s, enum dtype dtype, int ndim, const int64_t *shape)
{
    const int storage = torch_save_tensor(s, dtype, ndim, shape);
    int64_t n = dtype_bytes(dtype);
    char *zeros;

    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    zeros = arena_array(&s->arena, (size_t)n, 1);
    if (!zeros)
        s->pickle.failed = true;
    if (!s->pickle.failed)
        s->storages[storage].more = zeros;
}

tp_status torch_save_place(struct torch_save *s, struct tp_err *err)
{
    static const char little[] = "little", version[] = "3\n";
    tp_status st;

    pickle_write_op(&s->pickle, PICKLE_OP_STOP);
    if (s->pickle.failed)
        return tp_fail(err, TP_E_NOMEM, "no memory for a pickle");
    TP_TRY(zip_plan_add(&s->zip, "archive/data.pkl", s->pickle.data, (int64_t)s->pickle.n, err));
    TP_TRY(zip_plan_add(&s->zip, "archive/byteorder", little, sizeof little - 1, err));
    s->first = s->zip.n;
    for (int i = 0; i < s->n; i++) {
        const struct torch_save_storage *t = &s->storages[i];
        const char *name = arena_printf(&s->arena, "archive/data/%d", i);

        if (!name)
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of tensors");
        TP_TRY(zip_plan_add(&s->zip, name,
                            t->more    ? t->more
                            : t->known ? t->data
                                       : NULL,
                            t->bytes, err));
    }
    TP_TRY(zip_plan_add(&s->zip, "archive/version", version, sizeof version - 1, err));
    zip_plan_place(&s->zip);
done:
    return st;
}

const struct zip_plan_member *torch_save_member(const struct torch_save *s, int storage)
{
    return &s->zip.members[s->first + storage];
}

int64_t torch_save_bytes(const struct torch_save *s)
{
    return s->zip.size;
}

tp_status torch_save_write(const struct torch_save *s, int fd, const char *path, int64_t base,
                           struct tp_err *err)
{
    return zip_plan_write(&s->zip, fd, path, base, err);
}
