/* reshard/formats/megatron/torch_dist_common.c - see reshard/formats/megatron/torch_dist_common.h.
 */
#include "reshard/formats/megatron/torch_dist_common.h"

#include "reshard/formats/torch/torch_target.h"

/* The form in which the state of a distributed optimizer is written. */
static const char *sharding_of(const struct torch_dist_common *c)
{
    return c->version.model_space ? "fully_sharded_model_space" : "fully_reshardable";
}

/* Of experts on several ranks there are matrices only. */
static void push_param_groups(struct pickle_writer *w, const struct export_contents *q,
                              bool experts)
{
    pickle_write_text(w, "param_groups");
    pickle_write_list(w);
    for (int vectors = 0; vectors < (experts ? 1 : 2); vectors++) {
        megatron_args_begin_group(w, &q->adamw, vectors == 0, experts);
        if (q->distributed_optimizer || !q->torch_adam)
            pickle_write_key_int(w, "step", q->optimizer_step);
        megatron_args_end_group(w);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
}

static void push_adamw(struct torch_save *s, const struct export_contents *q, bool experts)
{
    struct pickle_writer *w = &s->pickle;

    pickle_write_dict(w);
    if (!q->distributed_optimizer) {
        pickle_write_text(w, "state");
        pickle_write_dict(w);
        if (q->torch_adam) { /* the others have the step in their groups */
            pickle_write_text(w, "common_step");
            torch_save_number(s, q->optimizer_step);
        }
        pickle_write_op(w, PICKLE_OP_SETITEMS);
    }
    push_param_groups(w, q, experts);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

static void push_optimizer(struct torch_save *s, const struct torch_dist_common *c, bool experts)
{
    struct pickle_writer *w = &s->pickle;
    const bool distributed = c->contents->distributed_optimizer,
               wrapped = distributed || c->has_masters; /* around the masters */

    if (wrapped) {
        pickle_write_dict(w);
        pickle_write_text(w, "optimizer");
    }
    push_adamw(s, c->contents, experts);
    if (distributed) {
        pickle_write_text(w, "param_state_sharding_type");
        pickle_write_text(w, sharding_of(c));
    }
    if (wrapped)
        pickle_write_op(w, PICKLE_OP_SETITEMS);
}

/* A ChainedOptimizer, of layers and of experts, is a dict by number. */
static void push_optimizers(struct torch_save *s, const struct torch_dist_common *c)
{
    struct pickle_writer *w = &s->pickle;

    pickle_write_text(w, "optimizer");
    if (c->sizes.ep == 1) {
        push_optimizer(s, c, false);
        return;
    }
    pickle_write_dict(w);
    for (int experts = 0; experts < 2; experts++) {
        pickle_write_int(w, experts);
        push_optimizer(s, c, experts == 1);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

/* How Megatron-core is to ask for the tensors. */
static void push_content(struct pickle_writer *w, const struct torch_dist_common *c)
{
    pickle_write_text(w, "content_metadata");
    pickle_write_dict(w);
    pickle_write_key_bool(w, "singleton_local_shards", false);
    pickle_write_key_bool(w, "chained_optim_avoid_prefix", !c->version.chained_names);
    if (c->contents->distributed_optimizer) {
        pickle_write_text(w, "distrib_optim_sharding_type");
        pickle_write_text(w, sharding_of(c));
        if (!c->version.model_space)
            pickle_write_key_bool(w, "distrib_optim_fully_reshardable_mem_efficient", false);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

tp_status torch_dist_common_write(const struct torch_dist_common *c, struct piece_target *pieces,
                                  const char *name, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    int file = 0;
    tp_status st;

    TP_TRY(piece_target_file(pieces, &file, name, err));
    torch_target_begin(&x, pieces, file, 0);
    pickle_write_dict(w);
    megatron_args_write(w, c->contents, &c->sizes);
    if (c->sizes.has_optimizer)
        push_optimizers(&x.save, c);
    push_content(w, c);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    st = torch_target_finish(&x, TP_OK, err);
done:
    return st;
}
