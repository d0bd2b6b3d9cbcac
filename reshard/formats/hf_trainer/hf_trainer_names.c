/* reshard/formats/hf_trainer/hf_trainer_names.c - see
 * reshard/formats/hf_trainer/hf_trainer_names.h. */
#include "reshard/formats/hf_trainer/hf_trainer_names.h"

#include <string.h>

#include "reshard/formats/pieces/compiled_name.h"

/* Whether a parameter has this name in a live model of some version. */
static bool has_name(const struct parameter_order_item *p, const char *name)
{
    return strcmp(p->module.name, name) == 0 ||
           (!p->module.is_stacked && strcmp(p->tensor->name, name) == 0);
}

int hf_trainer_names_find(const struct parameter_order_item *params, int n, int at,
                          const char *name)
{
    for (int i = 0; i < n; i++)
        if (has_name(&params[(at + i) % n], name))
            return (at + i) % n;
    return n;
}

tp_status hf_trainer_names_weight(const char **out, const struct hf_trainer_optimizer *o, int64_t i,
                                  struct tp_err *err)
{
    const char *key = pickle_text(pickle_key(o->weights, i)), *name;
    const size_t n = strlen(o->prefix);

    *out = NULL;
    if (!key || !torch_tensor_is(pickle_entry(o->weights, i)))
        return TP_OK;
    name = compiled_name_plain(o->arena, key);
    if (!name)
        return hf_trainer_search_no_memory(o, err);
    if (strncmp(name, o->prefix, n) == 0)
        *out = name + n;
    return TP_OK;
}

/* Find the parameters in one order of the model, which differ in what they stack. *missing is the
 * first state whose name it does not have; o->n: it has all. */
static tp_status take_names(const struct parameter_order_item **out, int *missing,
                            const struct hf_trainer_search *s, const struct parameter_order *order,
                            struct tp_err *err)
{
    struct parameter_order_item *params, *found;
    bool *taken;
    int n, at = 0;
    tp_status st = parameter_order_list(&params, &n, order, s->model, s->tensors, s->n_tensors,
                                        s->o->arena, err);

    if (st)
        return st;
    found = arena_array(s->o->arena, (size_t)s->o->n, sizeof *found);
    taken = arena_array(s->o->arena, (size_t)n, sizeof *taken);
    if (!found || !taken)
        return hf_trainer_search_no_memory(s->o, err);
    for (*missing = 0; *missing < s->o->n; ++*missing) {
        const char *name = compiled_name_plain(s->o->arena, s->o->states[*missing].name);

        if (!name)
            return hf_trainer_search_no_memory(s->o, err);
        at = hf_trainer_names_find(params, n, at, name);
        if (at == n || taken[at])
            break;
        taken[at] = true;
        found[*missing] = params[at];
    }
    *out = found;
    return TP_OK;
}

tp_status hf_trainer_names_take(const struct parameter_order_item **out,
                                const struct hf_trainer_search *s, struct tp_err *err)
{
    const struct parameter_order *order;
    int missing = 0;

    for (int i = 0; (order = parameter_order_of(s->model->family, i)); i++) {
        tp_status st = take_names(out, &missing, s, order, err);

        if (st || missing == s->o->n)
            return st;
    }
    tp_fail(s->why, TP_E_USAGE,
            "%s: has a parameter %.200s (number %d), which the model of config.json does not have, "
            "or twice",
            s->o->path, s->o->states[missing].name, missing);
    return TP_OK;
}

tp_status hf_trainer_names_take_all(const struct parameter_order_item **out,
                                    const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    struct parameter_order_item *found = arena_array(o->arena, (size_t)o->n, sizeof *found);
    struct tensor *tensors = arena_array(o->arena, (size_t)o->n, sizeof *tensors);

    if (!found || !tensors)
        return hf_trainer_search_no_memory(o, err);
    for (int i = 0; i < o->n; i++) {
        const struct hf_trainer_state *state = &o->states[i];

        tensors[i] = (struct tensor){ .name = compiled_name_plain(o->arena, state->name) };
        if (!tensors[i].name)
            return hf_trainer_search_no_memory(o, err);
        tensors[i].ndim = state->ndim < 0 ? 0 : state->ndim;
        memcpy(tensors[i].shape, state->shape, sizeof state->shape);
        found[i].tensor = &tensors[i];
        found[i].module.name = tensors[i].name;
    }
    *out = found;
    return TP_OK;
}
