/*
 * reshard/formats/megatron/megatron_optimizer_target.c - writes the state of Megatron-LM's ordinary
 * optimizer; see reshard/formats/megatron/megatron_rank_target.h.
 */
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_rank_target.h"

static bool is_in(const struct megatron_rank_target *r, const struct megatron_param *p,
                  bool vectors)
{
    if ((p->ndim == 1) != vectors)
        return false;
    return megatron_part_has(r->part, p->expert >= 0);
}

/* Call `visit` for each parameter of an optimizer's group, in its order: of all chunks the
 * matrices, which have weight decay, or the vectors. *number counts them. */
static tp_status visit_group(struct megatron_rank_target *r, bool vectors, int *number,
                             tp_status (*visit)(struct megatron_rank_target *r, int number,
                                                const struct megatron_param *p, struct tp_err *err),
                             struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int c = 0; c < r->t->vpp; c++)
        for (int i = 0; i < r->n[c] && !st; i++)
            if (is_in(r, &r->params[c][i], vectors))
                st = visit(r, (*number)++, &r->params[c][i], err);
    return st;
}

static tp_status push_state(struct megatron_rank_target *r, int number,
                            const struct megatron_param *p, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st;

    pickle_write_int(w, number);
    pickle_write_dict(w);
    if (r->t->q->torch_adam) {
        pickle_write_text(w, "step");
        torch_save_number(&r->x.save, r->t->q->optimizer_step);
    }
    pickle_write_text(w, "exp_avg");
    st = megatron_rank_target_push(r, p, MEGATRON_EXP_AVG, err);
    pickle_write_text(w, "exp_avg_sq");
    if (!st)
        st = megatron_rank_target_push(r, p, MEGATRON_EXP_AVG_SQ, err);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

static tp_status push_master(struct megatron_rank_target *r, int number,
                             const struct megatron_param *p, struct tp_err *err)
{
    (void)number;
    return megatron_rank_target_push(r, p, MEGATRON_MASTER, err);
}

static tp_status push_number(struct megatron_rank_target *r, int number,
                             const struct megatron_param *p, struct tp_err *err)
{
    (void)p;
    (void)err;
    pickle_write_int(&r->x.save.pickle, number);
    return TP_OK;
}

/* The state dict of torch.optim.AdamW or of FusedAdam, with Megatron's keys in its groups.
 * FusedAdam of Transformer Engine takes no other state of a tensor than its moments, and counts the
 * steps of a group. */
static tp_status push_adamw(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    int number = 0;
    tp_status st = TP_OK;

    pickle_write_dict(w);
    pickle_write_text(w, "state");
    pickle_write_dict(w);
    for (int vectors = 0; vectors < megatron_part_groups(r->part); vectors++)
        TP_TRY(visit_group(r, vectors, &number, push_state, err));
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_text(w, "param_groups");
    pickle_write_list(w);
    number = 0;
    for (int vectors = 0; vectors < megatron_part_groups(r->part); vectors++) {
        megatron_args_begin_group(w, &r->t->q->adamw, vectors == 0, r->part == PARAMS_OF_EXPERTS);
        if (!r->t->q->torch_adam)
            pickle_write_key_int(w, "step", r->t->q->optimizer_step);
        pickle_write_text(w, "params");
        pickle_write_list(w);
        TP_TRY(visit_group(r, vectors, &number, push_number, err));
        pickle_write_op(w, PICKLE_OP_APPENDS);
        megatron_args_end_group(w);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
done:
    return st;
}

/* Float16OptimizerWithFloat16Params has the masters beside it; FP32Optimizer is it alone. */
static tp_status push_part(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    int number = 0;
    tp_status st;

    if (!r->t->numbers.has[MEGATRON_MASTER])
        return push_adamw(r, err);
    pickle_write_dict(w);
    pickle_write_text(w, "optimizer");
    TP_TRY(push_adamw(r, err));
    pickle_write_text(w, "fp32_from_fp16_params");
    pickle_write_list(w);
    for (int vectors = 0; vectors < megatron_part_groups(r->part); vectors++) {
        pickle_write_list(w);
        TP_TRY(visit_group(r, vectors, &number, push_master, err));
        pickle_write_op(w, PICKLE_OP_APPENDS);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
done:
    return st;
}

tp_status megatron_optimizer_target_push(struct megatron_rank_target *r, struct tp_err *err)
{
    struct pickle_writer *w = &r->x.save.pickle;
    tp_status st;

    r->part = ALL_PARAMS;
    if (r->t->map.ep == 1)
        return push_part(r, err);
    pickle_write_list(w);
    r->part = PARAMS_OF_LAYERS;
    TP_TRY(push_part(r, err));
    r->part = PARAMS_OF_EXPERTS;
    TP_TRY(push_part(r, err));
    pickle_write_op(w, PICKLE_OP_APPENDS);
done:
    return st;
}
