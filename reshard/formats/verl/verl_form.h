/*
 * reshard/formats/verl/verl_form.h - writes a DTensor in the form in which a source has one, for
 * another number of ranks: versions of torch pickle meshes in different forms, and take only their
 * own. Inside reshard/formats/verl/ only.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_FORM_H
#define RESHARD_FORMATS_VERL_VERL_FORM_H

#include "reshard/formats/torch/module_param.h"
#include "reshard/formats/verl/verl_tensor.h"

/* A rank's file that is being written. */
struct verl_form {
    struct torch_target *x;
    int rank;
    struct verl_mesh mesh; /* the new one: as many axes as the source's */
    int memo;              /* of the mesh; -1: it was not written yet */
};

/* Push box `box` of what `group` has of p as the part of a DTensor that is cut along `axis`. `v` is
 * the source's. What the form has beside the known is copied if it is plain, and nothing that a
 * program would call. *known: false when there is something else in it. */
tp_status verl_form_push(bool *known, struct verl_form *f, const struct pickle_value *v,
                         const struct module_param *p, const char *group, int axis,
                         const struct box *box, struct tp_err *err);

#endif
