/*
 * trainer/sizing/param_count.h - how much memory a rank's parameters need, from the tensors of one
 * layer. All layers are the same, so one is counted, times the number of the rank's layers.
 */
#ifndef TRAINER_SIZING_PARAM_COUNT_H
#define TRAINER_SIZING_PARAM_COUNT_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "trainer/sizing/param_list.h"
#include "trainer/sizing/param_spans.h"

/* A model's tensors before the layers, of one layer, and after the layers. */
struct param_tensors {
    int n;
    struct tensor *tensors;
    bool ties; /* the head uses the embedding's weights */
};

/* Lives in the arena. Errors as model_params. */
tp_status param_tensors_list(struct param_tensors *out, const struct model *m, struct arena *arena,
                             struct tp_err *err);

/* How many buckets there are, and the largest part of a bucket that an owner has. */
struct param_buckets {
    int64_t n, grads, weight_bytes;
};

/* Entries that follow each other in a rank's list. */
struct param_unit {
    int64_t n_entries, n;               /* n: elements, without gaps */
    int64_t elements, vectors, partial; /* in the spans */
    int64_t owned, owned_partial;       /* of the first owner */
    int64_t owned_grads, owned_bytes;   /* in a pack of the whole unit */
    int64_t expert_grads, expert_bytes; /* zero3 with ep: in a pack of its experts */
    int64_t table, owned_table;         /* up to the embedding's end */
    int64_t rows;                       /* counted in the norm */
    int64_t places;                     /* numbers of the norm, for all ranks of a stage */
    struct param_buckets buckets;       /* when it has buckets of its own */
};

/* The parts of a model, as far as the first rank of a stage has them. */
struct param_units {
    struct param_rank rank;
    struct param_unit before, copy, layer, after; /* copy: of the embedding, on the last stage */
};

struct param_units param_units_count(const struct param_tensors *t, const struct param_rank *r);

/* A stage of a pipeline. */
struct param_stage {
    bool is_first, is_last;
    int64_t n_layers, model_layers; /* of this rank, and of the model */
    int n_levels;                   /* --same-bits: same_bits_tree_levels */
};

/* The sizes of the first rank of the stage; no other rank of it needs more. */
struct param_sizes param_sizes_count(const struct param_units *u, const struct param_stage *s);

#endif
