/* ckpt/commit.c - the adding half of ckpt/commit.h. */
#include "ckpt/commit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/step.h"
#include "ckpt/tmp.h"
#include "core/file.h"

static tp_status refuse_existing(const char *root, int64_t step, bool force, struct tp_err *err)
{
    char name[STEP_NAME_MAX], path[PATH_MAX];
    tp_status st = step_path(path, root, step_name(name, step), err);

    if (!st && !force && file_exists(path))
        st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", path);
    return st;
}

tp_status ckpt_begin(struct ckpt_txn *t, const char *root, int64_t step, int64_t epoch, bool force,
                     struct tp_err *err)
{
    bool resumed;

    return ckpt_begin_again(t, &resumed, root, step, epoch, force, NULL, NULL, err);
}

tp_status ckpt_begin_again(struct ckpt_txn *t, bool *resumed, const char *root, int64_t step,
                           int64_t epoch, bool force, ckpt_fits_fn fits, void *ctx,
                           struct tp_err *err)
{
    struct ckpt_txn txn = { .step = step, .epoch = epoch, .force = force, .alive = -1 };
    int lock = -1;
    tp_status st;

    if (step < 0)
        return tp_fail(err, TP_E_INTERNAL, "step %lld", (long long)step);
    if (snprintf(txn.root, sizeof txn.root, "%s", root) >= (int)sizeof txn.root)
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", root);
    TP_TRY(ckpt_check_root(root, err));
    TP_TRY(refuse_existing(root, step, force, err));
    TP_TRY(tmp_save_id(txn.save_id, err));
    txn.made_root = !file_exists(root);
    TP_TRY(file_make_dirs(root, err));
    TP_TRY(root_lock(&lock, root, err));
    if (fits)
        TP_TRY(tmp_adopt(&txn, fits, ctx, err));
    *resumed = txn.tmp[0] != 0; /* then it is locked, and not reaped */
    TP_TRY(tmp_reap_all(root, err));
    root_reap_names(root);
    if (!*resumed)
        TP_TRY(tmp_make(&txn, err));
    *t = txn;
    txn.tmp[0] = 0;
    txn.alive = -1;
done:
    if (lock >= 0)
        close(lock);
    ckpt_abort(&txn); /* takes the lock itself, to remove a root that it made */
    return st;
}

void ckpt_leave(struct ckpt_txn *t)
{
    if (t->alive >= 0)
        close(t->alive);
    t->alive = -1;
    t->tmp[0] = 0;
}

void ckpt_abort(struct ckpt_txn *t)
{
    struct tp_err ignored;

    if (!t->tmp[0])
        return;
    file_remove_tree(t->tmp, &ignored);
    if (t->made_root)
        root_remove_empty(t->root);
    ckpt_leave(t);
}

static tp_status write_manifest(const struct ckpt_txn *t, struct manifest *m, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t size = 0;
    tp_status st;

    memcpy(m->save_id, t->save_id, sizeof m->save_id);
    m->step = t->step;
    m->epoch = t->epoch;
    TP_TRY(step_path(path, t->tmp, MANIFEST_FILE, err));
    TP_TRY(manifest_format(&text, &size, m, err));
    TP_TRY(file_write_new(path, text, size, err));
    TP_TRY(file_sync_dir(t->tmp, err));
done:
    free(text);
    return st;
}

/* Make tmp appear as dir. *exchanged: what dir was is in tmp now. */
static tp_status rename_in(const struct ckpt_txn *t, const char *dir, bool *exchanged,
                           struct tp_err *err)
{
    *exchanged = false;
    if (renameat2(AT_FDCWD, t->tmp, AT_FDCWD, dir, RENAME_NOREPLACE) == 0)
        return TP_OK;
    /* without the flag, rename of a directory still fails when a step is there: it is not empty */
    if (errno == EINVAL && rename(t->tmp, dir) == 0)
        return TP_OK;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return tp_fail_errno(err, "%s: cannot rename %s to it", dir, t->tmp);
    if (!t->force)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already: another writer was first", dir);
    if (renameat2(AT_FDCWD, t->tmp, AT_FDCWD, dir, RENAME_EXCHANGE) != 0)
        return tp_fail_errno(err, "%s: cannot exchange it with %s", dir, t->tmp);
    *exchanged = true;
    return TP_OK;
}

static tp_status check_epoch(const struct ckpt_txn *t, struct tp_err *err)
{
    int64_t newest = 0;
    tp_status st = ckpt_epoch(&newest, t->root, err);

    if (!st && newest > t->epoch)
        st = tp_fail(err, TP_E_STALE,
                     "%s: belongs to a newer job (epoch %lld, this one has %lld); "
                     "step %lld was not committed",
                     t->root, (long long)newest, (long long)t->epoch, (long long)t->step);
    return st;
}

/* Under the lock: check, rename, make it last. */
static tp_status appear(struct ckpt_txn *t, const char *dir, struct tp_err *err)
{
    bool exchanged = false;
    int lock = -1;
    tp_status st;

    TP_TRY(root_lock(&lock, t->root, err));
    TP_TRY(check_epoch(t, err));
    TP_TRY(rename_in(t, dir, &exchanged, err));
    st = file_sync_dir(t->root, err);
    if (st) { /* it may not last, so it has not happened */
        renameat2(AT_FDCWD, dir, AT_FDCWD, t->tmp, exchanged ? RENAME_EXCHANGE : RENAME_NOREPLACE);
        goto done;
    }
    t->made_root = false;
    if (!exchanged)
        t->tmp[0] = 0;
    root_point_latest(t->root);
done:
    if (lock >= 0)
        close(lock);
    return st;
}

tp_status ckpt_commit(struct ckpt_txn *t, struct manifest *m, struct tp_err *err)
{
    char dir[PATH_MAX], name[STEP_NAME_MAX];
    tp_status st;

    TP_TRY(step_path(dir, t->root, step_name(name, t->step), err));
    TP_TRY(write_manifest(t, m, err));
    TP_TRY(appear(t, dir, err));
    ckpt_abort(t); /* the step that was replaced, if there was one */
    ckpt_leave(t);
done:
    return st;
}
