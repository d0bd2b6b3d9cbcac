/* reshard/formats/megatron/torch_dist.c - see reshard/formats/megatron/torch_dist.h. */
#include "reshard/formats/megatron/torch_dist.h"

#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/megatron/torch_dist_flat.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "reshard/formats/torch/torch_pieces.h"

struct torch_dist {
    struct piece_source *source;
    struct megatron_map map; /* of whole tensors: as on one tensor-parallel rank */
    struct megatron_args args;
    char dir[PATH_MAX];
};

/* What a name says: "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight" is exp_avg of
 * mlp.linear_fc1.weight of all layers. */
struct torch_dist_name {
    const char *group;
    const char *name; /* without "decoder.layers." */
    bool stacked;     /* the first axis is the layer */
};

static bool has_file(const char *dir, const char *name)
{
    struct tp_err err = { 0 };
    char path[PATH_MAX];

    return !file_join(path, dir, name, &err) && file_exists(path);
}

bool torch_dist_detect(const char *path)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    return !megatron_folder_find(dir, path, &err) && has_file(dir, "metadata.json") &&
           has_file(dir, ".metadata");
}

static struct torch_dist_name parse_name(const char *name)
{
    static const struct {
        const char *head, *group;
    } heads[] = { { "optimizer.state.exp_avg.", GROUP_EXP_AVG },
                  { "optimizer.state.exp_avg_sq.", GROUP_EXP_AVG_SQ },
                  { "optimizer.state.fp32_param.", GROUP_MASTER },
                  { "optimizer.state.param.", GROUP_MASTER },
                  { "decoder.layers.", NULL } };
    struct torch_dist_name n = { GROUP_PARAM, name, false };

    for (int i = 0; i < 5; i++)
        if (strncmp(n.name, heads[i].head, strlen(heads[i].head)) == 0) {
            n.name += strlen(heads[i].head);
            if (heads[i].group)
                n.group = heads[i].group;
            else
                n.stacked = true;
        }
    return n;
}

/* Add the rows of one layer's fused tensor that a chunk has. `p` is the chunk without the axis of
 * layers: its box is in the fused tensor. */
static tp_status add_rows(struct torch_dist *d, const struct piece *p, const char *name, int layer,
                          struct tp_err *err)
{
    const int64_t lo = p->box.lo[0], end = lo + p->box.len[0];
    struct megatron_rows *rows = NULL;
    int n = 0;
    enum megatron_found found;
    tp_status st = TP_OK;

    if (layer < 0 && p->ndim == 2)
        d->map.padded_vocab = p->shape[0];
    found = megatron_map_find(&rows, &n, &d->map, name, layer, 0);
    if (found == MEGATRON_UNKNOWN)
        return piece_source_add(d->source, p, err);
    for (int i = 0; i < n && !st && found == MEGATRON_FOUND; i++) {
        const struct tensor *t = rows[i].tensor;
        const int64_t from = rows[i].row > lo ? rows[i].row : lo,
                      rows_end = rows[i].row + rows[i].n, to = rows_end < end ? rows_end : end;
        struct piece part = *p;

        if (t->ndim != p->ndim || (p->ndim == 2 && t->shape[1] != p->shape[1]) ||
            rows_end > p->shape[0])
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has another shape than the model says",
                           d->dir, p->name);
        if (from >= to)
            continue;
        part.name = t->name;
        memcpy(part.shape, t->shape, sizeof part.shape);
        part.box.lo[0] = rows[i].to + from - rows[i].row;
        part.box.len[0] = to - from;
        part.begin += (from - lo) * p->stride[0] * dtype_bytes(p->dtype);
        st = piece_source_add(d->source, &part, err);
    }
    return st;
}

/* One layer of a chunk whose first axis is the layer. */
static struct piece take_layer(const struct piece *p, int64_t layer)
{
    struct piece one = *p;

    one.ndim = one.box.ndim = p->ndim - 1;
    one.begin += (layer - p->box.lo[0]) * p->stride[0] * dtype_bytes(p->dtype);
    for (int i = 0; i < one.ndim; i++) {
        one.shape[i] = p->shape[i + 1];
        one.stride[i] = p->stride[i + 1];
        one.box.lo[i] = p->box.lo[i + 1];
        one.box.len[i] = p->box.len[i + 1];
    }
    return one;
}

static tp_status add_chunk(struct torch_dist *d, const struct dcp_item *item,
                           const struct torch_dist_name *name, struct piece *p, struct tp_err *err)
{
    const struct box chunk = box_whole(item->ndim, item->box.len);
    tp_status st = TP_OK;

    if (!box_equal(&p->box, &chunk) || p->dtype != item->dtype)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s/%s: tensor %s has another shape or type than .metadata "
                       "says",
                       d->dir, item->file, item->name);
    if (p->dtype == DTYPE_COUNT || p->ndim < (name->stacked ? 2 : 1) ||
        p->ndim > (name->stacked ? 3 : 2))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is neither a matrix nor a vector", d->dir,
                       item->name);
    memcpy(p->shape, item->shape, sizeof p->shape);
    p->box = item->box;
    if (!name->stacked)
        return add_rows(d, p, name->name, -1, err);
    if (p->shape[0] != d->map.model->layers)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has %lld layers, the model %d", d->dir,
                       item->name, (long long)p->shape[0], d->map.model->layers);
    for (int64_t i = 0; i < item->box.len[0] && !st; i++) {
        struct piece one = take_layer(p, item->box.lo[0] + i);

        st = add_rows(d, &one, name->name, (int)(item->box.lo[0] + i), err);
    }
    return st;
}

static tp_status add_item(struct torch_dist *d, const struct dcp_item *item, struct tp_err *err)
{
    const struct torch_dist_name name = parse_name(item->name);
    struct torch_pieces x = { .source = d->source };
    struct piece p;
    tp_status st;

    if (item->is_object)
        return strstr(item->name, "_extra_state") ? TP_OK
                                                  : piece_source_leave(d->source, item->name, err);
    TP_TRY(torch_pieces_open(&x, d->source, item->file_number, item->begin, item->size, err));
    TP_TRY(torch_pieces_tensor(&p, &x, x.root, name.group, item->name, err));
    TP_TRY(add_chunk(d, item, &name, &p, err));
done:
    torch_pieces_close(&x);
    return st;
}

/* The iteration, and what stays behind. */
static tp_status read_common(struct torch_dist *d, struct tp_err *err)
{
    struct torch_pieces x = { .source = d->source };
    char path[PATH_MAX];
    int file = 0;
    int64_t iteration = 0;
    tp_status st;

    TP_TRY(file_join(path, d->dir, "common.pt", err));
    TP_TRY(file_table_add(piece_source_files(d->source), &file, path, err));
    TP_TRY(torch_pieces_open(&x, d->source, file, 0, -1, err));
    TP_TRY(megatron_args_read(&d->args, pickle_get(x.root, "args"), d->map.model, path, err));
    if (pickle_int(&iteration, pickle_get(x.root, "iteration")) && iteration >= 0)
        TP_TRY(piece_source_set_step(d->source, iteration, path, err));
    TP_TRY(piece_source_leave(d->source, "common.pt", err));
done:
    torch_pieces_close(&x);
    return st;
}

/* The flat buffers of a distributed optimizer, which are cut as the job was. */
static tp_status read_flat(const struct torch_dist *d, const struct dcp_item *items, int n,
                           struct tp_err *err)
{
    struct megatron_rank r = { .source = d->source, .map = d->map, .args = d->args };
    tp_status st;

    memcpy(r.dir, d->dir, sizeof r.dir);
    TP_TRY(megatron_rank_stages(&r, r.dir, err));
    if (r.map.padded_vocab % r.args.tp != 0)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: a vocabulary of %lld rows is not divisible by the tensor-parallel size "
                       "%d of common.pt",
                       r.dir, (long long)r.map.padded_vocab, r.args.tp);
    st = torch_dist_flat_read(&r, items, n, err);
done:
    return st;
}

tp_status torch_dist_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct torch_dist d = { .source = s };
    struct dcp_item *items = NULL;
    bool flat = false;
    int n = 0;
    tp_status st;

    if (!m)
        return tp_fail(err, TP_E_USAGE, "%s: Megatron's format needs a config.json; give --config",
                       piece_source_path(s));
    TP_TRY(megatron_folder_find(d.dir, piece_source_path(s), err));
    TP_TRY(megatron_map_make(&d.map, m, piece_source_arena(s), err));
    TP_TRY(dcp_metadata_read(&items, &n, d.dir, piece_source_arena(s), err));
    TP_TRY(read_common(&d, err));
    TP_TRY(dcp_metadata_add_files(items, n, d.dir, piece_source_files(s), err));
    for (int i = 0; i < n; i++) {
        flat |= torch_dist_flat_is(&items[i]);
        if (!torch_dist_flat_is(&items[i]))
            TP_TRY(add_item(&d, &items[i], err));
    }
    if (flat)
        TP_TRY(read_flat(&d, items, n, err));
done:
    return st;
}
