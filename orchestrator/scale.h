/*
 * orchestrator/scale.h - which layout for the ranks that are left.
 *
 * Candidates are every tp x dp (x pp x cp, where the job's axes allow them) of at most the ranks
 * there are, or the job's own list. Each is checked against the model (layout_make), the global
 * batch, which stays what it is, and a rank's memory (layout/memory.h); what is refused says why.
 *
 * Order: with a list (layouts.allow) the list's own. Else the shortest predicted step, where a
 * step costs
 *     w0 flops/ranks + w1 bytes(tp) + w2 bytes(dp) + w3 collectives
 * and w is fitted to the step times that were measured in this job (ridge regression towards a
 * guess, so that a single measurement already scales all). A layout that was measured has its own
 * time. Equal within 2 %: fewer ranks.
 */
#ifndef ORCHESTRATOR_SCALE_H
#define ORCHESTRATOR_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/spec.h"
#include "orchestrator/book.h"
#include "orchestrator/job.h"

struct candidate {
    struct spec spec;
    int ranks;
    bool legal;
    double seconds; /* predicted step, 0: cannot be predicted (no model is known) */
    bool measured;
    int64_t memory; /* bytes of the largest rank, 0: not known */
    char why[320];  /* what speaks against it */
};

/* All candidates for at most max_ranks ranks, the best first, the refused ones last. In the arena.
 * book gives the measured steps; may be NULL.
 * TP_E_USAGE, TP_E_NOTFOUND: the model's config cannot be read. */
tp_status scale_candidates(struct candidate **out, int *n, const struct job *job,
                           const struct book *book, int max_ranks, struct arena *arena,
                           struct tp_err *err);

/* What `text` asks for: a spec, or a number of ranks (the best layout of at most so many).
 * TP_E_LAYOUT: none is legal; the reason is in err. */
tp_status scale_pick(struct candidate *out, const struct candidate *c, int n, const char *text,
                     struct tp_err *err);

#endif
