/*
 * trainer/model/residual.h - the residual stream, and the norms that read it.
 *
 * A block leaves what it adds to the stream, not the stream: the norm that reads it next puts the
 * two together on its way (one pass over memory instead of three).
 */
#ifndef TRAINER_MODEL_RESIDUAL_H
#define TRAINER_MODEL_RESIDUAL_H

#include "trainer/model/pass.h"

/* What has to be added to a block's result before it is the stream; NULL: nothing. */
struct arriving {
    const float *residual; /* [rows][h] the stream before the block */
    const float *bias;     /* [h] of the block's row layer */
};

/* x becomes the stream, y (the run's dtype) its norm. stats: [2][rows] floats for backward. */
void stream_norm(const struct pass *p, const struct norm *norm, void *y, float *stats, float *x,
                 const struct arriving *in);

/* dx += gradient of the stream, from dy; also the norm's own gradients. */
void stream_norm_backward(const struct pass *p, const struct norm *norm, float *dx, const float *dy,
                          float *x, float *stats);

/* x becomes the stream: at the end of a stage. */
void stream_finish(const struct pass *p, float *x, const struct arriving *in);

/* Gradient of a row layer's bias, if it has one, from that of the stream. */
void stream_bias_backward(const struct pass *p, const struct linear *l, const float *dx);

#endif
