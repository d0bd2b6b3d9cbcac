/* trainer/model/vocab_parallel_loss.c - see trainer/model/vocab_parallel_loss.h. */
#include "trainer/model/vocab_parallel_loss.h"

/* Logits of a shard in scratch ffn_scratch, and which columns they are. */
struct shard {
    void *logits; /* net.inner */
    int64_t first, cols;
};

static struct shard shard_of(const struct pass *p, int i)
{
    int64_t step = p->rows * p->net->logit.per_shard * dtype_bytes(p->net->inner);
    struct shard s = { .logits = (char *)p->scratch->ffn_scratch + i * step };

    s.cols = network_vocab_rows_of(&p->net->logit, i, &s.first);
    return s;
}

static void cap_logits(const struct pass *p)
{
    const struct kernel_queue *k = &p->net->k;

    for (int i = 0; i < p->net->shards; i++) {
        struct shard s = shard_of(p, i);

        k->ops->soft_cap(k->queue, &(struct soft_cap){ .x = s.logits,
                                                       .n = p->rows * s.cols,
                                                       .cap = (float)p->net->model->logit_cap,
                                                       .type = p->net->inner });
    }
}

void vocab_parallel_loss_logits(const struct pass *p, struct activations *s,
                                const struct residual_pending *in)
{
    const struct network *n = p->net;

    residual_norm(p, &n->final_norm, s->normed, s->stats, s->x, in);
    linear_column_forward(&n->head, p->scratch->ffn_scratch, s->normed, p->rows);
    if (n->model->logit_cap > 0)
        cap_logits(p);
}

/* Where shard i has its sums of exponentials, then its targets' logits. */
static float *sums_of(const struct pass *p, int i)
{
    const struct activations_scratch *w = p->scratch;

    return p->net->shards > 1 ? w->part_sums + i * 2 * p->rows : w->row_sums;
}

/* The largest logit of each row over the shards of this rank. */
static void find_max(const struct pass *p)
{
    const struct kernel_queue *k = &p->net->k;

    for (int i = 0; i < p->net->shards; i++) {
        struct shard s = shard_of(p, i);
        float *sums = sums_of(p, i);

        k->ops->loss_max(k->queue, &(struct loss_max){ .row_max = p->scratch->row_max,
                                                       .row_sum = sums,
                                                       .row_target = sums + p->rows,
                                                       .logits = s.logits,
                                                       .type = p->net->inner,
                                                       .rows = p->rows,
                                                       .cols = s.cols,
                                                       .merge = i > 0 });
    }
}

/* Sums of exponentials, and targets' logits; w->row_max is over all ranks. */
static void sum_up(const struct pass *p, const int32_t *targets)
{
    const struct activations_scratch *w = p->scratch;
    const struct kernel_queue *k = &p->net->k;
    int shards = p->net->shards;

    for (int i = 0; i < shards; i++) {
        struct shard s = shard_of(p, i);
        float *sums = sums_of(p, i);

        k->ops->loss_sum_exp(k->queue,
                             &(struct loss_sum_exp){ .row_sum = sums,
                                                     .row_target = sums + p->rows,
                                                     .logits = s.logits,
                                                     .type = p->net->inner,
                                                     .row_max = w->row_max,
                                                     .targets = targets,
                                                     .first = s.first,
                                                     .rows = p->rows,
                                                     .cols = s.cols,
                                                     .cap = (float)p->net->model->logit_cap });
    }
    if (shards > 1)
        k->ops->sum_tree(k->queue, &(struct sum_tree){ w->row_sums, w->part_sums, shards,
                                                       2 * p->rows, 2 * p->rows });
}

/* Reduce over the tp ranks. */
static void reduce(const struct network *n, float *x, int64_t count, enum comm_op op)
{
    if (n->head.tp && comm_size(n->head.tp) > 1)
        comm_all_reduce(n->head.tp, n->k.queue, x, count, DTYPE_F32, op);
}

void vocab_parallel_loss_forward(const struct pass *p, const struct activations *s, double *total)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;

    find_max(p);
    reduce(n, w->row_max, p->rows, COMM_MAX);
    sum_up(p, s->targets);
    reduce(n, w->row_sums, 2 * p->rows, COMM_SUM);
    n->k.ops->loss_total(n->k.queue, &(struct loss_total){ .out = total,
                                                           .row_sum = w->row_sums,
                                                           .row_target = w->row_sums + p->rows,
                                                           .rows = p->rows });
}

void vocab_parallel_loss_backward(const struct pass *p, struct activations *s, float scale)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    char *dlogits = n->inner == n->dtype ? (char *)w->ffn_scratch : (char *)w->bf16_scratch;
    int64_t hidden = n->model->hidden, step = p->rows * n->logit.per_shard * dtype_bytes(n->dtype);

    for (int i = 0; i < n->shards; i++) {
        struct shard x = shard_of(p, i);

        n->k.ops->loss_backward(n->k.queue,
                                &(struct loss_backward){ .dlogits = dlogits + i * step,
                                                         .type = n->dtype,
                                                         .logits = x.logits,
                                                         .logits_type = n->inner,
                                                         .row_sum = w->row_sums,
                                                         .targets = s->targets,
                                                         .first = x.first,
                                                         .rows = p->rows,
                                                         .cols = x.cols,
                                                         .scale = scale / n->head.divisor,
                                                         .cap = (float)n->model->logit_cap,
                                                         .row_max = w->row_max });
    }
    linear_column_backward(&n->head, w->outer, dlogits, s->normed, p->rows, p->add);
    device_fill(n->k.queue, w->dx, 0, p->residual_rows * hidden * (int64_t)sizeof(float));
    residual_norm_backward(p, &n->final_norm, s->x, s->stats);
}
