/* reshard/formats/megatron/megatron.c - see reshard/formats/megatron/megatron.h. */
#include "reshard/formats/megatron/megatron.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron_config.h"
#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/megatron/megatron_impl.h"
#include "reshard/formats/megatron/megatron_rank.h"
#include "storage/missing_files.h"
#include "storage/object.h"

#define MODEL_FILE "model_optim_rng.pt"

enum { RANKS_MAX = 10000 };

/* The first rank's folder has a number more for pipeline stages, and one for expert-parallel ranks.
 * The sizes are only right in that: mp_rank_00_000 may be either. */
static bool find_first(struct megatron_rank *r)
{
    struct tp_err err = { 0 };
    char path[PATH_MAX];

    for (int numbers = 0; numbers < 3; numbers++) {
        r->args.pp = numbers > 0 ? 2 : 1;
        r->args.ep = numbers > 1 ? 2 : 1;
        if (!megatron_rank_path(path, r, MODEL_FILE, &err) && object_is_there(path))
            return true;
    }
    return false;
}

bool megatron_detect(const char *path)
{
    struct megatron_rank r = { .tp_rank = 0 };
    struct tp_err err = { 0 };

    return !megatron_folder_find(r.dir, path, &err) && find_first(&r);
}

/* Find the iteration, and whether it has pipeline stages. */
static tp_status open_folder(struct megatron_rank *r, struct tp_err *err)
{
    tp_status st = megatron_folder_find(r->dir, piece_source_path(r->source), err);

    if (!st && !find_first(r))
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no mp_rank_00/" MODEL_FILE, r->dir);
    return st;
}

tp_status megatron_config(const char **text, const char **note, struct piece_source *s,
                          struct tp_err *err)
{
    struct megatron_rank r = { .source = s };
    struct torch_pieces x = { .source = s };
    char path[PATH_MAX];
    int file = 0;
    tp_status st;

    TP_TRY(open_folder(&r, err));
    TP_TRY(megatron_rank_path(path, &r, MODEL_FILE, err));
    TP_TRY(file_table_add(piece_source_files(s), &file, path, err));
    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    TP_TRY(megatron_config_make(text, note, pickle_get(x.root, "args"), path, piece_source_arena(s),
                                err));
done:
    torch_pieces_close(&x);
    return st;
}

/* The sizes of the job, which every file has. */
static tp_status read_sizes(struct megatron_rank *r, const struct torch_pieces *x,
                            struct tp_err *err)
{
    const char *path = file_table_path(piece_source_files(r->source), x->file);
    const struct pickle_value *version = pickle_get(x->root, "checkpoint_version");
    tp_status st;

    if (!pickle_is(version, PICKLE_FLOAT) || version->real < 3.0)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: checkpoint_version is not 3.0: older ones order query, key and value "
                       "in another way",
                       path);
    st = megatron_args_read(&r->args, x->root, r->map.model, path, r->map.arena, err);
    if (!st && r->map.model->experts > 0 && r->args.expert_tp != r->args.tp)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: was saved with experts cut over %d ranks and other layers over %d, which "
                     "is only read from torch_dist",
                     path, r->args.expert_tp, r->args.tp);
    return st ? st : megatron_rank_stages(r, path, err);
}

/* The names of the first rank's parameters prove which modules it had. */
static void read_modules(struct megatron_rank *r)
{
    struct export_modules modules = piece_source_modules(r->source);

    for (int i = 0; i < r->n_params; i++)
        megatron_impl_prove(&modules, r->params[i].name);
    piece_source_set_modules(r->source, modules);
}

static tp_status read_rank(struct megatron_rank *r, bool first, struct tp_err *err)
{
    struct torch_pieces x = { .source = r->source };
    char path[PATH_MAX];
    int file = 0;
    int64_t iteration = 0;
    tp_status st;

    TP_TRY(megatron_rank_path(path, r, MODEL_FILE, err));
    TP_TRY(file_table_add(piece_source_files(r->source), &file, path, err));
    TP_TRY(torch_pieces_open(&x, r->source, file, 0, -1, err));
    if (first) {
        TP_TRY(read_sizes(r, &x, err));
        TP_TRY(megatron_extras_read(r->source, x.root, NULL, err));
    }
    if (pickle_int(&iteration, pickle_get(x.root, "iteration")) && iteration >= 0)
        TP_TRY(piece_source_set_iteration(r->source, iteration, path, err));
    TP_TRY(megatron_rank_weights(r, &x, err));
    if (first)
        read_modules(r);
    if (!piece_source_refused_state(r->source)) {
        TP_TRY(megatron_optimizer_add(r, &x, err));
        TP_TRY(megatron_optimizer_add_distributed(r, err));
    }
done:
    torch_pieces_close(&x);
    return st;
}

static int64_t ranks_of(const struct megatron_rank *r)
{
    return (int64_t)r->args.tp * r->args.pp * r->args.ep;
}

static void go_to_rank(struct megatron_rank *r, int64_t i)
{
    r->tp_rank = (int)(i % r->args.tp);
    r->pp_rank = (int)(i / r->args.tp % r->args.pp);
    r->map.ep_rank = (int)(i / r->args.tp / r->args.pp);
}

/* The file of rank `first` was not found: say which of the following ones are missing too. A
 * damaged file may claim any number of ranks. */
static tp_status fail_missing(struct megatron_rank *r, int64_t first, struct tp_err *err)
{
    const int n = (int)(ranks_of(r) - first < RANKS_MAX ? ranks_of(r) - first : RANKS_MAX);
    const char **paths = arena_array(r->map.arena, (size_t)n, sizeof *paths);
    char path[PATH_MAX];
    struct tp_err ignored;

    for (int i = 0; paths && i < n; i++) {
        go_to_rank(r, first + i);
        if (megatron_rank_path(path, r, MODEL_FILE, &ignored) ||
            !(paths[i] = arena_strdup(r->map.arena, path)))
            paths = NULL;
    }
    return missing_files_fail(err, paths, paths ? n : 0);
}

tp_status megatron_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct megatron_rank r = { .source = s };
    tp_status st;

    TP_TRY(open_folder(&r, err));
    TP_TRY(megatron_map_make(&r.map, m, piece_source_arena(s), err));
    TP_TRY(read_rank(&r, true, err));
    for (int64_t i = 1; i < ranks_of(&r) && !st; i++) {
        go_to_rank(&r, i);
        st = read_rank(&r, false, err);
        if (st == TP_E_CORRUPT) /* also when its file is missing */
            st = fail_missing(&r, i, err);
    }
done:
    return st;
}
