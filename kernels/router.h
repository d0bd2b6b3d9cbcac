/*
 * kernels/router.h - the router of a mixture of experts: which experts compute a row, with which
 * weights; and the loss that balances the experts' load (Fedus et al. 2022).
 */
#ifndef KERNELS_ROUTER_H
#define KERNELS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"

enum { ROUTER_EXPERTS_MAX = 4096 };

/* probs[rows][experts], a score for each expert, becomes its softmax over the experts. chosen and
 * weights, [rows][per_row], get the experts with the largest probabilities, largest first, and
 * these probabilities; of equal ones the expert with the lower number comes first. With
 * is_normalized the weights of a row are divided by their sum. */
struct router_forward {
    float *probs;
    int32_t *chosen;
    float *weights;
    int64_t rows;
    int experts, per_row;
    bool is_normalized;
};

/* dlogits[rows][experts], `type`: the gradient of the scores, from that of the weights. The
 * others are as router_forward left them. counts: the first half of a struct router_load's load,
 * whose part of the gradient of each probability is balance * counts of the row's sequence; NULL:
 * no such part. */
struct router_backward {
    void *dlogits;
    enum dtype type;
    const float *dweights, *probs, *weights;
    const int32_t *chosen;
    int64_t rows;
    int experts, per_row;
    bool is_normalized;
    const float *counts;
    int64_t rows_per_sequence;
    float balance;
};

/* load[sequences][2][experts] += how many rows of the sequence have chosen the expert; the sum of
 * its probabilities over these rows. */
struct router_load {
    float *load;
    const float *probs;
    const int32_t *chosen;
    int64_t rows, rows_per_sequence;
    int experts, per_row;
};

/* *total += factor * the sum over sequences and experts of count * sum of probabilities. */
struct router_balance {
    double *total;
    const float *load; /* [sequences][2][experts] */
    int64_t sequences;
    int experts;
    double factor;
};

#endif
