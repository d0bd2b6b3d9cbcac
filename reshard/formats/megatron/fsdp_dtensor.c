/* reshard/formats/megatron/fsdp_dtensor.c - see reshard/formats/megatron/fsdp_dtensor.h. */
#include "reshard/formats/megatron/fsdp_dtensor.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/megatron/bridge_files.h"
#include "reshard/formats/megatron/fsdp_dtensor_root.h"
#include "reshard/formats/megatron/fused_piece.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/megatron/torch_dist_root.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "reshard/formats/torch/dcp_piece.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "storage/object.h"

#define WEIGHT "model."
#define STATE  "optimizer.state."
#define MODULE "module."
#define LAYERS "decoder.layers."
#define FC1    "linear_fc1."
/* Every such checkpoint has it: Megatron-FSDP has no pipeline stages. */
#define EMBEDDING "model.module.embedding.word_embeddings.weight"

struct fsdp_dtensor {
    struct piece_source *source;
    struct megatron_map map; /* of whole tensors: as on one tensor-parallel rank */
    struct megatron_args args;
    const char *f32_weights; /* the group of weights in f32 */
    char dir[PATH_MAX];
};

enum fsdp_half { FSDP_WHOLE, FSDP_GATE, FSDP_UP };

struct fsdp_dtensor_name {
    const char *group; /* GROUP_PARAM, or the optimizer's name: "exp_avg", "step" */
    const char *name;  /* without "decoder.layers.3." and "_w"; NULL: it is none of the model */
    int layer;         /* -1: outside of layers */
    enum fsdp_half half;
};

bool fsdp_dtensor_detect(const char *path)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    return !megatron_folder_find(dir, path, &err) && object_is_in(dir, ".metadata") &&
           !object_is_in(dir, "metadata.json") && dcp_metadata_contains(dir, EMBEDDING);
}

/* ---- names ---- */

static bool take(const char **at, const char *head)
{
    const size_t n = strlen(head);

    if (strncmp(*at, head, n) != 0)
        return false;
    *at += n;
    return true;
}

/* Whose half of linear_fc1 it is: "weight3_w", "bias_v". */
static enum fsdp_half half_of(const char *name)
{
    if (!strstr(name, FC1))
        return FSDP_WHOLE;
    return text_ends_with(name, "_w")   ? FSDP_GATE
           : text_ends_with(name, "_v") ? FSDP_UP
                                        : FSDP_WHOLE;
}

/* Go into a layer, if *at is in one. */
static void take_layer(struct fsdp_dtensor_name *n, const char **at)
{
    const char *rest = *at;
    char *end;
    long layer;

    if (!take(&rest, LAYERS) || *rest < '0' || *rest > '9')
        return;
    layer = strtol(rest, &end, 10);
    if (*end != '.' || layer > INT_MAX)
        return;
    n->layer = (int)layer;
    *at = end + 1;
}

/* "optimizer.state.module.module.NAME.exp_avg" is exp_avg of NAME, "model.module.NAME" a weight. */
static tp_status parse_name(struct fsdp_dtensor_name *n, const char *name, struct arena *arena,
                            struct tp_err *err)
{
    const char *at = name;
    const bool state = take(&at, STATE);
    char *own, *dot;

    *n = (struct fsdp_dtensor_name){ GROUP_PARAM, NULL, -1, FSDP_WHOLE };
    if (!state && !take(&at, WEIGHT))
        return TP_OK;
    own = arena_strdup(arena, at);
    if (!own)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its name", name);
    if (state) {
        dot = strrchr(own, '.');
        if (!dot)
            return TP_OK;
        *dot = 0;
        n->group = dot + 1;
    }
    n->half = half_of(own);
    if (n->half != FSDP_WHOLE)
        own[strlen(own) - strlen("_w")] = 0;
    n->name = own;
    while (take(&n->name, MODULE)) /* the wrappers around the model */
        ;
    take_layer(n, &n->name);
    return TP_OK;
}

/* ---- tensors ---- */

/* Half a tensor as a part of the whole: gate is above up. */
static tp_status join_halves(struct piece *p, enum fsdp_half half, const char *path,
                             struct tp_err *err)
{
    const int64_t rows = p->shape[0];

    if (rows > INT64_MAX / 2)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has %lld rows", path, p->name,
                       (long long)rows);
    p->shape[0] = 2 * rows;
    if (half == FSDP_UP)
        p->box.lo[0] += rows;
    return TP_OK;
}

static tp_status check_place(const struct fsdp_dtensor *d, const struct dcp_item *item,
                             const struct fsdp_dtensor_name *name, struct tp_err *err)
{
    if (item->ndim < 1 || item->ndim > 2)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is neither a matrix nor a vector", d->dir,
                       item->name);
    if (name->layer >= d->map.model->layers)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is of layer %d, the model has %d layers",
                       d->dir, item->name, name->layer, d->map.model->layers);
    for (int i = 0; i < item->ndim; i++)
        if (item->box.len[i] > item->shape[i] ||
            item->box.lo[i] > item->shape[i] - item->box.len[i])
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has a chunk beyond its end", d->dir,
                           item->name);
    return TP_OK;
}

/* Before Megatron-core 0.16 experts' gate and up are one tensor, in which tensor-parallel ranks
 * have theirs in turn. */
static tp_status check_experts(const struct fsdp_dtensor *d, const struct dcp_item *item,
                               const struct fsdp_dtensor_name *name, struct tp_err *err)
{
    if (name->half != FSDP_WHOLE || d->args.expert_tp == 1 || !megatron_map_is_expert(name->name) ||
        !strstr(name->name, FC1))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: tensor %s has gate and up of an expert, which was saved with "
                   "expert_tensor_parallel_size %d; this is read where Megatron-core has split it "
                   "into _w and _v, as it does since 0.16",
                   d->dir, item->name, d->args.expert_tp);
}

static tp_status add_tensor(struct fsdp_dtensor *d, const struct dcp_item *item,
                            const struct fsdp_dtensor_name *name, struct tp_err *err)
{
    const bool weight = strcmp(name->group, GROUP_PARAM) == 0;
    const char *group = weight && item->dtype == DTYPE_F32 ? d->f32_weights : name->group;
    struct piece p;
    tp_status st = check_place(d, item, name, err);

    if (!st)
        st = check_experts(d, item, name, err);
    if (!st)
        st = dcp_piece_read(&p, d->source, item, group, err);
    if (st)
        return st;
    memcpy(p.shape, item->shape, sizeof p.shape);
    p.box = item->box;
    if (name->half != FSDP_WHOLE)
        st = join_halves(&p, name->half, d->dir, err);
    return st ? st
              : fused_piece_add(
                    d->source, &d->map, &p,
                    &(struct fused_piece_tensor){ name->name, name->layer, name->group }, err);
}

/* torch's AdamW counts the steps of each tensor. */
static tp_status add_step(struct fsdp_dtensor *d, const struct dcp_item *item, struct tp_err *err)
{
    struct torch_pieces x = { .source = d->source };
    int64_t step;
    tp_status st;

    TP_TRY(torch_pieces_open(&x, d->source, item->file_number, item->begin, item->size, err));
    TP_TRY(torch_pieces_number(&step, &x, x.root, item->name, err));
    piece_source_set_tensor_steps(d->source);
    st = piece_source_set_step(d->source, step, item->name, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* Masters that the optimizer keeps itself are not those of both halves of a fused tensor, under
 * whose names they are saved. */
static void refuse_masters(struct fsdp_dtensor *d, const struct dcp_item *item)
{
    struct tp_err why = { 0 };

    tp_fail(&why, TP_E_USAGE,
            "%s: %s: masters that the optimizer keeps itself (use_precision_aware_optimizer, "
            "decoupled gradients) are not supported; --no-optim takes the weights alone",
            d->dir, item->name);
    piece_source_refuse_state(d->source, &why);
}

/* ---- what is beside the tensors ---- */

/* List something by the first word of its name, once: each rank's state has hundreds of parts. */
static tp_status leave(const struct fsdp_dtensor *d, const char *name, struct tp_err *err)
{
    char *word = arena_printf(piece_source_arena(d->source), "%.*s", (int)strcspn(name, "."), name);

    if (!word)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %s", d->dir, name);
    for (int i = 0; i < piece_source_left(d->source); i++)
        if (strcmp(piece_source_left_name(d->source, i), word) == 0)
            return TP_OK;
    return piece_source_leave(d->source, word, err);
}

static tp_status check_args(const struct fsdp_dtensor *d, const struct torch_dist_root *r,
                            struct tp_err *err)
{
    const char *path = r->path;

    if (d->args.pp > 1)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with %d pipeline stages, which Megatron-FSDP does not have",
                       path, d->args.pp);
    if (d->args.expert_block > 0 || (d->map.model->experts > 0 && r->bridge.has_blocks))
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with " MEGATRON_BLOCK_ARG ", which is not supported with "
                       "Megatron-FSDP",
                       path);
    return TP_OK;
}

/* Of a program in bf16 or fp16, weights in f32 are masters. */
static void choose_weights(struct fsdp_dtensor *d, const struct pickle_value *args)
{
    const struct pickle_value *fp16 = pickle_get(args, "fp16"), *bf16 = pickle_get(args, "bf16");
    const bool is_fp16 = pickle_is(fp16, PICKLE_BOOL) && fp16->number,
               is_bf16 = pickle_is(bf16, PICKLE_BOOL) && bf16->number;

    d->f32_weights = is_fp16 || is_bf16 ? GROUP_MASTER : GROUP_PARAM;
    if (is_fp16 || is_bf16) /* a tensor that the model does not have is a weight */
        piece_source_set_frozen(d->source);
    if (is_fp16)
        piece_source_set_weights(d->source, DTYPE_F16);
}

/* Arguments, iteration, the options of AdamW, and what stays behind. */
static tp_status read_root(struct fsdp_dtensor *d, struct tp_err *err)
{
    struct torch_dist_root r = { .x = { .source = d->source } };
    struct bridge_files_counters counters;
    int64_t iteration = -1;
    tp_status st;

    TP_TRY(torch_dist_root_open(&r, d->dir, 0, err));
    TP_TRY(megatron_args_read(&d->args, r.root, d->map.model, r.path, d->map.arena, err));
    TP_TRY(check_args(d, &r, err));
    choose_weights(d, pickle_get(r.root, "args"));
    TP_TRY(bridge_files_read(&counters, d->source, d->dir, err));
    if (!pickle_int(&iteration, pickle_get(r.root, "iteration")))
        iteration = counters.step;
    if (iteration >= 0)
        TP_TRY(piece_source_set_iteration(d->source, iteration, r.path, err));
    st = megatron_extras_read(d->source, r.root, &counters, err);
done:
    torch_pieces_close(&r.x);
    return st;
}

static tp_status add_item(struct fsdp_dtensor *d, const struct dcp_item *item, struct tp_err *err)
{
    struct fsdp_dtensor_name name;
    tp_status st;

    if (item->is_object)
        return fsdp_dtensor_root_has(item->name) || strstr(item->name, "_extra_state")
                   ? TP_OK
                   : leave(d, item->name, err);
    st = parse_name(&name, item->name, d->map.arena, err);
    if (st)
        return st;
    if (!name.name)
        return leave(d, item->name, err);
    if (strcmp(name.group, "step") == 0)
        return add_step(d, item, err);
    if (strcmp(name.group, "master_param") == 0) {
        refuse_masters(d, item);
        return TP_OK;
    }
    return box_is_empty(&item->box) ? TP_OK : add_tensor(d, item, &name, err);
}

tp_status fsdp_dtensor_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct fsdp_dtensor d = { .source = s };
    struct dcp_item *items = NULL;
    int n = 0;
    tp_status st;

    TP_TRY(megatron_folder_find(d.dir, piece_source_path(s), err));
    TP_TRY(megatron_map_make(&d.map, m, piece_source_arena(s), err));
    TP_TRY(dcp_metadata_read(&items, &n, d.dir, piece_source_arena(s), err));
    TP_TRY(read_root(&d, err));
    TP_TRY(dcp_metadata_add_files(items, n, d.dir, piece_source_files(s), err));
    piece_source_set_distributed(s);
    for (int i = 0; i < n && !st; i++)
        st = add_item(&d, &items[i], err);
done:
    return st;
}
