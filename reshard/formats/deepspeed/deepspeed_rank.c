/* reshard/formats/deepspeed/deepspeed_rank.c - the model states of each rank of ZeRO-3; see
 * reshard/formats/deepspeed/deepspeed_state.h.
 *
 * They have no weights of parameters that are trained, but a part of each that is not: it is padded
 * and cut by itself, and a rank has one interval of it. What else they say is the same in all.
 */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed_state.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "storage/object.h"

enum { SHAPE_TEXT = 160 };

static const char *path_of(const struct torch_pieces *x)
{
    return file_table_path(piece_source_files(x->source), x->file);
}

void deepspeed_rank_name(char name[DEEPSPEED_NAME_BYTES], int rank)
{
    snprintf(name, DEEPSPEED_NAME_BYTES, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
}

/* ---- frozen parameters ---- */

/* They are in the order of the shapes, as a rule. */
static const struct pickle_value *fragment_of(const struct pickle_value *parts, int i,
                                              const char *name)
{
    const char *key = i < pickle_entries(parts) ? pickle_text(pickle_key(parts, i)) : NULL;

    return key && strcmp(key, name) == 0 ? pickle_entry(parts, i) : pickle_get(parts, name);
}

tp_status deepspeed_rank_add_frozen(struct deepspeed_state *d, struct torch_pieces *x, int rank,
                                    struct tp_err *err)
{
    const struct pickle_value *parts = pickle_get(x->root, "frozen_param_fragments");
    tp_status st = TP_OK;

    for (int i = 0; i < d->n_frozen && !st; i++) {
        const struct deepspeed_state_param *f = &d->frozen[i];
        const int64_t n = deepspeed_state_elements(f), part = deepspeed_state_part(d, f),
                      first = rank * part;
        struct piece p = deepspeed_state_piece(f, GROUP_PARAM), flat;

        TP_TRY(torch_pieces_tensor(&flat, x, fragment_of(parts, i, f->name), GROUP_PARAM, f->plain,
                                   err));
        if (flat.ndim != 1 || !flat_pieces_is_dense(&flat) || flat.shape[0] != part)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: frozen_param_fragments has %s as %lld elements, but each of %d "
                           "ranks must have %lld of it",
                           path_of(x), f->name, (long long)box_elements(&flat.box), d->dp,
                           (long long)part);
        p.dtype = flat.dtype;
        p.file = flat.file;
        p.sum = flat.sum;
        p.begin = flat.begin;
        if (first < n || (n == 0 && rank == 0))
            st = flat_pieces_add(d->source, d->model, &p, first,
                                 n - first < part ? n - first : part, err);
    }
done:
    return st;
}

/* ---- the same in all ranks ---- */

static tp_status other_save(const struct torch_pieces *x, const char *what, const char *is,
                            const char *should, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: %s is %s, but %s in the file of rank 0; the two are of different saves: "
                   "take all files of one",
                   path_of(x), what, is, should);
}

tp_status deepspeed_rank_check(const struct torch_pieces *x, const char *key, int64_t should,
                               struct tp_err *err)
{
    char is[SHAPE_TEXT] = "missing", text[SHAPE_TEXT] = "missing";
    int64_t n = -1;

    if (!pickle_int(&n, pickle_get(x->root, key)))
        n = -1;
    if (n == should)
        return TP_OK;
    if (n >= 0)
        snprintf(is, sizeof is, "%lld", (long long)n);
    if (should >= 0)
        snprintf(text, sizeof text, "%lld", (long long)should);
    return other_save(x, key, is, text, err);
}

/* "NAME [24, 8]", or "missing". */
static void format_param(char text[2 * SHAPE_TEXT], const struct deepspeed_state_param *p)
{
    char shape[SHAPE_TEXT];

    if (p)
        snprintf(text, 2 * SHAPE_TEXT, "%.140s %s", p->name,
                 box_format_shape(shape, sizeof shape, p->ndim, p->shape));
    else
        snprintf(text, 2 * SHAPE_TEXT, "missing");
}

static bool same_param(const struct deepspeed_state_param *a, const struct deepspeed_state_param *b)
{
    return a->group == b->group && a->ndim == b->ndim && strcmp(a->name, b->name) == 0 &&
           memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim) == 0;
}

static tp_status check_shapes(struct torch_pieces *x, const char *key,
                              const struct deepspeed_shapes *should, struct tp_err *err)
{
    char is_text[2 * SHAPE_TEXT], should_text[2 * SHAPE_TEXT], what[SHAPE_TEXT];
    struct deepspeed_shapes is;
    tp_status st = deepspeed_shapes_read(&is, x, key, &x->arena, err);
    int i = 0;

    if (st)
        return st;
    while (i < is.n && i < should->n && same_param(&is.list[i], &should->list[i]))
        i++;
    if (i == is.n && i == should->n)
        return TP_OK;
    format_param(is_text, i < is.n ? &is.list[i] : NULL);
    format_param(should_text, i < should->n ? &should->list[i] : NULL);
    snprintf(what, sizeof what, "number %d of %s", i + 1, key);
    return other_save(x, what, is_text, should_text, err);
}

static tp_status check_rank(const struct deepspeed_state *d, struct torch_pieces *x,
                            struct tp_err *err)
{
    const struct deepspeed_shapes params = { d->params, d->n_params },
                                  frozen = { d->frozen, d->n_frozen };
    tp_status st;

    TP_TRY(deepspeed_rank_check(x, "dp_world_size", d->dp, err));
    TP_TRY(deepspeed_rank_check(x, "mp_world_size", d->mp, err));
    TP_TRY(deepspeed_rank_check(x, "global_steps", d->steps, err));
    TP_TRY(check_shapes(x, "param_shapes", &params, err));
    st = check_shapes(x, "frozen_param_shapes", &frozen, err);
done:
    return st;
}

tp_status deepspeed_rank_read(struct deepspeed_state *d, int rank, struct tp_err *err)
{
    struct torch_pieces x = { .source = d->source };
    char name[DEEPSPEED_NAME_BYTES], path[PATH_MAX];
    bool found = false;
    tp_status st;

    deepspeed_rank_name(name, rank);
    TP_TRY(file_join(path, d->dir, name, err));
    TP_TRY(object_exists(&found, path, err));
    if (!found)
        return deepspeed_zero_missing(d, name, rank, err);
    TP_TRY(deepspeed_state_open(&x, d, name, err));
    TP_TRY(check_rank(d, &x, err));
    st = deepspeed_rank_add_frozen(d, &x, rank, err);
done:
    torch_pieces_close(&x);
    return st;
}
