/*
 * layout/model_flops.h - floating-point operations of training, by formula.
 */
#ifndef LAYOUT_MODEL_FLOPS_H
#define LAYOUT_MODEL_FLOPS_H

#include <stdint.h>

#include "layout/model.h"

/* Matrix elements that a token is multiplied with in a forward pass: the layers' and the head's,
 * without the embedding. */
int64_t model_flops_params(const struct model *m);

/* Operations of one training step on `tokens` tokens in sequences of length `seq`. For each token
 * 6 N + 12 L H Q T (Chowdhery et al. 2022, PaLM, appendix B); the causal mask saves nothing. */
double model_flops_step(const struct model *m, int64_t tokens, int64_t seq);

#endif
