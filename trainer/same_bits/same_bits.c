/* trainer/same_bits/same_bits.c - see trainer/same_bits/same_bits.h. */
#include "trainer/same_bits/same_bits.h"

#include <math.h>
#include <string.h>

#include "comm/reduce.h"
#include "kernels/adamw.h"
#include "kernels/bias.h"
#include "layout/same_bits.h"
#include "trainer/data_parallel/zero_buckets.h"
#include "trainer/same_bits/emulated_shards.h"

/* ---- leaves ---- */

int64_t same_bits_leaf(const struct train_config *c)
{
    const struct workload w = train_config_work(c);

    return same_bits_group_microbatches(&w);
}

int same_bits_levels(const struct train_config *c)
{
    const struct workload w = train_config_work(c);

    return same_bits_tree_levels(&w, &c->spec);
}

/* ---- the loss ---- */

tp_status same_bits_loss(double *sum, double *losses, const struct train_config *c, struct comm *dp,
                         struct tp_err *err)
{
    int64_t leaf = same_bits_leaf(c), leaves = train_config_micros(c) / leaf;
    bool dp_first = c->spec.zero == 3; /* as its gradients */
    double level[FOLD_LEVELS_MAX + 1];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < leaves; i++) {
        double x = 0;

        for (int64_t k = 0; k < leaf; k++)
            x += losses[i * leaf + k];
        losses[i] = x;
    }
    if (c->spec.dp > 1 && dp_first)
        st = comm_all_reduce(dp, losses, leaves, COMM_F64, COMM_SUM, err);
    for (int64_t i = 0; i < leaves; i++)
        fold_add_double(level, losses[i], i);
    *sum = level[same_bits_levels(c)];
    if (c->spec.dp > 1 && !dp_first)
        st = comm_all_reduce(dp, sum, 1, COMM_F64, COMM_SUM, err);
    return st;
}

/* ---- gradients ---- */

/* Shards of this rank that hold what entry i does: their gradients; how many. 0: an earlier entry's
 * group. */
static int find_holders(const struct params *p, int i, void *rows[SAME_BITS_SHARDS_MAX])
{
    int n = 0;

    if (params_twin(p, i) != i)
        return 0;
    for (int k = i; k < p->n; k++)
        if (p->list[k].tensor == p->list[i].tensor && params_twin(p, k) == i)
            rows[n++] = params_owned(p, &p->list[k]).grad;
    return n;
}

/* Sum the gradients of KV heads that several shards hold, here and over ranks. */
static tp_status sum_holders(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->n && !st; i++) {
        void *rows[SAME_BITS_SHARDS_MAX];
        int64_t n = p->list[i].own.n;
        int holders = p->list[i].shared && n ? find_holders(p, i, rows) : 0;

        if (holders > 1)
            comm_reduce(rows, holders, (const void *const *)rows, holders, n, COMM_F32, COMM_SUM);
        if (holders == 0 || !par->kv)
            continue;
        st = comm_all_reduce(par->kv, rows[0], n, COMM_F32, COMM_SUM, err);
        for (int k = 1; k < holders; k++)
            memcpy(rows[k], rows[0], (size_t)n * sizeof(float));
    }
    return st;
}

/* A tied head's gradients to the embedding's: from the other end of the pipeline, or from here. */
static tp_status sum_ends(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    int first = p->tied;
    tp_status st = TP_OK;

    for (int i = first; first >= 0 && i < first + p->n_shards && !st; i++) {
        struct sums g = params_sums(p, &p->list[i]);

        if (g.n)
            st = comm_all_reduce(par->ends, g.at, g.n, COMM_F32, COMM_SUM, err);
    }
    if (p->head.n) {
        struct sums g = params_sums(p, &p->list[p->table]);

        bias_add(g.at, p->fold.sum + p->head.at, 1, p->head.n);
    }
    return st;
}

/* Leaves first, all of them, for ranks and microbatches share them in any way: the sum over dp is
 * taken but for that of a tied head's own gradients. */
tp_status same_bits_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (p->head.n && !p->sharded && comm_size(par->dp) > 1)
        TP_TRY(comm_all_reduce(par->dp, p->grad + p->head.at, p->head.n, COMM_F32, COMM_SUM, err));
    TP_TRY(sum_holders(p, par, err));
    TP_TRY(sum_ends(p, par, err));
done:
    return st;
}

/* ---- the norm ---- */

/* Squares of the rows that this rank owns of what it counts; the others are zero. */
static void square_rows(const struct params *p)
{
    memset(p->rows, 0, (size_t)p->n_rows * sizeof *p->rows);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        int64_t cols;

        if (!q->counted || !q->n || !q->own.n)
            continue;
        cols = q->n / q->box.len[0];
        if (cols)
            sum_squares_rows(p->rows + q->row + (q->own.from - q->at) / cols,
                             params_owned(p, q).grad, q->own.n / cols, cols);
    }
}

/* The squares of all gradients by rows, by entries, over a list of entries that is the same at
 * every layout. Who does not have a row or an entry has a zero, so sums over ranks are exact. */
tp_status same_bits_norm(double *norm, const struct params *p, const struct parallel *par,
                         struct tp_err *err)
{
    double squares = 0;
    tp_status st = TP_OK;

    square_rows(p);
    if (p->n_owners > 1)
        TP_TRY(comm_all_reduce(par->dp, p->rows, p->n_rows, COMM_F64, COMM_SUM, err));
    memset(p->places, 0, (size_t)p->n_places * sizeof *p->places);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];

        for (int64_t r = 0; q->counted && q->n && r < q->box.len[0]; r++)
            p->places[q->place] += p->rows[q->row + r];
    }
    if (comm_size(par->model) > 1)
        TP_TRY(comm_all_reduce(par->model, p->places, p->n_places, COMM_F64, COMM_SUM, err));
    for (int i = 0; i < p->n_places; i++)
        squares += p->places[i];
    *norm = sqrt(squares);
done:
    return st;
}
