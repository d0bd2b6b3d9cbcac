/* cli/ckpt/cmd_prune.c - tp-ckpt prune: delete old steps. */
#include <stdio.h>

#include "ckpt/prune.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"

static const char intro[] =
    "Deletes all complete steps but the newest --keep, and what interrupted saves left. Prints a\n"
    "line for each name that is deleted. A step is renamed before it is deleted, so no reader "
    "sees\n"
    "half of one. Damaged steps are kept, so that you can examine them.";

static void print_names(const struct ckpt_pruned *pruned, bool dry_run)
{
    for (int i = 0; i < pruned->n; i++) {
        printf("%s ", dry_run ? "would delete" : "delete");
        print_safe(pruned->names[i]);
        putchar('\n');
    }
}

int cmd_prune(int argc, char **argv)
{
    struct ckpt_prune_request q = { .keep = 0 };
    struct ckpt_pruned pruned;
    bool keep_given = false;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    int code;
    const struct opt opts[] = { OPT_ARG("ROOT", &q.root, "checkpoint root"),
                                { OPT_KIND_INT, 0, "keep", "N", &q.keep,
                                  "keep the newest N steps (at least 1; required)", &keep_given },
                                OPT_INT64(0, "keep-every", "K", &q.keep_every,
                                          "keep also each step that is a multiple of K"),
                                OPT_FLAG(0, "dry-run", &q.dry_run,
                                         "print what would be deleted, and delete nothing"),
                                OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-ckpt prune", opts, argc, argv, intro, NULL))
        return code;
    if (!keep_given || q.keep < 1)
        return report("tp-ckpt",
                      tp_fail(&err, TP_E_USAGE, "prune needs --keep N, where N is at least 1"),
                      &err);
    st = ckpt_prune(&pruned, &q, &arena, &err);
    print_names(&pruned, q.dry_run); /* also after a failure in the middle */
    if (!st) {
        printf("%d %s%s\n", pruned.n, pruned.n == 1 ? "entry" : "entries",
               q.dry_run ? " would be deleted" : " deleted");
        st = print_done(&err);
    }
    arena_free(&arena);
    return report("tp-ckpt", st, &err);
}
