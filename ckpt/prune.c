/* ckpt/prune.c - see ckpt/prune.h. */
#include "ckpt/prune.h"

#include <stdio.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/root_lock.h"
#include "ckpt/temporary.h"
#include "core/file.h"

static tp_status remove_step(const char *root, const char *name, struct tp_err *err)
{
    char from[PATH_MAX], to[PATH_MAX], tmp_name[NAME_MAX + 1], id[SAVE_ID_TEXT];
    tp_status st;

    TP_TRY(temporary_save_id(id, err));
    snprintf(tmp_name, sizeof tmp_name, "%.100s.tmp-%s", name, id);
    TP_TRY(file_join(from, root, name, err));
    TP_TRY(file_join(to, root, tmp_name, err));
    if (rename(from, to) != 0)
        return tp_fail_errno(err, "%s: cannot rename it to %s", from, to);
    TP_TRY(file_sync_dir(root, err));
    TP_TRY(file_remove_tree(to, err));
done:
    return st;
}

/* Delete one entry of the root if it is not kept. *kept counts the complete steps so far. */
static tp_status prune_entry(bool *deleted, int *kept, const struct ckpt_step *s,
                             const struct ckpt_prune_request *q, struct tp_err *err)
{
    int64_t step = 0;

    *deleted = false;
    if (step_parse_name(&step, s->name) == STEP_TMP)
        return temporary_remove_dead(q->root, s->name, q->dry_run, deleted, err);
    if (!s->complete || (*kept)++ < q->keep || (q->keep_every > 0 && step % q->keep_every == 0))
        return TP_OK;
    *deleted = true;
    return q->dry_run ? TP_OK : remove_step(q->root, s->name, err);
}

tp_status ckpt_prune(struct ckpt_pruned *out, const struct ckpt_prune_request *q,
                     struct arena *arena, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int n = 0, kept = 0, lock = -1;
    bool deleted;
    tp_status st;

    *out = (struct ckpt_pruned){ .n = 0 };
    if (q->keep < 1)
        return tp_fail(err, TP_E_USAGE, "at least one step must be kept");
    TP_TRY(ckpt_list(&steps, &n, q->root, arena, err));
    if (n == 0) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no step-NNNNNNNN directories", q->root);
        goto done;
    }
    out->names = arena_array(arena, (size_t)n, sizeof *out->names);
    if (!out->names)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to prune it", q->root);
    if (!q->dry_run)
        TP_TRY(root_lock(&lock, q->root, err));
    for (int i = n - 1; i >= 0; i--) {
        TP_TRY(prune_entry(&deleted, &kept, &steps[i], q, err));
        if (deleted)
            out->names[out->n++] = steps[i].name;
    }
done:
    if (lock >= 0)
        close(lock);
    return st;
}
