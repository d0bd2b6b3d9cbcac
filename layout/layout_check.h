/*
 * layout/layout_check.h - whether a mesh divides the tensors and layers of a model.
 */
#ifndef LAYOUT_LAYOUT_CHECK_H
#define LAYOUT_LAYOUT_CHECK_H

#include "core/err.h"
#include "layout/spec.h"
#include "layout/tensor_kinds.h"

/* TP_E_LAYOUT: a tensor is not divisible by tp, or there are fewer layers than stages; the message
 * names the tensor, the axis and the numbers. */
tp_status layout_check(const struct spec *spec, int n_layers, const struct tensor_kinds *kinds,
                       struct tp_err *err);

#endif
