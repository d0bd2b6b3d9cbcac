/*
 * trainer/context/ring_attention.h - attention over a sequence that is cut over ranks: ring
 * attention (Liu, Zaharia and Abbeel 2023), causal, in the balanced cut of
 * trainer/context/zigzag.h.
 *
 * Each rank keeps its queries. Keys and values travel around the ring of the n cp ranks, one block
 * (all keys and values that a rank has of the microbatch) at a time. Results are merged by their
 * log-sum-exp. For a block of rank j, rank r needs no mask:
 *
 *     j = r    its own block: ordinary causal attention, because its tokens are in order
 *     j < r    all its rows attend to the first half of the block, none to the second half
 *     j > r    the second half of its rows attends to all of the block, the first half to nothing
 *
 * With a window (a->window, in tokens) each half of the rows meets each half of the keys by itself,
 * where the window leaves some of them. Blocks travel all the same.
 *
 * So without a window, in every step except the first, every rank has the same work: half of rows *
 * keys. In the backward pass keys and values travel again, and the gradients of a block travel with
 * it back to its rank. Each rank sends to the next rank, for each layer and microbatch:
 *
 *     forward     n - 1 times [rows][2 kv_width] of the run's dtype
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

/* The ranks of a ring, the queue, and the widths of this rank's heads. */
struct ring_group {
    const struct kernel_queue *k;
    struct comm *cp;
    int64_t q_width, kv_width, qkv_width; /* elements of a row */
};

/* Open the requests; without cp this does nothing. TP_E_NOMEM. */
tp_status ring_attention_open(struct ring_buffers *r, const struct ring_group *g,
                              struct tp_err *err);

/* attention_forward of `a`, which has this rank's rows, over all ranks' keys. sum: memory for
 * a->batch * a->seq rows of a->ldo floats. Without cp it is attention_forward. */
void ring_attention_forward(const struct ring_group *g, struct ring_buffers *r,
                            const struct attention *a, float *sum);

/* The gradients of q, k and v, side by side: dqkv[rows][qkv_width], type. sums: with cp memory for
 * them in f32, in which the blocks' are added; dqkv itself if that is f32. */
struct ring_gradients {
    void *dqkv;
    enum dtype type;
    float *sums;
};

/* attention_backward. */
void ring_attention_backward(const struct ring_group *g, struct ring_buffers *r,
                             const struct attention *a, const void *d_out,
                             const struct ring_gradients *to);

/* Wait until the next rank has received everything that was sent to it. */
void ring_attention_wait(const struct ring_group *g, const struct ring_buffers *r);

#endif
