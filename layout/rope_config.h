/*
 * layout/rope_config.h - the rotary embedding of a config.json. transformers 5 writes
 * rope_parameters; older versions write rope_theta, rope_scaling and partial_rotary_factor, in
 * GPT-NeoX rotary_emb_base and rotary_pct. Where layers with a sliding window have their own,
 * rope_parameters has an object for each type of layer.
 */
#ifndef LAYOUT_ROPE_CONFIG_H
#define LAYOUT_ROPE_CONFIG_H

#include <jansson.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/rope_scaling.h"

struct rope_config {
    double theta;
    struct rope_scaling scaling;
    char unknown[48]; /* a type of scaling that is not known here; "" */
    double part;      /* of each head that is rotated; 0: it is not said */
};

/* Read it from the object `root`; theta is `fallback` when there is none. Lists of longrope are in
 * the arena; its factor is 0 where config.json has none. `path` is for messages. TP_E_USAGE: a
 * value is not what it must be; the message names it. */
tp_status rope_config_read(struct rope_config *out, json_t *root, double fallback, const char *path,
                           struct arena *arena, struct tp_err *err);

/* Read theta of the layers with a sliding window of a model where these have their own;
 * *is_scaled: it has a type of scaling too. Without one, theta is `fallback` where rope_parameters
 * has objects for types of layers, as transformers 5 writes it, else `common`. The rest as
 * rope_config_read. */
tp_status rope_config_read_local(double *theta, bool *is_scaled, json_t *root, double fallback,
                                 double common, const char *path, struct tp_err *err);

#endif
