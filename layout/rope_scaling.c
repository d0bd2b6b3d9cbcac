/* layout/rope_scaling.c - see layout/rope_scaling.h. */
#include "layout/rope_scaling.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586476925286766559;

static const char *const names[ROPE_SCALING_COUNT] = {
    [ROPE_SCALING_NONE] = "default",    [ROPE_SCALING_LINEAR] = "linear",
    [ROPE_SCALING_DYNAMIC] = "dynamic", [ROPE_SCALING_YARN] = "yarn",
    [ROPE_SCALING_LLAMA3] = "llama3",   [ROPE_SCALING_LONGROPE] = "longrope",
};

const char *rope_scaling_name(enum rope_scaling_type type)
{
    return names[type];
}

/* Long wavelengths are divided by the factor, short ones are kept, and those between are mixed. */
static double llama3_frequency(const struct rope_scaling *s, double frequency)
{
    double turns = s->original_positions * frequency / TWO_PI, kept;

    if (turns > s->high_freq_factor)
        return frequency;
    if (turns < s->low_freq_factor)
        return frequency / s->factor;
    kept = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - kept) * frequency / s->factor + kept * frequency;
}

/* The pair, as a fraction, that turns `turns` times over the original positions. */
static double yarn_pair(const struct rope_scaling_embedding *f, double turns)
{
    double rotary_dim = (double)f->rotary_dim;

    return rotary_dim * log(f->scaling.original_positions / (turns * TWO_PI)) / (2 * log(f->theta));
}

/* Pairs below `low` are kept, those above `high` are divided by the factor. */
static double yarn_frequency(const struct rope_scaling_embedding *f, int64_t i, double frequency)
{
    const struct rope_scaling *s = &f->scaling;
    double low = yarn_pair(f, s->beta_fast), high = yarn_pair(f, s->beta_slow), divided;

    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)f->rotary_dim - 1);
    if (low == high)
        high += 0.001;
    divided = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return frequency / s->factor * divided + frequency * (1 - divided);
}

/* transformers takes one list or the other for all tokens of a sequence. */
static double longrope_frequency(const struct rope_scaling_embedding *f, int64_t i,
                                 double frequency)
{
    const struct rope_scaling *s = &f->scaling;
    bool is_long = (double)f->seq > s->original_positions;

    return frequency / (is_long ? s->long_factor : s->short_factor)[i];
}

double rope_scaling_frequency(const struct rope_scaling_embedding *f, int64_t i)
{
    double frequency = pow(f->theta, -2.0 * (double)i / (double)f->rotary_dim);

    switch (f->scaling.type) {
    case ROPE_SCALING_LINEAR:
        return frequency / f->scaling.factor;
    case ROPE_SCALING_YARN:
        return yarn_frequency(f, i, frequency);
    case ROPE_SCALING_LLAMA3:
        return llama3_frequency(&f->scaling, frequency);
    case ROPE_SCALING_LONGROPE:
        return longrope_frequency(f, i, frequency);
    default:
        return frequency;
    }
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double longrope_attention_factor(const struct rope_scaling *s)
{
    return s->factor <= 1 ? 1 : sqrt(1 + log(s->factor) / log(s->original_positions));
}

double rope_scaling_attention_factor(const struct rope_scaling *s)
{
    if (s->type != ROPE_SCALING_YARN && s->type != ROPE_SCALING_LONGROPE)
        return 1;
    if (s->attention_factor > 0)
        return s->attention_factor;
    if (s->type == ROPE_SCALING_LONGROPE)
        return longrope_attention_factor(s);
    if (s->mscale > 0 && s->mscale_all_dim > 0)
        return yarn_mscale(s->factor, s->mscale) / yarn_mscale(s->factor, s->mscale_all_dim);
    return yarn_mscale(s->factor, 1);
}
