/*
 * trainer/model/weight_init.h - random weights that depend only on (seed, tensor name, global
 * index), so that a model begins with the same weights at every layout. Matrices are N(0,
 * init_std), norms 1 (those that multiply by 1 + weight: 0), biases 0.
 */
#ifndef TRAINER_MODEL_WEIGHT_INIT_H
#define TRAINER_MODEL_WEIGHT_INIT_H

#include "layout/model.h"
#include "trainer/data_parallel/params.h"

/* Fill the weights (in bf16 the masters) that this rank owns, on this many threads of the host;
 * bucket_transfer_start_weights sends them. TP_E_NOMEM, or the device's failure. */
tp_status weight_init(const struct params *p, const struct layout *l, const struct model *m,
                      uint64_t seed, int threads, struct tp_err *err);

/* Element `index` (row-major, of the whole tensor) of tensor `name`: a standard normal number. */
double weight_init_normal(uint64_t seed, const char *name, int64_t index);

#endif
