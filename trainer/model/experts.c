/* trainer/model/experts.c - see trainer/model/experts.h. */
#include "trainer/model/experts.h"

#include "layout/family.h"
#include "trainer/model/expert_exchange.h"
#include "trainer/tensor/expert_linear.h"

_Static_assert((int)FAMILY_EXPERTS_MAX <= (int)ROUTER_EXPERTS_MAX, "a router for every model");

const int32_t *experts_count(const struct pass *p, const struct activations_layer *s)
{
    return p->net->ep ? s->experts.groups + p->net->experts : NULL;
}

/* ---- rows and copies ---- */

static void route(const struct pass *p, const struct linear *router, const void *x,
                  const struct activations_experts *e)
{
    const struct network *n = p->net;
    const struct router_forward choose = { .probs = e->probs,
                                           .chosen = e->chosen,
                                           .weights = e->weights,
                                           .rows = p->rows,
                                           .experts = n->experts,
                                           .per_row = n->per_token,
                                           .is_normalized = n->model->normalized_experts };

    linear_uncut_forward(router, e->probs, x, p->rows);
    n->k.ops->router_forward(n->k.queue, &choose);
    n->k.ops->permute_sort(n->k.queue, &(struct permute_sort){ .offsets = e->offsets,
                                                               .place = e->place,
                                                               .source = e->source,
                                                               .chosen = e->chosen,
                                                               .n = p->rows * n->per_token,
                                                               .experts = n->experts });
    expert_exchange_counts(p, e);
}

/* With ep: the weights of the copies, in their order. */
static void sort_weights(const struct pass *p, const struct activations_experts *e)
{
    const struct network *n = p->net;

    if (n->ep)
        n->k.ops->permute_rows(n->k.queue, &(struct permute_rows){ .y = p->scratch->sorted,
                                                                   .x = e->weights,
                                                                   .type = DTYPE_F32,
                                                                   .source = e->source,
                                                                   .n = p->rows * n->per_token,
                                                                   .cols = 1,
                                                                   .per_row = 1 });
}

static void copy_rows(const struct pass *p, const void *x, const struct activations_experts *e)
{
    const struct network *n = p->net;

    n->k.ops->permute_rows(n->k.queue, &(struct permute_rows){ .y = p->scratch->copies,
                                                               .x = x,
                                                               .type = n->dtype,
                                                               .source = e->source,
                                                               .n = p->rows * n->per_token,
                                                               .cols = n->model->hidden,
                                                               .per_row = n->per_token });
}

/* Returns the copies of all ranks' rows that this rank's experts compute. */
static const void *dispatch_copies(const struct pass *p, const struct activations_experts *e)
{
    const struct network *n = p->net;

    return expert_exchange_dispatch(p, e, p->scratch->received, p->scratch->copies,
                                    n->model->hidden * dtype_bytes(n->dtype));
}

/* y, net.outer, (+)= the sums over the copies of each row; their experts' ranks have them in
 * scratch results. */
static void sum_copies(const struct pass *p, void *y, const struct activations_experts *e,
                       const float *weights, bool add)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    const void *results = expert_exchange_collect(p, e, w->returned, w->results,
                                                  n->model->hidden * dtype_bytes(n->inner));

    n->k.ops->permute_sum(n->k.queue, &(struct permute_sum){ .y = y,
                                                             .x = results,
                                                             .place = e->place,
                                                             .weights = weights,
                                                             .rows = p->rows,
                                                             .cols = n->model->hidden,
                                                             .per_row = n->per_token,
                                                             .add = add,
                                                             .y_type = n->outer,
                                                             .x_type = n->inner });
}

/* ---- forward ---- */

void experts_up_forward(const struct pass *p, const struct network_layer *y,
                        struct activations_layer *s)
{
    const struct network *n = p->net;
    const struct expert_linear_rows r = expert_exchange_rows(p, &s->experts);
    const void *x = linear_gather(&y->up, s->mid_normed, p->rows, n->model->hidden), *copies;

    route(p, &y->router, x, &s->experts);
    sort_weights(p, &s->experts);
    copy_rows(p, x, &s->experts);
    expert_exchange_wait(p, &s->experts);
    expert_exchange_dispatch(p, &s->experts, s->experts.given, p->scratch->sorted, sizeof(float));
    copies = dispatch_copies(p, &s->experts);
    expert_linear_forward(&y->gate, &r, s->up, n->inner, n->up_width, copies);
    expert_linear_forward(&y->up, &r, (char *)s->up + n->ffn * dtype_bytes(n->inner), n->inner,
                          n->up_width, copies);
}

void experts_down_forward(const struct pass *p, const struct network_layer *y,
                          const struct activations_layer *s, void *out)
{
    const struct network *n = p->net;
    const struct expert_linear_rows r = expert_exchange_rows(p, &s->experts);
    int64_t hidden = n->model->hidden;

    expert_linear_forward(&y->down, &r, p->scratch->results, n->inner, hidden, s->hidden);
    sum_copies(p, linear_sum_place(&y->down, out), &s->experts, s->experts.weights, false);
    linear_sum(&y->down, out, p->rows, hidden);
}

/* ---- backward ---- */

/* Bring the gradients of the weights from the experts' ranks to scratch dweights, from the order of
 * the copies to that of the weights. */
static void return_dweights(const struct pass *p, const struct activations_experts *e)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;

    if (!n->ep)
        return;
    expert_exchange_collect(p, e, w->sorted, w->dweights, sizeof(float));
    n->k.ops->permute_sum(n->k.queue, &(struct permute_sum){ .y = w->dweights,
                                                             .x = w->sorted,
                                                             .place = e->place,
                                                             .rows = p->rows * n->per_token,
                                                             .cols = 1,
                                                             .per_row = 1 });
}

void experts_down_backward(const struct pass *p, const struct network_layer *y,
                           const struct activations_layer *s, const void *dy)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    const struct expert_linear_rows r = expert_exchange_rows(p, &s->experts);
    const void *whole = linear_gather(&y->down, dy, p->rows, n->model->hidden);
    const void *copies;

    copy_rows(p, whole, &s->experts);
    copies = dispatch_copies(p, &s->experts);
    expert_linear_input_gradient(&y->down, &r, w->ffn_scratch, n->inner, copies, n->model->hidden,
                                 false);
    n->k.ops->permute_weight_backward(
        n->k.queue,
        &(struct permute_weight_backward){ .dweights = w->dweights,
                                           .dhidden = w->ffn_scratch,
                                           .dhidden_type = n->inner,
                                           .hidden = s->hidden,
                                           .type = n->dtype,
                                           .weights = n->ep ? s->experts.given : s->experts.weights,
                                           .source = n->ep ? NULL : s->experts.source,
                                           .n = p->rows * n->token_copies,
                                           .cols = n->ffn,
                                           .count = experts_count(p, s) });
    return_dweights(p, &s->experts);
    expert_linear_weight_gradient(&y->down, &r, copies, n->model->hidden, s->hidden, p->add);
}

/* The place of the load, after a residual. */
static float *load_of(const struct pass *p, float *x)
{
    return x + p->residual_rows * p->net->model->hidden;
}

/* The tokens of a sequence, over all cp ranks. */
static int64_t tokens_of(const struct network *n)
{
    return n->tokens.seq;
}

/* The loss of a sequence is factor * count * sum of probabilities, added up over the experts: the
 * number of experts times the fraction of rows that an expert has times its mean probability, over
 * the rows of all layers (transformers' load_balancing_loss_func). */
static double balance_factor(const struct network *n)
{
    double rows = (double)n->model->layers * (double)tokens_of(n);

    return n->model->balance_factor * n->experts / rows / rows;
}

/* The gradient of the router's scores. Each tp rank adds its share of what is not a part. */
static void route_backward(const struct pass *p, const struct activations_experts *e)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    double tp = n->tp ? comm_size(n->tp) : 1, weight = (double)p->scale * (double)tokens_of(n);

    n->k.ops->router_backward(
        n->k.queue,
        &(struct router_backward){ .dlogits = w->dlogits,
                                   .type = n->dtype,
                                   .dweights = w->dweights,
                                   .probs = e->probs,
                                   .weights = e->weights,
                                   .chosen = e->chosen,
                                   .rows = p->rows,
                                   .experts = n->experts,
                                   .per_row = n->per_token,
                                   .is_normalized = n->model->normalized_experts,
                                   .counts = n->load ? load_of(p, w->dx) : NULL,
                                   .rows_per_sequence = n->seq,
                                   .balance = (float)(weight * balance_factor(n) / tp) });
}

void experts_up_backward(const struct pass *p, const struct network_layer *y,
                         const struct activations_layer *s, const void *dup)
{
    const struct network *n = p->net;
    const struct activations_scratch *w = p->scratch;
    const struct expert_linear_rows r = expert_exchange_rows(p, &s->experts);
    const void *dgate = dup, *x, *copies;
    void *dx = linear_sum_place(&y->up, w->outer);

    dup = (const char *)dup + n->ffn * dtype_bytes(n->dtype);
    expert_linear_input_gradient(&y->gate, &r, w->results, n->inner, dgate, n->up_width, false);
    expert_linear_input_gradient(&y->up, &r, w->results, n->inner, dup, n->up_width, true);
    route_backward(p, &s->experts);
    linear_uncut_input_gradient(&y->router, dx, w->dlogits, p->rows);
    sum_copies(p, dx, &s->experts, NULL, true);
    linear_sum(&y->up, w->outer, p->rows, n->model->hidden);

    x = linear_gather(&y->up, s->mid_normed, p->rows, n->model->hidden);
    linear_uncut_weight_gradient(&y->router, w->dlogits, x, p->rows, p->add);
    copy_rows(p, x, &s->experts);
    copies = dispatch_copies(p, &s->experts);
    expert_linear_weight_gradient(&y->gate, &r, dgate, n->up_width, copies, p->add);
    expert_linear_weight_gradient(&y->up, &r, dup, n->up_width, copies, p->add);
}

/* ---- the load ---- */

static int64_t load_floats(const struct pass *p)
{
    return p->sequences * p->net->load;
}

void experts_load_begin(const struct pass *p, float *to, const float *from)
{
    int64_t n_bytes = load_floats(p) * (int64_t)sizeof *to;
    struct device_queue *q = p->net->k.queue;

    if (n_bytes == 0)
        return;
    if (from)
        device_copy(q, load_of(p, to), from + p->residual_rows * p->net->model->hidden, n_bytes);
    else
        device_fill(q, load_of(p, to), 0, n_bytes);
}

void experts_load_add(const struct pass *p, const struct activations_layer *s, float *to)
{
    const struct network *n = p->net;

    if (!n->load)
        return;
    n->k.ops->router_load(n->k.queue, &(struct router_load){ .load = load_of(p, to),
                                                             .probs = s->experts.probs,
                                                             .chosen = s->experts.chosen,
                                                             .rows = p->rows,
                                                             .rows_per_sequence = n->seq,
                                                             .experts = n->experts,
                                                             .per_row = n->per_token });
}

void experts_load_loss(const struct pass *p, float *x, double *total)
{
    const struct network *n = p->net;
    float *load = load_of(p, x);
    struct comm *cp = n->ring.cp;

    if (!n->load)
        return;
    if (cp && comm_size(cp) > 1)
        comm_all_reduce(cp, n->k.queue, load, load_floats(p), DTYPE_F32, COMM_SUM);
    n->k.ops->router_balance(
        n->k.queue, &(struct router_balance){ .total = total,
                                              .load = load,
                                              .sequences = p->sequences,
                                              .experts = n->experts,
                                              .factor = (double)n->seq * balance_factor(n) });
    device_copy(n->k.queue, load_of(p, p->scratch->dx), load,
                load_floats(p) * (int64_t)sizeof *load);
}
