/* reshard/engine/reduce_sums.c - see reshard/engine/reduce_sums.h. */
#include "reshard/engine/reduce_sums.h"

#include <stdlib.h>

#include "ckpt/digest.h"

enum { SLICE_GROUPS = 4096 };

/* Reduce n words, or nothing of this process (NULL); sizes has room for one number of each
 * process. */
static tp_status reduce_slice(struct comm_control *c, uint64_t *words, int64_t n,
                              reduce_sums_fn add, int64_t *sizes, struct tp_err *err)
{
    const int64_t bytes = n * (int64_t)sizeof *words;
    void *all = NULL;
    tp_status st = control_gather(c, words, words ? bytes : 0, &all, sizes, err);

    if (!st && words && all && sizes && control_rank(c) == 0)
        for (int64_t r = 1, at = n; r < control_size(c); r++)
            if (sizes[r] > 0) {
                add(words, (const uint64_t *)all + at, n);
                at += n;
            }
    free(all);
    return st;
}

tp_status reduce_sums(struct comm_control *c, const struct reduce_sums *s, struct tp_err *err)
{
    int64_t *sizes = calloc((size_t)control_size(c), sizeof *sizes);
    int64_t step = (int64_t)SLICE_GROUPS * s->group;
    tp_status st = TP_OK;

    if (!sizes)
        st = tp_fail(err, TP_E_NOMEM, "no memory to combine checksums");
    TP_TRY(control_agree(c, st, err));
    for (int64_t at = 0; at < s->n; at += step) {
        int64_t n = s->n - at < step ? s->n - at : step;

        TP_TRY(reduce_slice(c, s->words ? s->words + at : NULL, n, s->add, sizes, err));
    }
done:
    free(sizes);
    return st;
}

/* A reduce_sums_fn. */
static void add_digests(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) {
        struct digest sum = { { into[i], into[i + 1] } };
        const struct digest part = { { from[i], from[i + 1] } };

        digest_add(&sum, &part);
        into[i] = sum.d[0];
        into[i + 1] = sum.d[1];
    }
}

tp_status reduce_digests(struct comm_control *c, uint64_t *words, int64_t n, struct tp_err *err)
{
    const struct reduce_sums sums = { .words = words, .n = n, .group = 2, .add = add_digests };

    return reduce_sums(c, &sums, err);
}
