/*
 * reshard/formats/deepspeed/deepspeed_extras.h - what a DeepSpeed folder has besides weights and
 * AdamW's state: schedules, a program's own objects, the scale of the loss, state of other
 * optimizers. It stays behind and is listed; inside reshard/formats/ only.
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_EXTRAS_H
#define RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_EXTRAS_H

#include "reshard/formats/deepspeed/deepspeed_state.h"

/* The root of a file of model states. */
tp_status deepspeed_extras_model(const struct deepspeed_state *d, const struct pickle_value *root,
                                 struct tp_err *err);

/* A rank's optimizer_state_dict. AdamW's options are taken over. */
tp_status deepspeed_extras_optimizer(const struct deepspeed_state *d,
                                     const struct pickle_value *state, struct tp_err *err);

/* The folders of a Universal checkpoint, and its zero/optimizer_state.pt. TP_E_CORRUPT: there is a
 * folder of a parameter that param_shapes does not have. */
tp_status deepspeed_extras_universal(const struct deepspeed_state *d, struct tp_err *err);

#endif
