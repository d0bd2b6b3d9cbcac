/* reshard/formats/pt/pt_contents.c - see reshard/formats/pt/pt_contents.h. */
#include "reshard/formats/pt/pt_contents.h"

#include <stdio.h>
#include <string.h>

#include "reshard/formats/torch/model_key.h"
#include "reshard/formats/torch/named_adamw.h"
#include "torch/torch_tensor.h"

struct pt_search {
    struct pt_contents *out;
    struct arena *arena;
    int64_t path[PT_DEPTH_MAX]; /* to the value that is looked at */
    bool no_memory;
};

static tp_status no_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "no memory for the keys of a file");
}

/* Tensors of a program's own, such as a random state, have names without dots. */
static bool has_weights(const struct pickle_value *v)
{
    for (int64_t i = 0; i < pickle_entries(v); i++) {
        const char *key = pickle_text(pickle_key(v, i));
        const struct pickle_value *value = pickle_entry(v, i);

        if (key && strchr(key, '.') && (torch_tensor_is(value) || torch_tensor_is_part(value)))
            return true;
    }
    return false;
}

static bool is_optimizer(const struct pickle_value *v)
{
    return (pickle_is(pickle_get(v, "state"), PICKLE_DICT) &&
            pickle_is(pickle_get(v, "param_groups"), PICKLE_LIST)) ||
           named_adamw_is_flat(v);
}

/* The class of an nn.Module, which torch.save(model) saves with all of its attributes; NULL: it is
 * none. */
static const char *module_class(const struct pickle_value *v)
{
    if (!pickle_is(v, PICKLE_OBJECT) || !pickle_get(v->object.state, "_modules"))
        return NULL;
    return pickle_is(v->object.callable, PICKLE_GLOBAL) ? v->object.callable->global.name : "?";
}

static bool is_list(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_LIST) || pickle_is(v, PICKLE_TUPLE);
}

/* How many values a dict or a list has. */
static int64_t count_inside(const struct pickle_value *v)
{
    return is_list(v) ? pickle_count(v) : pickle_entries(v);
}

static const struct pickle_value *inside(const struct pickle_value *v, int64_t i)
{
    return is_list(v) ? pickle_item(v, i) : pickle_entry(v, i);
}

/* The title of value i inside of a dict or list that has a title: with its key, or its place. NULL:
 * memory is out. */
static const char *title_inside(struct arena *arena, const char *title,
                                const struct pickle_value *v, int64_t i)
{
    const struct pickle_value *key = is_list(v) ? NULL : pickle_key(v, i);
    const char *dot = *title ? "." : "", *text = pickle_text(key);
    int64_t number = i;

    if (key && !text && !pickle_int(&number, key))
        text = "?";
    return text ? arena_printf(arena, "%s%s%s", title, dot, text)
                : arena_printf(arena, "%s%s%lld", title, dot, (long long)number);
}

static bool is_key(const struct pickle_value *key)
{
    int64_t ignored;

    return pickle_text(key) || pickle_int(&ignored, key);
}

static void add(struct pt_search *s, struct pt_part *parts, int *n, const struct pickle_value *v,
                const char *title, int depth)
{
    struct pt_part part = { .value = v, .title = title, .depth = depth };

    memcpy(part.path, s->path, sizeof part.path);
    if (*n < PT_PARTS_MAX)
        parts[(*n)++] = part;
}

/* Of what is a part itself, nothing further. */
static void search(struct pt_search *s, const struct pickle_value *v, const char *title, int depth)
{
    if (is_optimizer(v)) {
        add(s, s->out->optimizers, &s->out->n_optimizers, v, title, depth);
        return;
    }
    if (has_weights(v)) {
        add(s, s->out->weights, &s->out->n_weights, v, title, depth);
        return;
    }
    if (!s->out->module)
        s->out->module = module_class(v);
    if (depth == PT_DEPTH_MAX)
        return;
    for (int64_t i = 0; i < count_inside(v); i++) {
        const char *name;

        if (inside(v, i)->depth == 0 || !(is_list(v) || is_key(pickle_key(v, i))))
            continue;
        name = title_inside(s->arena, title, v, i);
        s->no_memory |= !name;
        s->path[depth] = i;
        search(s, inside(v, i), name ? name : "", depth + 1);
    }
}

tp_status pt_contents_find(struct pt_contents *out, const struct pickle_value *root,
                           struct arena *arena, struct tp_err *err)
{
    struct pt_search s = { .out = out, .arena = arena };

    *out = (struct pt_contents){ .n_weights = 0 };
    search(&s, root, "", 0);
    return s.no_memory ? no_memory(err) : TP_OK;
}

/* ---- choosing ---- */

const struct pt_part *pt_contents_model(const struct pt_contents *c)
{
    const struct pt_part *found = NULL;
    int best = MODEL_KEY_OTHER;

    if (c->n_weights == 1)
        return &c->weights[0];
    for (int i = 0; i < c->n_weights; i++) {
        const char *title = c->weights[i].title;
        const int rank = model_key_rank(title, strlen(title));

        if (rank < best)
            found = &c->weights[i];
        else if (rank == best)
            found = NULL;
        best = rank < best ? rank : best;
    }
    return found;
}

static bool has_state(const struct pickle_value *optimizer)
{
    return pickle_entries(pickle_get(optimizer, "state")) > 0 || named_adamw_is_flat(optimizer);
}

/* How many optimizers have state; *found is the last one. */
static int find_state(const struct pt_part **found, const struct pt_contents *c)
{
    int n = 0;

    for (int i = 0; i < c->n_optimizers; i++)
        if (has_state(c->optimizers[i].value)) {
            *found = &c->optimizers[i];
            n++;
        }
    return n;
}

bool pt_contents_has_state(const struct pt_contents *c)
{
    const struct pt_part *ignored;

    return find_state(&ignored, c) > 0;
}

const struct pt_part *pt_contents_optimizer(const struct pt_contents *c)
{
    const struct pt_part *found = NULL;

    return find_state(&found, c) == 1 ? found : NULL;
}

const char *pt_contents_titles(char text[PT_TITLES_TEXT], const struct pt_part *parts, int n)
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < n && used < PT_TITLES_TEXT; i++)
        used += (size_t)snprintf(text + used, PT_TITLES_TEXT - used, "%s%.60s", i ? ", " : "",
                                 parts[i].title);
    return text;
}

/* ---- what is beside them ---- */

/* A dict or list with a part inside of it. */
struct level {
    const struct pickle_value *value;
    const char *title;
    int depth;
    const struct pt_part *model, *optimizer; /* NULL: not inside of this */
};

/* The part if it is value i of a level, or inside of that; else NULL. */
static const struct pt_part *at(const struct pt_part *part, const struct level *l, int64_t i)
{
    return part && part->path[l->depth] == i ? part : NULL;
}

static tp_status leave_beside(struct piece_source *s, const struct level *l, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < count_inside(l->value) && !st; i++) {
        const struct level next = { .value = inside(l->value, i),
                                    .title =
                                        title_inside(piece_source_arena(s), l->title, l->value, i),
                                    .depth = l->depth + 1,
                                    .model = at(l->model, l, i),
                                    .optimizer = at(l->optimizer, l, i) };

        if (!next.title)
            return no_memory(err);
        if (!next.model && !next.optimizer)
            st = piece_source_leave(s, next.title, err);
        else if (!(next.model && next.model->depth == next.depth) &&
                 !(next.optimizer && next.optimizer->depth == next.depth))
            st = leave_beside(s, &next, err);
    }
    return st;
}

tp_status pt_contents_leave(struct piece_source *s, const struct pickle_value *root,
                            const struct pt_part *model, const struct pt_part *optimizer,
                            struct tp_err *err)
{
    const struct level whole = {
        .value = root, .title = "", .model = model, .optimizer = optimizer
    };

    return model->depth ? leave_beside(s, &whole, err) : TP_OK;
}
