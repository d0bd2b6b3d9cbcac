/*
 * trainer/model/rotary_table.h - the table of cosines and sines of a rank's tokens
 * (kernels/rope.h).
 */
#ifndef TRAINER_MODEL_ROTARY_TABLE_H
#define TRAINER_MODEL_ROTARY_TABLE_H

#include "core/err.h"
#include "kernels/ops.h"
#include "layout/model.h"
#include "trainer/context/zigzag.h"

struct rotary_table {
    float *cos_sin; /* [n][rotary_dim], to be filled */
    const struct model *model;
    bool is_local; /* of the model's layers with a sliding window, which have their own */
    const struct zigzag *tokens;
    int64_t n; /* tokens of a sequence that the rank has */
};

/* Fill it. Without scaling the device computes it, otherwise the host (layout/rope_scaling.h).
 * TP_E_NOMEM, or the device's failure. */
tp_status rotary_table_fill(const struct rotary_table *t, const struct kernel_queue *k,
                            struct tp_err *err);

#endif
