/*
 * trainer/model/head_norms.h - norms of the queries and keys of a layer: of each head (Qwen3,
 * Gemma 3), or one of all queries of a token and one of all its keys (OLMo 2).
 *
 * The columns of a norm of all heads are cut as the heads are. So ranks of tp, and the shards of
 * --same-bits, add up two numbers for each token: forward sums of squares, backward those of
 * d w x. Key-value heads that several of them hold are in these sums as often, and count so.
 */
#ifndef TRAINER_MODEL_HEAD_NORMS_H
#define TRAINER_MODEL_HEAD_NORMS_H

#include "trainer/model/pass.h"

/* Norm the queries and keys of qkv, net.inner, in their place. s->heads and s->head_stats keep what
 * backward needs. */
void head_norms_forward(const struct pass *p, const struct network_layer *y,
                        const struct activations_layer *s, void *qkv);

/* dqkv has the gradients of the queries and keys after the norms, and gets those before them. The
 * norms' own gradients are added to. */
void head_norms_backward(const struct pass *p, const struct network_layer *y,
                         const struct activations_layer *s, void *dqkv);

#endif
