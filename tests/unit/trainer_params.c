/* tests/unit/trainer_params.c - the parameters of a rank: every element has one place and one
 * owner.
 *
 * covers: trainer/data_parallel/params_partition trainer/data_parallel/params_storage */
#include <criterion/criterion.h>

#include "layout/model_tensors.h"
#include "tests/unit/params_support.h"

/* Entries do not overlap, the part that a rank owns is inside them, and buckets tile gradients. */
static int check_places(const struct params *p)
{
    int64_t end = 0;
    int wrong = 0, first = 0;

    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        const struct param_owned o = params_owned(p, q);

        if (i == 0 || (p->sharded && q->unit != p->list[i - 1].unit))
            end = 0; /* units share a buffer */
        wrong += q->at < end || q->at + q->n > p->n_elements;
        wrong += q->own.n && (q->own.from < q->at || q->own.from + q->own.n > q->at + q->n);
        wrong += q->own.to + q->own.n > p->n_owned || o.exp_avg != p->exp_avg + q->own.to;
        end = q->at + q->n;
    }
    for (int b = 0; b < p->n_buckets; b++) {
        wrong += p->buckets[b].first != first;
        wrong += !p->sharded && b > 0 && p->buckets[b].from != p->buckets[b - 1].to;
        first += p->buckets[b].n;
    }
    wrong += first != p->n;
    return wrong_unless(wrong == 0, "places of the parameters");
}

/* Elements that this rank is the first to own. */
static int64_t count_owned(const struct trainer *t)
{
    const struct mesh_coord at = t->parallel.at;
    int64_t n = 0;

    if (at.cp > 0 || (t->params.n_owners == 1 && at.dp > 0))
        return 0;
    for (int i = 0; i < t->params.n; i++)
        if (t->params.list[i].counted)
            n += t->params.list[i].own.n;
    return n;
}

static int64_t elements_of(const struct layout *l)
{
    int64_t n = 0;

    for (int t = 0; t < l->n_tensors; t++) {
        struct box whole = box_whole(l->tensors[t].ndim, l->tensors[t].shape);

        n += !strcmp(l->tensors[t].group, GROUP_PARAM) ? box_elements(&whole) : 0;
    }
    return n;
}

static int check_params(struct trainer *t, void *ctx)
{
    int64_t owned = count_owned(t);
    struct tp_err err = { 0 };
    int wrong = check_places(&t->params);

    (void)ctx;
    if (control_sum_i64(t->parallel.control, &owned, 1, &err))
        return 1;
    return wrong + wrong_unless(owned == elements_of(&t->layout), "every element has one owner");
}

/* q, k and v are adjacent and form one matrix; so do gate and up. */
static int check_fused(struct trainer *t, void *ctx)
{
    static const enum tensor_role pairs[][2] = { { ROLE_Q, ROLE_K },
                                                 { ROLE_K, ROLE_V },
                                                 { ROLE_GATE, ROLE_UP } };
    const struct params *p = &t->params;
    int wrong = 0;

    (void)ctx;
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
        for (int layer = 0; layer < t->model->layers; layer++) {
            int a = params_find(p, &t->layout, pairs[k][0], layer);
            int b = params_find(p, &t->layout, pairs[k][1], layer);

            wrong += a < 0 || b < 0 || p->list[b].at != p->list[a].at + p->list[a].n;
        }
    return wrong_unless(wrong == 0, "fused matrices");
}

/* What element k of entry i is in weights, exp_avg or exp_avg_sq (array 0 to 2). */
static float holder_value(int i, int64_t k, int array)
{
    return (float)((i * INT64_C(8191) + k * 7) % 65536 + array * 65536 + 1);
}

/* Only first holders have values. After the copy all have them, and nothing else was changed. */
static int check_holders(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    int wrong = 0, copies = 0;

    (void)ctx;
    for (int i = 0; i < p->n; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);
        float *const arrays[] = { o.value, o.exp_avg, o.exp_avg_sq };
        const int holder = params_first_holder(p, i);

        copies += holder != i;
        for (int a = 0; a < 3; a++)
            for (int64_t k = 0; k < o.n; k++)
                arrays[a][k] = holder == i ? holder_value(i, k, a) : -1;
    }
    params_copy_to_holders(p);
    for (int i = 0; i < p->n; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);
        const float *const arrays[] = { o.value, o.exp_avg, o.exp_avg_sq };
        const int holder = params_first_holder(p, i);

        for (int a = 0; a < 3; a++)
            for (int64_t k = 0; k < o.n; k++)
                wrong += arrays[a][k] != holder_value(holder, k, a);
    }
    return wrong_unless(copies > 0, "no entry holds what another one holds") +
           wrong_unless(wrong == 0, "copies for other holders of a KV head");
}

/* With --same-bits 4 and tp1, a rank has four shards, two for each KV head. */
Test(trainer_params, every_holder_of_a_kv_head_gets_all_of_its_elements)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "tp1", DTYPE_F32, 4, check_holders);
    params_expect(&m, "tp1", DTYPE_BF16, 4, check_holders);
    params_expect(&m, "dp2zero1", DTYPE_BF16, 4, check_holders);
    params_expect(&m, "dp2zero3", DTYPE_F32, 4, check_holders);
}

Test(trainer_params, every_element_has_one_place_and_one_owner)
{
    static const char *const specs[] = { "tp1", "tp2",         "tp4",
                                         "dp3", "dp3zero1",    "dp2zero3",
                                         "pp2", "cp2dp2zero1", "tp2pp2dp2zero1" };
    const struct model m = params_model(2, false), tied = params_model(1, true);

    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        params_expect(&m, specs[i], i % 2 ? DTYPE_BF16 : DTYPE_F32, 0, check_params);
        params_expect(&tied, specs[i], i % 2 ? DTYPE_F32 : DTYPE_BF16, 0, check_params);
    }
    params_expect(&m, "tp1", DTYPE_F32, 4, check_params);
    params_expect(&tied, "tp2dp2zero1", DTYPE_BF16, 4, check_params);
}

Test(trainer_params, projections_of_a_layer_are_adjacent)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "tp1", DTYPE_F32, 0, check_fused);
    params_expect(&m, "tp2", DTYPE_BF16, 0, check_fused);
    params_expect(&m, "dp2zero3", DTYPE_F32, 0, check_fused);
}
