/* trainer/step_messages.c - see trainer/step_messages.h. */
#include "trainer/step_messages.h"

#include "device/null/null.h"
#include "kernels/null/null.h"
#include "trainer/step.h"

/* ---- counters ---- */

static void add(int64_t *calls, int64_t *bytes, const struct comm *c, enum comm_kind kind)
{
    if (!c)
        return;
    *calls += comm_counts(c)->calls[kind];
    *bytes += comm_counts(c)->bytes[kind];
}

static void add_collectives(int64_t *calls, int64_t *bytes, const struct comm *c)
{
    add(calls, bytes, c, COMM_ALL_REDUCE);
    add(calls, bytes, c, COMM_ALL_GATHER);
    add(calls, bytes, c, COMM_REDUCE_SCATTER);
}

struct step_messages step_messages_now(const struct trainer *t)
{
    const struct process_groups *p = &t->parallel;
    struct step_messages m = { 0 };
    int64_t few_bytes = 0;

    add_collectives(&m.tp_calls, &m.tp_bytes, p->tp);
    add_collectives(&m.kv_calls, &m.kv_bytes, p->kv);
    add_collectives(&m.ep_calls, &m.ep_bytes, p->ep);
    add(&m.ep_calls, &m.ep_bytes, p->ep, COMM_ALL_TO_ALL);
    add_collectives(&m.dp_calls, &m.dp_bytes, p->dp);
    add_collectives(&m.dp_calls, &m.dp_bytes, p->cp_grads);
    if (p->dp_cp != p->dp)
        add_collectives(&m.dp_calls, &m.dp_bytes, p->dp_cp);
    add(&m.cp_calls, &m.cp_bytes, p->cp, COMM_SEND);
    add_collectives(&m.cp_calls, &m.cp_bytes, p->cp);
    add_collectives(&m.dp_calls, &m.dp_bytes, p->experts);
    add(&m.pp_calls, &m.pp_bytes, p->pp_forward, COMM_SEND);
    add(&m.pp_calls, &m.pp_bytes, p->pp_backward, COMM_SEND);
    add_collectives(&m.embedding_calls, &m.embedding_bytes, p->embedding_ends);
    add_collectives(&m.few_words_calls, &few_bytes, p->world);
    if (p->model != p->tp)
        add_collectives(&m.few_words_calls, &few_bytes, p->model);
    if (p->pp_dp_tp != p->world)
        add_collectives(&m.few_words_calls, &few_bytes, p->pp_dp_tp);
    return m;
}

static struct step_messages minus(const struct step_messages *a, const struct step_messages *b)
{
    return (struct step_messages){ .tp_calls = a->tp_calls - b->tp_calls,
                                   .tp_bytes = a->tp_bytes - b->tp_bytes,
                                   .kv_calls = a->kv_calls - b->kv_calls,
                                   .kv_bytes = a->kv_bytes - b->kv_bytes,
                                   .ep_calls = a->ep_calls - b->ep_calls,
                                   .ep_bytes = a->ep_bytes - b->ep_bytes,
                                   .dp_calls = a->dp_calls - b->dp_calls,
                                   .dp_bytes = a->dp_bytes - b->dp_bytes,
                                   .cp_calls = a->cp_calls - b->cp_calls,
                                   .cp_bytes = a->cp_bytes - b->cp_bytes,
                                   .pp_calls = a->pp_calls - b->pp_calls,
                                   .pp_bytes = a->pp_bytes - b->pp_bytes,
                                   .embedding_calls = a->embedding_calls - b->embedding_calls,
                                   .embedding_bytes = a->embedding_bytes - b->embedding_bytes,
                                   .few_words_calls = a->few_words_calls - b->few_words_calls };
}

/* ---- a step that does nothing ---- */

static void use_queues(struct trainer *t, const struct kernel_ops *ops,
                       struct device_queue *compute, struct device_queue *comm,
                       struct device_queue *exchange)
{
    t->net.k = t->params.k = (struct kernel_queue){ ops, compute };
    t->queue = compute;
    t->comm_queue = t->params.comm_queue = comm;
    t->net.ring.queue = exchange;
}

/* Run a step whose operations are all dropped. The trainer's position and buffers are unchanged. */
static tp_status run_dry(struct trainer *t, struct device *null, struct tp_err *err)
{
    const struct kernel_ops *ops = t->net.k.ops;
    struct device_queue *compute = t->queue, *comm = t->comm_queue, *exchange = t->net.ring.queue;
    struct device_queue *q[2] = { NULL };
    struct trainer_position position = t->position;
    struct step_result ignored;
    tp_status st;

    TP_TRY(device_queue_open(null, &q[0], DEVICE_QUEUE_COMPUTE, err));
    TP_TRY(device_queue_open(null, &q[1], DEVICE_QUEUE_COMM, err));
    use_queues(t, &kernels_null, q[0], q[1], q[1]);
    t->position.step = t->position.optimizer_start = 0; /* no step follows the highest number */
    st = step_run(t, &ignored, err);
    use_queues(t, ops, compute, comm, exchange);
    t->position = position;
done:
    device_queue_close(q[0]);
    device_queue_close(q[1]);
    return st;
}

tp_status step_messages_count(struct step_messages *out, struct trainer *t, struct tp_err *err)
{
    struct step_messages before = step_messages_now(t), after;
    struct device *null;
    tp_status st = null_device_open(&null, err);

    if (st)
        return st;
    st = run_dry(t, null, err);
    device_close(null);
    after = step_messages_now(t);
    *out = minus(&after, &before);
    if (spec_world(&t->config->spec) > 1)
        out->few_words_calls++; /* a control message: loss and flags (trainer/loop.c) */
    return st;
}
