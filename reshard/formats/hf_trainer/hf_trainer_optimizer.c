/* reshard/formats/hf_trainer/hf_trainer_optimizer.c - see
 * reshard/formats/hf_trainer/hf_trainer_optimizer.h. */
#include "reshard/formats/hf_trainer/hf_trainer_optimizer.h"

#include <limits.h>
#include <string.h>

#include "torch/pickle_copy.h"

/* The number of all parameters; -1: the groups are no list of groups with parameters. */
static int64_t count_params(const struct pickle_value *groups)
{
    int64_t n = 0;

    for (int64_t g = 0; g < pickle_count(groups); g++) {
        const struct pickle_value *params = pickle_get(pickle_item(groups, g), "params");

        if (!pickle_is(params, PICKLE_LIST) || n > INT_MAX - pickle_count(params))
            return -1;
        n += pickle_count(params);
    }
    return pickle_is(groups, PICKLE_LIST) && n > 0 ? n : -1;
}

/* List the parameters of the groups. state_dict() gives them numbers in order, from 0 on. False:
 * these are others. */
static bool list_params(struct hf_trainer_optimizer *o, const struct pickle_numbers *numbers)
{
    o->n = 0;
    o->named = true;
    for (int64_t g = 0; g < pickle_count(o->groups); g++) {
        const struct pickle_value *group = pickle_item(o->groups, g),
                                  *params = pickle_get(group, "params"),
                                  *names = pickle_get(group, "param_names");

        for (int64_t i = 0; i < pickle_count(params); i++) {
            struct hf_trainer_state *t = &o->states[o->n];
            int64_t number;

            if (!pickle_int(&number, pickle_item(params, i)) || number != o->n)
                return false;
            t->value = pickle_numbers_find(numbers, number);
            t->name = pickle_text(pickle_item(names, i));
            t->group = (int)g;
            o->named &= t->name != NULL;
            o->n++;
        }
    }
    return true;
}

/* Read the shape of both moments. */
static tp_status read_shape(struct hf_trainer_optimizer *o, struct hf_trainer_state *t,
                            struct tp_err *err)
{
    static const char *const moments[] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ };
    struct torch_tensor found[2];
    tp_status st = TP_OK;

    t->ndim = -1;
    for (int i = 0; i < 2; i++) {
        const struct pickle_value *v = pickle_get(t->value, moments[i]);

        if (torch_tensor_is_part(v))
            o->unread = "are DTensors, of which this file has the parts of one rank; save what "
                        "get_optimizer_state_dict() gives with full_state_dict";
        if (!torch_tensor_is(v))
            return TP_OK;
        TP_TRY(torch_tensor_read(&found[i], &o->file->torch, v, moments[i], err));
        if (found[i].dtype == DTYPE_COUNT) {
            o->unread = "have a type that is not read; load them, and save them in f32 or bf16";
            return TP_OK;
        }
    }
    if (found[0].ndim != found[1].ndim ||
        memcmp(found[0].shape, found[1].shape, sizeof *t->shape * (size_t)found[0].ndim) != 0)
        return TP_OK;
    t->ndim = found[0].ndim;
    memcpy(t->shape, found[0].shape, sizeof t->shape);
    o->adamw = true;
done:
    return st;
}

tp_status hf_trainer_optimizer_groups(struct piece_extra *out, const struct hf_trainer_optimizer *o,
                                      const struct parameter_order_item *params, struct tp_err *err)
{
    struct pickle_writer w = { 0 };
    size_t n = 1;
    char *bytes, *at;

    *out = (struct piece_extra){ NULL, 0 };
    if (!pickle_copy_can(o->groups))
        return TP_OK;
    pickle_copy(&w, o->groups);
    for (int i = 0; i < o->n; i++)
        n += strlen(params[i].tensor->name) + 1;
    bytes = w.failed ? NULL : arena_alloc(o->arena, n + w.n);
    if (!bytes) {
        pickle_writer_free(&w);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its param_groups", o->path);
    }
    at = bytes;
    for (int i = 0; i < o->n; i++)
        at = stpcpy(at, params[i].tensor->name) + 1;
    *at++ = 0;
    memcpy(at, w.data, w.n);
    *out = (struct piece_extra){ bytes, n + w.n };
    pickle_writer_free(&w);
    return TP_OK;
}

/* Whether AdamW has such an entry, and in this form. */
static bool is_of_adamw(const char *key, const struct pickle_value *v)
{
    const bool moment = strcmp(key, GROUP_EXP_AVG) == 0 || strcmp(key, GROUP_EXP_AVG_SQ) == 0;

    return strcmp(key, "step") == 0 || (moment && torch_tensor_is(v)) ||
           strcmp(key, "max_exp_avg_sq") == 0;
}

/* Packages whose optimizers have names of their own for the same. */
static const char *owner_of(const char *key, const struct pickle_value *v)
{
    if (strcmp(key, "state1") == 0 || strcmp(key, "__bnb_optimizer_quant_state__") == 0)
        return "bitsandbytes";
    if (strcmp(key, GROUP_EXP_AVG) == 0 && !torch_tensor_is(v))
        return "a package that stores it in fewer bits";
    return "another optimizer than AdamW";
}

const char *hf_trainer_optimizer_other(const struct hf_trainer_optimizer *o,
                                       const struct pickle_value *state)
{
    const char *keys[2] = { NULL, NULL }, *owner = NULL;

    for (int64_t i = 0, n = 0; i < pickle_entries(state) && n < 2; i++) {
        const char *key = pickle_text(pickle_key(state, i));

        if (!key || is_of_adamw(key, pickle_entry(state, i)))
            continue;
        owner = owner ? owner : owner_of(key, pickle_entry(state, i));
        keys[n++] = key;
    }
    return keys[0] ? arena_printf(o->arena, "%.60s%s%.60s of %s", keys[0], keys[1] ? ", " : "",
                                  keys[1] ? keys[1] : "", owner)
                   : NULL;
}

/* Say which optimizer it may be: by what it has of its first parameter with a state. */
static void refuse_other(const struct hf_trainer_optimizer *o, struct tp_err *why)
{
    const struct pickle_value *state = NULL;
    const char *other;

    for (int i = 0; i < o->n && !pickle_entries(state); i++)
        state = o->states[i].value;
    other = hf_trainer_optimizer_other(o, state);
    if (other)
        tp_fail(why, TP_E_NO, "%s: has %s, which is not read", o->path, other);
    else if (pickle_entries(state))
        tp_fail(why, TP_E_NO, "%s: has only one of AdamW's moments, so it is of another optimizer",
                o->path);
    else
        tp_fail(why, TP_E_NO, "%s: has no state of parameters", o->path);
}

tp_status hf_trainer_optimizer_read(struct hf_trainer_optimizer *o, const struct pickle_value *root,
                                    struct tp_err *why, struct tp_err *err)
{
    const struct pickle_value *state = pickle_get(root, "state");
    struct pickle_numbers numbers;
    int64_t n;
    tp_status st = TP_OK;

    why->status = TP_OK;
    o->path = file_table_path(piece_source_files(o->file->source), o->file->file);
    o->arena = piece_source_arena(o->file->source);
    o->groups = pickle_get(root, "param_groups");
    n = count_params(o->groups);
    if (n < 0 || !pickle_is(state, PICKLE_DICT)) {
        tp_fail(why, TP_E_USAGE, "%s: is not the state_dict() of an optimizer of PyTorch", o->path);
        return TP_OK;
    }
    o->states = arena_array(&o->file->arena, (size_t)n, sizeof *o->states);
    if (!o->states || !pickle_numbers_make(&numbers, state, &o->file->arena))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its %lld parameters", o->path,
                       (long long)n);
    if (!list_params(o, &numbers)) {
        tp_fail(why, TP_E_USAGE,
                "%s: its param_groups do not number the parameters from 0 on, as state_dict() does",
                o->path);
        return TP_OK;
    }
    for (int i = 0; i < o->n; i++)
        TP_TRY(read_shape(o, &o->states[i], err));
    if (o->unread)
        tp_fail(why, TP_E_USAGE, "%s: its moments %s", o->path, o->unread);
    else if (!o->adamw)
        refuse_other(o, why);
done:
    return st;
}
