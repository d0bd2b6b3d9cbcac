/* trainer/step.c - see trainer/step.h. */
#include "trainer/step.h"

#include "trainer/lr_schedule.h"
#include "trainer/model/stage.h"
#include "trainer/optimizer.h"
#include "trainer/same_bits/same_bits.h"

_Static_assert((int)SCRATCH_DX_BUFFERS == SCHEDULE_BUFFERS, "what the schedule relies on");

/* The weight of one row's loss in the step's loss. */
static float row_weight(const struct train_config *c)
{
    return (float)(1 / (double)(c->global_batch_size * c->seq_length));
}

static struct pass pass_of(struct trainer *t, int64_t micro)
{
    int64_t group = same_bits_group(t->config), in_group = micro % group;
    int64_t rows = t->config->micro_batch_size * t->net.seq;
    bool same_bits = t->config->same_bits;

    return (struct pass){ .net = &t->net,
                          .scratch = &t->scratch,
                          .sequences = t->config->micro_batch_size,
                          .rows = rows,
                          .residual_rows = rows / t->net.split,
                          .units = &t->units,
                          .scale = row_weight(t->config),
                          .add = (same_bits ? in_group : micro) > 0 && !t->params.sharded,
                          .group = micro / group,
                          .ends_group = same_bits && in_group == group - 1 };
}

/* Floats that stages send each other: the residual, and the load of the experts. */
static int64_t residual_floats(const struct pass *p)
{
    return p->residual_rows * p->net->model->hidden + p->sequences * p->net->load;
}

/* The place of a microbatch in a step's tokens: inputs, then targets. */
static int64_t place_of(const struct trainer *t, int64_t micro)
{
    return 2 * micro * t->config->micro_batch_size * t->net.seq;
}

/* A microbatch of the step whose first sequence is `sample`; out: the tokens of the whole step. */
static tp_status fetch(const struct trainer *t, int64_t sample, int64_t micro, int32_t *out,
                       struct tp_err *err)
{
    const struct train_config *c = t->config;
    int64_t first = train_config_sequence(c, t->parallel.at.dp, micro);
    int32_t *ids = out + place_of(t, micro);

    return dataset_fetch(&t->data, sample + first, c->micro_batch_size, &t->net.tokens, ids,
                         ids + c->micro_batch_size * t->net.seq, err);
}

static tp_status fetch_step(const struct trainer *t, int64_t sample, int32_t *out,
                            struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < train_config_micros(t->config) && !st; i++)
        st = fetch(t, sample, i, out, err);
    return st;
}

/* Queue the copy of a microbatch's tokens to its slot. */
static void copy_tokens(struct trainer *t, int64_t micro, struct activations *s)
{
    int64_t rows = t->config->micro_batch_size * t->net.seq;
    const int32_t *ids = t->io.tokens + place_of(t, micro);

    device_copy(t->queue, s->ids, ids, rows * (int64_t)sizeof *ids);
    device_copy(t->queue, s->targets, ids + rows, rows * (int64_t)sizeof *ids);
}

/* The forward pass of a microbatch through a virtual stage, from the stage before to the stage
 * after. */
static void run_forward(struct trainer *t, const struct schedule_op *op)
{
    struct comm *c = t->parallel.pp_forward;
    struct activations *s = &t->slots[op->slot];
    struct pass p = pass_of(t, op->micro);

    if (op->from < 0 || op->to < 0) /* the model begins or ends in this stage */
        copy_tokens(t, op->micro, s);
    if (op->from >= 0)
        comm_recv(c, t->queue, stage_input(s), residual_floats(&p), DTYPE_F32, op->from);
    stage_forward(&p, op->vstage, s);
    if (op->to >= 0)
        comm_send(c, t->queue, s->x, residual_floats(&p), DTYPE_F32, op->to, s->sent);
}

/* The backward pass. In the stage where the model ends it begins with the loss. */
static void run_backward(struct trainer *t, const struct schedule_op *op)
{
    struct comm *c = t->parallel.pp_backward;
    struct activations *s = &t->slots[op->slot];
    struct activations_scratch *w = &t->scratch;
    struct pass p = pass_of(t, op->micro);
    bool is_last = op->micro == t->schedule.m - 1, has_stages = t->schedule.p > 1;
    int buffer = has_stages ? w->dx_next : 0;

    p.reduction = is_last ? &t->reduction : NULL;
    w->dx = w->dx_buffers[buffer];
    w->dx_next = (buffer + 1) % SCRATCH_DX_BUFFERS;
    if (has_stages) {
        comm_wait(t->parallel.pp_forward, t->queue, s->sent);
        comm_wait(c, t->queue, w->sent[buffer]);
    }
    if (op->from >= 0)
        comm_recv(c, t->queue, w->dx, residual_floats(&p), DTYPE_F32, op->from);
    else
        stage_loss(&p, s, &t->io.numbers->losses[op->micro]);
    stage_backward(&p, op->vstage, s);
    if (op->to >= 0)
        comm_send(c, t->queue, w->dx, residual_floats(&p), DTYPE_F32, op->to, w->sent[buffer]);
}

/* Wait for the messages that are not yet received when the schedule ends. */
static void wait_for_sent(struct trainer *t)
{
    for (int i = 0; i < SCRATCH_DX_BUFFERS && t->schedule.p > 1; i++)
        comm_wait(t->parallel.pp_backward, t->queue, t->scratch.sent[i]);
}

tp_status step_forward(struct trainer *t, int64_t micro, struct tp_err *err)
{
    const struct schedule *s = &t->schedule;
    struct pass p = pass_of(t, micro);
    struct schedule_op op = { .micro = (int)micro };
    tp_status st = fetch(t, t->position.next_sample, micro, t->io.tokens, err);

    if (st)
        return st;
    for (int vstage = 0; vstage < s->v; vstage++) {
        int stage = schedule_stage(s, t->parallel.at.pp, vstage);

        op.vstage = vstage;
        op.from = stage > 0 ? (stage - 1) % s->p : -1;
        op.to = stage < s->p * s->v - 1 ? (stage + 1) % s->p : -1;
        run_forward(t, &op);
        if (s->p > 1)
            comm_wait(t->parallel.pp_forward, t->queue, t->slots[0].sent);
    }
    if (t->net.is_last)
        stage_logits(&p, &t->slots[0]);
    return TP_OK;
}

/* On the last stage: sum this rank's losses; with --same-bits, those of all replicas. */
static void sum_losses(struct trainer *t)
{
    const struct kernel_queue *k = &t->net.k;
    struct step_numbers *n = t->io.numbers;

    if (t->config->same_bits)
        same_bits_loss(&n->loss, n->losses, t->config, t->parallel.dp, k);
    else
        k->ops->sum_doubles(k->queue, &(struct sum_doubles){ &n->loss, n->losses, 1,
                                                             train_config_micros(t->config) });
}

/* ---- the step ---- */

/* What the host does before: everything that differs from the step before goes to pinned memory. */
static tp_status prepare(struct trainer *t, struct step_result *r, struct tp_err *err)
{
    const struct train_config *c = t->config;
    const struct trainer_position *at = &t->position;
    bool has_tokens = t->net.is_first || t->net.is_last;
    tp_status st = TP_OK;

    if (has_tokens && !tokens_ahead_take(&t->ahead, at->next_sample, t->io.tokens))
        st = fetch_step(t, at->next_sample, t->io.tokens, err);
    r->lr = lr_schedule_at(&c->opt, at->step, c->steps);
    *t->io.rates = optimizer_rates(&c->opt, r->lr, at->step - at->optimizer_start);
    return st;
}

static void queue_passes(struct trainer *t)
{
    const struct schedule_rank *ops = &t->schedule.ranks[t->parallel.at.pp];

    t->scratch.dx_next = 0;
    for (int i = 0; i < ops->n_ops; i++) {
        const struct schedule_op *op = &ops->ops[i];

        if (op->kind == OP_FORWARD)
            run_forward(t, op);
        else
            run_backward(t, op);
    }
    wait_for_sent(t);
}

/* Queue the whole step: the same operations with the same arguments in every step. A step that is
 * recorded begins when no snapshot is copied, and does not wait for it. */
static void queue_step(struct trainer *t, enum step_graph_mode mode)
{
    const struct train_config *c = t->config;
    struct step_numbers *n = t->io.numbers;

    device_copy(t->queue, &n->optimizer.rates, t->io.rates, sizeof *t->io.rates);
    stage_clear_gradients(&t->net);
    fsdp_units_begin(&t->units);
    grad_reduction_begin(&t->reduction);
    queue_passes(t);
    fsdp_units_end(&t->units);
    grad_reduction_end(&t->reduction);
    if (c->same_bits)
        same_bits_reduce(&t->params, &t->parallel);
    optimizer_norm(&n->optimizer, &t->params, &t->parallel, c->opt.clip);
    if (mode == STEP_GRAPH_QUEUE)
        device_wait(t->queue, t->state_copied);
    optimizer_update(&n->optimizer, &c->opt, &t->weights);
    if (t->net.is_last)
        sum_losses(t);
    device_copy(t->queue, t->io.numbers_read, n, sizeof *n);
}

/* Queue the step, or what was recorded of it. A queue of another device belongs to a step that only
 * counts its messages. */
static enum step_graph_mode queue_or_replay(struct trainer *t)
{
    struct step_graph *g = &t->graph;
    enum step_graph_mode mode =
        t->queue->device == t->device ? step_graph_next(g) : STEP_GRAPH_QUEUE;

    if (mode == STEP_GRAPH_RECORD)
        device_graph_begin(t->queue);
    if (mode != STEP_GRAPH_REPLAY)
        queue_step(t, mode);
    if (mode == STEP_GRAPH_RECORD)
        g->graph = device_graph_end(t->queue);
    if (mode != STEP_GRAPH_QUEUE)
        device_graph_launch(t->queue, g->graph);
    return mode;
}

/* Fetch the tokens of the next step while the device works on this one. What cannot be fetched is
 * the next step's failure: that step, if there is one, fetches it again. */
static void fetch_ahead(struct trainer *t)
{
    struct tokens_ahead *a = &t->ahead;
    struct tp_err ignored;

    if (!a->tokens || t->queue->device != t->device || t->position.step + 1 >= t->config->steps)
        return;
    a->first = t->position.next_sample + t->config->global_batch_size;
    a->is_full = fetch_step(t, a->first, a->tokens, &ignored) == TP_OK;
}

/* Wait for the step: the only wait, except for the rows of experts on some devices
 * (trainer/model/expert_exchange.h). */
static tp_status finish(struct trainer *t, enum step_graph_mode mode, struct tp_err *err)
{
    struct tp_err why;
    tp_status st = trainer_sync(t, &why);

    if (!st)
        return TP_OK;
    if (mode == STEP_GRAPH_RECORD)
        return tp_fail(err, st,
                       "%s; this was the first step to be recorded as a CUDA graph: "
                       "--cuda-graphs off trains without them",
                       why.msg);
    *err = why;
    return st;
}

static void read_numbers(const struct trainer *t, struct step_result *r)
{
    const struct train_config *c = t->config;
    const struct process_groups *groups = &t->parallel;
    const struct step_numbers *n = t->io.numbers_read;
    /* All tp ranks of the last stage have the loss of their tokens, so only one of them counts;
     * with --same-bits one for all replicas. */
    bool counts = t->net.is_last && groups->at.tp == 0 && !(c->same_bits && groups->at.dp);

    r->loss_share = counts ? n->loss / (double)(c->global_batch_size * c->seq_length) : 0;
    r->grad_norm = n->optimizer.norm;
}

tp_status step_run(struct trainer *t, struct step_result *r, struct tp_err *err)
{
    const struct train_config *c = t->config;
    struct trainer_position *at = &t->position;
    enum step_graph_mode mode;
    tp_status st;

    TP_TRY(prepare(t, r, err));
    mode = queue_or_replay(t);
    fetch_ahead(t);
    TP_TRY(finish(t, mode, err));
    read_numbers(t, r);
    at->step++;
    at->next_sample += c->global_batch_size;
    at->tokens += c->global_batch_size * c->seq_length;
done:
    return st;
}
