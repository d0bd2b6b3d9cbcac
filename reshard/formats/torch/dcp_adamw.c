/* reshard/formats/torch/dcp_adamw.c - see reshard/formats/torch/dcp_adamw.h. */
#include "reshard/formats/torch/dcp_adamw.h"

#include <string.h>

#define FIRST_GROUP "optim" DCP_BELOW "param_groups" DCP_BELOW "0" DCP_BELOW

/* The names of all parameters, a list. */
static void push_names(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int i = 0; i < q->n; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0)
            pickle_write_text(w, q->tensors[i].name);
    pickle_write_op(w, PICKLE_OP_APPENDS);
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

tp_status dcp_adamw_add_group(struct dcp_items *d, const struct export_contents *q,
                              struct tp_err *err)
{
    static const struct adamw_option params = { "params", push_names };
    tp_status st = TP_OK;

    for (int i = 0; i < OPTIONS && !st; i++)
        st = add_option(d, q, &options[i], FIRST_GROUP, err);
    return st ? st : add_option(d, q, &params, FIRST_GROUP, err);
}

tp_status dcp_adamw_add_param(struct dcp_items *d, const struct export_contents *q,
                              const char *name, int *stored, struct tp_err *err)
{
    static const struct adamw_option initial = { "initial_lr", push_lr };
    const char *head = arena_printf(d->arena, "optimizer" DCP_BELOW "param_groups.%s.", name);
    const int first = *stored;
    tp_status st = head ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for the items of .metadata");

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
