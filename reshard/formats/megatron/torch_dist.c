/* reshard/formats/megatron/torch_dist.c - see reshard/formats/megatron/torch_dist.h. */
#include "reshard/formats/megatron/torch_dist.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/bridge_files.h"
#include "reshard/formats/megatron/fused_piece.h"
#include "reshard/formats/megatron/master_check.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/megatron/torch_dist_cut.h"
#include "reshard/formats/megatron/torch_dist_flat.h"
#include "reshard/formats/megatron/torch_dist_root.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "reshard/formats/torch/dcp_piece.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "storage/object.h"

struct torch_dist {
    struct piece_source *source;
    struct megatron_map map; /* of whole tensors: as on one tensor-parallel rank */
    struct megatron_args args;
    bool has_layout; /* tp and pp of the program are known */
    char dir[PATH_MAX];
};

/* What stays behind where they are not, and a flat optimizer needs them. */
#define UNKNOWN_LAYOUT "optimizer.distributed (of unknown tp and pp)"

/* What a name says: "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.weight" is exp_avg of
 * mlp.linear_fc1.weight of all layers. */
struct torch_dist_name {
    const char *group;
    const char
        *name;    /* without "decoder.layers.", or "mlp.experts.experts." when it is of_experts */
    int layer;    /* -1: outside of layers, or stacked */
    bool stacked; /* the first axis is the layer */
    bool of_experts; /* the next axis is the expert */
};

enum { EXPERT_NAME_BYTES = 128 };

bool torch_dist_detect(const char *path)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    return !megatron_folder_find(dir, path, &err) && object_is_in(dir, "metadata.json") &&
           object_is_in(dir, ".metadata");
}

/* Go beyond `head`, if *at begins with it. */
static bool take(const char **at, const char *head)
{
    const size_t n = strlen(head);

    if (strncmp(*at, head, n) != 0)
        return false;
    *at += n;
    return true;
}

/* Go beyond a number and a ".". */
static bool take_number(const char **at, int *number)
{
    char *end;
    const long n = **at >= '0' && **at <= '9' ? strtol(*at, &end, 10) : -1;

    if (n < 0 || n > INT_MAX || *end != '.')
        return false;
    *number = (int)n;
    *at = end + 1;
    return true;
}

/* With expert parallelism, earlier versions put "chained_1." before the names of the experts'
 * optimizer. Layers that are not alike are not stacked. */
static struct torch_dist_name parse_name(const char *name, struct arena *arena)
{
    static const struct {
        const char *head, *group;
    } heads[] = { { "optimizer.state.exp_avg.", GROUP_EXP_AVG },
                  { "optimizer.state.exp_avg_sq.", GROUP_EXP_AVG_SQ },
                  { "optimizer.state.fp32_param.", GROUP_MASTER },
                  { "optimizer.state.param.", GROUP_MASTER } };
    struct torch_dist_name n = { GROUP_PARAM, name, -1, false, false };
    int optimizer;

    if (take(&n.name, "chained_") && !take_number(&n.name, &optimizer))
        n.name = name;
    for (int i = 0; i < 4; i++)
        if (take(&n.name, heads[i].head))
            n.group = heads[i].group;
    if (take(&n.name, "optimizer.state.") && strchr(n.name, '.')) { /* not AdamW's */
        n.group = arena_printf(arena, "%.*s", (int)strcspn(n.name, "."), n.name);
        n.name = strchr(n.name, '.') + 1;
    }
    while (take(&n.name, "module.")) /* NeMo's, around the model */
        ;
    if (take(&n.name, "decoder.layers.")) {
        n.stacked = !take_number(&n.name, &n.layer);
        n.of_experts = take(&n.name, MEGATRON_EXPERTS "experts.");
    }
    return n;
}

/* Index `at` of a chunk's first axis, as a chunk without that axis. */
static struct piece take_first(const struct piece *p, int64_t at)
{
    struct piece one = *p;

    one.ndim = one.box.ndim = p->ndim - 1;
    one.begin += (at - p->box.lo[0]) * p->stride[0] * dtype_bytes(p->dtype);
    for (int i = 0; i < one.ndim; i++) {
        one.shape[i] = p->shape[i + 1];
        one.stride[i] = p->stride[i + 1];
        one.box.lo[i] = p->box.lo[i + 1];
        one.box.len[i] = p->box.len[i + 1];
    }
    return one;
}

/* What the name of a tensor in a layer says of the modules. */
static void note_modules(const struct torch_dist *d, const char *name)
{
    struct export_modules modules = piece_source_modules(d->source);

    if (d->map.model->experts == 0 || strcmp(name, "mlp.linear_fc1.layer_norm_weight") != 0)
        return;
    modules.fused_mlp_norm = true;
    piece_source_set_modules(d->source, modules);
}

/* Add what a chunk has of one layer. */
static tp_status add_layer(struct torch_dist *d, const struct piece *p,
                           const struct torch_dist_name *name, int layer, struct tp_err *err)
{
    char of_expert[EXPERT_NAME_BYTES];
    tp_status st = TP_OK;

    note_modules(d, name->name);
    if (!name->of_experts)
        return fused_piece_add(d->source, &d->map, p,
                               &(struct fused_piece_tensor){ name->name, layer, p->group }, err);
    for (int64_t e = p->box.lo[0]; e < p->box.lo[0] + p->box.len[0] && !st; e++) {
        const struct piece one = take_first(p, e);

        snprintf(of_expert, sizeof of_expert, MEGATRON_EXPERTS "local_experts.%lld.%s",
                 (long long)e, name->name);
        st = fused_piece_add(d->source, &d->map, &one,
                             &(struct fused_piece_tensor){ of_expert, layer, p->group }, err);
    }
    return st;
}

/* The axes before those of a parameter have the model's layers and experts. */
static tp_status check_axes(const struct torch_dist *d, const struct dcp_item *item,
                            const struct torch_dist_name *name, struct tp_err *err)
{
    const struct model *m = d->map.model;
    const int before = name->stacked + name->of_experts;

    if (item->ndim < before + 1 || item->ndim > before + 2)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is neither a matrix nor a vector", d->dir,
                       item->name);
    if (name->stacked ? item->shape[0] != m->layers : name->layer >= m->layers)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is of %lld layers, the model has %d",
                       d->dir, item->name,
                       name->stacked ? (long long)item->shape[0] : (long long)name->layer + 1,
                       m->layers);
    if (name->of_experts && item->shape[before - 1] != m->experts)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has %lld experts, the model %d", d->dir,
                       item->name, (long long)item->shape[before - 1], m->experts);
    for (int i = 0; i < before; i++)
        if (item->box.lo[i] < 0 || item->box.lo[i] > item->shape[i] - item->box.len[i])
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has a chunk beyond its end", d->dir,
                           item->name);
    return TP_OK;
}

static tp_status add_chunk(struct torch_dist *d, const struct dcp_item *item,
                           const struct torch_dist_name *name, struct piece *p, struct tp_err *err)
{
    tp_status st = check_axes(d, item, name, err);

    if (st)
        return st;
    memcpy(p->shape, item->shape, sizeof p->shape);
    p->box = item->box;
    if (!name->stacked)
        return add_layer(d, p, name, name->layer, err);
    for (int64_t i = item->box.lo[0]; i < item->box.lo[0] + item->box.len[0] && !st; i++) {
        const struct piece one = take_first(p, i);

        st = add_layer(d, &one, name, (int)i, err);
    }
    return st;
}

/* An interval of a part that was flattened: of the boxes that it has of the tensor, each is a
 * chunk. GroupedMLP's experts are transposed there, and stay behind, so the weights can be imported
 * alone. */
static tp_status add_interval(struct torch_dist *d, const struct dcp_item *item,
                              const struct torch_dist_name *name, const struct piece *p,
                              struct tp_err *err)
{
    struct dcp_item part, box;
    struct piece piece;
    int64_t at = 0;
    tp_status st = TP_OK;

    if (name->of_experts && d->args.experts == MEGATRON_EXPERTS_STACKED)
        return piece_source_leave(d->source, item->name, err);
    if (!torch_dist_cut_part(&part, item) || !flat_pieces_is_dense(p))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s/%s: tensor %s is not a grid of flat parts of the tensor that .metadata "
                       "says it was cut from",
                       d->dir, item->file, item->name);
    while (!st && torch_dist_cut_next(&box, &piece, &at, item, &part, p))
        st = add_chunk(d, &box, name, &piece, err);
    return st;
}

static tp_status add_item(struct torch_dist *d, const struct dcp_item *item, struct tp_err *err)
{
    const struct torch_dist_name name = parse_name(item->name, piece_source_arena(d->source));
    struct piece p;
    tp_status st;

    if (!name.group)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its optimizer", d->dir);
    if (item->is_object)
        return strstr(item->name, "_extra_state") || torch_dist_root_is(item->name)
                   ? TP_OK
                   : piece_source_leave(d->source, item->name, err);
    st = dcp_piece_read(&p, d->source, item, name.group, err);
    if (st)
        return st;
    return torch_dist_cut_is(item) ? add_interval(d, item, &name, &p, err)
                                   : add_chunk(d, item, &name, &p, err);
}

/* ---- what is beside the tensors ---- */

/* The step of the ordinary optimizer, of all parameters. */
static tp_status read_step(const struct torch_dist *d, struct torch_pieces *x,
                           const struct pickle_value *root, const char *path, struct tp_err *err)
{
    const struct pickle_value *o = megatron_extras_optimizer(root), *step;
    int64_t at = 0;
    tp_status st = TP_OK;

    step = pickle_get(pickle_get(o, "state"), "common_step");
    if (torch_pieces_is_number(step)) {
        TP_TRY(torch_pieces_number(&at, x, step, "common_step", err));
        piece_source_set_tensor_steps(d->source);
        st = piece_source_set_step(d->source, at, path, err);
    }
done:
    return st;
}

/* NeMo's is PyTorch Lightning's. */
static tp_status read_iteration(const struct torch_dist *d, const struct pickle_value *root,
                                const struct bridge_files_counters *counters, const char *path,
                                struct tp_err *err)
{
    int64_t iteration = -1;

    if (!pickle_int(&iteration, pickle_get(root, "iteration")) &&
        !pickle_int(&iteration, pickle_get(root, "global_step")))
        iteration = counters->step;
    return iteration < 0 ? TP_OK : piece_source_set_iteration(d->source, iteration, path, err);
}

/* The iteration, and what stays behind. */
static tp_status read_common(struct torch_dist *d, struct tp_err *err)
{
    struct torch_dist_root r = { .x = { .source = d->source } };
    struct bridge_files_counters counters;
    char path[PATH_MAX];
    int64_t tp;
    tp_status st;

    TP_TRY(torch_dist_root_open(&r, d->dir, 0, err));
    TP_TRY(file_join(path, d->dir, "common.pt", err));
    TP_TRY(megatron_args_read(&d->args, r.root, d->map.model, r.path, d->map.arena, err));
    d->has_layout =
        pickle_int(&tp, pickle_get(pickle_get(r.root, "args"), "tensor_model_parallel_size"));
    d->map.expert_block = d->args.expert_block;
    d->map.expert_cuts = d->args.expert_tp;
    TP_TRY(bridge_files_read(&counters, d->source, d->dir, err));
    TP_TRY(read_iteration(d, r.root, &counters, path, err));
    TP_TRY(read_step(d, &r.x, r.root, path, err));
    st = megatron_extras_read(d->source, r.root, &counters, err);
done:
    torch_pieces_close(&r.x);
    return st;
}

/* The flat buffers of a distributed optimizer, which are cut as the job was. */
static tp_status read_flat(const struct torch_dist *d, const struct dcp_item *items, int n,
                           struct tp_err *err)
{
    struct megatron_rank r = { .source = d->source, .map = d->map, .args = d->args };
    tp_status st;

    if (!d->has_layout)
        return piece_source_leave(d->source, UNKNOWN_LAYOUT, err);
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

/* No tensor of Megatron's that is read is without elements. */
static int drop_empty(struct dcp_item *items, int n)
{
    int kept = 0;

    for (int i = 0; i < n; i++)
        if (items[i].is_object || !box_is_empty(&items[i].box))
            items[kept++] = items[i];
    return kept;
}

/* NULL: the item is of none. */
static const char *old_form_of(const struct dcp_item *item)
{
    if (torch_dist_cut_is(item))
        return "fully_sharded_model_space";
    return torch_dist_flat_is_whole(item) ? "dp_zero_gather_scatter" : NULL;
}

tp_status torch_dist_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct torch_dist d = { .source = s };
    struct dcp_item *items = NULL;
    bool flat = false;
    int n = 0;
    tp_status st;

    TP_TRY(megatron_folder_find(d.dir, piece_source_path(s), err));
    TP_TRY(megatron_map_make(&d.map, m, piece_source_arena(s), err));
    TP_TRY(dcp_metadata_read(&items, &n, d.dir, piece_source_arena(s), err));
    n = drop_empty(items, n);
    TP_TRY(read_common(&d, err));
    TP_TRY(dcp_metadata_add_files(items, n, d.dir, piece_source_files(s), err));
    for (int i = 0; i < n; i++) {
        const bool is_flat = torch_dist_flat_is(&items[i]);
        const char *old = old_form_of(&items[i]);

        flat |= is_flat;
        if (flat || torch_dist_cut_is(&items[i]) || strstr(items[i].name, "optimizer.state.param."))
            piece_source_set_distributed(s);
        if (old)
            piece_source_set_old_form(s, old);
        if (!is_flat)
            TP_TRY(add_item(&d, &items[i], err));
    }
    if (flat && !piece_source_refused_state(s))
        TP_TRY(read_flat(&d, items, n, err));
done:
    return st;
}

tp_status torch_dist_check(struct piece_source *s, struct tp_err *err)
{
    for (int i = 0; i < piece_source_left(s); i++)
        if (strcmp(piece_source_left_name(s, i), UNKNOWN_LAYOUT) == 0)
            return tp_fail(
                err, TP_E_USAGE,
                "%s: its optimizer is in flat buffers, which can only be taken apart with "
                "the tensor-parallel and pipeline sizes of the job that saved; neither "
                "common.pt nor " BRIDGE_RUN_CONFIG " has them; --no-optim takes the weights alone",
                piece_source_path(s));
    return master_check(s, err);
}
