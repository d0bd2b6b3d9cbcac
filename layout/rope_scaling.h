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
    ROPE_SCALING_LINEAR,  /* positions are divided by the factor */
    ROPE_SCALING_DYNAMIC, /* a larger theta for sequences longer than max_position_embeddings,
                             which tp-train refuses: so none here */
    ROPE_SCALING_YARN,    /* Peng et al. 2023: only low frequencies are divided; louder logits */
    ROPE_SCALING_LLAMA3,  /* Llama 3.1: only low frequencies are divided */
    ROPE_SCALING_COUNT,
};

struct rope_scaling {
    enum rope_scaling_type type;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_positions;     /* llama3, yarn: of the model before it was stretched */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn: of cos and sin; 0: from the factor */
    double mscale, mscale_all_dim; /* yarn: another formula for it; 0: not given */
    bool truncate;                 /* yarn: the limits are whole pairs */
};

/* "llama3", as in config.json; NONE is "default". */
const char *rope_scaling_name(enum rope_scaling_type type);

/* What frequencies depend on. */
struct rope_scaling_embedding {
    int64_t head_dim;
    double theta;
    struct rope_scaling scaling;
};

/* The angle between two neighbouring positions of pair i < head_dim / 2, in radians. */
double rope_scaling_frequency(const struct rope_scaling_embedding *f, int64_t i);

/* What cos and sin are multiplied by: 1, except for yarn. */
double rope_scaling_attention_factor(const struct rope_scaling *s);

#endif
