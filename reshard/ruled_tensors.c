/* reshard/ruled_tensors.c - see reshard/ruled_tensors.h. */
#include "reshard/ruled_tensors.h"

#include <string.h>

#include "layout/cut_rules.h"

/* Make room for n tensors. */
static tp_status make(struct ruled_tensors *r, int n, const char *path, struct arena *arena,
                      struct tp_err *err)
{
    *r = (struct ruled_tensors){ .list = arena_array(arena, (size_t)n + 1, sizeof *r->list) };
    return r->list ? TP_OK
                   : tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", path);
}

/* Say how each tensor is cut; names, types and shapes are those of the source. */
static tp_status cut(struct ruled_tensors *made, const char *path, const char *rules,
                     struct arena *arena, struct tp_err *err)
{
    struct cut_rules r;
    tp_status st;

    TP_TRY(cut_rules_read(&r, rules, arena, err));
    for (int i = 0; i < made->n; i++) {
        struct tensor *t = &made->list[i];

        t->group = GROUP_PARAM;
        if (t->dtype == DTYPE_COUNT)
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %s has a type that is not supported; if the weights are "
                           "quantized, convert the model to bf16 first",
                           path, t->name);
        TP_TRY(cut_rules_apply(&r, t, err));
        if (t->layer >= made->layers)
            made->layers = t->layer + 1;
    }
    cut_rules_count_experts(made->list, made->n);
    TP_TRY(cut_rules_check_used(&r, err));
done:
    return st;
}

tp_status ruled_tensors_of_safetensors(struct ruled_tensors *out,
                                       const struct safetensors_source *s, const char *rules,
                                       struct arena *arena, struct tp_err *err)
{
    const int n = safetensors_count(s);
    struct ruled_tensors made;
    tp_status st;

    TP_TRY(make(&made, n, safetensors_path(s), arena, err));
    for (int i = 0; i < n; i++) {
        const struct safetensors_tensor *found = safetensors_tensor_at(s, i);
        struct tensor *t = &made.list[made.n++];

        *t = (struct tensor){ .name = found->name, .dtype = found->dtype, .ndim = found->ndim };
        memcpy(t->shape, found->shape, sizeof t->shape);
    }
    TP_TRY(cut(&made, safetensors_path(s), rules, arena, err));
    *out = made;
done:
    return st;
}

tp_status ruled_tensors_of_pieces(struct ruled_tensors *out, const struct piece_source *s,
                                  const char *rules, struct arena *arena, struct tp_err *err)
{
    const char *path = piece_source_path(s),
               *group = piece_source_has(s, GROUP_PARAM) ? GROUP_PARAM : GROUP_MASTER;
    const int n = piece_source_count(s);
    struct ruled_tensors made;
    tp_status st;

    TP_TRY(make(&made, n, path, arena, err));
    for (int i = 0; i < n; i++) {
        const struct piece *p = piece_source_tensor(s, i).pieces;
        struct tensor *t = &made.list[made.n];

        if (strcmp(p->group, group) != 0 &&
            (!piece_source_has_frozen(s) || strcmp(p->group, GROUP_MASTER) != 0))
            continue;
        made.n++;
        *t = (struct tensor){ .name = p->name, .dtype = p->dtype, .ndim = p->ndim };
        memcpy(t->shape, p->shape, sizeof t->shape);
    }
    if (made.n == 0)
        return tp_fail(err, TP_E_CORRUPT, "%s: has no weights", path);
    TP_TRY(cut(&made, path, rules, arena, err));
    *out = made;
done:
    return st;
}
