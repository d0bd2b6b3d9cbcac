/*
 * layout/spec.h - a mesh of ranks, and the text that names it: `tp8`, `tp4pp2vpp2dp2zero1`.
 *
 * The axes of the mesh are pp, dp, cp and tp, tp fastest, as in Megatron-LM:
 * rank = ((pp_rank * dp + dp_rank) * cp + cp_rank) * tp + tp_rank. ep is not an axis of its own: it
 * divides the ranks of dp x cp.
 */
#ifndef LAYOUT_SPEC_H
#define LAYOUT_SPEC_H

#include <stdbool.h>

#include "core/err.h"

enum { SPEC_TEXT_MAX = 64, SPEC_DEGREE_MAX = 65536 };

/* Bits of spec.given. */
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
    int ep;                  /* >= 1: neighbours of dp x cp share the experts of a mixture */
    int zero;                /* over dp: 0 replicate; 1 shard optimizer state; 3 parameters too */
    bool sp;                 /* Megatron's sequence parallelism over the tp ranks */
    unsigned given;          /* what the text named */
};

/* A rank's coordinates in the mesh. */
struct mesh_coord {
    int pp, dp, cp, tp;
};

/* All degrees 1, zero 0, no sp. */
struct spec spec_default(void);

/* Read a spec: axes with degrees in any order and any case, each at most once, as `tp8pp2` or
 * `tp=8,pp=2`. zero2 is read as zero1. Axes that are not named have their defaults. TP_E_USAGE: it
 * is not a spec, a degree is out of range, or an axis is named twice. vpp > 1 with pp 1, and an ep
 * that does not divide dp x cp, are accepted here, because pp and dp may come from spec_fill;
 * layout_check refuses them. */
tp_status spec_parse(struct spec *out, const char *text, struct tp_err *err);

/* Take every axis that `s` does not name from `base`. */
void spec_fill(struct spec *s, const struct spec *base);

/* The axes that spec_fill would take: those that `s` does not name and that are not at their
 * defaults in `base`. All other axes of the result have their defaults; `given` has the bits of the
 * kept ones. */
struct spec spec_kept(const struct spec *s, const struct spec *base);

/* Write the axes of s->given in the order of spec_format, "" when there are none. Returns buf. */
char *spec_format_given(char buf[SPEC_TEXT_MAX], const struct spec *s);

/* Whether `other` has the same value in every axis that `s` names. */
bool spec_matches(const struct spec *s, const struct spec *other);

/* Write the canonical text to buf: tp, then what differs from its default, in the order of
 * "tp8pp2vpp2cp2ep2dp4spzero1". Returns buf. */
char *spec_format(char buf[SPEC_TEXT_MAX], const struct spec *s);

/* The same, with the axes of `named` (bits of spec.given) also where they have their defaults:
 * "tp4ep1". sp has no degree, so it is written only where it is on. */
char *spec_format_with(char buf[SPEC_TEXT_MAX], const struct spec *s, unsigned named);

/* Number of ranks: tp * pp * dp * cp. */
int spec_world(const struct spec *s);

/* Which part of the experts a rank has, 0 .. ep - 1. The ranks that have the same part are the
 * replicas of the experts. Neighbours in dp x cp have different parts, as in Megatron-LM. */
int mesh_ep_of(const struct spec *s, struct mesh_coord c);

/* From a rank to its coordinates, and back. */
struct mesh_coord mesh_coord_of(const struct spec *s, int rank);
int mesh_rank_of(const struct spec *s, struct mesh_coord c);

#endif
