/*
 * reshard/formats/megatron/megatron_target.c - writes a folder for each rank, as Megatron-LM's
 * save_checkpoint with ckpt_format "torch"; see reshard/formats/megatron/megatron.h.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/bridge_files.h"
#include "reshard/formats/megatron/megatron.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_impl.h"
#include "reshard/formats/megatron/megatron_rank_target.h"

enum { NAME_BYTES = 64 };

/* ---- tensors ---- */

tp_status megatron_rank_target_push(struct megatron_rank_target *r, const struct megatron_param *p,
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

/* Push the _extra_state of a module, which says nothing, as without FP8. `of` is the name of a
 * parameter whose module has n parts less, and then those of `more`. */
static void push_state(struct megatron_rank_target *r, const char *of, int n, const char *more)
{
    struct pickle_writer *w = &r->x.save.pickle;
    size_t length = strlen(of);
    const char *name;

    for (; n > 0; n--)
        while (of[--length] != '.')
            ;
    name = arena_printf(r->t->map.arena, "%.*s%s._extra_state", (int)length, of, more);
    pickle_write_text(w, name ? name : "");
    w->failed |= !name;
    pickle_write_op(w, PICKLE_OP_NONE);
}

/* Push what modules ask for when they load: linear layers, and of Transformer Engine (2.0 and
 * later) also norms that are modules of their own, and attention, which has no parameters. Experts
 * in a grouped layer have one for all. */
static void push_states(struct megatron_rank_target *r, const struct megatron_param *p)
{
    const bool engine = r->t->modules.impl == EXPORT_IMPL_ENGINE;
    const char *kind = strrchr(p->name, '.') + 1;

    if (strcmp(kind, "weight") != 0 && strcmp(kind, "weight0") != 0)
        return;
    if (p->linear || (engine && strstr(p->name, "layernorm.")))
        push_state(r, p->name, 1, "");
    if (engine && strstr(p->name, ".self_attention.linear_proj."))
        push_state(r, p->name, 2, ".core_attention");
}

static tp_status push_model(struct megatron_rank_target *r, int chunk, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st = TP_OK;

    pickle_write_ordered_dict(w);
    for (int i = 0; i < r->n[chunk] && !st; i++) {
        const struct megatron_param *p = &r->params[chunk][i];

        pickle_write_text(w, p->name);
        st = megatron_rank_target_push(r, p, MEGATRON_PARAM, err);
        push_states(r, p);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* ---- files ---- */

static tp_status push_root(struct megatron_rank_target *r, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    const struct spec *spec = &t->q->layout->spec;
    const bool distributed = t->q->distributed_optimizer;
    const struct megatron_args_sizes sizes = { .tp = (int)t->map.tp,
                                               .pp = t->pp,
                                               .vpp = t->vpp,
                                               .ep = t->map.ep,
                                               .vocab = t->vocab,
                                               .has_optimizer = t->numbers.has[MEGATRON_EXP_AVG],
                                               .distributed_optimizer = distributed,
                                               .modules = t->modules,
                                               .dp = distributed ? spec->dp : 0,
                                               .cp = spec->cp };
    struct pickle_writer *w = &r->x.save.pickle;
    char key[NAME_BYTES] = "model";
    tp_status st = TP_OK;

    pickle_write_dict(w);
    megatron_args_write(w, t->q, &sizes);
    for (int c = 0; c < t->vpp && !st; c++) {
        if (t->vpp > 1)
            snprintf(key, sizeof key, "model%d", c);
        pickle_write_text(w, key);
        st = push_model(r, c, err);
    }
    if (!st && t->numbers.has[MEGATRON_EXP_AVG]) {
        pickle_write_text(w, "optimizer");
        if (distributed)
            distributed_target_push(r);
        else
            st = megatron_optimizer_target_push(r, err);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* Write a file of the rank, whose object `push` pushes. */
static tp_status write_file(struct megatron_rank_target *r, const char *file_name,
                            tp_status (*push)(struct megatron_rank_target *r, struct tp_err *err),
                            struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    char stage[NAME_BYTES] = "", expert[NAME_BYTES] = "", name[PATH_MAX];
    int file = 0;
    tp_status st;

    if (t->pp > 1)
        snprintf(stage, sizeof stage, "_%03d", r->pp_rank);
    if (t->map.ep > 1)
        snprintf(expert, sizeof expert, "_%03d", t->map.ep_rank);
    snprintf(name, sizeof name, "iter_%07lld/mp_rank_%02d%s%s/%s", (long long)t->q->step,
             r->tp_rank, stage, expert, file_name);
    st = piece_target_file(t->pieces, &file, name, err);
    if (st)
        return st;
    torch_target_begin(&r->x, t->pieces, file, 0);
    return torch_target_finish(&r->x, push(r, err), err);
}

static tp_status write_rank(struct megatron_rank_target *r, struct tp_err *err)
{
    const struct megatron_target *t = r->t;
    tp_status st = TP_OK;

    for (int c = 0; c < t->vpp && !st; c++) {
        const struct megatron_chunk at = { t->pp, t->vpp, r->tp_rank, r->pp_rank, c, t->modules };

        st = megatron_params_list(&r->params[c], &r->n[c], &t->map, &at, err);
    }
    if (!st)
        st = write_file(r, "model_optim_rng.pt", push_root, err);
    if (!st && t->q->distributed_optimizer)
        st = write_file(r, "distrib_optim.pt", distributed_target_push_buffers, err);
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

/* How the buffers of the distributed optimizer are cut, as the arguments of the source say. */
static tp_status read_buffers(struct megatron_target *t, struct tp_err *err)
{
    const struct export_contents *q = t->q;
    const struct spec *spec = &q->layout->spec;
    const struct pickle_value *args = NULL;
    struct megatron_args found = { 0 };
    tp_status st;

    if (!q->distributed_optimizer)
        return TP_OK;
    if (!t->numbers.has[MEGATRON_EXP_AVG])
        return tp_fail(err, TP_E_USAGE, "--distributed-optimizer: %s has no state of an optimizer",
                       q->source);
    st = megatron_extras_args(&args, q->extras, t->map.arena, err);
    if (st)
        return st;
    if (!megatron_args_read_buckets(&found, args, (int64_t)spec->dp * spec->cp))
        return tp_fail(err, TP_E_CORRUPT, "%s: its args have no valid size of buckets", q->source);
    t->bucket_size = found.bucket_size;
    t->buckets = found.buckets;
    t->gradients = megatron_args_gradients(args, q->tensors[t->numbers.of[MEGATRON_PARAM]].dtype);
    return TP_OK;
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
    TP_TRY(megatron_impl_choose(&t.modules, q, err));
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(megatron_map_make(&t.map, q->model, piece_target_arena(t.pieces), err));
    t.map.tp = spec->tp;
    t.map.ep = spec->ep;
    TP_TRY(megatron_args_pad_vocab(&t.map, &t.vocab, q, err));
    TP_TRY(megatron_params_check(&t.map, err));
    TP_TRY(megatron_params_number(&t.numbers, &t.map, q->layout, q->source, err));
    TP_TRY(read_buffers(&t, err));
    TP_TRY(write_ranks(&t, err));
    TP_TRY(megatron_write_latest(q, err));
    bridge_files_leave(q);
    TP_TRY(piece_target_plan(t.pieces, err));
    megatron_impl_note(&t.modules, q);
    megatron_args_note_rate(q, t.numbers.has[MEGATRON_EXP_AVG]);
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    piece_target_close(t.pieces);
    return st;
}
