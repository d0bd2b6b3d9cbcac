/*
 * reshard/formats/deepspeed/deepspeed_zero.c - the flat partitions of ZeRO's optimizer; see
 * reshard/formats/deepspeed/deepspeed_state.h.
 *
 * ZeRO-1 and ZeRO-2 flatten all parameters of a group and give each rank an interval of it; a
 * rank's file says which interval of its partition is which parameter (param_slice_mappings).
 * ZeRO-3 pads and cuts each parameter by itself; a rank's partition has its part of each, in order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed_extras.h"
#include "reshard/formats/deepspeed/parallel_param.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "storage/missing_files.h"
#include "storage/object.h"

enum { RANKS_MAX = 10000 };

/* One rank's flat tensors of one group of the optimizer: f32 weights, exp_avg and exp_avg_sq. */
struct deepspeed_flat {
    struct piece tensors[3]; /* group NULL: another optimizer than AdamW does not have it */
    int64_t numel;
};

static tp_status refuse(const struct torch_pieces *x, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s",
                   file_table_path(piece_source_files(x->source), x->file), what);
}

const struct pickle_value *deepspeed_zero_group(const struct pickle_value *base, int64_t g)
{
    return pickle_is(base, PICKLE_LIST) ? pickle_item(base, g)
                                        : pickle_get_number(pickle_get(base, "state"), g);
}

/* The flat tensors of group `g`. ZeRO-1 and ZeRO-2 leave the padding at the end of the last rank's
 * partition out of the weights, but not out of the moments. */
static tp_status read_flat(struct deepspeed_flat *f, const struct deepspeed_state *d,
                           struct torch_pieces *x, const struct pickle_value *state, int64_t g,
                           struct tp_err *err)
{
    const struct pickle_value *base =
        pickle_get(state, d->zero3 ? "optimizer_state_dict" : "base_optimizer_state");
    const struct pickle_value *of_group = deepspeed_zero_group(base, g);
    const struct pickle_value *values[] = {
        pickle_item(
            pickle_get(state, d->zero3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups"),
            g),
        pickle_get(of_group, "exp_avg"), pickle_get(of_group, "exp_avg_sq")
    };
    const char *groups[] = { d->masters, GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };
    const struct pickle_value *step = pickle_get(of_group, "step");
    int64_t at = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < 3; i++) {
        struct piece *p = &f->tensors[i];

        p->group = NULL;
        if (i > 0 && !torch_tensor_is(values[i]))
            continue;
        TP_TRY(torch_pieces_tensor(p, x, values[i], groups[i], groups[i], err));
        if (p->ndim != 1 || !flat_pieces_is_dense(p) || p->dtype == DTYPE_COUNT ||
            p->shape[0] < f->tensors[0].shape[0] ||
            (d->zero3 && p->shape[0] != f->tensors[0].shape[0]))
            return refuse(x, "the flat tensors of the optimizer differ in length", err);
    }
    f->numel = f->tensors[0].shape[0];
    if (torch_pieces_is_number(step)) {
        TP_TRY(torch_pieces_number(&at, x, step, "step", err));
        TP_TRY(piece_source_set_step(d->source, at,
                                     file_table_path(piece_source_files(d->source), x->file), err));
    }
done:
    return st;
}

/* Add elements first .. first + n - 1 of a parameter, which are at `at` in the flat tensors. */
static tp_status add_interval(const struct deepspeed_state *d, const struct deepspeed_flat *f,
                              const struct deepspeed_state_param *param, int64_t first, int64_t n,
                              int64_t at, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < 3 && !st; i++) {
        const struct piece *flat = &f->tensors[i];
        struct piece p = deepspeed_state_piece(param, flat->group);

        if (!flat->group)
            continue;
        p.dtype = flat->dtype;
        p.file = flat->file;
        p.sum = flat->sum;
        p.begin = flat->begin + at * dtype_bytes(p.dtype);
        st = d->parallel ? parallel_param_add_interval(d, param, &p, first, n, err)
                         : flat_pieces_add(d->source, d->model, &p, first, n, err);
    }
    return st;
}

/* ---- ZeRO-1 and ZeRO-2 ---- */

/* Parameters without elements have no interval in any partition, or one of no elements, in those of
 * several ranks. */
static tp_status add_empty(const struct deepspeed_state *d, const struct deepspeed_flat *f,
                           int64_t group, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < d->n_params && !st; i++)
        if (d->params[i].group == group && deepspeed_state_elements(&d->params[i]) == 0)
            st = add_interval(d, f, &d->params[i], 0, 0, 0, err);
    return st;
}

/* The intervals of a rank's partition, as param_slice_mappings says. A parameter continues where
 * the rank before ended. */
static tp_status add_partition(struct deepspeed_state *d, struct torch_pieces *x,
                               const struct deepspeed_flat *f, const struct pickle_value *slices,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(slices) && !st; i++) {
        const struct pickle_value *slice = pickle_entry(slices, i);
        struct deepspeed_state_param *p =
            deepspeed_state_find(d, pickle_text(pickle_key(slices, i)));
        int64_t start = -1, n = -1;

        if (!p || !pickle_int(&start, pickle_get(slice, "start")) ||
            !pickle_int(&n, pickle_get(slice, "numel")) || start < 0 || n < 0 || n > f->numel ||
            start > f->numel - n || n > deepspeed_state_elements(p) - p->done)
            return refuse(x, "an interval in param_slice_mappings is wrong", err);
        if (n == 0)
            continue;
        st = add_interval(d, f, p, p->done, n, start, err);
        p->done += n;
    }
    return st;
}

static tp_status add_rank(struct deepspeed_state *d, struct torch_pieces *x,
                          const struct pickle_value *state, int rank, struct tp_err *err)
{
    const struct pickle_value *slices = pickle_get(state, "param_slice_mappings");
    struct deepspeed_flat f;
    tp_status st = TP_OK;

    if (pickle_count(slices) == 0)
        return refuse(x, "has no param_slice_mappings; DeepSpeed before 0.6.4 is not supported",
                      err);
    for (int64_t g = 0; g < pickle_count(slices) && !st; g++) {
        st = read_flat(&f, d, x, state, g, err);
        if (!st && rank == 0)
            st = add_empty(d, &f, g, err);
        if (!st)
            st = add_partition(d, x, &f, pickle_item(slices, g), err);
    }
    return st;
}

/* ---- ZeRO-3 ---- */

/* The parts of all parameters, which fill one flat tensor after the other. */
static tp_status add_rank_zero3(struct deepspeed_state *d, struct torch_pieces *x,
                                const struct pickle_value *state, int rank, struct tp_err *err)
{
    const int64_t n_flat = pickle_count(pickle_get(state, "fp32_flat_groups"));
    struct deepspeed_flat f = { .numel = 0 };
    int64_t at = 0, next = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < d->n_params; i++) {
        const struct deepspeed_state_param *p = &d->params[i];
        const int64_t n = deepspeed_state_elements(p), part = deepspeed_state_part(d, p),
                      first = rank * part;

        if (at == f.numel && next < n_flat) {
            TP_TRY(read_flat(&f, d, x, state, next++, err));
            at = 0;
        }
        if (part > f.numel - at)
            return refuse(
                x, "its flat tensors are shorter than the parameters, as of a save of more ranks",
                err);
        if (first < n || (n == 0 && rank == 0))
            TP_TRY(add_interval(d, &f, p, first, n - first < part ? n - first : part, at, err));
        at += part;
    }
    if (at != f.numel || next != n_flat)
        st = refuse(
            x, "its flat tensors are longer than the parameters, as of a save of fewer ranks", err);
done:
    return st;
}

/* ---- ranks ---- */

bool deepspeed_zero_is_in(const char *dir)
{
    static const char *const zero[] = { "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                        "fp16_zero_pp_rank_0_mp_rank_00_optim_states.pt" };

    for (int i = 0; i < 3; i++)
        if (object_is_in(dir, zero[i]))
            return true;
    return false;
}

/* The path of a rank's optimizer states, whose name depends on the type. *found: it is there. */
static tp_status rank_file(bool *found, char name[DEEPSPEED_NAME_BYTES],
                           const struct deepspeed_state *d, int rank, struct tp_err *err)
{
    static const char *const heads[] = { "bf16_", "fp16_", "" };
    char path[PATH_MAX];
    tp_status st = TP_OK;

    *found = false;
    for (int i = 0; i < 3 && !*found; i++) {
        bool first = false;

        snprintf(name, DEEPSPEED_NAME_BYTES, "%szero_pp_rank_0_mp_rank_00_optim_states.pt",
                 heads[i]);
        TP_TRY(file_join(path, d->dir, name, err));
        first = object_is_there(path);
        snprintf(name, DEEPSPEED_NAME_BYTES, "%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt",
                 heads[i], rank, d->mp_rank);
        TP_TRY(file_join(path, d->dir, name, err));
        *found = object_is_there(path);
        if (first) /* one that is missing has such a name too */
            break;
    }
done:
    return st;
}

/* A damaged file may claim any number of ranks. */
tp_status deepspeed_zero_missing(const struct deepspeed_state *d, const char *name, int first,
                                 struct tp_err *err)
{
    const int n = d->dp - first < RANKS_MAX ? d->dp - first : RANKS_MAX;
    struct arena *arena = piece_source_arena(d->source);
    const char **paths = arena_array(arena, 2 * (size_t)n, sizeof *paths);
    int n_paths = 0;

    tp_fail(err, TP_E_NOTFOUND, "%s/%s: no such file; there must be one for each of the %d ranks",
            d->dir, name, d->dp);
    for (int i = 0; paths && i < 2 * n; i++) {
        char other[DEEPSPEED_NAME_BYTES];
        struct tp_err ignored;
        bool found;

        if (i % 2 == 0 ? !d->zero3 : d->universal)
            continue;
        deepspeed_rank_name(other, first + i / 2);
        if ((i % 2 && rank_file(&found, other, d, first + i / 2, &ignored)) ||
            !(paths[n_paths++] = arena_printf(arena, "%s/%s", d->dir, other)))
            return missing_files_fail(err, NULL, 0);
    }
    return missing_files_fail(err, paths, n_paths);
}

static tp_status open_rank(struct torch_pieces *x, struct deepspeed_state *d, int rank,
                           struct tp_err *err)
{
    char name[DEEPSPEED_NAME_BYTES];
    bool found;
    tp_status st;

    if (d->zero3 && rank > 0 && (st = deepspeed_rank_read(d, rank, err)))
        return st;
    st = rank_file(&found, name, d, rank, err);
    if (!st)
        st = deepspeed_state_open(x, d, name, err);
    return !st || found ? st : deepspeed_zero_missing(d, name, rank, err);
}

tp_status deepspeed_zero_add(struct deepspeed_state *d, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 0; rank < d->dp && !st; rank++) {
        struct torch_pieces x = { .source = d->source };
        const struct pickle_value *state;

        st = open_rank(&x, d, rank, err);
        state = st ? NULL : pickle_get(x.root, "optimizer_state_dict");
        if (!st && rank == 0 && d->mp_rank == 0)
            st = deepspeed_extras_optimizer(d, state, err);
        if (!st)
            st = d->zero3 ? add_rank_zero3(d, &x, state, rank, err)
                          : add_rank(d, &x, state, rank, err);
        torch_pieces_close(&x);
    }
    return st;
}
