/* reshard/formats/hf_trainer/hf_trainer_params.c - see
 * reshard/formats/hf_trainer/hf_trainer_params.h. */
#include "reshard/formats/hf_trainer/hf_trainer_params.h"

#include <string.h>

#include "layout/model_tensors.h"
#include "reshard/formats/hf_trainer/hf_trainer_groups.h"
#include "reshard/formats/hf_trainer/hf_trainer_names.h"
#include "reshard/formats/hf_trainer/hf_trainer_order.h"

/* The tensors of the model's state_dict(). One that begins where the first of its storage does is
 * that again: a tied head. */
static tp_status list_weights(struct tensor *tensors, int *n, const struct hf_trainer_optimizer *o,
                              struct tp_err *err)
{
    const struct zip *zip = &o->file->torch.zip;
    int64_t *first = arena_array(o->arena, (size_t)zip->n, sizeof *first); /* byte; 0: none yet */
    tp_status st = first ? TP_OK : hf_trainer_search_no_memory(o, err);

    *n = 0;
    for (int64_t i = 0; i < pickle_entries(o->weights) && !st; i++) {
        struct torch_tensor t;
        const char *name;
        int64_t *begin;

        TP_TRY(hf_trainer_names_weight(&name, o, i, err));
        if (!name)
            continue;
        TP_TRY(torch_tensor_read(&t, &o->file->torch, pickle_entry(o->weights, i), name, err));
        begin = &first[t.storage - zip->members];
        if (*begin == t.begin)
            continue;
        *begin = *begin ? *begin : t.begin;
        tensors[*n] = (struct tensor){ .name = name, .ndim = t.ndim };
        memcpy(tensors[(*n)++].shape, t.shape, sizeof t.shape);
    }
done:
    return st;
}

/* A program whose only group has all tensors of its model. *out stays NULL if this is another. */
static tp_status take_weights(const struct parameter_order_item **out,
                              const struct hf_trainer_optimizer *o, struct tp_err *err)
{
    const size_t entries = (size_t)pickle_entries(o->weights) + 1;
    struct parameter_order_item *found = arena_array(o->arena, entries, sizeof *found);
    struct tensor *tensors = arena_array(o->arena, entries, sizeof *tensors);
    int n = 0;
    tp_status st =
        found && tensors ? list_weights(tensors, &n, o, err) : hf_trainer_search_no_memory(o, err);

    if (st || n != o->n || hf_trainer_groups_first(o) != n)
        return st;
    for (int i = 0; i < n; i++)
        found[i] =
            (struct parameter_order_item){ .tensor = &tensors[i], .module.name = tensors[i].name };
    if (hf_trainer_search_misfit(o, found, true) == n)
        *out = found;
    return TP_OK;
}

static void refuse_unknown(const struct hf_trainer_optimizer *o, const struct model *m,
                           struct tp_err *why)
{
    if (!m)
        tp_fail(why, TP_E_USAGE,
                "%s: knows parameters by numbers, whose order follows from the model, and there is "
                "no config.json of a known family (docs/MODELS.md); --config names one",
                o->path);
    else
        tp_fail(why, TP_E_USAGE,
                "%s: knows parameters by numbers, whose order is not known for this "
                "architecture",
                o->path);
}

tp_status hf_trainer_params_find(const struct parameter_order_item **out,
                                 const struct hf_trainer_optimizer *o,
                                 const struct hf_trainer_program *program, const struct model *m,
                                 struct tp_err *why, struct tp_err *err)
{
    struct hf_trainer_search s = { .o = o, .program = program, .model = m, .why = why };
    struct tensor *tensors;
    int misfit;
    tp_status st;

    why->status = TP_OK;
    if (!m || m->family == MODEL_OF_RULES) {
        if (o->named)
            return hf_trainer_names_take_all(out, o, err);
        st = o->weights ? take_weights(out, o, err) : TP_OK;
        if (!st && !*out)
            refuse_unknown(o, m, why);
        return st;
    }
    TP_TRY(model_params(&tensors, &s.n_tensors, m, DTYPE_F32, o->arena, err));
    s.tensors = tensors;
    TP_TRY(o->named ? hf_trainer_names_take(out, &s, err) : hf_trainer_order_take(out, &s, err));
    if (why->status)
        goto done;
    misfit = hf_trainer_search_misfit(o, *out, true);
    if (misfit < o->n)
        hf_trainer_search_refuse_state(&s, misfit, &(*out)[misfit]);
done:
    return st;
}

tp_status hf_trainer_params_list(struct parameter_order_item **out, int *n_out, int *n_decayed,
                                 const struct model *m, enum hf_trainer_groups groups,
                                 const struct tensor *tensors, int n, struct arena *arena,
                                 struct tp_err *err)
{
    static const enum hf_trainer_groups_rule rules[] = {
        [HF_TRAINER_GROUPS_NORMS] = HF_TRAINER_DECAY_NO_NORM,
        [HF_TRAINER_GROUPS_EXAMPLES] = HF_TRAINER_DECAY_NO_LAYER_NORM,
        [HF_TRAINER_GROUPS_ONE] = HF_TRAINER_DECAY_ALL
    };
    struct parameter_order_item *params;
    tp_status st = parameter_order_list(&params, n_out, parameter_order_of(m->family, 0), m,
                                        tensors, n, arena, err);

    if (st)
        return st;
    *out = arena_array(arena, (size_t)n + 1, sizeof **out);
    if (!*out)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    *n_decayed = hf_trainer_groups_make(*out, params, *n_out, rules[groups], false, m);
    return TP_OK;
}
