/* tests/unit/trainer_grad_reduction.c - a gradient is summed over exactly the ranks that have a
 * part of it, and a bucket is sent when its last gradient is final. */
#include <criterion/criterion.h>

#include "tests/unit/params_support.h"

/* Element k of an entry on a rank. Ranks differ only by a term with the rank's number. */
static float value_on(const struct param *q, int64_t k, int rank)
{
    return params_value(k + q->tensor) + (float)rank;
}

/* Whether another rank has a part of the gradient of q. */
static bool has_part(const struct trainer *t, const struct param *q, bool is_tied, int rank)
{
    const struct spec *s = &t->config->spec;
    struct mesh_coord me = t->parallel.at, other = mesh_coord_of(s, rank);
    bool over_tp = (q->shared && t->parallel.kv) || q->partial;
    bool over_pp = is_tied && (other.pp == 0 || other.pp == s->pp - 1);

    return (other.tp == me.tp || over_tp) && (other.pp == me.pp || over_pp);
}

static int check_entry(const struct trainer *t, int i)
{
    const struct param *q = &t->params.list[i];
    const float *got = params_grad(&t->params, q);
    int n_ranks = control_size(t->parallel.control), wrong = 0;

    for (int64_t k = 0; k < q->n; k++) {
        float want = 0;

        for (int r = 0; r < n_ranks; r++)
            if (has_part(t, q, i == t->params.tied, r))
                want += value_on(q, k, r);
        wrong += got[k] != want;
    }
    return wrong_unless(wrong == 0, t->layout.tensors[q->tensor].name);
}

static void fill(const struct trainer *t)
{
    const struct params *p = &t->params;

    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < p->list[i].n; k++)
            p->grad[p->list[i].at + k] =
                value_on(&p->list[i], k, control_rank(t->parallel.control));
}

static int reduce(struct trainer *t, void *ctx)
{
    int wrong = 0;

    (void)ctx;
    fill(t);
    grad_reduction_begin(&t->reduction);
    grad_reduction_ready(&t->reduction, LAYER_LAST);
    for (int layer = t->model->layers - 1; layer >= 0; layer--)
        grad_reduction_ready(&t->reduction, layer);
    grad_reduction_ready(&t->reduction, LAYER_FIRST);
    grad_reduction_end(&t->reduction);
    for (int i = 0; i < t->params.n; i++)
        wrong += check_entry(t, i);
    return wrong;
}

/* The number of buckets whose sum has not started when the gradients of `unit`, and of all units
 * that backward finishes before it, are final. */
static int left_after(const struct params *p, int unit)
{
    int left = p->n_buckets;

    while (left > 0 && !params_is_before(unit, p->buckets[left - 1].unit))
        left--;
    return left;
}

static int start_buckets(struct trainer *t, void *ctx)
{
    struct grad_reduction *r = &t->reduction;
    int wrong = 0, before = t->params.n_buckets;

    (void)ctx;
    fill(t);
    grad_reduction_begin(r);
    for (int layer = t->model->layers - 1; layer >= 0; layer--) {
        grad_reduction_ready(r, layer);
        wrong += wrong_unless(r->n_left == left_after(&t->params, layer), "buckets started");
        wrong += wrong_unless(r->n_left < before && r->n_left > 0, "some start, some wait");
        before = r->n_left;
    }
    grad_reduction_end(r);
    return wrong + wrong_unless(r->n_left == 0, "all sums have started");
}

Test(trainer_grad_reduction, gradients_are_summed_over_the_ranks_that_have_a_part)
{
    const struct model m = params_model(2, false), one_kv = params_model(1, false);
    const struct model tied = params_model(2, true);

    params_expect(&m, "tp1", DTYPE_F32, 0, reduce);
    params_expect(&m, "dp3", DTYPE_F32, 0, reduce);
    params_expect(&m, "cp2dp2", DTYPE_BF16, 0, reduce);
    params_expect(&m, "tp2sp", DTYPE_F32, 0, reduce);
    params_expect(&m, "tp2dp2sp", DTYPE_F32, 0, reduce);
    params_expect(&one_kv, "tp2", DTYPE_F32, 0, reduce);
    params_expect(&tied, "pp2", DTYPE_F32, 0, reduce);
    params_expect(&tied, "tp2pp2dp2", DTYPE_F32, 0, reduce);
}

Test(trainer_grad_reduction, a_bucket_is_sent_when_its_last_gradient_is_final)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "dp2", DTYPE_F32, 0, start_buckets);
    params_expect(&m, "dp2zero1", DTYPE_F32, 0, start_buckets);
}
