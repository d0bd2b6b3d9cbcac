/* reshard/formats/safetensors/safetensors_pieces.c - see
 * reshard/formats/safetensors/safetensors_pieces.h. */
#include "reshard/formats/safetensors/safetensors_pieces.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/safetensors/quantized.h"
#include "storage/object.h"

bool safetensors_pieces_detect(const char *path)
{
    static const char *const names[] = { "model.safetensors", "model.safetensors.index.json" };

    for (int i = 0; i < 2; i++)
        if (object_is_in(path, names[i]))
            return true;
    return text_ends_with(path, ".safetensors") && object_is_there(path) && !file_is_dir(path);
}

/* ---- quantized weights ---- */

static tp_status read_decoded(const void *ctx, const struct box *run, void *buf, struct tp_err *err)
{
    return quantized_read(ctx, run, buf, err);
}

static void will_read_decoded(const void *ctx, const struct box *run)
{
    quantized_will_read(ctx, run);
}

static const struct piece_decoder *make_decoder(const struct quantized *q, struct arena *arena)
{
    struct piece_decoder *d = arena_array(arena, 1, sizeof *d);

    if (d)
        *d = (struct piece_decoder){ .ctx = q,
                                     .stored_bytes = q->elements.size + q->scales.size,
                                     .read = read_decoded,
                                     .will_read = will_read_decoded };
    return d;
}

/* ---- reading ---- */

static tp_status add_tensor(struct piece_source *s, const struct model *m,
                            const struct safetensors_source *from, int i, const int *numbers,
                            struct tp_err *err)
{
    const struct safetensors_tensor *t = safetensors_tensor_at(from, i);
    const struct quantized *quantized = safetensors_quantized(from, i);
    struct piece p = { .group = GROUP_PARAM, .dtype = t->dtype, .ndim = t->ndim };
    int64_t stride = 1;
    int file;

    p.name = arena_strdup(piece_source_arena(s), t->name);
    if (quantized)
        p.decoder = make_decoder(quantized, piece_source_arena(s));
    if (!p.name || (quantized && !p.decoder))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
    memcpy(p.shape, t->shape, sizeof p.shape);
    p.box = box_whole(t->ndim, t->shape);
    for (int d = t->ndim - 1; d >= 0; d--) {
        p.stride[d] = stride;
        stride *= t->shape[d];
    }
    file = safetensors_place(from, i, &p.begin);
    p.file = numbers[file];
    return quantized ? piece_source_add(s, &p, err) : module_piece_add(s, m, &p, err);
}

static void close_source(void *source)
{
    safetensors_source_close(source);
}

tp_status safetensors_pieces_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct safetensors_source *from = NULL;
    int *numbers = NULL, n, decoded = 0;
    tp_status st;

    TP_TRY(safetensors_open(&from, piece_source_path(s), err));
    TP_TRY(safetensors_dequantize(from, &decoded, err));
    n = safetensors_files(from);
    numbers = calloc((size_t)n + 1, sizeof *numbers);
    if (!numbers) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
        goto done;
    }
    for (int i = 0; i < n; i++)
        TP_TRY(file_table_add(piece_source_files(s), &numbers[i], safetensors_file(from, i), err));
    for (int i = 0; i < safetensors_count(from); i++)
        TP_TRY(add_tensor(s, m, from, i, numbers, err));
    if (decoded) {
        piece_source_own(s, from, close_source);
        from = NULL;
    }
done:
    free(numbers);
    safetensors_source_close(from);
    return st;
}
