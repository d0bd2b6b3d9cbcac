/* cli/ckpt/tp_ckpt.c - tp-ckpt: list, show, verify, compare, convert and delete checkpoints. */
#include <stddef.h>

#include "cli/ckpt/cmd.h"
#include "cli/open_files.h"
#include "cli/remote_env.h"
#include "cli/report.h"
#include "cli/verb.h"

int main(int argc, char **argv)
{
    struct tp_err err = { 0 };
    static const struct verb verbs[] = {
        { "ls", "ROOT", "list steps with their layouts and sizes, and whether they are complete",
          cmd_ls },
        { "show", "CKPT [NAME]", "show layout, model and tensors, or where one tensor is stored",
          cmd_show },
        { "verify", "CKPT", "read every byte, check every checksum and box", cmd_verify },
        { "digest", "CKPT", "print a fingerprint of every tensor, the same at every layout",
          cmd_digest },
        { "diff", "A B", "compare two checkpoints by value, across layouts", cmd_diff },
        { "export", "CKPT -o DIR", "write a checkpoint in the format of another framework",
          cmd_export },
        { "import", "SRC -o ROOT", "make a checkpoint of what another framework saved",
          cmd_import },
        { "prune", "ROOT", "delete old steps", cmd_prune },
        { 0 },
    };
    static const struct verb_program program = {
        .name = "tp-ckpt",
        .intro =
            "usage: tp-ckpt VERB ...\n\n"
            "List, show, verify, compare, convert and delete checkpoints of parallel training.\n",
        .tail =
            "CKPT is a root (its newest complete step, or --step N) or a step "
            "directory.\n" REMOTE_ENV_HELP "\n"
            "`tp-ckpt VERB --help` describes a verb. Exit codes: 0 done, or the answer is yes;\n"
            "1 the answer is no (damaged, different); 2 the request is wrong; 3 it failed;\n"
            "75 a signal stopped export or import.",
        .verbs = verbs,
    };

    open_files_raise();
    if (remote_env_read(&err))
        return report("tp-ckpt", err.status, &err);
    return verb_main(&program, argc, argv);
}
