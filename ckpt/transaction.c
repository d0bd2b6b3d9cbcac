/* ckpt/transaction.c - see ckpt/transaction.h. */
#include "ckpt/transaction.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/access.h"
#include "ckpt/epoch.h"
#include "ckpt/root.h"
#include "core/file.h"
#include "core/file_exchange.h"
#include "core/file_tree.h"
#include "storage/location.h"

/* ---- beginning ---- */

/* --force replaces a step, and nothing else that people have under its name. */
static tp_status check_replaced(const char *path, struct tp_err *err)
{
    if (step_is_own(path))
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: exists, and is not a checkpoint of this project, so --force does not "
                   "replace it; move it, or write to another root",
                   path);
}

static tp_status check_request(const struct ckpt_begin_request *q, struct tp_err *err)
{
    char name[STEP_NAME_MAX], path[PATH_MAX];
    tp_status st;

    if (q->step < 0)
        return tp_fail(err, TP_E_INTERNAL, "step %lld is negative", (long long)q->step);
    TP_TRY(ckpt_check_root(q->root, err));
    TP_TRY(file_join(path, q->root, step_name(name, q->step), err));
    if (!file_exists(path))
        goto done;
    if (q->force)
        return check_replaced(path, err);
    if (q->epoch > 0) /* a newer job may have saved it */
        TP_TRY(ckpt_epoch_check(q->root, q->epoch, q->step, err));
    st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", path);
done:
    return st;
}

tp_status ckpt_begin(struct ckpt_transaction *t, const struct ckpt_begin_request *q,
                     struct tp_err *err)
{
    struct ckpt_transaction x = {
        .tmp.lock_fd = -1, .step = q->step, .epoch = q->epoch, .force = q->force, .wait = q->wait
    };
    int lock = -1;
    tp_status st;

    TP_TRY(check_request(q, err));
    TP_TRY(location_check_local(q->root, err));
    if (snprintf(x.root, sizeof x.root, "%s", q->root) >= (int)sizeof x.root)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", q->root);
    x.made_root = !file_exists(q->root);
    TP_TRY(root_lock_make(&lock, q->root, &q->wait, err));
    if (q->exclusive)
        TP_TRY(temporary_adopt(&x.tmp, q->root, q->step, q->resume, err));
    x.resumed = x.tmp.path[0] != 0;
    TP_TRY(temporary_remove_all_dead(q->root, err)); /* not the adopted one, which is locked */
    root_remove_leftovers(q->root);
    if (!x.resumed)
        TP_TRY(temporary_make(&x.tmp, q->root, q->step, err));
    *t = x;
    x = (struct ckpt_transaction){ .tmp.lock_fd = -1 };
done:
    if (lock >= 0)
        close(lock);
    ckpt_abort(&x); /* after a failure; takes the lock itself */
    return st;
}

/* ---- ending ---- */

void ckpt_suspend(struct ckpt_transaction *t)
{
    temporary_release(&t->tmp);
}

void ckpt_abort(struct ckpt_transaction *t)
{
    struct tp_err ignored;

    if (t->tmp.path[0])
        file_tree_remove(t->tmp.path, &ignored);
    if (t->made_root)
        root_remove_if_empty(t->root);
    t->made_root = false;
    temporary_release(&t->tmp);
}

static tp_status write_manifest(const struct ckpt_transaction *t, struct manifest *m,
                                struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t size = 0;
    tp_status st;

    memcpy(m->save_id, t->tmp.save_id, sizeof m->save_id);
    m->step = t->step;
    m->epoch = t->epoch;
    TP_TRY(file_join(path, t->tmp.path, MANIFEST_FILE, err));
    TP_TRY(manifest_format(&text, &size, m, err));
    TP_TRY(file_write_new(path, text, size, err));
    access_publish(t->tmp.lock_fd, MANIFEST_FILE);
    TP_TRY(file_sync_dir(t->tmp.path, err));
done:
    free(text);
    return st;
}

/* Rename the temporary directory to dir. *exchanged: the temporary directory is now what dir
 * was. */
static tp_status rename_to(const struct ckpt_transaction *t, const char *dir, bool *exchanged,
                           struct tp_err *err)
{
    const char *tmp = t->tmp.path;
    tp_status st;

    *exchanged = false;
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_NOREPLACE) == 0)
        return TP_OK;
    /* The file system may not support the flag. A plain rename fails too when the step exists,
     * because its directory is not empty. */
    if (errno == EINVAL && rename(tmp, dir) == 0)
        return TP_OK;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return tp_fail_errno(err, "%s: cannot rename %s to it", dir, tmp);
    if (!t->force)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already; another writer was faster", dir);
    st = check_replaced(dir, err); /* it may have come meanwhile */
    if (st)
        return st;
    st = file_exchange(tmp, dir, err);
    *exchanged = !st;
    return st;
}

/* Take the new name back, because it may not be on the disk. If that fails too, the temporary
 * directory may be the step that was replaced, so it is not removed. */
static void undo_rename(struct ckpt_transaction *t, const char *dir, bool exchanged)
{
    if (!file_take_back(dir, t->tmp.path, exchanged))
        temporary_release(&t->tmp);
}

/* A crash after this and before the rename leaves a directory that cannot be resumed. So nothing
 * slow comes between: this is not synced, and a file system that puts the rename on the disk
 * without the removal leaves a file that no reader opens. */
static tp_status remove_scratch(const struct ckpt_transaction *t, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = TP_OK;

    for (int i = 0; t->scratch && t->scratch[i]; i++) {
        TP_TRY(file_join(path, t->tmp.path, t->scratch[i], err));
        if (unlink(path) != 0 && errno != ENOENT) {
            st = tp_fail_errno(err, "%s: cannot remove", path);
            goto done;
        }
    }
done:
    return st;
}

/* Under ROOT/lock: check the epoch, rename, fsync the root. */
static tp_status make_visible(struct ckpt_transaction *t, const char *dir, struct tp_err *err)
{
    bool exchanged = false;
    int lock = -1;
    tp_status st;

    TP_TRY(root_lock(&lock, t->root, &t->wait, err));
    TP_TRY(ckpt_epoch_check(t->root, t->epoch, t->step, err));
    TP_TRY(remove_scratch(t, err));
    TP_TRY(rename_to(t, dir, &exchanged, err));
    st = file_sync_dir(t->root, err);
    if (st) {
        undo_rename(t, dir, exchanged);
        goto done;
    }
    t->made_root = false;
    if (!exchanged)
        temporary_release(&t->tmp);
    root_update_latest(t->root);
done:
    if (lock >= 0)
        close(lock);
    return st;
}

tp_status ckpt_commit(struct ckpt_transaction *t, struct manifest *m, struct tp_err *err)
{
    char dir[PATH_MAX], name[STEP_NAME_MAX];
    tp_status st;

    TP_TRY(file_join(dir, t->root, step_name(name, t->step), err));
    TP_TRY(write_manifest(t, m, err));
    TP_TRY(make_visible(t, dir, err));
    ckpt_abort(t); /* removes the step that was replaced, if there was one */
done:
    return st;
}
