/*
 * layout/workload.h - the work of a training step, and the meshes at which tp-train can do it.
 *
 * The rules that a model, a batch and a mesh make together stand here alone: tp-train refuses by
 * them (trainer/config.h), tp-run plans by them (orchestrator/fit.h). How tensors and layers divide
 * is for layout_check (layout/layout.h), what a rank's memory holds for layout/memory.h. Each
 * sentence names the flag, the numbers and what would do. Pure arithmetic.
 *
 * A batch or a length of 0 is not known (they are another trainer's): what depends on it is taken
 * to hold, but for workload_check_run.
 */
#ifndef LAYOUT_WORKLOAD_H
#define LAYOUT_WORKLOAD_H

#include <stdint.h>

#include "core/err.h"
#include "layout/dtype.h"
#include "layout/model.h"
#include "layout/recompute.h"
#include "layout/spec.h"

struct workload {
    enum dtype dtype;
    int64_t seq_length;        /* tokens in a sequence */
    int64_t global_batch_size; /* sequences in a step, over all ranks */
    int64_t micro_batch_size;  /* sequences that a dp rank takes at once; 0: workload_micro says */
    enum recompute recompute;
    int same_bits; /* tensor shards that there seem to be at every layout; 0: as tp has */
};

/* What tp-train does when it is not told. */
struct workload workload_default(void);

/* Sequences in a microbatch at s: those asked for, else all that a dp rank has, with same_bits 1
 * (the bits depend on it, so it must not depend on the layout). 0: the batch is not known. */
int64_t workload_micro(const struct workload *w, const struct spec *s);

/* Microbatches that a dp rank runs in a step. 0: the batch is not known. */
int64_t workload_micros(const struct workload *w, const struct spec *s);

/* What no layout can change: lengths and counts, the dtype, same_bits and the model. TP_E_USAGE. */
tp_status workload_check_run(const struct workload *w, const struct model *m, struct tp_err *err);

/* What s asks of the model (NULL: not known) and the batch, however that is cut into microbatches.
 * TP_E_LAYOUT. */
tp_status workload_check_mesh(const struct workload *w, const struct spec *s, const struct model *m,
                              struct tp_err *err);

/* What s asks of the microbatches; after workload_check_mesh. TP_E_USAGE, TP_E_LAYOUT. */
tp_status workload_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err);

#endif
