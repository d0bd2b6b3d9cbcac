/*
 * reshard/formats/torch/torchtitan_bias.h - what torchtitan adds to the scores that choose experts,
 * so that all get tokens: a buffer of each layer, which no other framework's Qwen3-MoE has. Inside
 * reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCHTITAN_BIAS_H
#define RESHARD_FORMATS_TORCH_TORCHTITAN_BIAS_H

#include "layout/model.h"
#include "reshard/formats/torch/dcp_items.h"

/* Add what is not among the items yet, by all of its names: that of the source if it is there by
 * one of them, else zeros, with which torchtitan begins. A model without experts has none. */
tp_status torchtitan_bias_add(struct dcp_items *d, const struct model *m, struct tp_err *err);

#endif
