/*
 * trainer/model/vocab_parallel_embedding.h - the embedding cut along the vocabulary: every rank
 * looks up the ids that it has, the others are zero, and one all-reduce sums the rows. Backward
 * sends nothing. Under sp a reduce-scatter leaves this rank's rows of the residual, and backward
 * gathers them. Learned positions are whole on every rank and are added after the sum.
 */
#ifndef TRAINER_MODEL_VOCAB_PARALLEL_EMBEDDING_H
#define TRAINER_MODEL_VOCAB_PARALLEL_EMBEDDING_H

#include "trainer/model/pass.h"

/* x[rows][h], memory for collectives. */
void vocab_parallel_embedding_forward(const struct pass *p, float *x, const int32_t *ids);

/* From scratch dx; adds to the tables' gradients. */
void vocab_parallel_embedding_backward(const struct pass *p, const int32_t *ids);

#endif
