/* reshard/formats/torch/dcp_adamw.c - see reshard/formats/torch/dcp_adamw.h. */
#include "reshard/formats/torch/dcp_adamw.h"

#include <ctype.h>
#include <string.h>

#include "layout/module_name.h"

enum { NAME_MAX_BYTES = 512 };

static tp_status no_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "no memory for the items of .metadata");
}

/* Which parameters a group has. */
enum adamw_part { ADAMW_ALL, ADAMW_DECAYING, ADAMW_OTHERS };

/* Whether the Trainer has weight decay for a parameter: for all but norms and biases, which it
 * knows by their modules and names. */
static bool decays(const struct tensor *t)
{
    static const char *const parts[] = {
        "bias", "layernorm", "rmsnorm", "_norm.", ".norm.", ".ln_"
    };
    char name[NAME_MAX_BYTES];
    size_t n = 0;

    name[n++] = '.';
    while (t->name[n - 1] && n < sizeof name - 2) {
        name[n] = (char)tolower((unsigned char)t->name[n - 1]);
        n++;
    }
    name[n++] = '.';
    name[n] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return false;
    return !tensor_role_is_norm(t->role);
}

static bool is_in(enum adamw_part part, const struct tensor *t)
{
    return part == ADAMW_ALL || decays(t) == (part == ADAMW_DECAYING);
}

/* The names of its parameters, a list. What is not trained is in no optimizer. */
static tp_status push_names(struct pickle_writer *w, const struct export_contents *q,
                            enum adamw_part part, struct arena *arena, struct tp_err *err)
{
    tp_status st = TP_OK;

    pickle_write_list(w);
    for (int i = 0; i < q->n && !st; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0 && is_in(part, &q->tensors[i]) &&
            (part == ADAMW_ALL || layout_find(q->layout, GROUP_EXP_AVG, q->tensors[i].name) >= 0)) {
            struct module_name n = { .name = q->tensors[i].name, .is_first = true };

            if (q->module_names)
                st = module_name_of(&n, q->model, &q->tensors[i], arena, err);
            if (!st && n.is_first)
                pickle_write_text(w, n.name);
        }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    return st;
}

static void push_betas(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_float(w, q->adamw.beta1);
    pickle_write_float(w, q->adamw.beta2);
    pickle_write_op(w, PICKLE_OP_TUPLE);
}

static void push_lr(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.lr);
}

static void push_eps(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.eps);
}

static void push_decay(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.weight_decay);
}

static void push_true(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_TRUE);
}

static void push_false(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_FALSE);
}

static void push_none(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_NONE);
}

/* torch.optim.AdamW's options, as get_optimizer_state_dict returns them. */
static const struct adamw_option {
    const char *name;
    void (*push)(struct pickle_writer *w, const struct export_contents *q);
} options[] = {
    { "lr", push_lr },
    { "betas", push_betas },
    { "eps", push_eps },
    { "weight_decay", push_decay },
    { "amsgrad", push_false },
    { "maximize", push_false },
    { "foreach", push_none },
    { "capturable", push_false },
    { "differentiable", push_false },
    { "fused", push_none },
    { "decoupled_weight_decay", push_true },
};

enum { OPTIONS = sizeof options / sizeof *options };

static const struct adamw_option initial = { "initial_lr", push_lr };

static tp_status add_option(struct dcp_items *d, const struct export_contents *q,
                            const struct adamw_option *o, const char *head, struct tp_err *err)
{
    const struct dcp_new_item item =
        dcp_items_object(d, arena_printf(d->arena, "%s%s", head, o->name));
    struct torch_target x;
    tp_status st = dcp_items_begin(&x, d, 0, &item, err);

    if (st)
        return st;
    o->push(&x.save.pickle, q);
    return dcp_items_end(&x, d, 0, err);
}

static tp_status add_names(struct dcp_items *d, const struct export_contents *q,
                           enum adamw_part part, const char *head, struct tp_err *err)
{
    const struct dcp_new_item item = dcp_items_object(d, arena_printf(d->arena, "%sparams", head));
    struct torch_target x;
    tp_status st = dcp_items_begin(&x, d, 0, &item, err);

    if (st)
        return st;
    st = push_names(&x.save.pickle, q, part, d->arena, err);
    if (st) {
        torch_target_free(&x);
        return st;
    }
    return dcp_items_end(&x, d, 0, err);
}

static const char *head_of(struct dcp_items *d, const char *optimizer, int number)
{
    return arena_printf(d->arena, "%s" DCP_BELOW "param_groups" DCP_BELOW "%d" DCP_BELOW, optimizer,
                        number);
}

tp_status dcp_adamw_add_group(struct dcp_items *d, const struct export_contents *q,
                              struct tp_err *err)
{
    const char *head = head_of(d, "optim", 0);
    tp_status st = head ? TP_OK : no_memory(err);

    for (int i = 0; i < OPTIONS && !st; i++)
        st = add_option(d, q, &options[i], head, err);
    return st ? st : add_names(d, q, ADAMW_ALL, head, err);
}

tp_status dcp_adamw_add_groups(struct dcp_items *d, const struct export_contents *q,
                               const char *optimizer, struct tp_err *err)
{
    struct export_contents of_group = *q;
    tp_status st = TP_OK;

    for (int number = 0; number < 2 && !st; number++) {
        const char *head = head_of(d, optimizer, number);

        if (!head)
            return no_memory(err);
        for (int i = 0; i < OPTIONS && !st; i++)
            st = add_option(d, &of_group, &options[i], head, err);
        if (!st)
            st = add_option(d, &of_group, &initial, head, err);
        if (!st)
            st = add_names(d, q, number ? ADAMW_OTHERS : ADAMW_DECAYING, head, err);
        of_group.adamw.weight_decay = 0;
    }
    return st;
}

tp_status dcp_adamw_add_param(struct dcp_items *d, const struct export_contents *q,
                              const char *name, int *stored, struct tp_err *err)
{
    const char *head = arena_printf(d->arena, "optimizer" DCP_BELOW "param_groups.%s.", name);
    const int first = *stored;
    tp_status st = head ? TP_OK : no_memory(err);

    if (first < 0)
        *stored = d->n;
    for (int i = 0; i < OPTIONS + 1 && !st; i++) {
        const struct adamw_option *o = i < OPTIONS ? &options[i] : &initial;

        st = first < 0 ? add_option(d, q, o, head, err)
                       : dcp_items_again(d, first + i,
                                         arena_printf(d->arena, "%s%s", head, o->name), err);
    }
    return st;
}
