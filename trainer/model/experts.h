/*
 * trainer/model/experts.h - the MLP of a layer as a mixture of experts (Shazeer et al. 2017),
 * without a limit on the rows of an expert.
 *
 * The router chooses experts for each row; the row is copied once for each of them, and the copies
 * are sorted by expert. Each expert computes its copies as an MLP does, and a row's result is the
 * weighted sum of those of its copies. How many copies an expert has is known to the device
 * alone, unless its products need it on the host (trainer/model/expert_exchange.h).
 *
 * Tensor parallelism cuts each expert as an MLP. All tp ranks route all rows (with sp after they
 * were gathered), so they choose alike. A rank's copies give it only a part of the gradient of the
 * weights, and so of the router's outputs; the sum over ranks comes with that of the gradient of x,
 * and for the router's weight at the end of the step.
 *
 * Expert parallelism (Lepikhin et al. 2021) gives each of the ep ranks some of the experts. An
 * all-to-all sends the copies to the ranks of their experts, and another one sends the results
 * back; backward does the same with their gradients, and once more with the copies, which are not
 * kept. The weights go with the copies, and their gradients come back with those of the copies. A
 * rank's experts have rows from each rank, one rank's after the other's.
 *
 * The load: for each sequence and expert, how many copies the expert has had in all layers, and the
 * sum of its probabilities. The loss that balances the experts needs it. It follows the residual in
 * memory, so messages between pipeline stages have it too.
 */
#ifndef TRAINER_MODEL_EXPERTS_H
#define TRAINER_MODEL_EXPERTS_H

#include "trainer/model/pass.h"

/* How many rows s->up has, in device memory; NULL: always the same number. */
const int32_t *experts_count(const struct pass *p, const struct activations_layer *s);

/* s->up gets gate and up of each copy of s->mid_normed. */
void experts_up_forward(const struct pass *p, const struct network_layer *y,
                        struct activations_layer *s);

/* out, net.outer (memory for collectives), gets the results, from s->hidden. */
void experts_down_forward(const struct pass *p, const struct network_layer *y,
                          const struct activations_layer *s, void *out);

/* dy, `type`: the gradient of the results. scratch ffn_scratch gets that of s->hidden, which is
 * overwritten, and scratch dweights that of the weights. */
void experts_down_backward(const struct pass *p, const struct network_layer *y,
                           const struct activations_layer *s, const void *dy);

/* After experts_down_backward; dup, `type`: the gradient of s->up. scratch outer gets that of
 * s->mid_normed. */
void experts_up_backward(const struct pass *p, const struct network_layer *y,
                         const struct activations_layer *s, const void *dup);

/* ---- the load; without the loss that needs it these do nothing ---- */

/* Before the layers of a virtual stage: the load of the stages before it, which is at the end of
 * the residual `from` (NULL: there are none), goes to the end of the residual `to`. */
void experts_load_begin(const struct pass *p, float *to, const float *from);

/* After the forward pass of a layer: add its load. */
void experts_load_add(const struct pass *p, const struct activations_layer *s, float *to);

/* After all layers, the load is at the end of x: add the loss to *total, and put the load where
 * experts_up_backward reads it. */
void experts_load_loss(const struct pass *p, float *x, double *total);

#endif
