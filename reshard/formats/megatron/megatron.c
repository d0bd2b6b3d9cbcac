/* reshard/formats/megatron/megatron.c - see reshard/formats/megatron/megatron.h. */
#include "reshard/formats/megatron/megatron.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/megatron/megatron_rank.h"

#define MODEL_FILE "model_optim_rng.pt"

/* The first rank's folder tells whether there are pipeline stages. */
static bool find_first(struct megatron_rank *r)
{
    struct tp_err err = { 0 };
    char path[PATH_MAX];

    for (r->args.pp = 1; r->args.pp <= 2; r->args.pp++)
        if (!megatron_rank_path(path, r, MODEL_FILE, &err) && file_exists(path))
            return true;
    return false;
}

bool megatron_detect(const char *path)
{
    struct megatron_rank r = { .tp_rank = 0 };
    struct tp_err err = { 0 };

    return !megatron_folder_find(r.dir, path, &err) && find_first(&r);
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
    st = megatron_args_read(&r->args, pickle_get(x->root, "args"), r->map.model, path, err);
    return st ? st : megatron_rank_stages(r, path, err);
}

/* What is neither a weight nor of the optimizer stays behind. */
static tp_status leave_others(struct megatron_rank *r, const struct torch_pieces *x,
                              struct tp_err *err)
{
    static const char *const names[] = { "args", "opt_param_scheduler", "rng_state" };
    tp_status st = TP_OK;

    for (int i = 0; i < 3 && !st; i++)
        if (pickle_get(x->root, names[i]))
            st = piece_source_leave(r->source, names[i], err);
    return st;
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
        TP_TRY(leave_others(r, &x, err));
    }
    if (pickle_int(&iteration, pickle_get(x.root, "iteration")) && iteration >= 0)
        TP_TRY(piece_source_set_step(r->source, iteration, path, err));
    TP_TRY(megatron_rank_weights(r, &x, err));
    TP_TRY(megatron_optimizer_add(r, &x, err));
    TP_TRY(megatron_optimizer_add_distributed(r, err));
done:
    torch_pieces_close(&x);
    return st;
}

tp_status megatron_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct megatron_rank r = { .source = s };
    tp_status st;

    if (!m)
        return tp_fail(err, TP_E_USAGE, "%s: Megatron's format needs a config.json; give --config",
                       piece_source_path(s));
    TP_TRY(megatron_folder_find(r.dir, piece_source_path(s), err));
    TP_TRY(megatron_map_make(&r.map, m, piece_source_arena(s), err));
    if (!find_first(&r))
        return tp_fail(err, TP_E_NOTFOUND, "%s: has no mp_rank_00/" MODEL_FILE, r.dir);
    TP_TRY(read_rank(&r, true, err));
    for (int i = 1; i < r.args.tp * r.args.pp; i++) {
        r.tp_rank = i % r.args.tp;
        r.pp_rank = i / r.args.tp;
        TP_TRY(read_rank(&r, false, err));
    }
done:
    return st;
}
