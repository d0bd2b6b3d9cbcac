/*
 * trainer/context/ring_attention.h - attention over a sequence that is cut over ranks: ring
 * attention (Liu, Zaharia and Abbeel 2023), causal, in the balanced cut of
 * trainer/context/zigzag.h.
 *
 * Each rank's queries stay. Keys and values travel around the ring of the n cp ranks, one block
 * (all that a rank has of the microbatch) at a time. Results are merged by their log-sum-exp. For a
 * block of rank j, rank r needs no mask:
 *
 *     j = r    its own block: ordinary causal attention, because its tokens are in order
 *     j < r    all its rows see the first half of the block, and none sees the second half
 *     j > r    the second half of its rows sees all of the block, and the first half nothing
 *
 * So every step except the first is the same work, half a square, on every rank. In the backward
 * pass keys and values travel again, and the gradients of a block travel with it back to its rank.
 * Sent to the next rank, for each layer and microbatch:
 *
 *     forward     n - 1 times [rows][2 kv_width] of the run's type
 *     backward    the same, and n - 1 times [rows][2 kv_width] floats
 *
 * A rank forwards a block before it computes with it, and receives the next one after that. So
 * ranks wait for each other only when one of them is slower.
 */
#ifndef TRAINER_CONTEXT_RING_ATTENTION_H
#define TRAINER_CONTEXT_RING_ATTENTION_H

#include "comm/collective.h"
#include "kernels/ops.h"
#include "trainer/sizing/activations.h"

/* The ranks of a ring, and what each computes with. */
struct ring_group {
    const struct kernel_queue *k;
    struct comm *cp;
    int64_t q_width, kv_width, qkv_width; /* of this rank's heads: elements of a row */
};

/* Open the requests. Nothing without cp. TP_E_NOMEM. */
tp_status ring_attention_open(struct ring_buffers *r, const struct ring_group *g,
                              struct tp_err *err);

/* attention_forward of a, this rank's rows, over all ranks' keys. sum: a->batch * a->seq rows of
 * a->ldo floats that are free. Without cp it is attention_forward. */
void ring_attention_forward(const struct ring_group *g, struct ring_buffers *r,
                            const struct attention *a, float *sum);

/* attention_backward; the gradients of q, k, v lie side by side in dqkv, [rows][qkv_width]. */
void ring_attention_backward(const struct ring_group *g, struct ring_buffers *r,
                             const struct attention *a, const void *d_out, float *dqkv);

/* Until the next rank has all that was sent to it. */
void ring_attention_wait(const struct ring_group *g, const struct ring_buffers *r);

#endif
