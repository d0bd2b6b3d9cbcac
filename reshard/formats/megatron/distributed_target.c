/*
 * reshard/formats/megatron/distributed_target.c - writes the state of Megatron-LM's distributed
 * optimizer, as DistributedOptimizer.state_dict and get_parameter_state_dp_zero return it; see
 * reshard/formats/megatron/megatron_rank_target.h.
 *
 * The data-parallel ranks' parts lie side by side, without the padding that makes them equal, so
 * the file is the same for any number of them.
 */
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_buckets.h"
#include "reshard/formats/megatron/megatron_rank_target.h"

/* A buffer's parameters in its order. */
struct flat_buffer {
    const struct megatron_param **params;
    struct megatron_slot *slots;
    int n;
    int64_t numel;
};

/* ---- in model_optim_rng.pt ---- */

static void push_groups(struct megatron_rank_target *r, enum megatron_part part)
{
    struct pickle_writer *w = &r->x.save.pickle;
    const struct export_contents *q = r->t->q;

    pickle_write_dict(w);
    pickle_write_text(w, "optimizer");
    pickle_write_dict(w);
    pickle_write_text(w, "param_groups");
    pickle_write_list(w);
    for (int vectors = 0; vectors < megatron_part_groups(part); vectors++) {
        megatron_args_begin_group(w, &q->adamw, vectors == 0, part == PARAMS_OF_EXPERTS);
        pickle_write_key_int(w, "step", q->optimizer_step);
        megatron_args_end_group(w);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

void distributed_target_push(struct megatron_rank_target *r)
{
    struct pickle_writer *w = &r->x.save.pickle;

    if (r->t->map.ep == 1) {
        push_groups(r, ALL_PARAMS);
        return;
    }
    pickle_write_list(w);
    push_groups(r, PARAMS_OF_LAYERS);
    push_groups(r, PARAMS_OF_EXPERTS);
    pickle_write_op(w, PICKLE_OP_APPENDS);
}

/* ---- the buffers ---- */

static int64_t elements_of(const struct megatron_param *p)
{
    return p->shape[0] * (p->ndim == 2 ? p->shape[1] : 1);
}

static int64_t bucket_size(const struct megatron_rank_target *r, int chunk)
{
    int64_t all = 0;

    for (int c = 0; c < r->t->vpp; c++)
        for (int i = 0; i < r->n[c]; i++)
            all += elements_of(&r->params[c][i]);
    return megatron_buckets_full(r->pp_rank == 0 && chunk == 0, r->t->bucket_size, r->t->buckets,
                                 all);
}

/* The buffer of a chunk, in the opposite order of modules. */
static tp_status make_buffer(struct flat_buffer *b, const struct megatron_rank_target *r, int chunk,
                             struct tp_err *err)
{
    const struct megatron_map *map = &r->t->map;
    const struct megatron_bucket_rule rule = { NULL, 0, bucket_size(r, chunk) };
    const size_t room = (size_t)r->n[chunk] + 1;

    *b = (struct flat_buffer){ .params = arena_array(map->arena, room, sizeof *b->params),
                               .slots = arena_array(map->arena, room, sizeof *b->slots) };
    if (!b->params || !b->slots)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", r->t->q->dir);
    for (int i = r->n[chunk] - 1; i >= 0; i--) {
        const struct megatron_param *p = &r->params[chunk][i];

        if (!megatron_part_has(r->part, p->expert >= 0))
            continue;
        b->params[b->n] = p;
        b->slots[b->n++] = (struct megatron_slot){
            .n = elements_of(p),
            .shared = map->model->tied && r->t->pp > 1 && megatron_map_is_vocabulary(p->name),
        };
    }
    b->numel = megatron_buckets_place(b->slots, b->n, &rule);
    return TP_OK;
}

/* Push the flat tensor of a group. */
static tp_status push_flat(struct megatron_rank_target *r, const struct flat_buffer *b,
                           enum megatron_group group, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    const int64_t elem = dtype_bytes(DTYPE_F32);
    const int storage = torch_save_tensor(&r->x.save, DTYPE_F32, 1, &b->numel);
    tp_status st = TP_OK;

    for (int i = 0; i < b->n && !st; i++) {
        const struct megatron_param *p = b->params[i];
        const int64_t row = p->ndim == 2 ? p->shape[1] : 1;

        for (int k = 0; k < p->n_rows && !st; k++) {
            const struct megatron_rows *rows = &p->rows[k];
            const int tensor = (int)(rows->tensor - t->map.params) * MEGATRON_GROUPS + (int)group;

            st = megatron_params_place(&r->x, storage, t->numbers.of[tensor], p, rows,
                                       (b->slots[i].begin + rows->row * row) * elem, err);
        }
    }
    return st;
}

/* Push {(type of weights, type of gradients): {"param": ..., "numel_unpadded": ...}}. Weights in
 * f32 are their own masters. */
static tp_status push_buffer(struct megatron_rank_target *r, const struct flat_buffer *b,
                             struct tp_err *err)
{
    static const char *const keys[] = { "param", "exp_avg", "exp_avg_sq" };
    const struct megatron_numbers *numbers = &r->t->numbers;
    const enum megatron_group groups[] = { numbers->has[MEGATRON_MASTER] ? MEGATRON_MASTER
                                                                         : MEGATRON_PARAM,
                                           MEGATRON_EXP_AVG, MEGATRON_EXP_AVG_SQ };
    const enum dtype weights = r->t->q->tensors[numbers->of[MEGATRON_PARAM]].dtype;
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st = TP_OK;

    pickle_write_dict(w);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_global(w, "torch", torch_save_dtype(weights));
    pickle_write_global(w, "torch", torch_save_dtype(r->t->gradients));
    pickle_write_op(w, PICKLE_OP_TUPLE);
    pickle_write_dict(w);
    for (int i = 0; i < 3 && !st; i++) {
        pickle_write_text(w, keys[i]);
        st = push_flat(r, b, groups[i], err);
    }
    pickle_write_key_int(w, "numel_unpadded", b->numel);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* Push an optimizer's buffers, which are numbered: one for each chunk that has parameters of it. */
static tp_status push_part(struct megatron_rank_target *r, enum megatron_part part,
                           struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    int number = 0;
    tp_status st = TP_OK;

    r->part = part;
    pickle_write_dict(w);
    pickle_write_key_bool(w, "buckets_coalesced", true);
    for (int c = 0; c < r->t->vpp; c++) {
        struct flat_buffer b;

        TP_TRY(make_buffer(&b, r, c, err));
        if (b.n == 0)
            continue;
        pickle_write_int(w, number++);
        TP_TRY(push_buffer(r, &b, err));
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
done:
    return st;
}

tp_status distributed_target_push_buffers(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st = TP_OK;

    if (r->t->map.ep == 1)
        return push_part(r, ALL_PARAMS, err);
    pickle_write_list(w);
    if (r->t->map.ep_rank == 0)
        st = push_part(r, PARAMS_OF_LAYERS, err);
    else
        pickle_write_op(w, PICKLE_OP_NONE); /* the first expert-parallel rank has them */
    if (!st)
        st = push_part(r, PARAMS_OF_EXPERTS, err);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    return st;
}
