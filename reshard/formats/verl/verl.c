/* reshard/formats/verl/verl.c - see reshard/formats/verl/verl.h. */
#include "reshard/formats/verl/verl.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_config.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/verl/verl_state.h"
#include "storage/object.h"

bool verl_detect(const char *path)
{
    struct tp_err ignored = { 0 };
    char dir[PATH_MAX];

    return !verl_folder_find(dir, path, &ignored);
}

/* ---- weights ---- */

static tp_status no_memory(const struct verl_state *d, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tensors", d->dir);
}

static const char *path_of(const struct verl_rank *r)
{
    return file_table_path(piece_source_files(r->x.source), r->x.file);
}

/* A tensor of a rank's model. What is not distributed all ranks have: buffers, and of one rank with
 * FSDP1 everything. */
static tp_status read_tensor(struct verl_tensor *t, struct verl_rank *r,
                             const struct pickle_value *v, const char *name, struct tp_err *err)
{
    struct piece whole;
    tp_status st;

    if (verl_tensor_is(v))
        return verl_tensor_read(t, r, v, name, err);
    st = torch_pieces_tensor(&whole, &r->x, v, GROUP_PARAM, name, err);
    if (st)
        return st;
    *t = (struct verl_tensor){ .local = v, .ndim = whole.ndim, .copy = r->rank > 0 };
    memcpy(t->shape, whole.shape, sizeof t->shape);
    t->box = whole.box;
    return TP_OK;
}

/* How many ranks share a tensor is what the first rank's mesh has on its last axis. */
static void take_shards(struct verl_state *d, const struct verl_rank *r)
{
    if (r->mesh.of)
        d->shards = (int)r->mesh.size[r->mesh.ndim - 1];
}

/* Note a parameter of rank 0, or compare that of another rank with it. */
static tp_status take_param(struct verl_state *d, const struct verl_rank *r, int at,
                            const struct verl_tensor *t, const char *name, bool distributed,
                            struct tp_err *err)
{
    struct arena *arena = piece_source_arena(d->source);
    struct verl_param *p = &d->params[at];

    if (r->rank > 0) {
        if (at < d->n_params && strcmp(p->name, name) == 0 && p->ndim == t->ndim &&
            memcmp(p->shape, t->shape, sizeof *p->shape * (size_t)p->ndim) == 0)
            return TP_OK;
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %d is %s, but rank 0 has %s, or another shape of it, there; the "
                       "two files are of different saves",
                       path_of(r), at, name, at < d->n_params ? p->name : "none");
    }
    p->name = arena_strdup(arena, name);
    p->plain = p->name ? compiled_name_plain(arena, p->name) : NULL;
    if (!p->plain)
        return no_memory(d, err);
    p->distributed = distributed;
    p->ndim = t->ndim;
    memcpy(p->shape, t->shape, sizeof p->shape);
    d->n_params++;
    return TP_OK;
}

static tp_status add_tensor(struct verl_state *d, struct verl_rank *r, int at, const char *name,
                            const struct pickle_value *v, struct tp_err *err)
{
    struct verl_tensor t;
    struct piece p;
    tp_status st;

    TP_TRY(read_tensor(&t, r, v, name, err));
    TP_TRY(take_param(d, r, at, &t, name, verl_tensor_is(v), err));
    if (!t.local)
        return TP_OK;
    TP_TRY(verl_tensor_piece(&p, r, &t, GROUP_PARAM, d->params[at].plain, err));
    if (!t.copy)
        st = module_piece_add(d->source, d->model, &p, err);
done:
    return st;
}

static tp_status read_model(struct verl_state *d, int rank, struct tp_err *err)
{
    struct verl_rank r;
    int n = 0;
    tp_status st;

    TP_TRY(verl_rank_open(&r, d, "model", rank, err));
    if (!pickle_is(r.x.root, PICKLE_DICT)) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not a dict from names to tensors", path_of(&r));
        goto done;
    }
    if (rank == 0)
        d->params = arena_array(piece_source_arena(d->source), (size_t)pickle_entries(r.x.root) + 1,
                                sizeof *d->params);
    if (!d->params) {
        st = no_memory(d, err);
        goto done;
    }
    for (int64_t i = 0; i < pickle_entries(r.x.root) && !st; i++) {
        const char *name = pickle_text(pickle_key(r.x.root, i));
        const struct pickle_value *v = pickle_entry(r.x.root, i);

        if (!name)
            st = tp_fail(err, TP_E_CORRUPT, "%s: the name of a tensor is not text", path_of(&r));
        else if (torch_tensor_is(v) || verl_tensor_is(v))
            st = add_tensor(d, &r, n++, name, v, err);
        else if (rank == 0)
            st = piece_source_leave(d->source, name, err);
    }
    if (!st && n != d->n_params)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: has %d tensors, but rank 0 has %d; the two files are of different saves",
                     path_of(&r), n, d->n_params);
    if (rank == 0)
        take_shards(d, &r);
done:
    torch_pieces_close(&r.x);
    return st;
}

/* The step of the run is in the name of a folder. */
static tp_status take_iteration(struct verl_state *d, struct tp_err *err)
{
    static const char head[] = "global_step_";
    const char *at = NULL, *next = d->dir;
    char *end;
    long long n;

    while ((next = strstr(next, head)))
        at = next += sizeof head - 1;
    if (!at)
        return TP_OK;
    n = strtoll(at, &end, 10);
    if (end == at || (*end && *end != '/') || n < 0)
        return TP_OK;
    return piece_source_set_iteration(d->source, n, "the folder's name", err);
}

tp_status verl_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct verl_state d = { .source = s, .model = m };
    bool has_model = false;
    tp_status st;

    TP_TRY(verl_folder_find(d.dir, piece_source_path(s), err));
    TP_TRY(verl_folder_world(&d.world, d.dir, err));
    d.shards = d.world;
    TP_TRY(verl_folder_has(&has_model, &d, "model", err));
    if (!has_model) {
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: has no model_world_size_%d_rank_0.pt, nor that of "
                     "another of its %d ranks",
                     d.dir, d.world, d.world);
        goto done;
    }
    TP_TRY(take_iteration(&d, err));
    for (int rank = 0; rank < d.world; rank++)
        TP_TRY(read_model(&d, rank, err));
    TP_TRY(verl_optimizer_add(&d, err));
    TP_TRY(verl_extra_add(&d, err));
done:
    return st;
}

/* ---- huggingface/ ---- */

tp_status verl_assets(char dir[PATH_MAX], const char *path, struct tp_err *err)
{
    char found[PATH_MAX];
    tp_status st = verl_folder_find(found, path, err);

    return st ? st : file_join(dir, found, "huggingface", err);
}

tp_status verl_config(const char **text, const char **note, struct piece_source *s,
                      struct tp_err *err)
{
    struct arena *arena = piece_source_arena(s);
    char dir[PATH_MAX], path[PATH_MAX], *data;
    size_t size;
    tp_status st;

    TP_TRY(verl_folder_find(dir, piece_source_path(s), err));
    TP_TRY(file_join(path, dir, "huggingface/config.json", err));
    if (!object_is_there(path)) {
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: there is no such file, which says what model it is; name the model's "
                     "with --config FILE",
                     path);
        goto done;
    }
    TP_TRY(object_read_any(&data, &size, path, MODEL_CONFIG_BYTES_MAX, arena, err));
    *text = data;
    *note = arena_printf(arena, "config.json is that of %s", path);
    if (!*note)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
done:
    return st;
}
