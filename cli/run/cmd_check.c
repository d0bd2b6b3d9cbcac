/* cli/run/cmd_check.c - tp-run check DIR: does a checkpoint verify? In a process of its own, so
 * that tp-run goes on meanwhile. */
#include <stdio.h>

#include "ckpt/verify.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "core/thread_pool.h"

static void on_finding(void *ctx, const char *sentence)
{
    (void)ctx;
    report_note("tp-run check", "%s", sentence);
}

int cmd_run_check(int argc, char **argv)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct verify v = { .jobs = thread_pool_cores(), .found = on_finding };
    tp_status st;
    int code;

    if (argc != 2)
        return report("tp-run check", tp_fail(&err, TP_E_USAGE, "expected a step folder"), &err);
    v.dir = argv[1];
    st = ckpt_verify(&v, &arena, &err);
    if (st == TP_OK && v.findings)
        st = tp_fail(&err, TP_E_NO, "%s: %d findings", v.dir, v.findings);
    code = report("tp-run check", st, &err);
    arena_free(&arena);
    return code;
}
