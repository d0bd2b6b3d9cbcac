/*
 * trainer/model/expert_exchange.h - the copies of tokens on their way to the ranks of their experts
 * and back, and how many there are. Without ep nothing is sent.
 *
 * The numbers are in device memory. Some devices' products and collectives take them from the host
 * (reads_rows_on_host of kernels/ops.h). For these the host waits once for each microbatch and
 * layer, in the forward pass, and once more when it is recomputed: the only waits in the middle of
 * a step. A backward pass uses the numbers of its forward pass.
 */
#ifndef TRAINER_MODEL_EXPERT_EXCHANGE_H
#define TRAINER_MODEL_EXPERT_EXCHANGE_H

#include "trainer/model/pass.h"
#include "trainer/tensor/expert_linear.h"

/* After the copies were sorted: tell each rank how many copies it gets, and copy the numbers to the
 * host if the device needs them there. */
void expert_exchange_counts(const struct pass *p, const struct activations_experts *e);

/* Wait for the numbers. Work that needs none should be queued before this call: the device does it
 * while the host waits. */
void expert_exchange_wait(const struct pass *p, const struct activations_experts *e);

/* The rows of this rank's experts; after expert_exchange_wait. Borrows from e. */
struct expert_linear_rows expert_exchange_rows(const struct pass *p,
                                               const struct activations_experts *e);

/* Send every copy to the rank of its expert, in its order; rows of row_bytes. Returns where this
 * rank's experts find theirs: `to`, or without ep `copies` itself. */
const void *expert_exchange_dispatch(const struct pass *p, const struct activations_experts *e,
                                     void *to, const void *copies, int64_t row_bytes);

/* The other way: returns the results of this rank's own copies. */
const void *expert_exchange_collect(const struct pass *p, const struct activations_experts *e,
                                    void *to, const void *results, int64_t row_bytes);

#endif
