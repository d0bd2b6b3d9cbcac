/* reshard/formats/torch/dcp.c - see reshard/formats/torch/dcp.h. */
#include "reshard/formats/torch/dcp.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "reshard/formats/torch/torch_pieces.h"

bool dcp_detect(const char *path)
{
    struct tp_err err = { 0 };
    char file[PATH_MAX];

    return !file_join(file, path, ".metadata", &err) && file_exists(file);
}

/* ---- names ---- */

/* What an item is called here. */
struct dcp_name {
    const char *group; /* GROUP_PARAM, or the optimizer's name: "exp_avg", "step" */
    const char *name;
};

/* "optim.state.NAME.exp_avg" is exp_avg of NAME; any other name is a weight. */
static tp_status name_of(struct dcp_name *out, const char *name, struct arena *arena,
                         struct tp_err *err)
{
    static const char *const groups[] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ, "step" };
    const char *state = strstr(name, ".state."), *dot = strrchr(name, '.');

    *out = (struct dcp_name){ GROUP_PARAM, name };
    if (!state)
        return TP_OK;
    state += strlen(".state.");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (dot > state && strcmp(dot + 1, groups[i]) == 0) {
            out->group = groups[i];
            out->name = arena_printf(arena, "%.*s", (int)(dot - state), state);
        }
    return out->name ? TP_OK : tp_fail(err, TP_E_NOMEM, "%s: no memory for its name", name);
}

/* What weights are called in a program's state dict besides their own name: get_state_dict's result
 * is saved as {"model": ...} by most programs. */
static const char *const model_heads[] = { "model.model.", "model.lm_head.", "model.transformer.",
                                           "model.gpt_neox." };

enum { WEIGHTS_TRIED = 64 };

/* The prefix, "model." for example, of which this weight's own name is free. 0: none. */
static size_t prefix_length(const char *weight, const struct dcp_name *names, int n)
{
    const char *dot = strchr(weight, '.');

    for (size_t k = 0; k < sizeof model_heads / sizeof *model_heads; k++)
        if (strncmp(weight, model_heads[k], strlen(model_heads[k])) == 0)
            return strlen("model.");
    for (int i = 0; i < n && dot; i++)
        if (strcmp(names[i].group, GROUP_EXP_AVG) == 0 && strcmp(dot + 1, names[i].name) == 0)
            return (size_t)(dot + 1 - weight);
    return 0;
}

/* Leave out the prefix that all weights have. */
static tp_status strip_prefix(struct dcp_name *names, int n, struct arena *arena,
                              struct tp_err *err)
{
    const char *prefix = NULL;
    size_t length = 0;

    for (int i = 0, tried = 0; i < n && !length && tried < WEIGHTS_TRIED; i++) {
        if (strcmp(names[i].group, GROUP_PARAM) != 0)
            continue;
        tried++;
        length = prefix_length(names[i].name, names, n);
        prefix = arena_printf(arena, "%.*s", (int)length, names[i].name);
        if (!prefix)
            return tp_fail(err, TP_E_NOMEM, "no memory for the prefix of weights");
    }
    for (int i = 0; i < n && length; i++)
        if (strcmp(names[i].group, GROUP_PARAM) == 0 && strncmp(names[i].name, prefix, length) == 0)
            names[i].name += length;
    return TP_OK;
}

/* ---- items ---- */

struct dcp_reader {
    struct piece_source *source;
    const struct dcp_item *items;
    int n;
};

static int by_file(const void *a, const void *b)
{
    const struct dcp_item *const *x = a, *const *y = b;
    int order = strcmp((*x)->file, (*y)->file);

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
    TP_TRY(piece_source_add(r->source, &p, err));
done:
    torch_pieces_close(&x);
    return st;
}

/* Read the items file by file, in the order in which they lie. */
static tp_status add_items(struct dcp_reader *r, const struct dcp_name *names, struct tp_err *err)
{
    const struct dcp_item **order = calloc((size_t)r->n + 1, sizeof *order);
    char path[PATH_MAX];
    int file = 0;
    tp_status st = TP_OK;

    if (!order)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index",
                       piece_source_path(r->source));
    for (int i = 0; i < r->n; i++)
        order[i] = &r->items[i];
    qsort(order, (size_t)r->n, sizeof *order, by_file);
    for (int i = 0; i < r->n; i++) {
        const struct dcp_item *item = order[i];

        if (i == 0 || strcmp(order[i - 1]->file, item->file) != 0) {
            TP_TRY(file_join(path, piece_source_path(r->source), item->file, err));
            TP_TRY(file_table_add(piece_source_files(r->source), &file, path, err));
        }
        if (item->is_object)
            TP_TRY(piece_source_leave(r->source, item->name, err));
        else
            TP_TRY(add_item(r, file, item, &names[item - r->items], err));
    }
done:
    free(order);
    return st;
}

tp_status dcp_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(s);
    struct dcp_item *items = NULL;
    struct dcp_reader r = { .source = s };
    struct dcp_name *names;
    tp_status st;

    (void)m;
    TP_TRY(dcp_metadata_read(&items, &r.n, piece_source_path(s), arena, err));
    r.items = items;
    names = arena_array(arena, (size_t)r.n + 1, sizeof *names);
    if (!names)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
    for (int i = 0; i < r.n; i++)
        TP_TRY(name_of(&names[i], items[i].name, arena, err));
    TP_TRY(strip_prefix(names, r.n, arena, err));
    TP_TRY(add_items(&r, names, err));
done:
    return st;
}
