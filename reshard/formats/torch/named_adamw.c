/* reshard/formats/torch/named_adamw.c - see reshard/formats/torch/named_adamw.h. */
#include "reshard/formats/torch/named_adamw.h"

#include <string.h>

#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/torch/torch_pieces.h"

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
                         const struct pickle_value *key, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(x->source);
    const size_t n = strlen(prefix);
    const char *text = pickle_text(key);
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

        st = name_of(&name, x, q->prefix, pickle_key(state, i), err);
        for (int64_t k = 0; k < pickle_entries(of_param) && !st; k++)
            st = add_value(x, q, m, name, pickle_text(pickle_key(of_param, k)),
                           pickle_entry(of_param, k), err);
    }
    return st;
}

/* The options of the first group are those of the optimizer. */
static tp_status add_options(struct torch_pieces *x, const struct named_adamw *q,
                             struct tp_err *err)
{
    const char *left = arena_printf(piece_source_arena(x->source), "%s.param_groups", q->title);
    struct export_adamw a = EXPORT_ADAMW_DEFAULT;

    if (!left)
        return no_memory(x, err);
    if (torch_pieces_adamw(&a, pickle_item(pickle_get(q->root, "param_groups"), 0)))
        piece_source_set_adamw(x->source, &a);
    return piece_source_leave(x->source, left, err);
}

tp_status named_adamw_read(struct torch_pieces *x, const struct named_adamw *q,
                           const struct model *m, struct tp_err *err)
{
    tp_status st = add_state(x, q, m, err);

    return st ? st : add_options(x, q, err);
}
