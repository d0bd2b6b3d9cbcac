/* reshard/formats/torch/named_adamw.c - see reshard/formats/torch/named_adamw.h. */
#include "reshard/formats/torch/named_adamw.h"

#include <string.h>

#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/torch/torch_pieces.h"

/* What keys begin with that flatten_optimizer_state_dict has made. */
#define STATE  "state."
#define GROUPS "param_groups."

static const char *path_of(const struct torch_pieces *x)
{
    return file_table_path(piece_source_files(x->source), x->file);
}

static tp_status no_memory(const struct torch_pieces *x, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for the names of parameters", path_of(x));
}

/* The name of a parameter, or its number in digits. *out lives as long as the source. */
static tp_status name_of(const char **out, const struct torch_pieces *x, const char *prefix,
                         const struct pickle_value *key, const char *text, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(x->source);
    const size_t n = strlen(prefix);
    int64_t number;

    if (text && *text)
        *out = compiled_name_plain(arena, text);
    else if (pickle_int(&number, key))
        *out = arena_printf(arena, "%lld", (long long)number);
    else
        return tp_fail(err, TP_E_CORRUPT, "%s: the name of a parameter is not text", path_of(x));
    if (*out && strncmp(*out, prefix, n) == 0)
        *out += n;
    return *out ? TP_OK : no_memory(x, err);
}

static tp_status leave(const struct torch_pieces *x, const struct named_adamw *q, const char *name,
                       const char *key, struct tp_err *err)
{
    const char *left =
        arena_printf(piece_source_arena(x->source), "%s.state.%s.%s", q->title, name, key);

    return left ? piece_source_leave(x->source, left, err) : no_memory(x, err);
}

/* What an optimizer keeps of a parameter: "exp_avg", "step". State of other optimizers has groups
 * of its own. */
static tp_status add_value(struct torch_pieces *x, const struct named_adamw *q,
                           const struct model *m, const char *name, const char *key,
                           const struct pickle_value *v, struct tp_err *err)
{
    const char *group = key ? arena_strdup(piece_source_arena(x->source), key) : NULL;
    struct tp_err why = { 0 };
    struct piece p;
    int64_t step;
    tp_status st;

    if (!key)
        return tp_fail(err, TP_E_CORRUPT, "%s: state of %s has no name", path_of(x), name);
    if (!group)
        return no_memory(x, err);
    if (strcmp(key, "step") == 0 && torch_pieces_is_number(v)) {
        st = torch_pieces_number(&step, x, v, name, err);
        return st ? st : piece_source_set_step(x->source, step, name, err);
    }
    if (torch_tensor_is_part(v)) {
        tp_fail(&why, TP_E_USAGE,
                "%s: %s of %s is a DTensor, of which this file has the part of one rank; save what "
                "get_optimizer_state_dict() gives with full_state_dict",
                path_of(x), key, name);
        piece_source_refuse_state(x->source, &why);
    }
    if (!torch_tensor_is(v) || strcmp(key, GROUP_PARAM) == 0 || strcmp(key, GROUP_MASTER) == 0)
        return leave(x, q, name, key, err);
    st = torch_pieces_tensor(&p, x, v, group, name, err);
    return st ? st : module_piece_add(x->source, m, &p, err);
}

static tp_status add_state(struct torch_pieces *x, const struct named_adamw *q,
                           const struct model *m, struct tp_err *err)
{
    const struct pickle_value *state = pickle_get(q->root, "state");
    tp_status st = TP_OK;

    if (!pickle_is(state, PICKLE_DICT))
        return tp_fail(err, TP_E_CORRUPT, "%s: is not the state of an optimizer", path_of(x));
    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const struct pickle_value *of_param = pickle_entry(state, i);
        const char *name = NULL;

        st = name_of(&name, x, q->prefix, pickle_key(state, i), pickle_text(pickle_key(state, i)),
                     err);
        for (int64_t k = 0; k < pickle_entries(of_param) && !st; k++)
            st = add_value(x, q, m, name, pickle_text(pickle_key(of_param, k)),
                           pickle_entry(of_param, k), err);
    }
    return st;
}

/* ---- with flatten_optimizer_state_dict ---- */

bool named_adamw_is_flat(const struct pickle_value *v)
{
    bool state = false, groups = false;

    for (int64_t i = 0; i < pickle_entries(v) && !(state && groups); i++) {
        const char *key = pickle_text(pickle_key(v, i));

        state |= key && strncmp(key, STATE, strlen(STATE)) == 0;
        groups |= key && strncmp(key, GROUPS, strlen(GROUPS)) == 0;
    }
    return state && groups;
}

/* The name in "state.NAME.exp_avg", in an arena; "" : there is none. NULL without memory. */
static const char *flat_name(struct arena *arena, const char *key, const char *head)
{
    const char *begin = key + strlen(head), *dot = strrchr(key, '.');

    return arena_printf(arena, "%.*s", dot > begin ? (int)(dot - begin) : 0, begin);
}

static tp_status add_flat_state(struct torch_pieces *x, const struct named_adamw *q,
                                const struct model *m, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(q->root) && !st; i++) {
        const char *key = pickle_text(pickle_key(q->root, i)), *name;

        if (!key || strncmp(key, STATE, strlen(STATE)) != 0)
            continue;
        name = flat_name(&x->arena, key, STATE);
        if (!name)
            return no_memory(x, err);
        st = name_of(&name, x, q->prefix, NULL, name, err);
        if (!st)
            st = add_value(x, q, m, name, strrchr(key, '.') + 1, pickle_entry(q->root, i), err);
    }
    return st;
}

/* Options have the names of parameters: those of the first are the optimizer's. */
static tp_status take_flat_options(struct export_adamw *a, bool *known, struct torch_pieces *x,
                                   const struct pickle_value *root, struct tp_err *err)
{
    const char *first = NULL;

    for (int64_t i = 0; i < pickle_entries(root); i++) {
        const char *key = pickle_text(pickle_key(root, i)), *name;

        if (!key || strncmp(key, GROUPS, strlen(GROUPS)) != 0)
            continue;
        name = flat_name(&x->arena, key, GROUPS);
        if (!name)
            return no_memory(x, err);
        first = first ? first : name;
        if (strcmp(name, first) == 0)
            *known |= torch_pieces_adamw_option(a, strrchr(key, '.') + 1, pickle_entry(root, i));
    }
    return TP_OK;
}

/* ---- both ---- */

const char *named_adamw_first_name(const struct pickle_value *root, struct arena *arena)
{
    const char *name = pickle_text(pickle_key(pickle_get(root, "state"), 0));

    for (int64_t i = 0; i < pickle_entries(root) && !name && named_adamw_is_flat(root); i++) {
        const char *key = pickle_text(pickle_key(root, i));

        if (key && strncmp(key, STATE, strlen(STATE)) == 0)
            name = flat_name(arena, key, STATE);
    }
    return name;
}

/* The options of the first group are those of the optimizer. */
static tp_status add_options(struct torch_pieces *x, const struct named_adamw *q,
                             struct tp_err *err)
{
    const char *left = arena_printf(piece_source_arena(x->source), "%s.param_groups", q->title);
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;
    bool known = false;
    tp_status st = TP_OK;

    if (!left)
        return no_memory(x, err);
    if (named_adamw_is_flat(q->root))
        st = take_flat_options(&a, &known, x, q->root, err);
    else
        known = torch_pieces_adamw(&a, pickle_item(pickle_get(q->root, "param_groups"), 0));
    if (st)
        return st;
    if (known)
        piece_source_set_adamw(x->source, &a);
    return piece_source_leave(x->source, left, err);
}

tp_status named_adamw_read(struct torch_pieces *x, const struct named_adamw *q,
                           const struct model *m, struct tp_err *err)
{
    tp_status st =
        named_adamw_is_flat(q->root) ? add_flat_state(x, q, m, err) : add_state(x, q, m, err);

    return st ? st : add_options(x, q, err);
}
