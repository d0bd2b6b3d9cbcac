/*
 * layout/rope_scaling.h - how a model stretches its rotary embedding to longer sequences, and the
 * frequencies that follow. The names and formulas are those of transformers' rope_parameters.
 */
#ifndef LAYOUT_ROPE_SCALING_H
#define LAYOUT_ROPE_SCALING_H

#include <stdbool.h>
#include <stdint.h>

enum rope_scaling_type {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,   /* positions are divided by the factor */
    ROPE_SCALING_DYNAMIC,  /* a larger theta for sequences longer than max_position_embeddings,
                              which tp-train refuses: so none here */
    ROPE_SCALING_YARN,     /* Peng et al. 2023: only low frequencies are divided; louder logits */
    ROPE_SCALING_LLAMA3,   /* Llama 3.1: only low frequencies are divided */
    ROPE_SCALING_LONGROPE, /* Ding et al. 2024: each pair has divisors of its own, one for sequences
                              within the original positions, one for longer ones; louder logits */
    ROPE_SCALING_COUNT,
};

struct rope_scaling {
    enum rope_scaling_type type;
    double factor; /* longrope: how many times the original positions there are */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_positions;   /* llama3, yarn, longrope: of the model before it was stretched */
    double beta_fast, beta_slow; /* yarn */
    double attention_factor;     /* yarn, longrope: of cos and sin; 0: from the factor */
    double mscale, mscale_all_dim;            /* yarn: another formula for it; 0: not given */
    bool truncate;                            /* yarn: the limits are whole pairs */
    const double *short_factor, *long_factor; /* longrope: [n_short], [n_long] divisors of the
                                                 pairs' frequencies */
    int n_short, n_long;                      /* 0: config.json has no list of numbers above 0 */
};

/* "llama3", as in config.json; NONE is "default". */
const char *rope_scaling_name(enum rope_scaling_type type);

/* What frequencies depend on. */
struct rope_scaling_embedding {
    int64_t rotary_dim; /* elements of a head that are rotated */
    double theta;
    struct rope_scaling scaling;
    int64_t seq; /* longrope: tokens of a sequence, which say whether it is a long one */
};

/* The angle between two neighbouring positions of pair i < rotary_dim / 2, in radians. */
double rope_scaling_frequency(const struct rope_scaling_embedding *f, int64_t i);

/* What cos and sin are multiplied by: 1, except for yarn and longrope. */
double rope_scaling_attention_factor(const struct rope_scaling *s);

#endif
