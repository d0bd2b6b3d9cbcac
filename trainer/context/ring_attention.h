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
 * While a rank computes with a block, it sends that block on and receives the next one, and
 * gradients of the block before travel, on a queue of their own. So it waits for other ranks only
 * when one of them is slower, or the network is; and at the end of the backward pass for the
 * gradients of its own block.
 */
#ifndef TRAINER_CONTEXT_RING_ATTENTION_H
#define TRAINER_CONTEXT_RING_ATTENTION_H

#include "comm/collective.h"
#include "kernels/ops.h"
#include "trainer/sizing/activations.h"

/* The ranks of a ring, the queues, and the widths of this rank's heads. */
struct ring_group {
    const struct kernel_queue *k;
    struct comm *cp;
    int64_t q_width, kv_width, qkv_width; /* elements of a row */
    /* with cp; ring_attention_open fills these in */
    struct device_queue *queue; /* blocks and gradients travel on it */
    struct device_event *ready; /* of k: this rank has computed with the blocks before */
    struct device_event *kv_is_here, *dkv_is_here; /* of `queue`: the next block or gradients */
};

/* Open the queue and the events, and connect the ranks; without cp this does nothing. Collective
 * over the ring. End with ring_attention_close, also after a failure. TP_E_NOMEM, TP_E_IO,
 * TP_E_COMM. */
tp_status ring_attention_open(struct ring_group *g, struct device *d, struct tp_err *err);
void ring_attention_close(struct ring_group *g);

/* attention_forward of `a`, which has this rank's rows, over all ranks' keys. sum: memory for
 * a->batch * a->seq rows of a->ldo floats. Without cp it is attention_forward. */
void ring_attention_forward(const struct ring_group *g, const struct ring_buffers *r,
                            const struct attention *a, float *sum);

/* The gradients of q, k and v, side by side: dqkv[rows][qkv_width], type. sums: with cp memory for
 * them in f32, in which the blocks' are added; dqkv itself if that is f32. */
struct ring_gradients {
    void *dqkv;
    enum dtype type;
    float *sums;
};

/* attention_backward. */
void ring_attention_backward(const struct ring_group *g, const struct ring_buffers *r,
                             const struct attention *a, const void *d_out,
                             const struct ring_gradients *to);

#endif
