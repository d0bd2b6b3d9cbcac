/*
 * trainer/model/vocab_parallel_embedding.h - the embedding cut along the vocabulary: every rank
 * looks up the ids that it has, the rows of other ids are zero, and one all-reduce sums the rows.
 * Backward sends nothing. With sp, a reduce-scatter gives each rank its rows of the residual, and
 * backward gathers them. Learned positions are not cut, and are added after the sum.
 */
#ifndef TRAINER_MODEL_VOCAB_PARALLEL_EMBEDDING_H
#define TRAINER_MODEL_VOCAB_PARALLEL_EMBEDDING_H

#include "trainer/model/pass.h"

/* x[rows][h], memory for collectives. */
void vocab_parallel_embedding_forward(const struct pass *p, float *x, const int32_t *ids);

/* Adds to the tables' gradients, from scratch dx. */
void vocab_parallel_embedding_backward(const struct pass *p, const int32_t *ids);

#endif
