/* trainer/model/vocab_parallel_embedding.c - see trainer/model/vocab_parallel_embedding.h. */
#include "trainer/model/vocab_parallel_embedding.h"

#include "layout/family.h"

/* Rows first .. first + n - 1 of the microbatch; x is where the first of them is. */
struct rows {
    int64_t first, n;
};

/* Some of them that follow each other in one sequence, and in each of `sequences` sequences. */
struct embedding_run {
    int64_t row, n, position; /* row: from the first; position: of the run's first token */
    int64_t sequences;
};

static struct embedding_run run_at(const struct network *n, struct rows rows, int64_t row)
{
    struct embedding_run r = { .row = row, .sequences = 1 };

    if (rows.first % n->seq == 0 && rows.n % n->seq == 0)
        r.sequences = rows.n / n->seq;
    r.position = zigzag_position(&n->tokens, (rows.first + row) % n->seq, &r.n);
    if (r.n > rows.n - row)
        r.n = rows.n - row;
    return r;
}

/* This rank's rows of the residual. */
static struct rows rows_of(const struct pass *p)
{
    const struct network *n = p->net;

    return (struct rows){ n->split > 1 ? comm_rank(n->tp) * p->residual_rows : 0,
                          p->residual_rows };
}

/* Where the row of a position is in the table of positions, or in its gradient. */
static int64_t row_of_position(const struct network *n, int64_t position)
{
    return (family_of(n->model)->extra_positions + position) * n->model->hidden;
}

static void add_positions(const struct network *n, struct rows rows, float *x)
{
    int64_t h = n->model->hidden;

    for (struct embedding_run r = run_at(n, rows, 0); r.row < rows.n / r.sequences;
         r = run_at(n, rows, r.row + r.n))
        n->k.ops->sum_add(n->k.queue,
                          &(struct sum_add){ .y = x + r.row * h,
                                             .x = n->positions + row_of_position(n, r.position),
                                             .rows = r.sequences,
                                             .cols = r.n * h,
                                             .ldy = n->seq * h,
                                             .ldx = 0 });
}

/* Sequences are added one after the other. */
static void positions_backward(const struct network *n, struct rows rows, const float *dx)
{
    int64_t h = n->model->hidden;

    for (struct embedding_run r = run_at(n, rows, 0); r.row < rows.n / r.sequences;
         r = run_at(n, rows, r.row + r.n))
        n->k.ops->sum_add(
            n->k.queue, &(struct sum_add){ .y = n->positions_grad + row_of_position(n, r.position),
                                           .x = dx + r.row * h,
                                           .rows = r.sequences,
                                           .cols = r.n * h,
                                           .ldy = 0,
                                           .ldx = n->seq * h });
}

/* Look up the ids in this rank's part of the vocabulary; rows of other ids are zero. */
static void look_up(const struct pass *p, float *x, const int32_t *ids)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden, each = p->rows * h, first;

    for (int s = 0; s < n->shards; s++) {
        const char *table = n->embedding;
        struct embedding_forward a = { .x = n->shards > 1 ? n->sums + s * each : x,
                                       .table =
                                           table + s * n->embedding_stride * dtype_bytes(n->dtype),
                                       .type = n->dtype,
                                       .ids = ids,
                                       .n = p->rows,
                                       .cols = h };

        a.rows = network_vocab_rows_of(&n->table, s, &first);
        a.first = first;
        n->k.ops->embedding_forward(n->k.queue, &a);
    }
    if (n->shards > 1)
        n->k.ops->sum_tree(n->k.queue, &(struct sum_tree){ x, n->sums, n->shards, each, each });
}

/* Multiply rows of the residual, or of its gradient, by the model's factor. */
static void scale(const struct pass *p, float *x)
{
    const struct network *n = p->net;
    int64_t count = p->residual_rows * n->model->hidden;

    if (n->embedding_factor != 1)
        n->k.ops->scale(n->k.queue, &(struct scale){ x, count, n->embedding_factor, 0 });
}

void vocab_parallel_embedding_forward(const struct pass *p, float *x, const int32_t *ids)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    float *rows = n->split > 1 ? n->whole : x;

    look_up(p, rows, ids);
    if (n->split > 1)
        comm_reduce_scatter(n->embedding_tp, n->k.queue, x, rows, p->residual_rows * h, DTYPE_F32);
    else if (n->embedding_tp && comm_size(n->embedding_tp) > 1)
        comm_all_reduce(n->embedding_tp, n->k.queue, x, p->rows * h, DTYPE_F32, COMM_SUM);
    scale(p, x);
    if (n->positions)
        add_positions(n, rows_of(p), x);
}

void vocab_parallel_embedding_backward(const struct pass *p, const int32_t *ids)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden, first;
    const float *dx = p->scratch->dx;

    if (n->positions && !n->same_bits)
        positions_backward(n, rows_of(p), dx);
    scale(p, p->scratch->dx);
    if (n->split > 1) {
        comm_all_gather(n->embedding_tp, n->k.queue, n->whole, dx, p->residual_rows * h, DTYPE_F32);
        dx = n->whole;
    }
    if (n->positions && n->same_bits) /* every rank has all rows, so no sum is needed */
        positions_backward(n, (struct rows){ 0, p->rows }, dx);
    for (int s = 0; s < n->shards; s++) {
        struct embedding_backward a = { .dtable = n->embedding_grad + s * n->embedding_stride,
                                        .dx = dx,
                                        .ids = ids,
                                        .n = p->rows,
                                        .cols = h };

        a.rows = network_vocab_rows_of(&n->table, s, &first);
        a.first = first;
        n->k.ops->embedding_backward(n->k.queue, &a);
    }
}
