/*
 * layout/layout.h - which rank holds which part of which tensor: a mesh plus a rule a tensor.
 *
 * Every tensor has one name and one logical shape whatever the layout. A rule says how tensor
 * parallelism cuts it; pipeline stages take whole layers; ZeRO cuts what tensor parallelism left
 * along its first axis. Every cut is by one formula, ceil(units / parts) each, the last ones
 * shorter or empty. So what a rank holds is always a short list of boxes. Pure arithmetic on
 * values: no I/O.
 */
#ifndef LAYOUT_LAYOUT_H
#define LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "layout/model.h"
#include "layout/parallel_plan.h"
#include "layout/spec.h"

/* How tensor parallelism cuts a tensor: shard(dim, unit, blocks, repeat). */
struct placement {
    int dim;        /* axis that is cut; -1: every tp rank holds the whole tensor */
    int64_t unit;   /* elements on that axis that stay together: a head's rows, else 1; where `pad`
                       the last unit may be short */
    int blocks;     /* parts of a fused tensor, each cut by itself (GPT-2's c_attn: 3), else 1 */
    bool replicate; /* fewer units than ranks: neighbours hold the same part (KV heads) */
    bool uneven;    /* parts may be uneven or empty (the vocabulary); else they must divide */
};

enum {
    LAYER_FIRST = -1,     /* before the layers: on the first stage (embeddings, a tied head) */
    LAYER_LAST = -2,      /* after them: on the last stage (final norm, head) */
    TENSOR_BOXES_MAX = 8, /* boxes a rank can hold of one tensor: one per fused block */
};

/* The groups that AdamW needs. A group is any name; all but GROUP_PARAM are optimizer state. */
#define GROUP_PARAM      "param"
#define GROUP_MASTER     "master"
#define GROUP_EXP_AVG    "exp_avg"
#define GROUP_EXP_AVG_SQ "exp_avg_sq"

struct tensor {
    const char *name;  /* canonical: Hugging Face's */
    const char *group; /* "param", "exp_avg", ... */
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    struct placement placement;
    int layer; /* 0 .. n_layers - 1, LAYER_FIRST or LAYER_LAST */
    enum tensor_role
        role; /* what it is to the model; ROLE_NONE where only a checkpoint told of it */
};

struct layout {
    struct spec spec;
    int n_layers;
    int *stage_of; /* [n_layers] virtual stage 0 .. pp * vpp - 1; on rank stage % pp */
    int n_tensors;
    struct tensor *tensors;
};

/* One box that has to be stored, and the rank that writes it: what a rank holds, or a block of its
 * columns (layout/column_blocks.h). */
struct stored_box {
    int tensor; /* index in layout.tensors */
    int part;   /* 0, 1, ...: number of this box among the boxes of the tensor in its rank's file */
    int rank;   /* the writer, one of the holders, chosen to balance bytes */
    struct box box;
};

/* The parameters of a model in canonical order (embedding, layers, norm, head), group "param",
 * named and cut by the model's plan. A tied head is absent. *tensors lives in the arena.
 * TP_E_USAGE: the plan does not fit the model (parallel_plan_check). */
tp_status model_params(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                       struct arena *arena, struct tp_err *err);

/* The same tensors once for each group that training in `dtype` saves: param, then (bf16) master,
 * exp_avg, exp_avg_sq, which are f32. */
tp_status model_state(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                      struct arena *arena, struct tp_err *err);

/* Whether a spec divides every tensor and leaves layers for every stage. TP_E_LAYOUT names the
 * tensor, the axis and the numbers that do not divide. */
tp_status layout_check(const struct spec *spec, int n_layers, const struct tensor *tensors,
                       int n_tensors, struct tp_err *err);

/* Make a layout: checks that the spec divides every tensor and that there are layers for every
 * stage, and deals layers to stages evenly, the first stages one more. tensors is borrowed.
 * TP_E_LAYOUT names the tensor, the axis and the numbers that do not divide, and the nearest specs
 * that do.
 */
tp_status layout_make(struct layout *out, const struct spec *spec, int n_layers,
                      struct tensor *tensors, int n_tensors, struct arena *arena,
                      struct tp_err *err);

/* Layers of virtual stage `stage` of n_stages: even, the first stages one more. */
int layout_stage_layers(int n_layers, int64_t n_stages, int64_t stage);

/* Boxes of tensor t that `rank` holds: 0 .. TENSOR_BOXES_MAX, none empty, in storage order. */
int layout_boxes(const struct layout *l, int t, int rank, struct box *boxes);

/* Whether `rank` is on the pipeline stage that tensor t belongs to. */
bool layout_holds(const struct layout *l, int t, int rank);

/* As layout_boxes for `at` on the axes of tensor parallelism alone (no stages, no ZeRO): what a
 * rank computes with, when ZeRO shards what it stores. */
int layout_tp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, struct box *boxes);

/* As layout_tp_boxes, cut further as ZeRO cuts it: what dp rank `dp_rank` owns of it. */
int layout_dp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, int dp_rank,
                    struct box *boxes);

/* Every box of every tensor exactly once, with its writer; ordered by rank, then tensor, then part.
 * The same on every rank. TP_E_INTERNAL if the boxes of a tensor do not tile it (never, by tests).
 */
tp_status layout_stored_boxes(struct stored_box **extents, int *n, const struct layout *l,
                              struct arena *arena, struct tp_err *err);

/* Index of (group, name), or -1. */
int layout_find(const struct layout *l, const char *group, const char *name);

#endif
