/* reshard/ruled_tensors.c - see reshard/ruled_tensors.h. */
#include "reshard/ruled_tensors.h"

#include <string.h>

#include "layout/cut_rules.h"

/* The file's tensor, before a rule says how it is cut. */
static struct tensor tensor_of(const struct safetensors_tensor *found)
{
    struct tensor t = {
        .name = found->name, .group = GROUP_PARAM, .dtype = found->dtype, .ndim = found->ndim
    };

    memcpy(t.shape, found->shape, sizeof t.shape);
    return t;
}

tp_status ruled_tensors_list(struct ruled_tensors *out, const struct safetensors_source *s,
                             const char *rules, struct arena *arena, struct tp_err *err)
{
    struct ruled_tensors made = { .n = safetensors_count(s) };
    struct cut_rules r;
    tp_status st;

    TP_TRY(cut_rules_read(&r, rules, arena, err));
    made.list = arena_array(arena, (size_t)made.n + 1, sizeof *made.list);
    if (!made.list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors",
                       safetensors_path(s));
    for (int i = 0; i < made.n; i++) {
        struct tensor *t = &made.list[i];

        *t = tensor_of(safetensors_tensor_at(s, i));
        if (t->dtype == DTYPE_COUNT)
            return tp_fail(err, TP_E_USAGE, "%s: tensor %s has a type that is not supported",
                           safetensors_path(s), t->name);
        TP_TRY(cut_rules_apply(&r, t, err));
        if (t->layer >= made.layers)
            made.layers = t->layer + 1;
    }
    TP_TRY(cut_rules_check_used(&r, err));
    *out = made;
done:
    return st;
}
