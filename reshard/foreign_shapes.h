/*
 * reshard/foreign_shapes.h - whether the tensors of another framework's checkpoint have the shapes
 * of its config.json: for tp-ckpt verify.
 */
#ifndef RESHARD_FOREIGN_SHAPES_H
#define RESHARD_FOREIGN_SHAPES_H

#include "reshard/foreign_contents.h"

/* Compare weights, masters and moments of what was opened with the model of q->config, or of the
 * folder's config.json. *proved is whether all weights of that model were there to be compared; it
 * is false, without an error, where there is no config.json, or one of an unknown architecture or
 * of quantized weights that are not decoded. TP_E_CORRUPT: a tensor has another shape, or some
 * weights of the model are there and others are missing; the message names one. */
tp_status foreign_shapes_check(bool *proved, struct foreign_contents *c,
                               const struct foreign_contents_request *q, struct tp_err *err);

#endif
