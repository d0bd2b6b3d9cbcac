/* reshard/formats/safetensors/quantized.c - see reshard/formats/safetensors/quantized.h. */
#include "reshard/formats/safetensors/quantized.h"

#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "kernels/cast.h"

#define BLOCKS "_blocks" /* the end of the names of elements in MXFP4 */

enum { MXFP4_BATCH = 256 << 10 }; /* bytes of rows that are read at a time */

/* Some of these bytes. */
static struct file_table_range part_of(const struct file_table_range *all, int64_t at, int64_t size)
{
    return (struct file_table_range){ all->files, all->file, all->begin + at, size };
}

static tp_status read_all(const struct file_table_range *part, void *to, struct tp_err *err)
{
    return file_table_range_read(part, 0, to, part->size, err);
}

/* The file of bytes, for messages. */
static const char *path_of(const struct file_table_range *part)
{
    return file_table_path(part->files, part->file);
}

/* ---- what there is ---- */

enum quantized_form quantized_form_of(const struct safetensors_entry *e)
{
    const struct safetensors_tensor *t = &e->tensor;

    if (e->fp8 == FP8_E4M3)
        return QUANTIZED_FP8;
    return t->dtype == DTYPE_U8 && t->ndim > 2 && t->shape[t->ndim - 1] == MXFP4_GROUP_BYTES &&
                   text_ends_with(t->name, BLOCKS)
               ? QUANTIZED_MXFP4
               : QUANTIZED_NOT;
}

/* The name of a weight in MXFP4, without its end. */
static int length_of(const char *blocks)
{
    return (int)(strlen(blocks) - (sizeof BLOCKS - 1));
}

const char *quantized_scales_name(enum quantized_form form, const char *name, int i,
                                  struct arena *arena)
{
    static const char *const ends[] = { "_scale_inv", "_scale" };

    if (form == QUANTIZED_FP8 && i < 2)
        return arena_printf(arena, "%s%s", name, ends[i]);
    if (form == QUANTIZED_MXFP4 && i == 0)
        return arena_printf(arena, "%.*s_scales", length_of(name), name);
    return NULL;
}

static tp_status refuse_shapes(const struct quantized *q, const struct safetensors_tensor *elements,
                               const struct safetensors_tensor *scales, const char *expected,
                               struct tp_err *err)
{
    char shape[BOX_TEXT_MAX], scale_shape[BOX_TEXT_MAX];

    return tp_fail(
        err, TP_E_CORRUPT, "%s: tensor %s is %s in %s, and its scales %s are %s; expected is %s",
        path_of(&q->scales), elements->name,
        box_format_shape(shape, sizeof shape, elements->ndim, elements->shape),
        q->form == QUANTIZED_FP8 ? "FP8" : "MXFP4", scales->name,
        box_format_shape(scale_shape, sizeof scale_shape, scales->ndim, scales->shape), expected);
}

static tp_status make_fp8(struct quantized *q, const struct safetensors_tensor *t,
                          const struct safetensors_tensor *scales, struct tp_err *err)
{
    q->weight = *t;
    if (q->scale_type != FP8_E8M0 &&
        (scales->dtype == DTYPE_COUNT || !dtype_is_float(scales->dtype)))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s, the scales of a weight in FP8, has a dtype that is not "
                       "supported; supported are F32, BF16, F16, F64, F8_E8M0 and U8",
                       path_of(&q->scales), scales->name);
    if (!fp8_grid_make(&q->grid, t->ndim, t->shape, scales->ndim, scales->shape))
        return refuse_shapes(q, t, scales,
                             "one scale for all, one for each row, or one for each block, of 128 "
                             "or another power of two",
                             err);
    return TP_OK;
}

/* The weight has the last two axes of rows and columns in the other order. */
static tp_status make_mxfp4(struct quantized *q, const struct safetensors_tensor *t,
                            const struct safetensors_tensor *scales, struct arena *arena,
                            struct tp_err *err)
{
    const int n = t->ndim - 1, leading = n - 2;
    struct safetensors_tensor *w = &q->weight;

    if (q->scale_type != FP8_E8M0 || scales->ndim != n ||
        memcmp(scales->shape, t->shape, (size_t)n * sizeof *t->shape) != 0)
        return refuse_shapes(q, t, scales, "a byte for each 16 bytes", err);
    *w = (struct safetensors_tensor){ .name =
                                          arena_printf(arena, "%.*s", length_of(t->name), t->name),
                                      .ndim = n };
    if (!w->name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path_of(&q->elements));
    q->blocks = (struct mxfp4_blocks){ 1, t->shape[leading], t->shape[leading + 1] };
    for (int d = 0; d < leading; d++) {
        w->shape[d] = t->shape[d];
        q->blocks.matrices *= t->shape[d];
    }
    w->shape[leading] = q->blocks.groups * MXFP4_GROUP;
    w->shape[leading + 1] = q->blocks.rows;
    return TP_OK;
}

/* Scales in bytes are E8M0, as in transformers' Fp8Dequantize. */
tp_status quantized_make(struct quantized *q, const struct safetensors_entry *elements,
                         const struct file_table_range *element_bytes,
                         const struct safetensors_entry *scales,
                         const struct file_table_range *scale_bytes, struct arena *arena,
                         struct tp_err *err)
{
    const bool are_bytes = scales->tensor.dtype == DTYPE_U8;
    tp_status st;

    *q = (struct quantized){ .form = quantized_form_of(elements),
                             .elements = *element_bytes,
                             .scales = *scale_bytes,
                             .scale_type = are_bytes ? FP8_E8M0 : scales->fp8,
                             .scale_dtype = scales->tensor.dtype };
    st = q->form == QUANTIZED_FP8 ? make_fp8(q, &elements->tensor, &scales->tensor, err)
                                  : make_mxfp4(q, &elements->tensor, &scales->tensor, arena, err);
    q->weight.dtype = DTYPE_BF16;
    return st;
}

/* ---- FP8 ---- */

/* What is stored of a run, and its scales; *first is the row of scales with which they begin. */
static void find_fp8(const struct quantized *q, const struct box *run, const struct fp8_run *r,
                     struct file_table_range *elements, struct file_table_range *scales,
                     int64_t *first)
{
    const struct box whole = box_whole(q->weight.ndim, q->weight.shape);
    const int64_t row = q->grid.cols * (q->scale_type ? 1 : (int64_t)dtype_bytes(q->scale_dtype));
    int64_t n;

    fp8_scale_rows(&q->grid, r, first, &n);
    *scales = part_of(&q->scales, *first * row, n * row);
    *elements = part_of(&q->elements, box_offset_in(&whole, run), box_elements(run));
}

/* Read scales as f32; *out is malloc'ed. */
static tp_status read_scales(float **out, const struct quantized *q,
                             const struct file_table_range *b, struct tp_err *err)
{
    const int64_t n = b->size / (q->scale_type ? 1 : dtype_bytes(q->scale_dtype));
    float *scales = malloc((size_t)n * sizeof *scales);
    unsigned char *stored = malloc((size_t)b->size);
    tp_status st;

    *out = scales;
    if (scales && stored)
        st = read_all(b, stored, err);
    else
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for scales", path_of(b));
    if (!st && q->scale_type)
        fp8_scales_from_e8m0(scales, stored, n);
    else if (!st)
        cast(scales, DTYPE_F32, stored, q->scale_dtype, n);
    free(stored);
    return st;
}

static tp_status read_fp8(const struct quantized *q, const struct box *run, void *buf,
                          struct tp_err *err)
{
    const struct fp8_run r = fp8_run_of(&q->grid, q->weight.ndim, q->weight.shape, run);
    struct file_table_range elements, scales;
    float *factors = NULL;
    int64_t first;
    tp_status st;

    find_fp8(q, run, &r, &elements, &scales, &first);
    st = read_scales(&factors, q, &scales, err);
    if (!st)
        st = read_all(&elements, (char *)buf + elements.size, err);
    if (!st)
        fp8_decode(buf, &q->grid, &r, factors, first);
    free(factors);
    return st;
}

/* ---- MXFP4 ---- */

/* Bytes of stored rows, counted through all matrices; a row has `unit` bytes for each group. */
static struct file_table_range rows_of(const struct quantized *q,
                                       const struct file_table_range *all, int64_t unit,
                                       int64_t row, int64_t rows)
{
    return part_of(all, row * q->blocks.groups * unit, rows * q->blocks.groups * unit);
}

/* Decode a part to `to`, where it is contiguous, some rows at a time. A part may need few elements
 * of each row. Rows are read whole all the same: they have a kilobyte or two, so as many short
 * requests would take longer. */
static tp_status read_part(const struct quantized *q, const struct mxfp4_part *p, char *to,
                           struct tp_err *err)
{
    const int64_t groups = q->blocks.groups, row_bytes = groups * MXFP4_GROUP_BYTES;
    const int64_t most = MXFP4_BATCH / row_bytes, first = p->matrix * q->blocks.rows + p->row;
    const int64_t batch = most < 1 ? 1 : most < p->rows ? most : p->rows;
    unsigned char *blocks = malloc((size_t)(batch * row_bytes));
    unsigned char *scales = malloc((size_t)(batch * groups));
    struct mxfp4_rows rows = { blocks, scales, row_bytes, groups, 0, p->first, p->count };
    tp_status st = TP_OK;

    if (!blocks || !scales)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for MXFP4", path_of(&q->elements));
    for (int64_t done = 0; done < p->rows && !st; done += rows.rows) {
        struct file_table_range b;

        rows.rows = p->rows - done < batch ? p->rows - done : batch;
        b = rows_of(q, &q->scales, 1, first + done, rows.rows);
        st = read_all(&b, scales, err);
        b = rows_of(q, &q->elements, MXFP4_GROUP_BYTES, first + done, rows.rows);
        if (!st)
            st = read_all(&b, blocks, err);
        if (!st)
            mxfp4_decode(to + done * (int64_t)sizeof(uint16_t), p->rows, &rows);
    }
    free(blocks);
    free(scales);
    return st;
}

/* A mxfp4_part of a run: where it goes. */
typedef tp_status (*part_fn)(const struct quantized *q, const struct mxfp4_part *p, char *to,
                             struct tp_err *err);

static tp_status for_parts(const struct quantized *q, const struct box *run, char *to, part_fn fn,
                           struct tp_err *err)
{
    const struct box whole = box_whole(q->weight.ndim, q->weight.shape);
    int64_t at = box_offset_in(&whole, run), n;
    tp_status st = TP_OK;

    for (int64_t left = box_elements(run); left > 0 && !st; left -= n, at += n) {
        const struct mxfp4_part p = mxfp4_part_of(&q->blocks, at, left);

        n = p.count * p.rows;
        st = fn(q, &p, to, err);
        if (to)
            to += n * (int64_t)sizeof(uint16_t);
    }
    return st;
}

/* A part_fn: the rows as read_part reads them. */
static tp_status will_read_part(const struct quantized *q, const struct mxfp4_part *p, char *to,
                                struct tp_err *err)
{
    const int64_t first = p->matrix * q->blocks.rows + p->row;
    const struct file_table_range scales = rows_of(q, &q->scales, 1, first, p->rows);
    const struct file_table_range blocks =
        rows_of(q, &q->elements, MXFP4_GROUP_BYTES, first, p->rows);

    (void)to;
    (void)err;
    file_table_range_will_read(&scales);
    file_table_range_will_read(&blocks);
    return TP_OK;
}

/* ---- both ---- */

tp_status quantized_read(const struct quantized *q, const struct box *run, void *buf,
                         struct tp_err *err)
{
    if (box_is_empty(run))
        return TP_OK;
    return q->form == QUANTIZED_FP8 ? read_fp8(q, run, buf, err)
                                    : for_parts(q, run, buf, read_part, err);
}

void quantized_will_read(const struct quantized *q, const struct box *run)
{
    struct file_table_range elements, scales;
    struct tp_err ignored;
    int64_t first;

    if (box_is_empty(run))
        return;
    if (q->form == QUANTIZED_FP8) {
        const struct fp8_run r = fp8_run_of(&q->grid, q->weight.ndim, q->weight.shape, run);

        find_fp8(q, run, &r, &elements, &scales, &first);
        file_table_range_will_read(&scales);
        file_table_range_will_read(&elements);
    } else {
        for_parts(q, run, NULL, will_read_part, &ignored);
    }
}
