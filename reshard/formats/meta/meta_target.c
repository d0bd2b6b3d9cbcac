/* reshard/formats/meta/meta_target.c - writes Meta's files; see reshard/formats/meta/meta.h. */
#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "layout/family.h"
#include "reshard/formats/meta/meta.h"
#include "reshard/formats/meta/meta_params.h"
#include "reshard/formats/meta/meta_rank.h"
#include "reshard/formats/torch/torch_target.h"
#include "reshard/formats/torch/torchtitan_map.h"
#include "reshard/formats/torch/torchtitan_piece.h"

#define EMBEDDING "model.embed_tokens.weight"

struct meta_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    int ranks;
    bool columns; /* the embedding is cut by columns */
};

/* Heads and the MLP are in equal parts at every layout, other dimensions need not be. */
static tp_status divide(const struct meta_target *t, const char *what, int64_t n,
                        struct tp_err *err)
{
    if (n % t->ranks == 0)
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT,
                   "%s: its %s %lld cannot be divided among tp%d, and the files of Meta's format "
                   "have equal parts; choose another tp",
                   t->q->source, what, (long long)n, t->ranks);
}

static tp_status check_layout(const struct meta_target *t, struct tp_err *err)
{
    const struct model *m = t->q->model;
    tp_status st;

    if (t->ranks > META_RANKS_MAX)
        return tp_fail(err, TP_E_LAYOUT,
                       "tp%d: Meta's format has at most %d files; choose another tp", t->ranks,
                       META_RANKS_MAX);
    TP_TRY(divide(t, "vocab_size", m->vocab, err));
    if (t->columns)
        st = divide(t, "hidden_size", m->hidden, err);
done:
    return st;
}

/* What a rank has of a tensor. With more ranks than key-value heads, neighbours have the same one.
 */
static struct box part_of(const struct meta_target *t, const struct tensor *from,
                          enum tensor_role role, int rank)
{
    const struct model *m = t->q->model;
    struct box part = box_whole(from->ndim, from->shape);
    int axis = 0;

    if (from->ndim < 2)
        return part;
    if (role == ROLE_OUT || role == ROLE_DOWN || (role == ROLE_EMBEDDING && t->columns))
        axis = 1;
    if ((role == ROLE_K || role == ROLE_V) && m->kv_heads < t->ranks) {
        part.len[0] = m->head_dim;
        part.lo[0] = (int64_t)rank * m->kv_heads / t->ranks * m->head_dim;
    } else {
        part.len[axis] /= t->ranks;
        part.lo[axis] = rank * part.len[axis];
    }
    return part;
}

static tp_status push_tensor(struct torch_target *x, const struct meta_target *t, int tensor,
                             int rank, struct tp_err *err)
{
    const struct model *m = t->q->model;
    const struct tensor *from = &t->q->tensors[tensor];
    struct torchtitan_map_name name;
    struct box part;
    tp_status st;

    TP_TRY(torchtitan_map_theirs(&name, m, from, 0, piece_target_arena(t->pieces), err));
    if (!name.module.name) {
        st = tp_fail(err, TP_E_USAGE, "%s: Meta's format has no tensor %s; export another format",
                     t->q->source, from->name);
        goto done;
    }
    part = part_of(t, from, name.tensor.role, rank);
    pickle_write_text(&x->save.pickle, name.module.name);
    st = torchtitan_map_has_pairs(m, name.tensor.role)
             ? torchtitan_piece_push_pairs(x, tensor, from->dtype, &part, m->head_dim, err)
             : torch_target_box(x, tensor, from->dtype, &part, err);
    if (st || name.tensor.role != ROLE_EMBEDDING || !m->tied)
        goto done;
    part = part_of(t, from, ROLE_HEAD, rank);
    pickle_write_text(&x->save.pickle, "output.weight"); /* Meta's model always has a head */
    st = torch_target_box(x, tensor, from->dtype, &part, err);
done:
    return st;
}

static tp_status write_rank(const struct meta_target *t, int rank, struct tp_err *err)
{
    char name[META_NAME_BYTES];
    struct torch_target x;
    int file = 0;
    tp_status st;

    meta_rank_file(name, rank);
    st = piece_target_file(t->pieces, &file, name, err);
    if (st)
        return st;
    torch_target_begin(&x, t->pieces, file, 0);
    pickle_write_dict(&x.save.pickle);
    for (int i = 0; i < t->q->n && !st; i++)
        st = push_tensor(&x, t, i, rank, err);
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

static tp_status write_params(const struct meta_target *t, struct tp_err *err)
{
    const struct meta_params_request q = {
        .model = t->q->model, .ranks = t->ranks, .old = t->columns, .source = t->q->source
    };
    const char *text = NULL;
    char path[PATH_MAX];
    tp_status st;

    TP_TRY(meta_params_make(&text, &q, piece_target_arena(t->pieces), err));
    TP_TRY(file_join(path, t->q->dir, "params.json", err));
    st = file_write_new(path, text, strlen(text), err);
done:
    return st;
}

/* What people should know of the files. */
static void note(const struct meta_target *t)
{
    if (t->ranks > 1)
        progress_note(t->q->progress, "the embedding is cut by %s, as %s loads it",
                      t->columns ? "columns" : "rows",
                      t->columns ? "Meta's code of Llama 1, Llama 2 and Code Llama"
                                 : "Meta's code since Llama 3");
    if (t->q->model->kv_heads < t->ranks)
        progress_note(t->q->progress,
                      "the %d heads of keys and values are repeated, so that each of %d ranks has "
                      "one, and n_kv_heads of params.json is %d",
                      t->q->model->kv_heads, t->ranks, t->ranks);
}

/* Whether to cut the embedding by columns: as the source does, if that is of this format and of
 * several ranks. */
static bool takes_columns(const struct export_contents *q)
{
    const int i = q->extras ? piece_source_find(q->extras, GROUP_PARAM, EMBEDDING) : -1;
    struct piece_tensor t;

    if (i < 0)
        return meta_params_is_old(q->model);
    t = piece_source_tensor(q->extras, i);
    return t.n > 1 ? t.pieces->box.len[0] == t.pieces->shape[0] : meta_params_is_old(q->model);
}

tp_status meta_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err)
{
    struct meta_target t = { .q = q, .ranks = q->layout->spec.tp, .columns = takes_columns(q) };
    tp_status st;

    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(write_params(&t, err));
    TP_TRY(check_layout(&t, err));
    for (int rank = 0; rank < t.ranks; rank++)
        TP_TRY(write_rank(&t, rank, err));
    TP_TRY(piece_target_plan(t.pieces, err));
    note(&t);
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    piece_target_close(t.pieces);
    return st;
}
