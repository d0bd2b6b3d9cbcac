/*
 * reshard/formats/pt/pt_contents.h - where in the pickle of a program's file its model and its
 * optimizer are. Inside reshard/formats/pt/ only.
 *
 * Programs choose their own keys: {"model_state_dict", "optimizer_state_dict"} in PyTorch's
 * tutorial, {"state_dict", "optimizer_states": [...]} in Lightning, or the names of weights
 * directly. So both are recognized by what they contain: weights by tensors whose names have dots,
 * an optimizer by `state` and `param_groups`.
 */
#ifndef RESHARD_FORMATS_PT_PT_CONTENTS_H
#define RESHARD_FORMATS_PT_PT_CONTENTS_H

#include <stdbool.h>

#include "core/arena.h"
#include "core/err.h"
#include "reshard/formats/pieces/piece.h"
#include "torch/pickle_value.h"

/* How deep parts may be: {"state": {"model": ...}}. */
enum { PT_PARTS_MAX = 16, PT_DEPTH_MAX = 2 };

/* A part of the file. */
struct pt_part {
    const struct pickle_value *value;
    const char *title;          /* its keys: "model", "optimizer_states.0"; "": the whole file */
    int64_t path[PT_DEPTH_MAX]; /* which entries of dicts and items of lists lead to it */
    int depth;                  /* how many: 0, the whole file */
};

struct pt_contents {
    struct pt_part weights[PT_PARTS_MAX], optimizers[PT_PARTS_MAX];
    int n_weights, n_optimizers;
    const char *module; /* class of an nn.Module that was saved itself; NULL: there is none */
};

/* Look for weights and optimizers. Further ones than PT_PARTS_MAX are not listed. Titles live in
 * the arena. TP_E_NOMEM. */
tp_status pt_contents_find(struct pt_contents *out, const struct pickle_value *root,
                           struct arena *arena, struct tp_err *err);

/* The weights of the model: the only ones, or those with the usual key, where a program keeps an
 * average of them too. NULL: there are none, or that is not clear. */
const struct pt_part *pt_contents_model(const struct pt_contents *c);

/* Whether an optimizer has state. */
bool pt_contents_has_state(const struct pt_contents *c);

/* The optimizer: the only one that has state. NULL: there is none, or several. */
const struct pt_part *pt_contents_optimizer(const struct pt_contents *c);

/* Note what is neither the model nor its optimizer (NULL: there is none) as left behind: of the
 * file whose root this is, by titles, and of what has one of them inside, what is beside it. */
tp_status pt_contents_leave(struct piece_source *s, const struct pickle_value *root,
                            const struct pt_part *model, const struct pt_part *optimizer,
                            struct tp_err *err);

enum { PT_TITLES_TEXT = 400 };

/* The titles of parts, for messages. Returns text. */
const char *pt_contents_titles(char text[PT_TITLES_TEXT], const struct pt_part *parts, int n);

#endif
