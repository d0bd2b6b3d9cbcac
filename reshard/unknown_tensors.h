/*
 * reshard/unknown_tensors.h - the tensors of a safetensors folder that its model does not have.
 *
 * A model that computes with more tensors than its config.json says is another model, so a tensor
 * is left out only when that loses nothing or when the user says so.
 */
#ifndef RESHARD_UNKNOWN_TENSORS_H
#define RESHARD_UNKNOWN_TENSORS_H

#include "layout/model.h"
#include "layout/tensor.h"
#include "reshard/formats/safetensors/safetensors.h"

enum { UNKNOWN_TENSORS_TEXT = 700 };

/* Names to leave out on purpose; * matches any text, ? one character. Borrowed. */
struct unknown_tensors_ignore {
    const char *const *names;
    int n;
};

/* Whether one of the patterns matches the whole name. */
bool unknown_tensors_ignores(const struct unknown_tensors_ignore *ignore, const char *name);

/* What is left out. */
struct unknown_tensors {
    int n;
    char text[UNKNOWN_TENSORS_TEXT]; /* their names, "model.layers.*.self_attn.inv_freq (32)"; "" */
};

/* What a source has. */
struct unknown_tensors_found {
    const char *path;
    const char **names; /* of tensors */
    int n;
    const char **others; /* that are not weights, and stay behind without a question */
    int n_others;
};

/* Compare the tensors of s with the n_known parameters of m. Buffers that are computed anyway
 * (rotary inv_freq, GPT-2's causal mask attn.bias) and the copy of a tied head may be left out.
 * TP_E_USAGE: there are others, and the message lists them; or a name in `ignore` is none of
 * them. */
tp_status unknown_tensors_check(struct unknown_tensors *out, const struct safetensors_source *s,
                                const struct model *m, const struct tensor *known, int n_known,
                                const struct unknown_tensors_ignore *ignore, struct tp_err *err);

/* The same for a list of names. */
tp_status unknown_tensors_check_names(struct unknown_tensors *out,
                                      const struct unknown_tensors_found *found,
                                      const struct model *m, const struct tensor *known,
                                      int n_known, const struct unknown_tensors_ignore *ignore,
                                      struct tp_err *err);

#endif
