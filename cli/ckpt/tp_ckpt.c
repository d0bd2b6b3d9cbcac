/* cli/ckpt/tp_ckpt.c - tp-ckpt: what people do with checkpoints besides training. The table of
 * verbs. */
#include <stdio.h>
#include <string.h>

#include "cli/ckpt/cmd.h"
#include "cli/report.h"

static const struct verb {
    const char *name, *args, *help;
    int (*run)(int argc, char **argv);
} verbs[] = {
    { "ls", "ROOT", "steps, layouts, sizes, complete or not", cmd_ls },
    { "show", "CKPT [NAME]", "layout, model, tensors; or where one tensor's boxes lie", cmd_show },
    { "verify", "CKPT", "read every byte, check every checksum and box", cmd_verify },
    { "digest", "CKPT", "a fingerprint of every tensor, whatever the layout", cmd_digest },
    { "diff", "A B", "compare two checkpoints by value, across layouts", cmd_diff },
    { "export", "CKPT -o DIR", "whole tensors as safetensors, for transformers", cmd_export },
    { "import", "SRC -o ROOT", "safetensors to a checkpoint with a layout", cmd_import },
    { "prune", "ROOT", "delete old steps", cmd_prune },
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void print_help(FILE *f)
{
    fprintf(f,
            "usage: tp-ckpt VERB ...\n\n"
            "Checkpoints of tensor-parallel training: look, check, compare, convert, delete.\n\n");
    for (int i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-7s %-12s %s\n", verbs[i].name, verbs[i].args, verbs[i].help);
    fprintf(f, "\nCKPT is a root (its newest complete step, or --step N) or a step directory.\n"
               "`tp-ckpt VERB --help` says more. Exit codes: 0 yes or done, 1 no (damaged,\n"
               "different), 2 the request is wrong, 3 it failed.\n");
}

int main(int argc, char **argv)
{
    struct tp_err err;

    report_begin();
    if (argc < 2) {
        print_help(stderr);
        return tp_exit_code(TP_E_USAGE);
    }
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tp-ckpt %s\n", TP_VERSION);
        return 0;
    }
    return report(
        "tp-ckpt",
        tp_fail(&err, TP_E_USAGE, "unknown verb '%.100s'; tp-ckpt --help lists them", argv[1]),
        &err);
}
