/*
 * reshard/formats/megatron/torch_dist_target.c - writes Megatron-core's torch_dist, with the state
 * of the ordinary optimizer or of the distributed one; see reshard/formats/megatron/torch_dist.h.
 *
 * A DCP checkpoint in which the tensors of all layers are stacked in one, those of experts also
 * along a second axis, and gate is before up. An item is what a rank has of one layer and expert,
 * so gate and up are two. As fully_sharded_model_space, items of the optimizer are flat
 * (torch_dist_cut.h).
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/bridge_files.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_params.h"
#include "reshard/formats/megatron/torch_dist.h"
#include "reshard/formats/megatron/torch_dist_common.h"
#include "reshard/formats/megatron/torch_dist_cut.h"
#include "reshard/formats/torch/dcp_items.h"

#define METADATA_JSON                                                        \
    "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, " \
    "\"common_backend\": \"torch\", \"common_backend_version\": 1}"
#define LAYERS "decoder.layers."

enum { FOLDER_BYTES = 32, NAME_BYTES = 512 };

struct torch_dist_target {
    const struct export_contents *q;
    struct dcp_items items;
    struct megatron_map map;
    struct megatron_numbers numbers;
    struct megatron_version version; /* that is to load it */
    struct megatron_args_vocab vocab;
    int pp;
    char folder[FOLDER_BYTES]; /* "iter_0000100/" */
};

/* Rows of a rank's parameter that are one item. */
struct torch_dist_item {
    const struct megatron_param *param;
    int first, n_rows;  /* of the param's list of rows */
    int64_t lo, column; /* where they begin in the whole tensor */
    int64_t rows;       /* how many, with padding */
    int64_t shape[2];   /* of the whole tensor, without the axes of layers and experts */
};

static tp_status no_memory(const struct torch_dist_target *t, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
}

/* ---- names ---- */

/* What comes before the name of a parameter in each group. The distributed optimizer, saved as
 * fully_reshardable, has the shapes of the ordinary one, and another name for the masters. */
static const char *head_of(const struct torch_dist_target *t, const struct megatron_param *p,
                           enum megatron_group group)
{
    static const char *const heads[MEGATRON_GROUPS] = { "", "optimizer.state.fp32_param.",
                                                        "optimizer.state.exp_avg.",
                                                        "optimizer.state.exp_avg_sq." };

    if (group == MEGATRON_MASTER && t->q->distributed_optimizer && !t->version.model_space)
        return "optimizer.state.param.";
    if (group != MEGATRON_PARAM && t->map.ep > 1 && t->version.chained_names)
        return arena_printf(t->map.arena, "chained_%d.%s", p->expert >= 0, heads[group]);
    return heads[group];
}

/* Whether the norm before the MLP has a name of its own: before experts, as of Transformer Engine's
 * modules, unless the source has none there. */
static bool has_own_norm(const struct torch_dist_target *t)
{
    return t->map.model->experts > 0 && !t->q->modules.fused_mlp_norm;
}

/* "decoder.layers.3.input_layernorm.weight" is "decoder.layers." and the norm that Transformer
 * Engine fuses with the linear layer after it.
 * "mlp.experts.local_experts.2.linear_fc1.weight" is "mlp.experts.experts.linear_fc1.weight". */
static const char *name_of(struct torch_dist_target *t, const struct megatron_param *p,
                           enum megatron_group group)
{
    static const struct {
        const char *from, *to;
    } norms[] = { { "input_layernorm.", "self_attention.linear_qkv.layer_norm_" },
                  { "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_" } };
    const char *name = p->name, *head = head_of(t, p, group);

    if (!head)
        return NULL;
    if (p->layer < 0)
        return arena_printf(t->map.arena, "%s%s", head, name);
    name = strchr(name + strlen(LAYERS), '.') + 1;
    if (p->expert >= 0) {
        name += strlen(MEGATRON_EXPERTS "local_experts.");
        return arena_printf(t->map.arena, "%s" LAYERS MEGATRON_EXPERTS "experts%s", head,
                            strchr(name, '.'));
    }
    for (int i = 0; i < (has_own_norm(t) ? 1 : 2); i++)
        if (strncmp(name, norms[i].from, strlen(norms[i].from)) == 0)
            return arena_printf(t->map.arena, "%s" LAYERS "%s%s", head, norms[i].to,
                                name + strlen(norms[i].from));
    return arena_printf(t->map.arena, "%s" LAYERS "%s", head, name);
}

/* ---- tensors ---- */

/* The group whose tensors are written as those of `group`: the distributed optimizer has masters
 * also where the weights are their own. */
static enum megatron_group source_of(const struct torch_dist_target *t, enum megatron_group group)
{
    return group == MEGATRON_MASTER && !t->numbers.has[group] ? MEGATRON_PARAM : group;
}

/* Whether a tensor of so many axes is cut into a grid of flat parts. */
static bool is_cut(const struct torch_dist_target *t, enum megatron_group group, int ndim)
{
    return group != MEGATRON_PARAM && t->q->distributed_optimizer && t->version.model_space &&
           (ndim > 1 || t->version.cuts_vectors);
}

static tp_status add_tensor(struct torch_dist_target *t, int rank,
                            const struct torch_dist_item *part, enum megatron_group group,
                            struct tp_err *err)
{
    const enum megatron_group from = source_of(t, group);
    const struct megatron_param *p = part->param;
    const int stacked = (p->layer >= 0) + (p->expert >= 0); /* axes */
    struct dcp_new_item item = { .item.name = name_of(t, p, group) };
    struct dcp_item *to = &item.item;
    struct torch_target x;
    int64_t row_bytes;
    int storage;
    tp_status st;

    to->dtype = t->q->tensors[t->numbers.of[from]].dtype;
    to->ndim = to->box.ndim = p->ndim + stacked;
    row_bytes = p->shape[1] * dtype_bytes(to->dtype);
    for (int d = 0; d < stacked; d++) {
        to->shape[d] = d == 0 ? t->map.model->layers : t->map.model->experts;
        to->box.lo[d] = d == 0 ? p->layer : p->expert;
        to->box.len[d] = 1;
    }
    for (int d = 0; d < p->ndim; d++) {
        to->shape[d + stacked] = part->shape[d];
        to->box.lo[d + stacked] = d == 0 ? part->lo : part->column;
        to->box.len[d + stacked] = d == 0 ? part->rows : p->shape[1];
    }
    if (is_cut(t, group, to->ndim))
        torch_dist_cut_make(to);
    st = dcp_items_begin(&x, &t->items, rank, &item, err);
    if (st)
        return st;
    storage = torch_save_tensor(&x.save, to->dtype, to->ndim, to->box.len);
    for (int i = part->first; i < part->first + part->n_rows && !st; i++) {
        const struct megatron_rows *rows = &p->rows[i];
        const int at = (int)(rows->tensor - t->map.params);

        st = megatron_params_place(&x, storage, t->numbers.of[at * MEGATRON_GROUPS + from], p, rows,
                                   (rows->row - p->rows[part->first].row) * row_bytes, err);
    }
    if (!st)
        return dcp_items_end(&x, &t->items, rank, err);
    torch_target_free(&x);
    return st;
}

/* Whether a module of Transformer Engine asks for an _extra_state when it loads: linear layers in
 * layers, and norms (since 2.0), but for those that are part of the linear layer after them. */
static bool has_extra_state(const struct torch_dist_target *t, const struct megatron_param *p)
{
    if (!strstr(p->name, "layernorm.weight"))
        return p->linear && p->layer >= 0;
    return !strstr(p->name, ".input_layernorm.") &&
           (has_own_norm(t) || !strstr(p->name, ".pre_mlp_layernorm."));
}

/* An object for each layer, a list with nothing in it. */
static tp_status add_extra_state(struct torch_dist_target *t, int rank,
                                 const struct megatron_param *p, struct tp_err *err)
{
    const char *name = name_of(t, p, MEGATRON_PARAM);
    const int head = name ? (int)(strlen(name) - strlen("weight")) : 0;
    const struct model *m = t->map.model;
    struct dcp_new_item item = { .item.is_object = true };
    struct torch_target x;
    tp_status st;

    if (!name)
        return no_memory(t, err);
    item.item.name = p->expert >= 0
                         ? arena_printf(t->map.arena, "%.*s_extra_state/shard_%d.%d_%d.%d", head,
                                        name, p->layer, p->expert, m->layers, m->experts)
                         : arena_printf(t->map.arena, "%.*s_extra_state/shard_%d_%d", head, name,
                                        p->layer < 0 ? 0 : p->layer, p->layer < 0 ? 1 : m->layers);
    st = dcp_items_begin(&x, &t->items, rank, &item, err);
    if (st)
        return st;
    pickle_write_list(&x.save.pickle);
    pickle_write_op(&x.save.pickle, PICKLE_OP_NONE);
    pickle_write_op(&x.save.pickle, PICKLE_OP_APPENDS);
    return dcp_items_end(&x, &t->items, rank, err);
}

static tp_status add_groups(struct torch_dist_target *t, int rank,
                            const struct torch_dist_item *part, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int g = 0; g < MEGATRON_GROUPS && !st; g++)
        if (t->numbers.has[g] || (g == MEGATRON_MASTER && t->q->distributed_optimizer))
            st = add_tensor(t, rank, part, (enum megatron_group)g, err);
    return st;
}

/* Add a parameter of a rank; those that all ranks have are the first one's. */
static tp_status add_param(struct torch_dist_target *t, int rank, int tp_rank,
                           const struct megatron_param *p, struct tp_err *err)
{
    const bool fc1 = strstr(p->name, "linear_fc1.") != NULL, gated = fc1 && p->n_rows == 2;
    const bool rows_cut =
        fc1 || strstr(p->name, "linear_qkv.") || megatron_map_is_vocabulary(p->name);
    const bool columns_cut = p->linear && !rows_cut;
    struct torch_dist_item part = { .param = p, .n_rows = p->n_rows, .rows = p->shape[0] };
    tp_status st = TP_OK;

    if (!rows_cut && !columns_cut && tp_rank > 0)
        return TP_OK;
    part.shape[0] = p->shape[0] * (rows_cut ? t->map.tp : 1);
    part.shape[1] = p->shape[1] * (columns_cut ? t->map.tp : 1);
    part.lo = rows_cut ? tp_rank * p->shape[0] : 0;
    part.column = columns_cut ? tp_rank * p->shape[1] : 0;
    if (!gated)
        st = add_groups(t, rank, &part, err);
    for (int k = 0; k < 2 && gated && !st; k++) { /* gate, up */
        part.first = k;
        part.n_rows = 1;
        part.rows = p->rows[k].n;
        part.lo = (k * t->map.tp + tp_rank) * part.rows;
        st = add_groups(t, rank, &part, err);
    }
    if (!st && has_extra_state(t, p) && tp_rank == 0)
        st = add_extra_state(t, rank, p, err);
    return st;
}

/* Boxes of a tensor must be neighbours in .metadata. */
static int by_name(const void *a, const void *b)
{
    const struct dcp_item *x = &((const struct dcp_new_item *)a)->item,
                          *y = &((const struct dcp_new_item *)b)->item;
    int order = strcmp(x->name, y->name);

    for (int d = 0; d < x->ndim && !order; d++)
        order = (x->box.lo[d] > y->box.lo[d]) - (x->box.lo[d] < y->box.lo[d]);
    return order;
}

static tp_status add_ranks(struct torch_dist_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 0; rank < t->pp * t->map.ep * t->map.tp && !st; rank++) {
        const struct megatron_chunk at = { .pp = t->pp,
                                           .vpp = 1,
                                           .tp_rank = (int)(rank % t->map.tp),
                                           .pp_rank = (int)(rank / t->map.tp / t->map.ep) };
        struct megatron_param *params = NULL;
        int n = 0;

        t->map.ep_rank = (int)(rank / t->map.tp % t->map.ep);
        st = megatron_params_list(&params, &n, &t->map, &at, err);
        for (int i = 0; i < n && !st; i++)
            if ((t->map.ep_rank == 0 || params[i].expert >= 0) &&
                (!t->map.model->tied || strcmp(params[i].name, "output_layer.weight") != 0))
                st = add_param(t, rank, at.tp_rank, &params[i], err);
    }
    if (!st)
        qsort(t->items.items, (size_t)t->items.n, sizeof *t->items.items, by_name);
    return st;
}

/* ---- as a format of tp-ckpt export ---- */

static struct megatron_args_sizes sizes_of(const struct torch_dist_target *t)
{
    return (struct megatron_args_sizes){ .tp = (int)t->map.tp,
                                         .pp = t->pp,
                                         .vpp = 1,
                                         .ep = t->map.ep,
                                         .vocab = t->vocab,
                                         .modules.impl = t->q->modules.impl,
                                         .has_optimizer = t->numbers.has[MEGATRON_EXP_AVG],
                                         .distributed_optimizer = t->q->distributed_optimizer,
                                         .model_space = t->q->distributed_optimizer &&
                                                        t->version.model_space };
}

static tp_status write_common(const struct torch_dist_target *t, struct tp_err *err)
{
    const struct torch_dist_common common = {
        .contents = t->q,
        .sizes = sizes_of(t),
        .version = t->version,
        .has_masters = t->numbers.has[MEGATRON_MASTER],
    };
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%scommon.pt", t->folder);
    return torch_dist_common_write(&common, t->items.pieces, name, err);
}

static tp_status write_all(struct torch_dist_target *t, struct tp_err *err)
{
    const struct megatron_args_sizes sizes = sizes_of(t);
    char dir[PATH_MAX], path[PATH_MAX];
    tp_status st;

    TP_TRY(write_common(t, err));
    TP_TRY(add_ranks(t, err));
    TP_TRY(file_join(dir, t->q->dir, t->folder, err));
    TP_TRY(dcp_items_write(&t->items, dir, err));
    TP_TRY(file_join(path, dir, "metadata.json", err));
    TP_TRY(file_write_new(path, METADATA_JSON, strlen(METADATA_JSON), err));
    TP_TRY(bridge_files_write(t->q, dir, &sizes, err));
    TP_TRY(megatron_write_latest(t->q, err));
    TP_TRY(piece_target_plan(t->items.pieces, err));
done:
    return st;
}

/* A program that had to load the source's form may not know the new one. */
static void note_old_form(const struct export_contents *q)
{
    const char *old = q->extras ? piece_source_old_form(q->extras) : NULL;

    if (old && q->distributed_optimizer && !q->megatron_core)
        progress_note(
            q->progress,
            "%s: its optimizer is saved as %s, and is written as fully_reshardable, which "
            "Megatron-core loads since 0.15; for an earlier version give --megatron-core "
            "VERSION",
            q->source, old);
}

static tp_status check_optimizer(const struct torch_dist_target *t, struct tp_err *err)
{
    if (!t->q->distributed_optimizer)
        return TP_OK;
    if (!t->numbers.has[MEGATRON_EXP_AVG])
        return tp_fail(err, TP_E_USAGE, "--distributed-optimizer: %s has no state of an optimizer",
                       t->q->source);
    return TP_OK;
}

tp_status torch_dist_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err)
{
    const struct spec *spec = &q->layout->spec;
    struct torch_dist_target t = { .q = q, .pp = spec->pp };
    struct piece_target *pieces = NULL;
    tp_status st;

    if (q->model->family == MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "%s: a model of an unknown architecture cannot be written in this format",
                       q->source);
    TP_TRY(megatron_version_find(&t.version, q->megatron_core, err));
    snprintf(t.folder, sizeof t.folder, "iter_%07lld/", (long long)q->step);
    TP_TRY(piece_target_new(&pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(dcp_items_make(&t.items, pieces, t.folder, spec->tp * spec->pp * spec->ep, err));
    TP_TRY(megatron_map_make(&t.map, q->model, t.items.arena, err));
    t.map.tp = spec->tp;
    t.map.ep = spec->ep;
    TP_TRY(megatron_args_pad_vocab(&t.map, &t.vocab, q, err));
    TP_TRY(megatron_params_check(&t.map, err));
    TP_TRY(megatron_params_number(&t.numbers, &t.map, q->layout, q->source, err));
    TP_TRY(check_optimizer(&t, err));
    note_old_form(q);
    megatron_args_note_rate(q, t.numbers.has[MEGATRON_EXP_AVG]);
    TP_TRY(write_all(&t, err));
    *w = piece_target_writer(pieces);
    pieces = NULL;
done:
    dcp_items_free(&t.items);
    piece_target_close(pieces);
    return st;
}
