/*
 * layout/spec.h - a mesh of ranks and the string that names it: `tp8`, `tp4pp2vpp2dp2zero1`.
 *
 * Axes of the mesh, slowest first: pp dp cp tp (Megatron-LM's order), so that rank =
 * ((pp * n_dp + dp) * n_cp + cp) * n_tp + tp.
 */
#ifndef LAYOUT_SPEC_H
#define LAYOUT_SPEC_H

#include <stdbool.h>

#include "core/err.h"

enum { SPEC_TEXT_MAX = 64, SPEC_DEGREE_MAX = 65536 };

/* Bits of spec.given: what the string named. */
enum {
    SPEC_TP = 1 << 0,
    SPEC_PP = 1 << 1,
    SPEC_VPP = 1 << 2,
    SPEC_DP = 1 << 3,
    SPEC_CP = 1 << 4,
    SPEC_EP = 1 << 5,
    SPEC_SP = 1 << 6,
    SPEC_ZERO = 1 << 7,
};

struct spec {
    int tp, pp, vpp, dp, cp; /* degrees, >= 1 */
    int zero;                /* 0: replicated over dp; 1: optimizer sharded; 3: parameters too */
    bool sp;                 /* Megatron sequence parallelism over the tp ranks */
    unsigned given;
};

/* A rank's place in the mesh. */
struct mesh_coord {
    int pp, dp, cp, tp;
};

/* All degrees 1, zero 0. */
struct spec spec_default(void);

/* Read a spec: axis and degree in any order, each at most once, any case, `tp8pp2`, `tp=8,pp=2`.
 * zero2 is read as zero1. Missing axes get their defaults; `given` tells which were named.
 * TP_E_USAGE: not a spec, degree 0 or absurd, axis twice; TP_E_LAYOUT: ep > 1 (no model here has
 * experts). That vpp > 1 needs pp > 1 is for layout_make: pp may come from spec_fill. */
tp_status spec_parse(struct spec *out, const char *text, struct tp_err *err);

/* Take every axis that `s` does not name from `base`. */
void spec_fill(struct spec *s, const struct spec *base);

/* Whether `s` agrees with `other` in every axis that `s` names. */
bool spec_matches(const struct spec *s, const struct spec *other);

/* The canonical text: tp always, then what differs from its default, as "tp8pp2vpp2cp2dp4spzero1".
 * Returns buf. */
char *spec_format(char buf[SPEC_TEXT_MAX], const struct spec *s);

/* Number of ranks: tp pp dp cp. */
int spec_world(const struct spec *s);

struct mesh_coord mesh_coord_of(const struct spec *s, int rank);
int mesh_rank_of(const struct spec *s, struct mesh_coord c);

#endif
