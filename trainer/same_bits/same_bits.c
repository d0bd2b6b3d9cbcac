/* trainer/same_bits/same_bits.c - see trainer/same_bits/same_bits.h. */
#include "trainer/same_bits/same_bits.h"

#include "layout/same_bits.h"

/* ---- gradient groups ---- */

int64_t same_bits_group(const struct train_config *c)
{
    const struct workload w = train_config_work(c);

    return same_bits_group_microbatches(&w);
}

/* ---- the loss ---- */

void same_bits_loss(double *sum, double *losses, const struct train_config *c, struct comm *dp,
                    const struct kernel_queue *k)
{
    int64_t group = same_bits_group(c), groups = train_config_micros(c) / group;
    bool dp_first = c->spec.zero == 3; /* as for the gradients of zero3 */

    k->ops->sum_doubles(k->queue, &(struct sum_doubles){ losses, losses, groups, group });
    if (c->spec.dp > 1 && dp_first)
        comm_all_reduce(dp, k->queue, losses, groups, DTYPE_F64, COMM_SUM);
    k->ops->sum_halves(k->queue, &(struct sum_halves){ sum, losses, groups });
    if (c->spec.dp > 1 && !dp_first)
        comm_all_reduce(dp, k->queue, sum, 1, DTYPE_F64, COMM_SUM);
}

/* ---- gradients ---- */

/* List the gradients of this rank's shards that hold the same elements as entry i; returns how
 * many. 0: an earlier entry holds them too, and its call has listed this one. */
static int find_holders(const struct params *p, int i, float *rows[SAME_BITS_SHARDS_MAX])
{
    int n = 0;

    if (params_first_holder(p, i) != i)
        return 0;
    for (int k = i; k >= 0; k = p->list[k].next)
        if (params_first_holder(p, k) == i)
            rows[n++] = params_owned(p, &p->list[k]).grad;
    return n;
}

/* rows[0] += the others, along the tree of kernels/cpu/tree_reduce.h; the others are
 * overwritten. */
static void add_rows(const struct params *p, float *const *rows, int n_rows, int64_t n)
{
    int left = 1;

    if (n_rows == 1)
        return;
    while (2 * left < n_rows)
        left *= 2;
    add_rows(p, rows, left, n);
    add_rows(p, rows + left, n_rows - left, n);
    p->k.ops->sum_add(p->k.queue, &(struct sum_add){ rows[0], rows[left], 1, n, 0, 0 });
}

/* Sum the gradients of KV heads that several shards hold, here and over ranks. */
static void sum_holders(const struct params *p, const struct process_groups *groups)
{
    for (int i = 0; i < p->n; i++) {
        float *rows[SAME_BITS_SHARDS_MAX];
        int64_t n = p->list[i].own.n;
        int holders = p->list[i].shared && n ? find_holders(p, i, rows) : 0;

        if (holders == 0)
            continue;
        add_rows(p, rows, holders, n);
        if (groups->kv)
            comm_all_reduce(groups->kv, p->k.queue, rows[0], n, DTYPE_F32, COMM_SUM);
        for (int k = 1; k < holders; k++)
            device_copy(p->k.queue, rows[k], rows[0], n * (int64_t)sizeof(float));
    }
}

/* Add a tied head's gradients to the embedding's: over both ends of the pipeline, or on this
 * stage. */
static void sum_ends(const struct params *p, const struct process_groups *groups)
{
    int first = p->tied;

    for (int i = first; first >= 0 && i < first + p->n_shards; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);

        if (o.n)
            comm_all_reduce(groups->embedding_ends, p->k.queue, o.grad, o.n, DTYPE_F32, COMM_SUM);
    }
    for (int i = p->table; p->head.n && i < p->table + p->n_shards; i++) {
        const struct param *q = &p->list[i], *table = &p->list[p->table];
        int64_t at = p->sharded ? q->own.to - table->own.to : q->own.from - table->at;

        p->k.ops->sum_add(p->k.queue, &(struct sum_add){ params_owned(p, q).grad,
                                                         p->pairwise.sum + p->head.at + at, 1,
                                                         q->own.n, 0, 0 });
    }
}

/* The sums over gradient groups and over dp are complete, except those of a tied head's own
 * gradients. */
void same_bits_reduce(const struct params *p, const struct process_groups *groups)
{
    if (p->head.n && !p->sharded && comm_size(groups->dp) > 1)
        comm_all_reduce(groups->dp, p->k.queue, p->grad + p->head.at, p->head.n, DTYPE_F32,
                        COMM_SUM);
    sum_holders(p, groups);
    sum_ends(p, groups);
}

/* ---- the norm ---- */

/* Sums of squares of the rows that this rank owns and counts; the other rows are zero. */
static void square_rows(const struct params *p)
{
    device_fill(p->k.queue, p->rows, 0, p->n_rows * (int64_t)sizeof *p->rows);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        int64_t cols;

        if (!q->counted || !q->n || !q->own.n)
            continue;
        cols = q->n / q->box.len[0];
        if (cols)
            p->k.ops->grad_norm_squares_rows(
                p->k.queue,
                &(struct grad_norm_squares_rows){ p->rows + q->row + (q->own.from - q->at) / cols,
                                                  params_owned(p, q).grad, q->own.n / cols, cols });
    }
}

/* Sum the squares of each row, then the rows of each entry, then the entries, over a list that is
 * the same at every layout. A rank has a zero for a row or an entry of another rank, so sums over
 * ranks are exact. */
void same_bits_squares(double *sum, const struct params *p, const struct process_groups *groups)
{
    const struct kernel_queue *k = &p->k;

    square_rows(p);
    if (p->n_owners > 1)
        comm_all_reduce(groups->dp, k->queue, p->rows, p->n_rows, DTYPE_F64, COMM_SUM);
    device_fill(k->queue, p->places, 0, p->n_places * (int64_t)sizeof *p->places);
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];

        if (q->counted && q->n)
            k->ops->sum_doubles(
                k->queue,
                &(struct sum_doubles){ p->places + q->place, p->rows + q->row, 1, q->box.len[0] });
    }
    if (comm_size(groups->model) > 1)
        comm_all_reduce(groups->model, k->queue, p->places, p->n_places, DTYPE_F64, COMM_SUM);
    k->ops->sum_doubles(k->queue, &(struct sum_doubles){ sum, p->places, 1, p->n_places });
}
