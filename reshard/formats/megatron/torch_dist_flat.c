/*
 * reshard/formats/megatron/torch_dist_flat.c - see reshard/formats/megatron/torch_dist_flat.h. The
 * names:
 *
 *     optimizer.distributed.dp_group_idx_G.gbuf_idx_C.dtype_(...).bucket_idx_B.exp_avg
 *     optimizer.distributed.dp_group_idx_G.param_state/shard_0_1
 *
 * G = stage * tp + tensor-parallel rank, C is the buffer. With expert parallelism "chained_0." or
 * "chained_1." is before them, and for experts, which is the second one, G = (stage * ep +
 * expert-parallel rank) * expert-tp + expert-tensor-parallel rank.
 */
#include "reshard/formats/megatron/torch_dist_flat.h"

#include <stdlib.h>
#include <string.h>

#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_flat.h"
#include "reshard/formats/megatron/megatron_modules.h"

#define HEAD "optimizer.distributed."

enum { FLAT_NUMBER_MAX = 1 << 30 };

/* An item that has state. */
struct flat_item {
    enum megatron_part part;
    int rank, buffer, bucket; /* buffer -1: an object with all buffers */
    const char *group;
    const struct dcp_item *item;
};

/* The items of a reading, by part, rank, buffer and bucket. */
struct flat_items {
    struct flat_item *list;
    int n;
};

/* Read `head` and a number and "." at *at, and go beyond them. */
static bool take_number(int *number, const char **at, const char *head)
{
    const size_t n = strlen(head);
    char *end;
    long value;

    if (!*at || strncmp(*at, head, n) != 0 || (*at)[n] < '0' || (*at)[n] > '9')
        return false;
    value = strtol(*at + n, &end, 10);
    if (*end != '.' || value > FLAT_NUMBER_MAX)
        return false;
    *number = (int)value;
    *at = end + 1;
    return true;
}

/* A name without "chained_N.", and N, or -1. */
static const char *without_optimizer(int *optimizer, const char *name)
{
    const char *rest = name;

    *optimizer = -1;
    return take_number(optimizer, &rest, "chained_") ? rest : name;
}

bool torch_dist_flat_is(const struct dcp_item *item)
{
    int optimizer;

    return strncmp(without_optimizer(&optimizer, item->name), HEAD, strlen(HEAD)) == 0;
}

static tp_status damaged(const struct megatron_rank *r, const struct dcp_item *item,
                         const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: %s %s", r->dir, item->file, item->name, what);
}

/* ---- names ---- */

static const char *group_of(const char *key)
{
    return strcmp(key, "exp_avg") == 0      ? GROUP_EXP_AVG
           : strcmp(key, "exp_avg_sq") == 0 ? GROUP_EXP_AVG_SQ
           : strcmp(key, "param") == 0      ? GROUP_MASTER
                                            : NULL;
}

/* False: it is not state of the parameters. */
static bool parse_name(struct flat_item *out, const struct dcp_item *item)
{
    int optimizer;
    const char *rest = without_optimizer(&optimizer, item->name) + strlen(HEAD);

    *out = (struct flat_item){ .item = item,
                               .buffer = -1,
                               .part = (enum megatron_part)(optimizer + 1) };
    if (!take_number(&out->rank, &rest, "dp_group_idx_"))
        return false;
    if (item->is_object)
        return strncmp(rest, "param_state/", strlen("param_state/")) == 0;
    if (!take_number(&out->buffer, &rest, "gbuf_idx_"))
        return false;
    rest = strstr(rest, "bucket_idx_");
    if (!take_number(&out->bucket, &rest, "bucket_idx_"))
        return false;
    out->group = group_of(rest);
    return true;
}

bool torch_dist_flat_is_whole(const struct dcp_item *item)
{
    struct flat_item parts;

    return torch_dist_flat_is(item) && item->is_object && parse_name(&parts, item);
}

static int by_place(const void *a, const void *b)
{
    const struct flat_item *x = a, *y = b;

    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return (x->bucket > y->bucket) - (x->bucket < y->bucket);
}

/* Ranks that have different parameters of an optimizer. */
static int64_t ranks_of(const struct megatron_rank *r, enum megatron_part part)
{
    const bool experts = part == PARAMS_OF_EXPERTS;

    return (int64_t)r->args.pp * (experts ? r->args.expert_tp : r->args.tp) *
           (experts ? r->args.ep : 1);
}

static bool is_of_job(const struct megatron_rank *r, const struct flat_item *x)
{
    return x->rank >= 0 && x->rank < ranks_of(r, x->part) && x->buffer < r->args.vpp &&
           x->bucket >= 0 && (r->args.ep > 1) == (x->part != ALL_PARAMS) &&
           x->part <= PARAMS_OF_EXPERTS;
}

/* The options of AdamW: a list with a dict of param_groups. */
static tp_status read_options(const struct megatron_rank *r, const struct dcp_item *item,
                              struct tp_err *err)
{
    struct torch_pieces x = { .source = r->source };
    bool found = false;
    tp_status st;

    TP_TRY(torch_pieces_open(&x, r->source, item->file_number, item->begin, item->size, err));
    TP_TRY(megatron_extras_adamw(&found, r->source,
                                 pickle_get(pickle_item(x.root, 0), "param_groups"), err));
    TP_TRY(piece_source_leave(r->source, item->name, err));
    if (found)
        piece_source_left_in_adamw(r->source);
done:
    torch_pieces_close(&x);
    return st;
}

/* Sizes of buckets follow from their tensors. Options of AdamW are read and listed for the first
 * rank, because all ranks have the same. */
static tp_status keep_or_leave(struct flat_items *out, const struct megatron_rank *r,
                               const struct dcp_item *item, struct tp_err *err)
{
    struct flat_item *to = &out->list[out->n];

    if (parse_name(to, item)) {
        if (!item->is_object && !to->group)
            return damaged(r, item, "is unknown state of the optimizer, which is not AdamW's", err);
        if (!is_of_job(r, to))
            return damaged(r, item, "is of a rank that the job of common.pt did not have", err);
        out->n++;
        return TP_OK;
    }
    if (!item->is_object)
        return damaged(r, item, "is not known in a distributed optimizer", err);
    if (to->rank > 0 || strstr(item->name, ".per_bucket_numel"))
        return TP_OK;
    return strstr(item->name, ".optimizer/") && to->part != PARAMS_OF_EXPERTS
               ? read_options(r, item, err)
               : piece_source_leave(r->source, item->name, err);
}

static tp_status find_items(struct flat_items *out, const struct megatron_rank *r,
                            const struct dcp_item *items, int n, struct tp_err *err)
{
    tp_status st = TP_OK;

    out->list = calloc((size_t)n + 1, sizeof *out->list);
    if (!out->list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its optimizer", r->dir);
    for (int i = 0; i < n && !st; i++)
        if (torch_dist_flat_is(&items[i]))
            st = keep_or_leave(out, r, &items[i], err);
    qsort(out->list, (size_t)out->n, sizeof *out->list, by_place);
    return st;
}

/* ---- dp_reshardable ---- */

/* A parameter, or padding, or a part of either: another cut means that the parameters are in
 * another order than here. */
static bool is_cut_at_params(const struct megatron_flat *f, int64_t at, int64_t n)
{
    const int i = megatron_flat_find(f, at);

    if (i == f->n || f->params[i].begin >= at + n)
        return true;
    return f->params[i].begin <= at && at + n <= f->params[i].begin + f->params[i].n;
}

/* `at` is the first element of its bucket. */
static tp_status add_item(struct megatron_rank *r, const struct megatron_flat *f,
                          const struct flat_item *x, int64_t at, struct tp_err *err)
{
    const struct dcp_item *item = x->item;
    const int64_t n = item->box.len[0];
    struct torch_pieces pieces = { .source = r->source };
    struct piece flat;
    tp_status st = TP_OK;

    at += item->box.lo[0];
    if (n > item->shape[0] - item->box.lo[0])
        return damaged(r, item, "has a chunk beyond its end", err);
    if (!is_cut_at_params(f, at, n))
        return damaged(r, item,
                       "is cut elsewhere than between the model's parameters; the program that "
                       "saved it has them in an unknown order",
                       err);
    TP_TRY(torch_pieces_open(&pieces, r->source, item->file_number, item->begin, item->size, err));
    TP_TRY(torch_pieces_tensor(&flat, &pieces, pieces.root, x->group, item->name, err));
    if (flat.ndim != 1 || flat.shape[0] != n || flat.stride[0] > 1 || flat.dtype == DTYPE_COUNT ||
        flat.dtype != item->dtype) {
        st = damaged(r, item, "has another shape or type than .metadata says", err);
        goto done;
    }
    TP_TRY(megatron_flat_add(r, f, &flat, at, err));
done:
    torch_pieces_close(&pieces);
    return st;
}

/* The sizes of the buckets of list[0 .. n - 1], in the arena. */
static tp_status find_sizes(int64_t **sizes, int *n_sizes, const struct megatron_rank *r,
                            const struct flat_item *list, int n, struct tp_err *err)
{
    *n_sizes = list[n - 1].bucket + 1;
    *sizes = *n_sizes > n ? NULL : arena_array(r->map.arena, (size_t)n, sizeof **sizes);
    if (*n_sizes > n)
        return damaged(r, list[n - 1].item, "exists, but a bucket before it is missing", err);
    if (!*sizes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its buckets", r->dir);
    for (int i = 0; i < n; i++) {
        const struct dcp_item *item = list[i].item;
        int64_t *size = &(*sizes)[list[i].bucket];

        if (item->ndim != 1 || item->shape[0] < 1 || (*size && *size != item->shape[0]) ||
            item->shape[0] > INT64_MAX / n)
            return damaged(r, item, "has another shape than the bucket's other tensors", err);
        *size = item->shape[0];
    }
    for (int b = 0; b < *n_sizes; b++)
        if ((*sizes)[b] == 0)
            return damaged(r, list[0].item, "exists, but another bucket of its buffer is missing",
                           err);
    return TP_OK;
}

/* The items of one buffer of a rank. */
static tp_status add_buffer(struct megatron_rank *r, const struct flat_item *list, int n,
                            struct tp_err *err)
{
    struct megatron_flat f;
    int64_t *sizes, at = 0;
    int n_sizes, bucket = 0;
    tp_status st;

    if (list[0].buffer >= megatron_flat_buffers(r))
        return damaged(r, list[0].item, "is of a buffer that has no parameters", err);
    TP_TRY(find_sizes(&sizes, &n_sizes, r, list, n, err));
    TP_TRY(megatron_flat_make(&f, r, list[0].buffer, sizes, n_sizes, err));
    for (int i = 0; i < n; i++) {
        while (bucket < list[i].bucket)
            at += sizes[bucket++];
        TP_TRY(add_item(r, &f, &list[i], at, err));
    }
done:
    return st;
}

/* ---- dp_zero_gather_scatter ---- */

static tp_status add_object(struct megatron_rank *r, const struct flat_item *x, struct tp_err *err)
{
    const struct dcp_item *item = x->item;
    struct torch_pieces pieces = { .source = r->source };
    tp_status st;

    TP_TRY(torch_pieces_open(&pieces, r->source, item->file_number, item->begin, item->size, err));
    TP_TRY(megatron_optimizer_add_buffers(r, &pieces, pickle_item(pieces.root, 0), err));
done:
    torch_pieces_close(&pieces);
    return st;
}

/* ---- all ranks ---- */

static bool is_same_buffer(const struct flat_item *a, const struct flat_item *b)
{
    return a->part == b->part && a->rank == b->rank && a->buffer == b->buffer && a->buffer >= 0;
}

/* r becomes a rank of an optimizer, with its parameters. */
static tp_status begin_rank(struct megatron_rank *r, enum megatron_part part, int rank,
                            struct tp_err *err)
{
    const bool experts = part == PARAMS_OF_EXPERTS;
    const int tp = experts ? r->args.expert_tp : r->args.tp, ep = experts ? r->args.ep : 1;

    r->part = part;
    r->map.tp = tp;
    r->tp_rank = rank % tp;
    r->map.ep_rank = rank / tp % ep;
    r->pp_rank = rank / tp / ep;
    return megatron_modules_list(r, err);
}

static tp_status check_experts(const struct megatron_rank *r, struct tp_err *err)
{
    if (r->map.model->experts > 0 && r->args.ep == 1 && r->args.expert_tp != r->args.tp)
        return tp_fail(err, TP_E_USAGE,
                       "%s: the flat buffers of the distributed optimizer are not read when "
                       "experts are cut over %d ranks and other layers over %d, without expert "
                       "parallelism; save with --dist-ckpt-optim-fully-reshardable",
                       r->dir, r->args.expert_tp, r->args.tp);
    return TP_OK;
}

tp_status torch_dist_flat_read(struct megatron_rank *r, const struct dcp_item *items, int n,
                               struct tp_err *err)
{
    struct flat_items all = { 0 };
    const struct flat_item *before = NULL;
    tp_status st;

    TP_TRY(check_experts(r, err));
    TP_TRY(find_items(&all, r, items, n, err));
    for (int i = 0, end; i < all.n; i = end) {
        const struct flat_item *first = &all.list[i];

        if (!before || first->part != before->part || first->rank != before->rank)
            TP_TRY(begin_rank(r, first->part, first->rank, err));
        before = first;
        for (end = i + 1; end < all.n && is_same_buffer(first, &all.list[end]);)
            end++;
        if (first->buffer < 0)
            TP_TRY(add_object(r, first, err));
        else
            TP_TRY(add_buffer(r, first, end - i, err));
    }
done:
    free(all.list);
    return st;
}
