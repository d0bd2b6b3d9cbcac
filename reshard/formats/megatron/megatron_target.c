/*
 * reshard/formats/megatron/megatron_target.c - writes a folder for each rank, as Megatron-LM's
 * save_checkpoint with ckpt_format "torch" and the ordinary optimizer; see
 * reshard/formats/megatron/megatron.h.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_params.h"
#include "reshard/formats/torch/torch_target.h"

enum { NAME_BYTES = 64 };

struct megatron_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct megatron_map map;
    struct megatron_numbers numbers;
    int pp, vpp;
};

/* With expert parallelism, the parameters of experts have an optimizer of their own. */

/* What one rank has: the parameters of all its chunks, and the file that is being written. */
struct megatron_rank_target {
    struct megatron_target *t;
    struct torch_target x;
    struct megatron_param **params; /* [vpp] */
    int *n;                         /* [vpp] */
    int tp_rank, pp_rank;
    enum megatron_part part; /* that is being written */
};

/* ---- tensors ---- */

/* Push a parameter's tensor of a group. */
static tp_status push_tensor(struct megatron_rank_target *r, const struct megatron_param *p,
                             enum megatron_group group, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    const struct tensor *first = &t->q->tensors[t->numbers.of[group]];
    const enum dtype dtype = first->dtype;
    const int storage = torch_save_tensor(&r->x.save, dtype, p->ndim, p->shape);
    const int64_t row_bytes = p->shape[1] * dtype_bytes(dtype);
    tp_status st = TP_OK;

    for (int i = 0; i < p->n_rows && !st; i++) {
        const struct megatron_rows *rows = &p->rows[i];
        const int tensor = t->numbers.of[(rows->tensor - t->map.params) * MEGATRON_GROUPS + group];

        st = megatron_params_place(&r->x, storage, tensor, p, rows, rows->row * row_bytes, err);
    }
    return st;
}

static tp_status push_model(struct megatron_rank_target *r, int chunk, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st = TP_OK;

    pickle_write_global(w, "collections", "OrderedDict");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_REDUCE);
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int i = 0; i < r->n[chunk] && !st; i++) {
        const struct megatron_param *p = &r->params[chunk][i];
        const char *extra;

        pickle_write_text(w, p->name);
        st = push_tensor(r, p, MEGATRON_PARAM, err);
        if (!p->linear)
            continue;
        extra = arena_printf(r->t->map.arena, "%.*s._extra_state",
                             (int)(strlen(p->name) - strlen(".weight")), p->name);
        pickle_write_text(w, extra ? extra : "");
        w->failed |= !extra;
        pickle_write_op(w, PICKLE_OP_NONE);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* ---- the optimizer ---- */

/* Experts have no vectors, and so one group less. */
static int groups_of(const struct megatron_rank_target *r)
{
    return r->part == PARAMS_OF_EXPERTS ? 1 : 2;
}

static bool is_in(const struct megatron_rank_target *r, const struct megatron_param *p,
                  bool vectors)
{
    if ((p->ndim == 1) != vectors)
        return false;
    return megatron_part_has(r->part, p->expert >= 0);
}

/* Call `visit` for each parameter of an optimizer's group, in its order: of all chunks the
 * matrices, which have weight decay, or the vectors. *number counts them. */
static tp_status visit_group(struct megatron_rank_target *r, bool vectors, int *number,
                             tp_status (*visit)(struct megatron_rank_target *r, int number,
                                                const struct megatron_param *p, struct tp_err *err),
                             struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int c = 0; c < r->t->vpp; c++)
        for (int i = 0; i < r->n[c] && !st; i++)
            if (is_in(r, &r->params[c][i], vectors))
                st = visit(r, (*number)++, &r->params[c][i], err);
    return st;
}

static tp_status push_state(struct megatron_rank_target *r, int number,
                            const struct megatron_param *p, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st;

    pickle_write_int(w, number);
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_text(w, "step");
    torch_save_number(&r->x.save, (float)r->t->q->step);
    pickle_write_text(w, "exp_avg");
    st = push_tensor(r, p, MEGATRON_EXP_AVG, err);
    pickle_write_text(w, "exp_avg_sq");
    if (!st)
        st = push_tensor(r, p, MEGATRON_EXP_AVG_SQ, err);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

static tp_status push_master(struct megatron_rank_target *r, int number,
                             const struct megatron_param *p, struct tp_err *err)
{
    (void)number;
    return push_tensor(r, p, MEGATRON_MASTER, err);
}

static tp_status push_number(struct megatron_rank_target *r, int number,
                             const struct megatron_param *p, struct tp_err *err)
{
    (void)p;
    (void)err;
    pickle_write_int(&r->x.save.pickle, number);
    return TP_OK;
}

/* The state dict of torch.optim.AdamW, with Megatron's keys in its groups. */
static tp_status push_adamw(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    int number = 0;
    tp_status st = TP_OK;

    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_text(w, "state");
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int vectors = 0; vectors < groups_of(r); vectors++)
        TP_TRY(visit_group(r, vectors, &number, push_state, err));
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_text(w, "param_groups");
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
    number = 0;
    for (int vectors = 0; vectors < groups_of(r); vectors++) {
        megatron_args_begin_group(w, &r->t->q->adamw, vectors == 0, r->part == PARAMS_OF_EXPERTS);
        pickle_write_text(w, "params");
        pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
        pickle_write_op(w, PICKLE_OP_MARK);
        TP_TRY(visit_group(r, vectors, &number, push_number, err));
        pickle_write_op(w, PICKLE_OP_APPENDS);
        megatron_args_end_group(w);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
done:
    return st;
}

/* Float16OptimizerWithFloat16Params has the masters beside it; FP32Optimizer is it alone. */
static tp_status push_part(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    int number = 0;
    tp_status st;

    if (!r->t->numbers.has[MEGATRON_MASTER])
        return push_adamw(r, err);
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_text(w, "optimizer");
    TP_TRY(push_adamw(r, err));
    pickle_write_text(w, "fp32_from_fp16_params");
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int vectors = 0; vectors < groups_of(r); vectors++) {
        pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
        pickle_write_op(w, PICKLE_OP_MARK);
        TP_TRY(visit_group(r, vectors, &number, push_master, err));
        pickle_write_op(w, PICKLE_OP_APPENDS);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
done:
    return st;
}

/* A ChainedOptimizer is a list. */
static tp_status push_optimizer(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st;

    r->part = ALL_PARAMS;
    if (r->t->map.ep == 1)
        return push_part(r, err);
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
    r->part = PARAMS_OF_LAYERS;
    TP_TRY(push_part(r, err));
    r->part = PARAMS_OF_EXPERTS;
    TP_TRY(push_part(r, err));
    pickle_write_op(w, PICKLE_OP_APPENDS);
done:
    return st;
}

/* ---- files ---- */

static tp_status push_root(struct megatron_rank_target *r, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    const struct megatron_args_sizes sizes = { (int)t->map.tp,      t->pp, t->vpp, t->map.ep,
                                               t->map.padded_vocab, false };
    struct pickle_writer *w = &r->x.save.pickle;
    char key[NAME_BYTES] = "model";
    tp_status st = TP_OK;

    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    megatron_args_write(w, t->q, &sizes);
    for (int c = 0; c < t->vpp && !st; c++) {
        if (t->vpp > 1)
            snprintf(key, sizeof key, "model%d", c);
        pickle_write_text(w, key);
        st = push_model(r, c, err);
    }
    if (!st && t->numbers.has[MEGATRON_EXP_AVG]) {
        pickle_write_text(w, "optimizer");
        st = push_optimizer(r, err);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

static tp_status write_rank(struct megatron_rank_target *r, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    char stage[NAME_BYTES] = "", expert[NAME_BYTES] = "", name[PATH_MAX];
    int64_t bytes;
    int file = 0;
    tp_status st;

    for (int c = 0; c < t->vpp; c++) {
        const struct megatron_chunk at = { t->pp, t->vpp, r->tp_rank, r->pp_rank, c };

        TP_TRY(megatron_params_list(&r->params[c], &r->n[c], &t->map, &at, err));
    }
    if (t->pp > 1)
        snprintf(stage, sizeof stage, "_%03d", r->pp_rank);
    if (t->map.ep > 1)
        snprintf(expert, sizeof expert, "_%03d", t->map.ep_rank);
    snprintf(name, sizeof name, "iter_%07lld/mp_rank_%02d%s%s/model_optim_rng.pt",
             (long long)t->q->step, r->tp_rank, stage, expert);
    TP_TRY(piece_target_file(t->pieces, &file, name, err));
    torch_target_begin(&r->x, t->pieces, file, 0);
    st = push_root(r, err);
    if (!st)
        st = torch_target_end(&r->x, &bytes, err);
    torch_target_free(&r->x);
done:
    return st;
}

static tp_status write_ranks(struct megatron_target *t, struct tp_err *err)
{
    struct megatron_rank_target r = { .t = t };
    tp_status st = TP_OK;

    r.params = arena_array(t->map.arena, (size_t)t->vpp, sizeof *r.params);
    r.n = arena_array(t->map.arena, (size_t)t->vpp, sizeof *r.n);
    if (!r.params || !r.n)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
    for (int i = 0; i < t->pp * t->map.ep * t->map.tp && !st; i++) {
        r.tp_rank = (int)(i % t->map.tp);
        r.pp_rank = (int)(i / t->map.tp / t->map.ep);
        t->map.ep_rank = (int)(i / t->map.tp % t->map.ep);
        st = write_rank(&r, err);
    }
    return st;
}

tp_status megatron_write_latest(const struct export_contents *q, struct tp_err *err)
{
    char path[PATH_MAX], text[NAME_BYTES];
    tp_status st = file_join(path, q->dir, "latest_checkpointed_iteration.txt", err);

    snprintf(text, sizeof text, "%lld", (long long)q->step);
    return st ? st : file_write_new(path, text, strlen(text), err);
}

tp_status megatron_export_create(struct export_writer *w, const struct export_contents *q,
                                 struct tp_err *err)
{
    const struct spec *spec = &q->layout->spec;
    struct megatron_target t = { .q = q, .pp = spec->pp, .vpp = spec->vpp };
    tp_status st;

    if (q->model->family == MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "%s: a model of an unknown architecture cannot be written in this format",
                       q->source);
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(megatron_map_make(&t.map, q->model, piece_target_arena(t.pieces), err));
    t.map.tp = spec->tp;
    t.map.ep = spec->ep;
    t.map.padded_vocab = megatron_args_padded_vocab(q->model, spec->tp);
    TP_TRY(megatron_params_check(&t.map, err));
    TP_TRY(megatron_params_number(&t.numbers, &t.map, q->layout, q->dir, err));
    TP_TRY(write_ranks(&t, err));
    TP_TRY(megatron_write_latest(q, err));
    TP_TRY(piece_target_plan(t.pieces, err));
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    piece_target_close(t.pieces);
    return st;
}
