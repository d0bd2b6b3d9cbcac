/* cli/ckpt/cmd_prune.c - tp-ckpt prune: delete old steps. */
#include <stdio.h>

#include "ckpt/commit.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"

static const char intro[] =
    "Delete complete steps but for the newest --keep, and what interrupted saves left behind.\n"
    "Each name that goes is a line. A step is renamed before it is deleted, so that no reader\n"
    "sees half of one. Damaged steps stay, for you to look at.";

struct gone {
    bool dry_run;
    int n;
};

static void print_gone(void *ctx, const char *name)
{
    struct gone *g = ctx;

    g->n++;
    printf("%s ", g->dry_run ? "would delete" : "delete");
    print_safe(name);
    putchar('\n');
}

int cmd_prune(int argc, char **argv)
{
    const char *root = NULL;
    int64_t keep_every = 0;
    bool keep_given = false;
    int keep = 0, code;
    struct gone g = { 0 };
    struct tp_err err = { 0 };
    const struct opt opts[] = {
        OPT_ARG("ROOT", &root, "checkpoint root"),
        { OPT_KIND_INT, 0, "keep", "N", &keep, "keep the newest N steps (at least 1; required)",
          &keep_given },
        OPT_INT64(0, "keep-every", "K", &keep_every, "keep also every step that K divides"),
        OPT_FLAG(0, "dry-run", &g.dry_run, "say what would go, delete nothing"),
        OPT_END
    };
    tp_status st;

    if (!report_options(&code, "tp-ckpt prune", opts, argc, argv, intro, NULL))
        return code;
    if (!keep_given || keep < 1)
        return report("tp-ckpt",
                      tp_fail(&err, TP_E_USAGE, "prune needs --keep N with N of at least 1"), &err);
    st = ckpt_prune(root, keep, keep_every, g.dry_run, print_gone, &g, &err);
    if (!st)
        printf("%d %s%s\n", g.n, g.n == 1 ? "entry" : "entries", g.dry_run ? " would go" : " gone");
    if (!st)
        st = print_done(&err);
    return report("tp-ckpt", st, &err);
}
