/* reshard/formats/meta/meta_rank.c - see reshard/formats/meta/meta_rank.h. */
#include "reshard/formats/meta/meta_rank.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "storage/object.h"

#define WO "layers.0.attention.wo.weight"

void meta_rank_file(char name[META_NAME_BYTES], int rank)
{
    snprintf(name, META_NAME_BYTES, "consolidated.%02d.pth", rank);
}

static tp_status no_memory(const struct piece_source *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
}

/* ---- what is not read ---- */

/* Tensors of these names are of models whose other tensors would be read as if they were a
 * Llama's. */
static tp_status check_name(const char *path, const char *name, struct tp_err *err)
{
    static const struct {
        const char *part, *what;
    } others[] = { { "vision_", "a model with vision" },
                   { "text_model.", "a model with vision" },
                   { "cross_attention", "a model with vision" },
                   { ".experts.", "a mixture of experts" },
                   { ".block_sparse_moe.", "a mixture of experts" },
                   { ".router", "a mixture of experts" },
                   { ".adaptor.", "quantized, with an adapter" },
                   { ".scales", "quantized" } };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(name, others[i].part))
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %.200s says that this is %s, which is not read in Meta's "
                           "format; import the model's files of Hugging Face",
                           path, name, others[i].what);
    return TP_OK;
}

/* ---- files of torch.save ---- */

/* The CRC-32 of a tensor that is a whole storage, row by row. */
static uint32_t crc_of(const struct torch_tensor *t)
{
    const struct box whole = box_whole(t->ndim, t->shape);
    int64_t stride = 1;

    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->stride[d] != stride)
            return 0;
        stride *= t->shape[d];
    }
    return t->dtype != DTYPE_COUNT &&
                   box_elements(&whole) * dtype_bytes(t->dtype) == t->storage->size
               ? t->storage->crc
               : 0;
}

static tp_status add_torch(struct meta_rank *out, struct torch_pieces *x, const char *key,
                           const struct pickle_value *v, struct tp_err *err)
{
    struct meta_rank_tensor *to = &out->tensors[out->n];
    const char *name = compiled_name_plain(piece_source_arena(x->source), key);
    struct torch_tensor t;
    tp_status st;

    if (!name)
        return no_memory(x->source, err);
    TP_TRY(check_name(out->path, name, err));
    TP_TRY(torch_pieces_tensor(&to->piece, x, v, GROUP_PARAM, name, err));
    TP_TRY(torch_tensor_read(&t, &x->torch, v, name, err));
    to->crc = crc_of(&t);
    out->n++;
done:
    return st;
}

static tp_status read_torch(struct meta_rank *out, struct piece_source *s, int file,
                            struct tp_err *err)
{
    struct torch_pieces x = { .source = s };
    tp_status st;

    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    if (!pickle_is(x.root, PICKLE_DICT)) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not a dict from names to tensors", out->path);
        goto done;
    }
    out->tensors = arena_array(piece_source_arena(s), (size_t)pickle_entries(x.root) + 1,
                               sizeof *out->tensors);
    if (!out->tensors)
        st = no_memory(s, err);
    for (int64_t i = 0; i < pickle_entries(x.root) && !st; i++) {
        const char *key = pickle_text(pickle_key(x.root, i));
        const struct pickle_value *v = pickle_entry(x.root, i);

        if (!key)
            st = tp_fail(err, TP_E_CORRUPT, "%s: the name of a tensor is not text", out->path);
        else if (torch_tensor_is(v))
            st = add_torch(out, &x, key, v, err);
        else
            st = piece_source_leave(s, key, err);
    }
done:
    torch_pieces_close(&x);
    return st;
}

/* ---- Mistral's file ---- */

static tp_status add_safetensors(struct meta_rank *out, struct piece_source *s,
                                 const struct safetensors_source *from, int i, int file,
                                 struct tp_err *err)
{
    const struct safetensors_tensor *t = safetensors_tensor_at(from, i);
    struct piece *p = &out->tensors[out->n].piece;
    tp_status st = check_name(out->path, t->name, err);

    if (st)
        return st;
    *p = (struct piece){ .group = GROUP_PARAM, .dtype = t->dtype, .ndim = t->ndim, .file = file };
    p->name = arena_strdup(piece_source_arena(s), t->name);
    if (!p->name)
        return no_memory(s, err);
    memcpy(p->shape, t->shape, sizeof p->shape);
    p->box = box_whole(t->ndim, t->shape);
    flat_pieces_strides(p->stride, &p->box);
    safetensors_place(from, i, &p->begin);
    out->n++;
    return TP_OK;
}

static tp_status read_safetensors(struct meta_rank *out, struct piece_source *s, int file,
                                  struct tp_err *err)
{
    struct safetensors_source *from = NULL;
    tp_status st;

    TP_TRY(safetensors_open(&from, out->path, err));
    out->tensors = arena_array(piece_source_arena(s), (size_t)safetensors_count(from) + 1,
                               sizeof *out->tensors);
    if (!out->tensors)
        st = no_memory(s, err);
    for (int i = 0; i < safetensors_count(from) && !st; i++)
        st = add_safetensors(out, s, from, i, file, err);
done:
    safetensors_source_close(from);
    return st;
}

tp_status meta_rank_first(struct meta_rank *out, struct piece_source *s, struct tp_err *err)
{
    const bool one = !object_is_in(piece_source_path(s), META_FIRST) &&
                     object_is_in(piece_source_path(s), META_SAFETENSORS);
    int file = 0;
    tp_status st = piece_source_add_file(s, one ? META_SAFETENSORS : META_FIRST, &file, err);

    return st ? st : meta_rank_read(out, s, file, err);
}

tp_status meta_rank_read(struct meta_rank *out, struct piece_source *s, int file,
                         struct tp_err *err)
{
    *out = (struct meta_rank){ .path = file_table_path(piece_source_files(s), file) };
    return text_ends_with(out->path, META_SAFETENSORS) ? read_safetensors(out, s, file, err)
                                                       : read_torch(out, s, file, err);
}

/* ---- what there is ---- */

const struct meta_rank_tensor *meta_rank_find(const struct meta_rank *r, const char *name)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->tensors[i].piece.name, name) == 0)
            return &r->tensors[i];
    return NULL;
}

tp_status meta_rank_count(int *n, const struct meta_rank *first, int64_t columns, const char *where,
                          struct tp_err *err)
{
    const struct meta_rank_tensor *wo = meta_rank_find(first, WO);
    const bool one = text_ends_with(first->path, META_SAFETENSORS);
    char has[BOX_TEXT_MAX];
    int64_t part;

    if (!wo)
        return tp_fail(err, TP_E_CORRUPT, "%s: has no tensor " WO ", so it is not of Meta's Llama",
                       first->path);
    part = wo->piece.ndim == 2 ? wo->piece.shape[1] : 0;
    if (part < 1 || columns % part != 0 || columns / part > (one ? 1 : META_RANKS_MAX))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: tensor " WO " is %s, but %s says that it has %lld columns in all, of which %s",
            first->path, box_format_shape(has, sizeof has, wo->piece.ndim, wo->piece.shape), where,
            (long long)columns,
            one ? "this file should have all" : "each file should have an equal part");
    *n = (int)(columns / part);
    return TP_OK;
}
