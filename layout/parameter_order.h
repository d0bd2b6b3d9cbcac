/*
 * layout/parameter_order.h - the order of a model's parameters in transformers: that in which its
 * classes make their modules. named_parameters() has this order, and so have the numbers by which
 * an optimizer of PyTorch knows its parameters.
 *
 * Files do not say it, and the canonical order (layout/model_tensors.h) is another one. Some
 * families have several orders, because versions of transformers differ.
 */
#ifndef LAYOUT_PARAMETER_ORDER_H
#define LAYOUT_PARAMETER_ORDER_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/module_name.h"
#include "layout/tensor.h"

struct parameter_order {
    unsigned families;       /* bit 1 << enum model_family */
    int since, before;       /* versions of transformers that have it: 4.45 is 445; before 0: all
                                later ones */
    const char *const roles; /* enum tensor_role in order, one in each byte; ends with ROLE_NONE.
                                Those of layers follow one another, and so do those of experts;
                                what a model does not have is passed over */
};

/* A parameter: a tensor of model_params, or with the newest order what the experts of a layer are
 * stacked in. */
struct parameter_order_item {
    const struct tensor *tensor; /* of stacked experts the first */
    struct module_name module;   /* its name there, before transformers 5 that of the file */
};

/* The orders of a family, the newest first; NULL: there are no more. */
const struct parameter_order *parameter_order_of(enum model_family family, int i);

/* Whether a version of transformers has this order. */
bool parameter_order_is_of(const struct parameter_order *o, int version);

/* The parameters of a model in this order. `tensors` are the n of its model_params, which *out
 * points into; it lives in the arena. */
tp_status parameter_order_list(struct parameter_order_item **out, int *n_out,
                               const struct parameter_order *o, const struct model *m,
                               const struct tensor *tensors, int n, struct arena *arena,
                               struct tp_err *err);

/* The shape of a parameter; returns its number of axes. */
int parameter_order_shape(int64_t shape[BOX_NDIM_MAX], const struct parameter_order_item *p);

#endif
