/*
 * reshard/formats/verl/verl_optimizer.c - optimizer.state_dict() of each rank; see
 * reshard/formats/verl/verl_state.h.
 *
 * Parameters have numbers, in the order of model.parameters(). With FSDP2 their state is of
 * DTensors, and with FSDP1 of flat parts: of each parameter (use_orig_params), or of all parameters
 * of a unit, which are the layers and before them everything else.
 */
#include <stdio.h>
#include <string.h>

#include "reshard/formats/pieces/flat_pieces.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/verl/verl_units.h"

enum { MOMENTS = 2, NAME_BYTES = 160 };

static const char *const moments[MOMENTS] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };

/* A rank's file. */
struct optimizer_file {
    struct verl_rank r;
    const struct pickle_value *group; /* of param_groups */
    struct pickle_numbers state;
};

static const char *path_of(const struct verl_rank *r)
{
    return file_table_path(piece_source_files(r->x.source), r->x.file);
}

static tp_status refuse(const struct verl_rank *r, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s", path_of(r), what);
}

/* ---- a rank's file ---- */

/* *none: there is no optimizer in it, as before verl 0.4.1 where a program has none. */
static tp_status open_file(struct optimizer_file *f, bool *none, const struct verl_state *d,
                           int rank, struct tp_err *err)
{
    const struct pickle_value *groups, *state;
    tp_status st = verl_rank_open(&f->r, d, "optim", rank, err);

    if (st)
        return st;
    *none = pickle_is(f->r.x.root, PICKLE_NONE);
    groups = pickle_get(f->r.x.root, "param_groups");
    state = pickle_get(f->r.x.root, "state");
    if (*none)
        return TP_OK;
    if (!pickle_is(state, PICKLE_DICT) || !pickle_is(groups, PICKLE_LIST))
        return refuse(&f->r,
                      "is not the state_dict of an optimizer of torch, with state and "
                      "param_groups; --no-optim imports the weights alone",
                      err);
    if (pickle_count(groups) != 1)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has %lld groups of parameters, and verl's optimizer has one; so the "
                       "parameters' numbers are not known; --no-optim imports the weights alone",
                       path_of(&f->r), (long long)pickle_count(groups));
    f->group = pickle_item(groups, 0);
    if (!pickle_numbers_make(&f->state, state, &f->r.x.arena))
        return refuse(&f->r, "no memory for its numbers", err);
    return TP_OK;
}

/* What the optimizer numbers. */
static int64_t count_of(const struct optimizer_file *f)
{
    return pickle_count(pickle_get(f->group, "params"));
}

/* ---- rank 0 ---- */

/* The length of the flat moment of a number; -1: it is none. */
static tp_status flat_length(int64_t *n, struct optimizer_file *f, int64_t number,
                             struct tp_err *err)
{
    const struct pickle_value *v =
        pickle_get(pickle_numbers_find(&f->state, number), GROUP_EXP_AVG);
    struct piece p;
    tp_status st = TP_OK;

    *n = -1;
    if (torch_tensor_is(v)) {
        st = torch_pieces_tensor(&p, &f->r.x, v, GROUP_EXP_AVG, "state", err);
        *n = !st && p.ndim == 1 ? p.shape[0] : -1;
    }
    return st;
}

/* Whether the flat moments of rank 0 have the lengths of the units, and no unit is empty, as that
 * before the layers is of a file that has only layers. */
static tp_status units_fit(bool *fit, const struct verl_units *u, struct optimizer_file *f,
                           struct tp_err *err)
{
    tp_status st = TP_OK;

    *fit = u->n == count_of(f);
    for (int i = 0; i < u->n && *fit && !st; i++) {
        int64_t n = -1;

        st = flat_length(&n, f, i, err);
        *fit = u->list[i].first >= 0 && (n < 0 || n == verl_units_part(u, i));
    }
    return st;
}

/* Find out what the numbers stand for. */
static tp_status find_units(struct verl_units *u, struct optimizer_file *f, struct tp_err *err)
{
    static const enum verl_units_kind kinds[] = { VERL_UNITS_PARAMS, VERL_UNITS_LAYERS,
                                                  VERL_UNITS_ONE };
    tp_status st = TP_OK;

    for (int i = 0; i < 6 && !st; i++) {
        bool fit = false;

        verl_units_set(u, kinds[i / 2], i % 2 != 0);
        if (u->kind == VERL_UNITS_PARAMS)
            fit = u->n == count_of(f);
        else
            st = units_fit(&fit, u, f, err);
        if (fit)
            return st;
    }
    if (st)
        return st;
    return tp_fail(err, TP_E_USAGE,
                   "%s: numbers %lld parameters, which are neither the %d of the model nor its "
                   "layers as flat parameters of FSDP1; --no-optim imports the weights alone",
                   path_of(&f->r), (long long)count_of(f), u->d->n_params);
}

/* What other optimizers than AdamW have of the first parameter. */
static tp_status leave_state(const struct verl_state *d, const struct optimizer_file *f,
                             struct tp_err *err)
{
    const struct pickle_value *state = f->state.n > 0 ? f->state.list[0].value : NULL;
    char name[NAME_BYTES];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        if (!key || strcmp(key, "step") == 0 || strcmp(key, GROUP_EXP_AVG) == 0 ||
            strcmp(key, GROUP_EXP_AVG_SQ) == 0)
            continue;
        snprintf(name, sizeof name, "optimizer.state.%s", key);
        st = piece_source_leave(d->source, name, err);
    }
    return st;
}

static tp_status take_first(struct verl_units *u, struct optimizer_file *f, struct tp_err *err)
{
    struct export_adamw adamw = EXPORT_ADAMW_DEFAULT;
    tp_status st;

    TP_TRY(find_units(u, f, err));
    if (torch_pieces_adamw(&adamw, f->group))
        piece_source_set_adamw(u->d->source, &adamw);
    piece_source_set_tensor_steps(u->d->source);
    st = leave_state(u->d, f, err);
done:
    return st;
}

/* ---- moments ---- */

/* A moment that is a DTensor: of FSDP2. */
static tp_status add_dtensor(const struct verl_units *u, struct optimizer_file *f, int number,
                             const char *group, const struct pickle_value *v, struct tp_err *err)
{
    const struct verl_param *p = &u->d->params[u->list[number].first];
    struct verl_tensor t;
    struct piece piece;
    tp_status st;

    TP_TRY(verl_tensor_read(&t, &f->r, v, p->name, err));
    if (u->kind != VERL_UNITS_PARAMS || t.ndim != p->ndim ||
        memcmp(t.shape, p->shape, sizeof *t.shape * (size_t)t.ndim) != 0)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: %s of parameter %d has not the shape of %s; the numbers of parameters "
                       "are not in the order of the model's tensors",
                       path_of(&f->r), group, number, p->name);
    TP_TRY(verl_tensor_piece(&piece, &f->r, &t, group, p->plain, err));
    if (!t.copy)
        st = module_piece_add(u->d->source, u->d->model, &piece, err);
done:
    return st;
}

/* Check that a flat moment is the rank's part of its unit; *first is where it begins there. A
 * parameter of its own continues where the rank before ended. */
static tp_status place_flat(int64_t *first, const struct verl_units *u,
                            const struct optimizer_file *f, int number, int moment,
                            const struct piece *flat, struct tp_err *err)
{
    const struct verl_unit *unit = &u->list[number];
    struct verl_param *p = &u->d->params[unit->first];
    const bool own = u->kind == VERL_UNITS_PARAMS;
    const int64_t part = flat->ndim == 1 ? flat->shape[0] : -1;

    *first = own ? p->done[moment] : f->r.rank % u->d->shards * part;
    if (part < 0 || !flat_pieces_is_dense(flat) ||
        (own ? f->r.rank < u->d->shards && part > unit->elements - *first
             : part != verl_units_part(u, number)))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: %s of number %d is not a part of the %lld elements that %d ranks "
                       "share; take all files of one save",
                       path_of(&f->r), moments[moment], number, (long long)unit->elements,
                       u->d->shards);
    if (f->r.rank < u->d->shards)
        p->done[moment] += part;
    return TP_OK;
}

/* A flat moment of FSDP1. */
static tp_status add_flat(const struct verl_units *u, struct optimizer_file *f, int number,
                          int moment, const struct pickle_value *v, struct tp_err *err)
{
    const struct verl_unit *unit = &u->list[number];
    int64_t first = 0, at = 0;
    struct piece flat;
    tp_status st;

    TP_TRY(torch_pieces_tensor(&flat, &f->r.x, v, moments[moment], u->d->params[unit->first].name,
                               err));
    TP_TRY(place_flat(&first, u, f, number, moment, &flat, err));
    for (int i = unit->first; i <= unit->last && !st && f->r.rank < u->d->shards; i++) {
        const struct verl_param *p = &u->d->params[i];
        const int64_t n = verl_units_elements(p), end = first + flat.shape[0],
                      from = first > at ? first - at : 0, to = end < at + n ? end - at : n;
        struct piece piece = flat;

        if (u->of[i] != number)
            continue;
        piece.name = p->plain;
        piece.ndim = p->ndim;
        memcpy(piece.shape, p->shape, sizeof piece.shape);
        piece.box = box_whole(p->ndim, p->shape);
        if (flat.dtype != DTYPE_COUNT)
            piece.begin = flat.begin + (at + from - first) * dtype_bytes(flat.dtype);
        if (from < to || (n == 0 && f->r.rank == 0))
            st = flat_pieces_add(u->d->source, u->d->model, &piece, from, to - from, err);
        at += n;
    }
done:
    return st;
}

static tp_status add_number(const struct verl_units *u, struct optimizer_file *f, int number,
                            const struct pickle_value *state, struct tp_err *err)
{
    const char *name = u->d->params[u->list[number].first].name;
    int64_t step = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < MOMENTS && !st; i++) {
        const struct pickle_value *v = pickle_get(state, moments[i]);

        if (verl_tensor_is(v))
            st = add_dtensor(u, f, number, moments[i], v, err);
        else if (torch_tensor_is(v))
            st = add_flat(u, f, number, i, v, err);
    }
    if (!st && torch_pieces_is_number(pickle_get(state, "step"))) {
        TP_TRY(torch_pieces_number(&step, &f->r.x, pickle_get(state, "step"), "step", err));
        st = piece_source_set_step(u->d->source, step, name, err);
    }
done:
    return st;
}

static tp_status add_rank(struct verl_units *u, bool *none, int rank, struct tp_err *err)
{
    struct optimizer_file f;
    bool is_none = false;
    tp_status st;

    TP_TRY(open_file(&f, &is_none, u->d, rank, err));
    if (rank == 0)
        *none = is_none;
    if (is_none != *none) {
        st = refuse(&f.r,
                    "has an optimizer, or has none, other than rank 0; the two files are of "
                    "different saves",
                    err);
        goto done;
    }
    if (is_none)
        goto done;
    if (rank == 0)
        TP_TRY(take_first(u, &f, err));
    if (count_of(&f) != u->n) {
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: numbers %lld parameters, but rank 0 %d; the two files are of different "
                     "saves",
                     path_of(&f.r), (long long)count_of(&f), u->n);
        goto done;
    }
    for (int64_t i = 0; i < f.state.n && !st; i++) {
        const struct pickle_number *e = &f.state.list[i];

        if (e->key < 0 || e->key >= u->n)
            st = refuse(&f.r, "has state of a number that is no parameter's", err);
        else
            st = add_number(u, &f, (int)e->key, e->value, err);
    }
done:
    torch_pieces_close(&f.r.x);
    return st;
}

tp_status verl_optimizer_add(struct verl_state *d, struct tp_err *err)
{
    struct verl_units u;
    bool has = false, none = false;
    tp_status st;

    TP_TRY(verl_folder_has(&has, d, "optim", err));
    if (!has)
        return TP_OK;
    TP_TRY(verl_units_make(&u, d, err));
    for (int rank = 0; rank < d->world && !none; rank++)
        TP_TRY(add_rank(&u, &none, rank, err));
done:
    return st;
}
