/*
 * reshard/target_layout.h - which tensors a reshard copies, and how they are laid out in the
 * target.
 */
#ifndef RESHARD_TARGET_LAYOUT_H
#define RESHARD_TARGET_LAYOUT_H

#include "ckpt/root.h"
#include "reshard/engine/endpoint.h"

/* All borrowed. */
struct target_layout_request {
    const struct ckpt_found *from;
    const char *from_spec;   /* the layout that `from` must have; NULL: any */
    const char *to_spec;     /* axes that it does not name stay as they are */
    bool no_optim;           /* weights only */
    const enum dtype *dtype; /* of the weights; NULL: as they are */
};

/* In the arena. */
struct target_layout {
    struct layout layout;
    struct spec kept; /* the axes that to_spec did not name */
    int *ids;         /* [n_tensors] the same tensors in the manifest of `from` */
    const struct reshard_tensor *tensors; /* [n_tensors] of the transfer */
    int n_tensors;
};

/* TP_E_USAGE: a spec is wrong, or there are no tensors. TP_E_LAYOUT: `from` has another layout, or
 * the new one does not divide the tensors. */
tp_status target_layout_make(struct target_layout *out, const struct target_layout_request *q,
                             struct arena *arena, struct tp_err *err);

#endif
