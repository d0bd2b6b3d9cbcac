/*
 * trainer/model/residual.h - the residual, and the norms that read it.
 *
 * A block leaves what it adds to the residual, not the residual: the norm that reads it next puts
 * the two together on its way (one pass over memory instead of three).
 */
#ifndef TRAINER_MODEL_RESIDUAL_H
#define TRAINER_MODEL_RESIDUAL_H

#include "trainer/model/pass.h"

/* What has to be added to a block's result before it is the residual; NULL: nothing. */
struct residual_pending {
    const float *residual; /* [rows][h] the stream before the block */
    const float *bias;     /* [h] of the block's row layer */
};

/* x becomes the residual, y (the run's dtype) its norm. stats: [2][rows] floats for backward. */
void residual_norm(const struct pass *p, const struct network_norm *norm, void *y, float *stats,
                   float *x, const struct residual_pending *in);

/* dx += gradient of the residual, from dy; also the norm's own gradients. */
void residual_norm_backward(const struct pass *p, const struct network_norm *norm, float *dx,
                            const float *dy, float *x, float *stats);

/* x becomes the residual: at the end of a stage. */
void residual_finish(const struct pass *p, float *x, const struct residual_pending *in);

/* Gradient of a row layer's bias, if it has one, from that of the residual. */
void residual_bias_backward(const struct pass *p, const struct linear *l, const float *dx);

#endif
