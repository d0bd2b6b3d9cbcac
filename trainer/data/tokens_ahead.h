/*
 * trainer/data/tokens_ahead.h - the tokens of the next step, which the host fetches while a device
 * computes this one. Their place in pinned memory is still read by then, so they wait in another.
 */
#ifndef TRAINER_DATA_TOKENS_AHEAD_H
#define TRAINER_DATA_TOKENS_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* Zeroed: nothing is fetched ahead. */
struct tokens_ahead {
    int32_t *tokens; /* [n] */
    int64_t n;
    int64_t first; /* the step's first sequence */
    bool is_full;
};

/* Copy the tokens of the step whose first sequence is `first` to out[n]. False: they are not
 * there. */
bool tokens_ahead_take(struct tokens_ahead *a, int64_t first, int32_t *out);

#endif
