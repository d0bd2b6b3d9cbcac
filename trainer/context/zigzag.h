/*
 * trainer/context/zigzag.h - which tokens of a sequence a rank has when context parallelism cuts
 * it.
 *
 * A sequence of T tokens over n ranks is 2 n blocks of T / (2 n) tokens. Rank r has blocks r and
 * 2 n - 1 - r, in this order. Under a causal mask the rows of a late block attend to many keys and
 * the rows of an early block to few. With one block of each kind, all ranks have the same work
 * (Llama 3, 2024, section 3.3; after Zhu 2024, zigzag ring attention). On one rank the two blocks
 * are the whole sequence.
 */
#ifndef TRAINER_CONTEXT_ZIGZAG_H
#define TRAINER_CONTEXT_ZIGZAG_H

#include <stdint.h>

#include "layout/spec.h"

struct zigzag {
    int64_t seq; /* tokens of the whole sequence; 2 n divides it unless n is 1 */
    int n, rank;
};

/* The cut of sequences of `seq` tokens for the cp rank `cp` of spec s. */
struct zigzag zigzag_of(const struct spec *s, int cp, int64_t seq);

/* The number of tokens of a sequence that the rank has. */
int64_t zigzag_tokens(const struct zigzag *z);

/* Position in the sequence of the rank's token number i. *run: how many of its tokens, from this
 * one on, are consecutive in the sequence. */
int64_t zigzag_position(const struct zigzag *z, int64_t i, int64_t *run);

#endif
