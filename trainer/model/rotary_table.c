/* trainer/model/rotary_table.c - see trainer/model/rotary_table.h. */
#include "trainer/model/rotary_table.h"

#include <math.h>

#include "device/staging.h"
#include "layout/rope_scaling.h"

static double theta_of(const struct rotary_table *t)
{
    return t->is_local ? t->model->local_rope_theta : t->model->rope_theta;
}

static void fill_on_device(const struct rotary_table *t, const struct kernel_queue *k)
{
    int64_t width = t->model->rotary_dim, run;

    for (int64_t i = 0; i < t->n; i += run) {
        struct rope_table table = { .cos_sin = t->cos_sin + i * width,
                                    .first = zigzag_position(t->tokens, i, &run),
                                    .rotary_dim = width,
                                    .theta = theta_of(t) };

        table.n_positions = run;
        k->ops->rope_table(k->queue, &table);
    }
}

/* The row of a position: [2][rotary_dim / 2]. */
static void fill_row(float *row, const struct rope_scaling_embedding *e, int64_t position)
{
    double factor = rope_scaling_attention_factor(&e->scaling);
    int64_t half = e->rotary_dim / 2;

    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * rope_scaling_frequency(e, i);

        row[i] = (float)(factor * cos(angle));
        row[half + i] = (float)(factor * sin(angle));
    }
}

static tp_status fill_on_host(const struct rotary_table *t, const struct kernel_queue *k,
                              struct tp_err *err)
{
    const struct model *m = t->model;
    const struct rope_scaling_embedding e = { m->rotary_dim, theta_of(t), m->rope_scaling,
                                              t->tokens->seq };
    int64_t bytes = m->rotary_dim * (int64_t)sizeof(float), run;
    struct staging staging;
    void *row;
    tp_status st;

    TP_TRY(staging_open(&staging, k->queue, bytes, err));
    for (int64_t i = 0; i < t->n; i++) {
        TP_TRY(staging_buffer(&staging, &row, err));
        fill_row(row, &e, zigzag_position(t->tokens, i, &run));
        staging_send(&staging, t->cos_sin + i * m->rotary_dim, bytes);
    }
    st = staging_finish(&staging, err);
done:
    staging_close(&staging);
    return st;
}

tp_status rotary_table_fill(const struct rotary_table *t, const struct kernel_queue *k,
                            struct tp_err *err)
{
    enum rope_scaling_type type = t->model->rope_scaling.type;

    if (!t->is_local && type != ROPE_SCALING_NONE && type != ROPE_SCALING_DYNAMIC)
        return fill_on_host(t, k, err);
    fill_on_device(t, k);
    return TP_OK;
}
