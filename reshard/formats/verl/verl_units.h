/*
 * reshard/formats/verl/verl_units.h - what an optimizer numbers: the parameters, or the flat
 * parameters of FSDP1's units. Inside reshard/formats/verl/ only.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_UNITS_H
#define RESHARD_FORMATS_VERL_VERL_UNITS_H

#include "reshard/formats/verl/verl_state.h"

enum verl_units_kind {
    VERL_UNITS_PARAMS, /* each parameter by itself */
    VERL_UNITS_LAYERS, /* the first unit is what is in no layer, the others are layers */
    VERL_UNITS_ONE,    /* all in one */
};

/* What has a number: all parameters from `first` to `last` that are of it, in this order. */
struct verl_unit {
    int first, last;
    int64_t elements;
};

struct verl_units {
    struct verl_state *d;
    enum verl_units_kind kind;
    struct verl_unit *list;
    int n;
    int *of; /* [n_params] the number of the unit; -1: none, as of buffers */
};

/* Allocate them; they live as long as the source. TP_E_NOMEM. */
tp_status verl_units_make(struct verl_units *out, struct verl_state *d, struct tp_err *err);

/* Number the parameters. tied: the head is left out, because it is the embedding. */
void verl_units_set(struct verl_units *u, enum verl_units_kind kind, bool tied);

/* Elements of a parameter. */
int64_t verl_units_elements(const struct verl_param *p);

/* How many elements each rank has of a unit, padding included. */
int64_t verl_units_part(const struct verl_units *u, int unit);

#endif
