/* cli/transfer.c - see cli/reshard/transfer.h. */
#include "cli/transfer.h"

#include <stdio.h>

#include "cli/rss.h"
#include "core/progress.h"

tp_status transfer_dtype(enum dtype *dtype, bool *given, const char *text, struct tp_err *err)
{
    *given = text != NULL;
    if (*given && (!dtype_parse(dtype, text) ||
                   (*dtype != DTYPE_F32 && *dtype != DTYPE_BF16 && *dtype != DTYPE_F16)))
        return tp_fail(err, TP_E_USAGE, "--dtype is f32, bf16 or f16, not '%s'", text);
    return TP_OK;
}

tp_status transfer_plan(struct cli_transfer *t, int64_t mem_bytes, int64_t later_bytes,
                        struct tp_err *err)
{
    int64_t base;
    tp_status st;

    TP_TRY(rss_budget(&t->move.memory_bytes, &base, mem_bytes, later_bytes, t->move.threads, err));
    TP_TRY(transfer_plan_make(&t->plan, &t->move, err));
    transfer_plan_stats(t->plan, &t->stats);
done:
    return st;
}

tp_status transfer_run(struct cli_transfer *t, const char *doing, struct tp_err *err)
{
    struct progress *progress = progress_new(doing, t->stats.bytes_written, false);
    tp_status st;

    transfer_plan_progress(t->plan, progress);
    st = transfer_execute(t->plan, &t->stats, err);
    progress_end(progress, st == TP_OK);
    return st;
}

tp_status transfer_compare(struct cli_transfer *t,
                           tp_status (*compare)(void *ctx, int tensor, struct tp_err *err),
                           void *ctx, struct tp_err *err)
{
    for (int i = 0; i < t->move.n_tensors; i++) {
        tp_status st;

        if (t->move.from->dtypes[i] != t->move.to->dtypes[i])
            continue;
        if ((st = compare(ctx, i, err)))
            return st;
        t->digests_equal++;
    }
    return TP_OK;
}

void transfer_print_checked(const struct cli_transfer *t, const char *what)
{
    printf("checked  %s%d tensors, digests equal%s\n", what, t->digests_equal,
           t->digests_equal < t->move.n_tensors ? "; the others were cast" : "");
}

void transfer_free(struct cli_transfer *t)
{
    transfer_plan_free(t->plan);
    t->plan = NULL;
}
