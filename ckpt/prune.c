/* ckpt/prune.c - the deleting half of ckpt/commit.h. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/step.h"
#include "ckpt/tmp.h"
#include "core/file.h"

static tp_status remove_step(const char *root, const char *name, struct tp_err *err)
{
    char from[PATH_MAX], to[PATH_MAX], tmp_name[NAME_MAX + 1], id[SAVE_ID_TEXT];
    tp_status st;

    TP_TRY(tmp_save_id(id, err));
    snprintf(tmp_name, sizeof tmp_name, "%.100s.tmp-%s", name, id);
    TP_TRY(step_path(from, root, name, err));
    TP_TRY(step_path(to, root, tmp_name, err));
    if (rename(from, to) != 0)
        return tp_fail_errno(err, "%s: cannot rename it to %s", from, to);
    TP_TRY(file_sync_dir(root, err));
    TP_TRY(file_remove_tree(to, err));
done:
    return st;
}

tp_status ckpt_prune(const char *root, int keep, int64_t keep_every, bool dry_run,
                     void (*each)(void *ctx, const char *name), void *ctx, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps = NULL;
    int n = 0, kept = 0, lock = -1;
    tp_status st;

    if (keep < 1)
        return tp_fail(err, TP_E_USAGE, "at least one step must be kept");
    TP_TRY(ckpt_list(&steps, &n, root, &arena, err));
    if (n == 0) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no step-NNNNNNNN directories", root);
        goto done;
    }
    if (!dry_run)
        TP_TRY(root_lock(&lock, root, err));
    for (int i = n - 1; i >= 0; i--) {
        int64_t step = 0;
        bool dead = false;

        if (step_name_parse(&step, steps[i].name) == STEP_TMP) {
            TP_TRY(tmp_reap(root, steps[i].name, dry_run, &dead, err));
            if (dead && each)
                each(ctx, steps[i].name);
            continue;
        }
        if (!steps[i].complete || kept++ < keep || (keep_every > 0 && step % keep_every == 0))
            continue;
        if (each)
            each(ctx, steps[i].name);
        if (!dry_run)
            TP_TRY(remove_step(root, steps[i].name, err));
    }
done:
    if (lock >= 0)
        close(lock);
    arena_free(&arena);
    return st;
}
