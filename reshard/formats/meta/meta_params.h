/*
 * reshard/formats/meta/meta_params.h - params.json, the arguments of Meta's model and of Mistral's:
 * inside reshard/formats/meta/ only.
 */
#ifndef RESHARD_FORMATS_META_META_PARAMS_H
#define RESHARD_FORMATS_META_META_PARAMS_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"

/* What is not said is 0. */
struct meta_params {
    const char *path; /* of the file */
    int64_t dim, layers, heads, kv_heads, head_dim, hidden_dim, vocab, multiple_of, positions;
    int64_t window;
    double multiplier, norm_eps, rope_theta;
    bool scaled_rope; /* as Llama 3.1's */
    bool mistral;     /* it has arguments that only Mistral's model has */
};

/* Read that of a folder. TP_E_NOTFOUND: there is none. TP_E_USAGE: it is not such a file, or of a
 * model that is not read. */
tp_status meta_params_read(struct meta_params *out, const char *dir, struct arena *arena,
                           struct tp_err *err);

/* The width of the MLP that Meta's model computes from its arguments; 0: they do not say. */
int64_t meta_params_ffn(const struct meta_params *p);

struct meta_params_request {
    const struct model *model;
    int ranks;          /* it is cut over so many */
    bool old;           /* for Meta's code of before Llama 3, which has theta 10000 alone and no
                           argument for it, but in Code Llama's */
    const char *source; /* for messages */
};

/* The text for a model. TP_E_USAGE: it cannot be said there. */
tp_status meta_params_make(const char **text, const struct meta_params_request *q,
                           struct arena *arena, struct tp_err *err);

/* Whether it is a model of Meta's code of before Llama 3: the vocabulary of Llama 1, Llama 2 or
 * Code Llama, 32000 to 32016. */
bool meta_params_is_old(const struct model *m);

/* Llama 3.1 divides low frequencies by 8, Llama 3.2, whose head is tied, by 32. */
double meta_params_rope_factor(bool tied);

#define META_LOW_FREQ  1.0
#define META_HIGH_FREQ 4.0
#define META_POSITIONS 8192

#endif
