/* reshard/formats/torch/dcp.c - see reshard/formats/torch/dcp.h. */
#include "reshard/formats/torch/dcp.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
#include "layout/family.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/torch/accelerate_names.h"
#include "reshard/formats/torch/dcp_extras.h"
#include "reshard/formats/torch/dcp_prefix.h"
#include "reshard/formats/torch/torch_pieces.h"
#include "reshard/formats/torch/torchtitan_map.h"
#include "reshard/formats/torch/torchtitan_piece.h"
#include "storage/object.h"

bool dcp_detect(const char *path)
{
    struct tp_err err = { 0 };
    char file[PATH_MAX];

    return !file_join(file, path, ".metadata", &err) && object_is_there(file);
}

/* ---- names ---- */

/* What an item is called here. */
struct dcp_name {
    const char *group; /* GROUP_PARAM, or the optimizer's name: "exp_avg", "step"; NULL: it stays
                          behind */
    const char *name;
    struct torchtitan_map_tensor tensor; /* ROLE_NONE: none that is known as torchtitan's */
};

/* Whether "HEAD.state.NAME.LEAF" is state of an optimizer, by the names that programs give it. */
static bool is_other_state(const char *name, const char *state, const char *leaf)
{
    const char *found = strstr(name, "opt");

    return found && found < state && strcmp(leaf, GROUP_PARAM) != 0 &&
           strcmp(leaf, GROUP_MASTER) != 0;
}

/* "optim.state.NAME.exp_avg" is exp_avg of NAME, and "momentum_buffer" likewise, which is not
 * AdamW's; any other name is a weight. */
static tp_status name_of(struct dcp_name *out, const char *name, struct arena *arena,
                         struct tp_err *err)
{
    static const char *const groups[] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ, "step" };
    const char *state, *dot;

    if (compiled_name_is(name))
        name = compiled_name_plain(arena, name);
    if (!name)
        return tp_fail(err, TP_E_NOMEM, "no memory for the names of weights");
    state = strstr(name, ".state.");
    dot = strrchr(name, '.');
    *out = (struct dcp_name){ GROUP_PARAM, name, { ROLE_NONE, 0 } };
    if (!state)
        return TP_OK;
    state += strlen(".state.");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (dot > state && strcmp(dot + 1, groups[i]) == 0) {
            out->group = groups[i];
            out->name = arena_printf(arena, "%.*s", (int)(dot - state), state);
        }
    if (dot > state && out->name == name && is_other_state(name, state, dot + 1)) {
        out->group = arena_strdup(arena, dot + 1);
        out->name = arena_printf(arena, "%.*s", (int)(dot - state), state);
    }
    return out->name && out->group ? TP_OK
                                   : tp_fail(err, TP_E_NOMEM, "%s: no memory for its name", name);
}

/* Chunks of a tensor follow each other and have the same name. */
static void add_name(const char **list, int *n, const char *name)
{
    if (*n == 0 || strcmp(list[*n - 1], name) != 0)
        list[(*n)++] = name;
}

/* Find what the program put in front of the names of all weights. */
static tp_status find_prefix(const char **out, const struct dcp_name *names, int n,
                             struct arena *arena, struct tp_err *err)
{
    struct dcp_prefix_names list = { .n_weights = 0 };

    list.weights = arena_array(arena, (size_t)n + 1, sizeof *list.weights);
    list.moments = arena_array(arena, (size_t)n + 1, sizeof *list.moments);
    if (!list.weights || !list.moments)
        return tp_fail(err, TP_E_NOMEM, "no memory for the prefix of weights");
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i].group, GROUP_PARAM) == 0)
            add_name(list.weights, &list.n_weights, names[i].name);
        if (strcmp(names[i].group, GROUP_EXP_AVG) == 0)
            add_name(list.moments, &list.n_moments, names[i].name);
    }
    return dcp_prefix_find(out, &list, arena, err);
}

static void strip_prefix(struct dcp_name *names, int n, const char *prefix)
{
    const size_t length = strlen(prefix);

    for (int i = 0; i < n; i++)
        if (strcmp(names[i].group, GROUP_PARAM) == 0 && strncmp(names[i].name, prefix, length) == 0)
            names[i].name += length;
}

/* State of a program that is not part of a model stays behind. m: of torchtitan; NULL: another
 * program's. */
static void leave_others(struct dcp_name *names, int n, const struct model *m)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i].group, GROUP_PARAM) == 0 &&
            (torchtitan_map_is_other(names[i].name) ||
             (m && m->experts && torchtitan_map_is_balance(names[i].name))))
            names[i].group = NULL;
}

/* Find torchtitan's tensors. A name that it does not have stays, and is refused as a tensor that
 * the model does not have. */
static void find_tensors(struct dcp_name *names, int n, const struct model *m)
{
    for (int i = 0; i < n; i++)
        if (names[i].group)
            torchtitan_map_ours(&names[i].tensor, m, names[i].name);
}

/* ---- items ---- */

struct dcp_reader {
    struct piece_source *source;
    const struct dcp_item *items;
    int n;
    const struct model *model; /* NULL: not known */
    bool torchtitan;
    bool known; /* the model, none of whose tensors is without elements */
};

static int by_file(const void *a, const void *b)
{
    const struct dcp_item *const *x = a, *const *y = b;
    const int order =
        ((*x)->file_number > (*y)->file_number) - ((*x)->file_number < (*y)->file_number);

    return order ? order : ((*x)->begin > (*y)->begin) - ((*x)->begin < (*y)->begin);
}

static tp_status check_chunk(const struct piece *p, const struct dcp_item *item, const char *path,
                             struct tp_err *err)
{
    char has[BOX_TEXT_MAX], says[BOX_TEXT_MAX];
    const struct box chunk = box_whole(item->ndim, item->box.len);

    if (!box_equal(&p->box, &chunk))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, but .metadata says %s", path,
                       item->name, box_format(has, &p->box), box_format(says, &chunk));
    if (p->dtype != item->dtype)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has another type than .metadata says",
                       path, item->name);
    return TP_OK;
}

/* Add the stored box of a tensor, or read it when it is a step. */
static tp_status add_item(struct dcp_reader *r, int file, const struct dcp_item *item,
                          const struct dcp_name *name, struct tp_err *err)
{
    const char *path = file_table_path(piece_source_files(r->source), file);
    struct torch_pieces x;
    struct piece p;
    int64_t step = 0;
    tp_status st;

    TP_TRY(torch_pieces_open(&x, r->source, file, item->begin, item->size, err));
    if (strcmp(name->group, "step") == 0) {
        TP_TRY(torch_pieces_number(&step, &x, x.root, item->name, err));
        st = piece_source_set_step(r->source, step, item->name, err);
        goto done;
    }
    TP_TRY(torch_pieces_tensor(&p, &x, x.root, name->group, name->name, err));
    TP_TRY(check_chunk(&p, item, path, err));
    memcpy(p.shape, item->shape, sizeof p.shape);
    p.box = item->box;
    if (r->torchtitan)
        st = torchtitan_piece_add(r->source, r->model, &name->tensor, &p, err);
    else
        st = module_piece_add(r->source, r->model, &p, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* Read an object: a step that the optimizer counts in an int, or what is not needed. */
static tp_status add_object(struct dcp_reader *r, const struct dcp_item *item,
                            const struct dcp_name *name, struct tp_err *err)
{
    const char *state = strstr(item->name, ".state.");
    struct torch_pieces x = { .source = r->source };
    int64_t step = -1;
    tp_status st = TP_OK;

    if (state && strcmp(name->group, "step") == 0 && is_other_state(item->name, state, "step")) {
        st = torch_pieces_open(&x, r->source, item->file_number, item->begin, item->size, err);
        if (!st && pickle_int(&step, x.root) && step >= 0)
            st = piece_source_set_step(r->source, step, item->name, err);
        torch_pieces_close(&x);
    }
    return st || step >= 0 ? st : dcp_extras_read(r->source, item->file_number, item, err);
}

/* Whether an item is the one before it by another name: torchtitan_map.h has two for some. */
static bool is_again(const struct dcp_reader *r, const struct dcp_item *const *item,
                     const struct dcp_name *names)
{
    const struct dcp_name *a = &names[item[-1] - r->items], *b = &names[item[0] - r->items];

    return item[0]->begin == item[-1]->begin && item[0]->file_number == item[-1]->file_number &&
           (item[0]->is_object || (a->group && b->group && strcmp(a->group, b->group) == 0 &&
                                   torchtitan_map_is_same(&a->tensor, &b->tensor)));
}

/* Tensors that are not part of the model come first among what stays behind, because options of
 * parameters are many. */
static tp_status leave_tensors(const struct dcp_reader *r, const struct dcp_name *names,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < r->n && !st; i++)
        if (!r->items[i].is_object && !names[i].group)
            st = dcp_extras_leave_tensor(r->source, &r->items[i], err);
    return st;
}

/* Read the items file by file, in the order in which they lie. */
static tp_status add_items(struct dcp_reader *r, const struct dcp_name *names, struct tp_err *err)
{
    const struct dcp_item **order = calloc((size_t)r->n + 1, sizeof *order);
    tp_status st = TP_OK;

    if (!order)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index",
                       piece_source_path(r->source));
    for (int i = 0; i < r->n; i++)
        order[i] = &r->items[i];
    qsort(order, (size_t)r->n, sizeof *order, by_file);
    for (int i = 0; i < r->n; i++) {
        const struct dcp_item *item = order[i];

        if (i > 0 && r->torchtitan && is_again(r, &order[i], names))
            continue;
        if (item->is_object)
            TP_TRY(add_object(r, item, &names[item - r->items], err));
        else if (!names[item - r->items].group)
            continue; /* leave_tensors has it */
        else if (r->known && box_is_empty(&item->box))
            TP_TRY(piece_source_leave(r->source, item->name, err));
        else
            TP_TRY(add_item(r, item->file_number, item, &names[item - r->items], err));
    }
done:
    free(order);
    return st;
}

/* Add the items of a folder to those of the folders before it. */
static tp_status add_folder(struct dcp_item **items, int *n, struct piece_source *s,
                            const char *dir, struct tp_err *err)
{
    struct dcp_item *found = NULL, *all;
    int n_found = 0;
    tp_status st;

    TP_TRY(dcp_metadata_read(&found, &n_found, dir, piece_source_arena(s), err));
    TP_TRY(dcp_metadata_add_files(found, n_found, dir, piece_source_files(s), err));
    if (*n == 0) {
        *items = found;
        *n = n_found;
        return TP_OK;
    }
    all = arena_array(piece_source_arena(s), (size_t)*n + (size_t)n_found + 1, sizeof *all);
    if (!all)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", dir);
    memcpy(all, *items, (size_t)*n * sizeof *all);
    if (n_found)
        memcpy(all + *n, found, (size_t)n_found * sizeof *all);
    *items = all;
    *n += n_found;
done:
    return st;
}

/* Read all folders as one checkpoint. prefix: NULL: it is to be found. */
static tp_status read_folders(struct piece_source *s, const struct model *m,
                              const char *const *dirs, int n_dirs, const char *prefix,
                              bool torchtitan, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(s);
    struct dcp_item *items = NULL;
    struct dcp_reader r = {
        .source = s, .model = m, .torchtitan = torchtitan, .known = m && m->family != MODEL_OF_RULES
    };
    struct dcp_name *names;
    tp_status st = TP_OK;

    for (int i = 0; i < n_dirs; i++)
        TP_TRY(add_folder(&items, &r.n, s, dirs[i], err));
    r.items = items;
    names = arena_array(arena, (size_t)r.n + 1, sizeof *names);
    if (!names)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
    for (int i = 0; i < r.n; i++)
        TP_TRY(name_of(&names[i], items[i].name, arena, err));
    if (!prefix)
        TP_TRY(find_prefix(&prefix, names, r.n, arena, err));
    strip_prefix(names, r.n, prefix);
    leave_others(names, r.n, torchtitan ? m : NULL);
    if (torchtitan)
        find_tensors(names, r.n, m);
    TP_TRY(leave_tensors(&r, names, err));
    TP_TRY(add_items(&r, names, err));
done:
    return st;
}

tp_status dcp_read_folders(struct piece_source *s, const struct model *m, const char *const *dirs,
                           int n, const char *prefix, struct tp_err *err)
{
    return read_folders(s, m, dirs, n, prefix, false, err);
}

static tp_status read_folder(struct piece_source *s, const struct model *m, bool torchtitan,
                             struct tp_err *err)
{
    const char *dir = piece_source_path(s);

    return read_folders(s, m, &dir, 1, NULL, torchtitan, err);
}

/* People may name a half of Accelerate's folder: say that the optimizer is beside it. */
static tp_status leave_other_half(struct piece_source *s, struct tp_err *err)
{
    const char *path = piece_source_path(s), *half = "/" ACCELERATE_WEIGHTS;
    const size_t n = text_path_length(path), n_half = strlen(half);
    const char *other;

    if (n <= n_half || strncmp(path + n - n_half, half, n_half) != 0)
        return TP_OK;
    other =
        arena_printf(piece_source_arena(s), "%.*s/" ACCELERATE_OPTIMIZER, (int)(n - n_half), path);
    if (!other)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its path", path);
    return dcp_detect(other) ? piece_source_leave(s, other, err) : TP_OK;
}

tp_status dcp_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    tp_status st = read_folder(s, m, false, err);

    return st ? st : leave_other_half(s, err);
}

/* ---- torchtitan ---- */

bool torchtitan_detect(const char *path)
{
    return dcp_detect(path) && dcp_metadata_contains(path, "tok_embeddings.weight");
}

tp_status torchtitan_check_model(const struct model *m, const char *path, struct tp_err *err)
{
    if (torchtitan_map_has_family(m))
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s: of torchtitan's models only Llama and Qwen3 are supported, and config.json is "
        "of %s; others need --rules",
        path, m->family < MODEL_FAMILIES ? family_of(m)->architecture : "another one");
}

tp_status torchtitan_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    tp_status st = torchtitan_check_model(m, piece_source_path(s), err);

    return st ? st : read_folder(s, m, true, err);
}
