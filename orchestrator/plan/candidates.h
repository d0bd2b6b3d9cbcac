/*
 * orchestrator/plan/candidates.h - which layout for the ranks that are left.
 *
 * Candidates are the layouts of at most the ranks there are on the axes that the job allows
 * (layouts.axes), or the job's own list (layouts.allow). Each is checked against the model
 * (layout_make), the global batch, which stays what it is, what tp-train asks of its axes, and a
 * rank's memory (layout/memory.h); what is refused says why. Enumerated are every tp, pp, cp and dp
 * that the model and the batch allow (of pp those whose largest stage is at most a third above the
 * mean), each mesh with and without vpp, sp and ZeRO; a degree that can never be is there once, by
 * itself, with the reason (above CANDIDATES_REFUSED_SHOWN only powers of two).
 *
 * For tp-train each candidate also gets the size of a microbatch and whether activations are
 * recomputed, where the command line leaves that open: the fastest predicted pair that fits
 * memory, so that recomputation is asked for only when memory forces it, and a pipeline gets
 * microbatches to fill it.
 *
 * Order: with a list (layouts.allow) the list's own. Else the shortest predicted step
 * (orchestrator/plan/cost.h); a way that was measured in this job has its own time. Equal within 2
 * %: fewer ranks, then the simpler layout.
 */
#ifndef ORCHESTRATOR_PLAN_CANDIDATES_H
#define ORCHESTRATOR_PLAN_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job.h"
#include "orchestrator/job/run_config.h"
#include "orchestrator/state/run_record.h"

enum { CANDIDATES_REFUSED_SHOWN = 16 };

struct plan_candidate {
    struct run_config way;
    int ranks;
    bool legal;
    bool measured;
    double seconds;  /* predicted step, 0: cannot be predicted (no model is known) */
    int64_t memory;  /* bytes of the largest rank, 0: not known */
    const char *why; /* what speaks against it, "" */
};

/* All candidates for at most max_ranks ranks, the best first, the refused ones last. In the arena.
 * book gives the measured steps; may be NULL.
 * TP_E_USAGE, TP_E_NOTFOUND: the model's config cannot be read; there are too many. */
tp_status candidates_find(struct plan_candidate **out, int *n, const struct job *job,
                          const struct run_record *book, int max_ranks, struct arena *arena,
                          struct tp_err *err);

/* What `text` asks for: a spec, or a number of ranks (the best layout of at most so many).
 * TP_E_LAYOUT: none is legal; the reason is in err. */
tp_status candidates_pick(struct plan_candidate *out, const struct plan_candidate *c, int n,
                          const char *text, struct tp_err *err);

#endif
