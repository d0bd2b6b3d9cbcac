/*
 * layout/layout.h - which rank holds which part of which tensor.
 *
 * A layout is a mesh (layout/spec.h), the placement of every tensor (layout/tensor.h), and a table
 * from layers to pipeline stages. Tensor parallelism cuts a tensor as its placement says; a stage
 * holds whole layers; ZeRO cuts what is left along the first axis. So what a rank holds of a tensor
 * is always a short list of boxes. Pure arithmetic: no I/O.
 */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/box.h"
#include "layout/spec.h"
#include "layout/tensor.h"

struct layout {
    struct spec spec;
    int n_layers;
    int *stage_of; /* [n_layers] virtual stage, 0 .. pp * vpp - 1; it runs on pp rank stage % pp */
    int n_tensors;
    struct tensor *tensors;
    const struct tensor **by_name; /* layout_index; NULL: there is none */
};

/* Make a layout: check that the spec fits the tensors and layers, and give each virtual stage its
 * layers. `tensors` is borrowed; stage_of lives in the arena. TP_E_LAYOUT: the spec does not fit;
 * the message of layout_check, with the nearest specs that do fit. */
tp_status layout_make(struct layout *out, const struct spec *spec, int n_layers,
                      struct tensor *tensors, int n_tensors, struct arena *arena,
                      struct tp_err *err);

/* Number of layers of virtual stage `stage`: as even as possible, the first stages one more. */
int layout_stage_layers(int n_layers, int64_t n_stages, int64_t stage);

/* The part of the ep ranks that has tensor t's expert; -1: all ranks have it, also without ep. */
int layout_ep_of(const struct spec *s, const struct tensor *t);

/* The pp rank that holds `layer`, which may be LAYER_FIRST or LAYER_LAST. */
int layout_stage_rank(const struct layout *l, int layer);

/* Whether `rank` has tensor t: is on its pipeline stage, and with ep has its expert. */
bool layout_holds(const struct layout *l, int t, int rank);

/* An owner under ZeRO: neighbouring ranks of dp x cp that hold the same part of a tensor. */
struct layout_owner {
    int number, of; /* 0 .. of - 1 */
};

/* Among how many owners ZeRO divides this tensor: with zero1 the optimizer state, with zero3
 * everything, among the dp ranks. Experts that ep divides are divided by zero3 alone, among the dp
 * x cp / ep ranks that have them. 1: it is not divided. */
int layout_owners(const struct spec *s, const struct tensor *t);

/* The owner to which a rank belongs. */
struct layout_owner layout_owner_of(const struct spec *s, const struct tensor *t,
                                    struct mesh_coord at);

/* The boxes of tensor t that `rank` stores. None is empty; they are in storage order. Returns their
 * number, 0 .. TENSOR_BOXES_MAX. */
int layout_boxes(const struct layout *l, int t, int rank, struct box *boxes);

/* The same by tensor parallelism alone, without stages and ZeRO: what a tp rank computes with. */
int layout_tp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, struct box *boxes);

/* The same by tensor parallelism and ZeRO: what an owner has of what tp_rank computes with. */
int layout_owned_boxes(const struct tensor *t, const struct spec *s, int tp_rank,
                       struct layout_owner owner, struct box *boxes);

/* The first of the tp ranks that hold the same part of t as tp_rank: they are neighbours. tp_rank
 * itself when it holds nothing. */
int layout_first_holder(const struct tensor *t, const struct spec *s, int tp_rank);

/* Order the tensors by group, then name, in l->by_name, which lives in the arena: models with many
 * experts have 100,000 tensors, of which each is looked up. layout_make calls this. Whoever changes
 * names or tensors afterwards calls it again. TP_E_NOMEM. */
tp_status layout_index(struct layout *l, struct arena *arena, struct tp_err *err);

/* Index of the tensor (group, name); -1: there is none. Bisection, or without an index a search
 * through all. */
int layout_find(const struct layout *l, const char *group, const char *name);

#endif
