/* trainer/comm_volume.c - see trainer/comm_volume.h. */
#include "trainer/comm_volume.h"

#include <stddef.h>

/* Of a microbatch: two all-reduces of rows x h a layer forward and two backward, one of the
 * embedding, one of the head's input and three floats a row in two calls. */
static void count_tp(struct messages *m, const struct trainer *t)
{
    const struct net *n = &t->net;
    const struct layer *y = &n->layers[0];
    int64_t rows = t->config->micro_batch_size * n->seq, micros = train_config_micros(t->config);
    int full = n->recompute == RECOMPUTE_FULL;
    int cut = (y->out.tp ? 2 + full : 0) + (y->down.tp ? 2 : 0);
    int head = n->is_last && n->head.tp;
    int64_t whole = cut * n->n_layers + (n->is_first && n->embedding_tp) + head;

    m->tp_calls = micros * (whole + 2 * head);
    m->tp_bytes = micros * rows * 4 * (n->model->hidden * whole + 3 * head);
}

/* With --same-bits each of these gradients goes over tp at once: of norms (and their biases), and
 * of the biases of row layers. */
static void count_row_sums(struct messages *m, const struct trainer *t)
{
    const struct net *n = &t->net;
    const struct layer *y = &n->layers[0];
    int64_t micros = train_config_micros(t->config), of_norm = y->attn_norm.bias ? 2 : 1;
    int biases = (y->out.bias != NULL) + (y->down.bias != NULL);

    m->tp_calls += micros * (n->n_layers * (2 + biases) + n->is_last);
    m->tp_bytes += micros * n->model->hidden * 4 *
                   (n->n_layers * (2 * of_norm + biases) + n->is_last * of_norm);
}

/* The same under sp, of rows / t each. A layer forward: two gathers, of the run's dtype, and two
 * reduce-scatters, in fp32; backward: two of each, and two gathers more of the inputs, of which
 * only a part was kept. Once a step, bucket by bucket, the gradients of what is not cut. */
static void count_sp(struct messages *m, const struct trainer *t)
{
    const struct net *n = &t->net;
    int64_t rows = t->config->micro_batch_size * n->seq, micros = train_config_micros(t->config);
    int64_t part = rows / n->split * n->model->hidden, e = dtype_bytes(n->dtype);
    int full = n->recompute == RECOMPUTE_FULL;
    int64_t gathers = n->n_layers * (6 + 2 * full) + 2 * n->is_last;
    int64_t scatters = n->n_layers * (4 + full) + n->is_first + n->is_last;

    m->tp_calls = micros * (gathers + scatters + n->is_first + 2 * n->is_last);
    m->tp_bytes =
        micros * (part * (gathers * e + (scatters + n->is_first) * 4) + n->is_last * rows * 4 * 3);
    if (n->same_bits) {
        count_row_sums(m, t);
    } else {
        m->tp_calls += reduction_partial_calls(&t->params);
        m->tp_bytes += t->params.n_partial * 4;
    }
}

/* A layer and microbatch: the keys and values of each other rank of the ring forward, and when
 * attention is computed again, and backward, with their gradients in fp32. */
static void count_ring(struct messages *m, const struct trainer *t)
{
    const struct net *n = &t->net;
    int64_t blocks = train_config_micros(t->config) * n->n_layers * (t->config->spec.cp - 1);
    int64_t elements = t->config->micro_batch_size * n->seq * 2 * n->kv_width;
    int again = n->recompute != RECOMPUTE_NONE;

    m->cp_calls = blocks * (3 + again);
    m->cp_bytes = blocks * elements * ((2 + again) * dtype_bytes(n->dtype) + 4);
}

/* Weights of every unit that is gathered, gradients of every unit after each of its backward
 * passes; a tied head of the same stage has a backward pass of its own. */
static void count_units(struct messages *m, const struct trainer *t)
{
    const struct params *p = &t->params;
    const struct net *n = &t->net;
    int64_t micros = train_config_micros(t->config), floats = 0;
    bool joined = n->is_first && n->first_unit == n->last_unit;

    m->dp_calls = t->units.n_visits + micros * (p->n_buckets + joined);
    for (int i = 0; i < t->units.n_visits; i++)
        floats += p->buckets[t->units.visits[i]].weights_each;
    for (int i = 0; i < p->n_buckets; i++)
        floats += micros * (1 + (joined && i == n->first_unit)) * p->buckets[i].each;
    m->dp_bytes = floats * 4;
}

/* Of a bucket an all-reduce, or with zero1 a reduce-scatter and an all-gather over dp. Under cp
 * what is owned is summed over that too: bucket by bucket, or with zero3 at once. */
static void count_gradients(struct messages *m, const struct trainer *t)
{
    const struct spec *s = &t->config->spec;
    int cp = s->cp > 1;

    if (t->params.sharded) {
        count_units(m, t);
        m->dp_calls += cp;
        m->dp_bytes += cp * t->params.n_owned * 4;
    } else if (t->params.n_owners > 1) {
        m->dp_calls = (2 + cp) * t->params.n_buckets;
        for (int i = 0; i < t->params.n_buckets; i++) {
            const struct bucket *b = &t->params.buckets[i];

            m->dp_bytes += ((1 + cp) * b->each + b->weights_each) * 4;
        }
    } else if (s->dp * s->cp > 1) {
        m->dp_calls = t->params.n_buckets;
        m->dp_bytes = t->params.n_elements * 4;
    }
}

/* Gradients of KV heads that other ranks hold too: one of the rank's shards speaks for all. */
static void count_holders(struct messages *m, const struct trainer *t)
{
    for (int i = 0; i < t->params.n; i++) {
        const struct param *q = &t->params.list[i];

        if (!q->shared || q->own.n == 0 || params_twin(&t->params, i) != i)
            continue;
        m->kv_calls++;
        m->kv_bytes += q->own.n * 4;
    }
}

/* With --same-bits: the loss; under ZeRO also the rows of the norm and a tied head. */
static void count_same_bits_dp(struct messages *m, const struct trainer *t)
{
    const struct params *p = &t->params;
    int64_t losses = p->sharded ? train_config_micros(t->config) : 1, doubles = 0;

    if (t->net.is_last) {
        m->dp_calls++;
        doubles += losses;
    }
    if (p->n_owners > 1) {
        m->dp_calls++;
        doubles += p->n_rows;
    }
    m->dp_bytes += doubles * (int64_t)sizeof(double);
    if (p->head.n && !p->sharded) {
        m->dp_calls++;
        m->dp_bytes += p->head.n * 4;
    }
}

struct messages messages_count(const struct trainer *t)
{
    const struct train_config *c = t->config;
    const struct net *n = &t->net;
    int64_t rows = c->micro_batch_size * n->seq, h = n->model->hidden;
    const struct schedule_rank *ops = &t->schedule.ranks[t->parallel.at.pp];
    struct messages m = { 0 };

    if (n->split > 1)
        count_sp(&m, t);
    else if (c->spec.tp > 1)
        count_tp(&m, t);
    for (int i = 0; i < ops->n_ops; i++)
        m.pp_calls += ops->ops[i].to >= 0;
    m.pp_bytes = m.pp_calls * rows / n->split * h * 4;
    for (int i = 0; t->params.tied >= 0 && i < t->params.n_shards; i++) {
        const struct param *q = &t->params.list[t->params.tied + i];
        int64_t n_sums = t->params.same_bits ? q->own.n : params_sums(&t->params, q).n;

        m.ends_calls += n_sums > 0 || !n->same_bits;
        m.ends_bytes += n_sums * 4;
    }
    if (comm_size(t->parallel.model) > 1 || t->params.n_owners > 1)
        m.tiny_calls++;
    if (t->parallel.kv && n->same_bits) {
        count_holders(&m, t);
    } else if (t->parallel.kv) {
        m.kv_calls = n->n_layers;
        for (int i = 0; i < t->params.n; i++)
            if (t->params.list[i].shared)
                m.kv_bytes += params_sums(&t->params, &t->params.list[i]).n * 4;
    }
    count_ring(&m, t);
    count_gradients(&m, t);
    if (n->same_bits && c->spec.dp > 1)
        count_same_bits_dp(&m, t);
    if (spec_world(&c->spec) > 1)
        m.tiny_calls++;
    return m;
}
