/* reshard/formats/pt/pt_contents.c - see reshard/formats/pt/pt_contents.h. */
#include "reshard/formats/pt/pt_contents.h"

#include <stdio.h>
#include <string.h>

#include "torch/torch_tensor.h"

/* How deep parts may be: {"state": {"model": ...}}. */
enum { DEPTH_MAX = 2 };

struct pt_search {
    struct pt_contents *out;
    struct arena *arena;
    bool no_memory;
};

/* Tensors of a program's own, such as a random state, have names without dots. */
static bool has_weights(const struct pickle_value *v)
{
    for (int64_t i = 0; i < pickle_entries(v); i++) {
        const char *key = pickle_text(pickle_key(v, i));

        if (key && strchr(key, '.') && torch_tensor_is(pickle_entry(v, i)))
            return true;
    }
    return false;
}

static bool is_optimizer(const struct pickle_value *v)
{
    return pickle_is(pickle_get(v, "state"), PICKLE_DICT) &&
           pickle_is(pickle_get(v, "param_groups"), PICKLE_LIST);
}

/* The class of an nn.Module, which torch.save(model) saves with all of its attributes; NULL: it is
 * none. */
static const char *module_class(const struct pickle_value *v)
{
    if (!pickle_is(v, PICKLE_OBJECT) || !pickle_get(v->object.state, "_modules"))
        return NULL;
    return pickle_is(v->object.callable, PICKLE_GLOBAL) ? v->object.callable->global.name : "?";
}

/* The title of what is in `title` under a key, or at a place of a list. */
static const char *join(struct pt_search *s, const char *title, const struct pickle_value *key,
                        int64_t i)
{
    const char *dot = *title ? "." : "", *text = pickle_text(key);
    const char *joined = text ? arena_printf(s->arena, "%s%s%s", title, dot, text)
                              : arena_printf(s->arena, "%s%s%lld", title, dot, (long long)i);

    s->no_memory |= !joined;
    return joined ? joined : "";
}

static void add(struct pt_part *parts, int *n, const struct pickle_value *v, const char *title)
{
    if (*n < PT_PARTS_MAX)
        parts[(*n)++] = (struct pt_part){ v, title };
}

/* Of what is a part itself, nothing further. */
static void search(struct pt_search *s, const struct pickle_value *v, const char *title, int depth)
{
    if (is_optimizer(v)) {
        add(s->out->optimizers, &s->out->n_optimizers, v, title);
        return;
    }
    if (has_weights(v)) {
        add(s->out->weights, &s->out->n_weights, v, title);
        return;
    }
    if (!s->out->module)
        s->out->module = module_class(v);
    if (depth == DEPTH_MAX)
        return;
    for (int64_t i = 0; i < pickle_entries(v); i++)
        if (pickle_text(pickle_key(v, i)) && pickle_entry(v, i)->depth > 0)
            search(s, pickle_entry(v, i), join(s, title, pickle_key(v, i), i), depth + 1);
    for (int64_t i = 0; i < pickle_count(v) && pickle_is(v, PICKLE_LIST); i++)
        if (pickle_item(v, i)->depth > 0)
            search(s, pickle_item(v, i), join(s, title, NULL, i), depth + 1);
}

tp_status pt_contents_find(struct pt_contents *out, const struct pickle_value *root,
                           struct arena *arena, struct tp_err *err)
{
    struct pt_search s = { .out = out, .arena = arena };

    *out = (struct pt_contents){ .n_weights = 0 };
    search(&s, root, "", 0);
    return s.no_memory ? tp_fail(err, TP_E_NOMEM, "no memory for the keys of a file") : TP_OK;
}

/* ---- choosing ---- */

/* Whether the last key of a title is this one. */
static bool ends_with(const char *title, const char *key)
{
    const size_t n = strlen(title), k = strlen(key);

    return n >= k && strcmp(title + n - k, key) == 0 && (n == k || title[n - k - 1] == '.');
}

const struct pt_part *pt_contents_model(const struct pt_contents *c)
{
    static const char *const usual[] = { "model_state_dict", "state_dict", "model", "module", "net",
                                         "weights",          "params" };

    if (c->n_weights == 1)
        return &c->weights[0];
    for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) {
        const struct pt_part *found = NULL;
        int n = 0;

        for (int i = 0; i < c->n_weights; i++)
            if (ends_with(c->weights[i].title, usual[k])) {
                found = &c->weights[i];
                n++;
            }
        if (n > 0)
            return n == 1 ? found : NULL;
    }
    return NULL;
}

/* How many optimizers have state; *found is the last one. */
static int find_state(const struct pt_part **found, const struct pt_contents *c)
{
    int n = 0;

    for (int i = 0; i < c->n_optimizers; i++)
        if (pickle_entries(pickle_get(c->optimizers[i].value, "state")) > 0) {
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
