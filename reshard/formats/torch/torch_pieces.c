/* reshard/formats/torch/torch_pieces.c - see reshard/formats/torch/torch_pieces.h. */
#include "reshard/formats/torch/torch_pieces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARCHIVE "PK\3\4" /* its first bytes */

/* Go to the bytes of a file from `begin` on, `size` of them. */
static tp_status narrow(struct file_part *part, int64_t begin, int64_t size, struct tp_err *err)
{
    if (begin < 0 || begin > part->size || size > part->size - begin)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: is cut off: it should have %lld bytes from byte %lld on", part->path,
                       (long long)size, (long long)begin);
    part->begin = begin;
    part->size = size;
    return TP_OK;
}

tp_status torch_pieces_open(struct torch_pieces *out, struct piece_source *s, int file,
                            int64_t begin, int64_t size, struct tp_err *err)
{
    struct file_part part;
    tp_status st = TP_OK;

    *out = (struct torch_pieces){ .source = s, .file = file };
    out->arena.limit_bytes = piece_source_memory_left(s);
    st = file_table_use(piece_source_files(s), file, &part, err);
    if (st)
        return st;
    if (size >= 0)
        TP_TRY(narrow(&part, begin, size, err));
    TP_TRY(torch_file_read(&out->torch, &part, &out->arena, err));
    out->root = out->torch.root;
    out->sums = calloc((size_t)out->torch.zip.n, sizeof *out->sums);
    if (!out->sums)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", part.path);
done:
    file_table_release(piece_source_files(s), file);
    return st;
}

void torch_pieces_close(struct torch_pieces *x)
{
    free(x->sums);
    x->sums = NULL;
    arena_free(&x->arena);
}

tp_status torch_pieces_check(struct piece_source *s, int file, int64_t begin, int64_t size,
                             struct tp_err *err)
{
    struct arena arena = { .limit_bytes = piece_source_memory_left(s) };
    char head[sizeof ARCHIVE - 1];
    struct zip zip = { .n = 0 };
    struct file_part part;
    tp_status st = file_table_use(piece_source_files(s), file, &part, err);

    if (st)
        return st;
    TP_TRY(narrow(&part, begin, size, err));
    if (size < (int64_t)sizeof head)
        goto done;
    TP_TRY(file_part_read(&part, 0, head, sizeof head, err));
    if (memcmp(head, ARCHIVE, sizeof head) != 0)
        goto done;
    TP_TRY(zip_read(&zip, &part, &arena, err));
    for (int i = 0; i < zip.n && !st; i++)
        st = zip_check(&zip, &zip.members[i], err);
done:
    file_table_release(piece_source_files(s), file);
    arena_free(&arena);
    return st;
}

/* The number of the sum of a member, which is added to the source when it is first needed. */
static tp_status sum_of(int *out, struct torch_pieces *x, const struct zip_member *m,
                        struct tp_err *err)
{
    int *known = &x->sums[m - x->torch.zip.members];
    struct piece_sum sum = { x->file, x->torch.zip.part.begin + m->begin, m->size, m->crc, NULL };
    tp_status st = TP_OK;

    if (!*known && m->crc != 0) {
        sum.what = arena_strdup(piece_source_arena(x->source), m->name);
        if (!sum.what)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index",
                           piece_source_path(x->source));
        st = piece_source_add_sum(x->source, known, &sum, err);
    }
    *out = *known;
    return st;
}

tp_status torch_pieces_tensor(struct piece *out, struct torch_pieces *x,
                              const struct pickle_value *v, const char *group, const char *name,
                              struct tp_err *err)
{
    struct torch_tensor t;
    struct piece p = { .group = group, .name = name, .file = x->file };
    tp_status st = torch_tensor_read(&t, &x->torch, v, name, err);

    if (st)
        return st;
    p.dtype = t.dtype;
    p.ndim = t.ndim;
    memcpy(p.shape, t.shape, sizeof p.shape);
    memcpy(p.stride, t.stride, sizeof p.stride);
    p.box = box_whole(t.ndim, t.shape);
    p.begin = t.begin;
    TP_TRY(sum_of(&p.sum, x, t.storage, err));
    *out = p;
done:
    return st;
}

bool torch_pieces_is_number(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_INT) || torch_tensor_is(v);
}

/* A tensor of one element. */
static tp_status read_number(int64_t *out, struct torch_pieces *x, const struct pickle_value *v,
                             const char *name, struct tp_err *err)
{
    const struct file_part *in = &x->torch.zip.part;
    struct torch_tensor t;
    struct file_part part;
    char bytes[8] = { 0 };
    float f32;
    double number;
    int64_t i64 = 0;
    int32_t i32;
    tp_status st = torch_tensor_read(&t, &x->torch, v, name, err);

    if (st)
        return st;
    for (int d = 0; d < t.ndim; d++)
        if (t.shape[d] != 1)
            t.dtype = DTYPE_COUNT;
    if (t.dtype != DTYPE_F32 && t.dtype != DTYPE_F64 && t.dtype != DTYPE_I64 &&
        t.dtype != DTYPE_I32)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s is not one number of type f32, f64, i64 or i32",
                       file_table_path(piece_source_files(x->source), x->file), name);
    TP_TRY(file_table_use(piece_source_files(x->source), x->file, &part, err));
    st = file_part_read(&part, t.begin, bytes, dtype_bytes(t.dtype), err);
    if (!st && t.storage->crc != 0)
        st = zip_check_range(&part, in->begin + t.storage->begin, t.storage->size, t.storage->crc,
                             t.storage->name, err);
    file_table_release(piece_source_files(x->source), x->file);
    memcpy(&f32, bytes, sizeof f32);
    memcpy(&number, bytes, sizeof number);
    memcpy(&i64, bytes, sizeof i64);
    memcpy(&i32, bytes, sizeof i32);
    if (t.dtype == DTYPE_F32)
        number = (double)f32;
    if (!st && t.dtype == DTYPE_I32)
        i64 = i32;
    else if (!st && t.dtype != DTYPE_I64)
        i64 = number >= 0 && number <= 0x1p53 && number == trunc(number) ? (int64_t)number : -1;
    *out = i64;
done:
    return st;
}

tp_status torch_pieces_number(int64_t *out, struct torch_pieces *x, const struct pickle_value *v,
                              const char *name, struct tp_err *err)
{
    tp_status st = pickle_int(out, v) ? TP_OK : read_number(out, x, v, name, err);

    if (!st && *out < 0)
        st = tp_fail(err, TP_E_CORRUPT, "%s: %s is not a whole number",
                     file_table_path(piece_source_files(x->source), x->file), name);
    return st;
}

bool torch_pieces_adamw_option(struct export_adamw *out, const char *key,
                               const struct pickle_value *v)
{
    if (strcmp(key, "lr") == 0)
        return pickle_real(&out->lr, v);
    if (strcmp(key, "eps") == 0)
        return pickle_real(&out->eps, v);
    if (strcmp(key, "weight_decay") == 0)
        return pickle_real(&out->weight_decay, v);
    return strcmp(key, "betas") == 0 && pickle_real(&out->beta1, pickle_item(v, 0)) &&
           pickle_real(&out->beta2, pickle_item(v, 1));
}

bool torch_pieces_adamw(struct export_adamw *out, const struct pickle_value *group)
{
    static const char *const keys[] = { "lr", "betas", "eps", "weight_decay" };

    if (!pickle_get(group, "lr"))
        return false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        torch_pieces_adamw_option(out, keys[i], pickle_get(group, keys[i]));
    return true;
}
