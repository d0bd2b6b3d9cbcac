/* trainer/embedding_tp.c - see trainer/embedding_tp.h. */
#include "trainer/embedding_tp.h"

#include "kernels/bias.h"
#include "kernels/embedding.h"

/* A run of the stream's rows that are neighbours in one sequence. */
struct run {
    int64_t row, n, position; /* row: of the stream; position: of its first token */
};

/* The run that begins at row `row` of this rank's part of the stream. */
static struct run run_at(const struct pass *p, int64_t row)
{
    const struct net *n = p->net;
    int64_t first = n->split > 1 ? comm_rank(n->tp) * p->stream_rows : 0;
    struct run r = { .row = row };

    r.position = zigzag_position(&n->tokens, (first + row) % n->seq, &r.n);
    if (r.n > p->stream_rows - row)
        r.n = p->stream_rows - row;
    return r;
}

static void add_positions(const struct pass *p, float *x)
{
    int64_t h = p->net->model->hidden;

    for (struct run r = run_at(p, 0); r.row < p->stream_rows; r = run_at(p, r.row + r.n))
        bias_add(x + r.row * h, p->net->positions + r.position * h, 1, r.n * h);
}

static void positions_backward(const struct pass *p)
{
    int64_t h = p->net->model->hidden;

    for (struct run r = run_at(p, 0); r.row < p->stream_rows; r = run_at(p, r.row + r.n))
        bias_add(p->net->positions_grad + r.position * h, p->scratch->dx + r.row * h, 1, r.n * h);
}

tp_status embedding_tp_forward(const struct pass *p, float *x, const int32_t *ids,
                               struct tp_err *err)
{
    const struct net *n = p->net;
    int64_t h = n->model->hidden;
    float *rows = n->split > 1 ? n->whole : x;
    tp_status st = TP_OK;

    embedding_forward(rows, n->embedding, n->dtype, ids, p->rows, n->vocab_first, n->vocab, h);
    if (n->split > 1)
        st = comm_reduce_scatter(n->embedding_tp, x, rows, p->stream_rows * h, COMM_F32, err);
    else if (n->embedding_tp && comm_size(n->embedding_tp) > 1)
        st = comm_all_reduce(n->embedding_tp, x, p->rows * h, COMM_F32, COMM_SUM, err);
    if (n->positions && !st)
        add_positions(p, x);
    return st;
}

tp_status embedding_tp_backward(const struct pass *p, const int32_t *ids, struct tp_err *err)
{
    const struct net *n = p->net;
    int64_t h = n->model->hidden;
    const float *dx = p->scratch->dx;

    if (n->positions)
        positions_backward(p);
    if (n->split > 1) {
        tp_status st =
            comm_all_gather(n->embedding_tp, n->whole, dx, p->stream_rows * h, COMM_F32, err);

        if (st)
            return st;
        dx = n->whole;
    }
    embedding_backward(n->embedding_grad, dx, ids, p->rows, n->vocab_first, n->vocab, h);
    return TP_OK;
}
