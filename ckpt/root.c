/* ckpt/root.c - see ckpt/root.h; and the epochs of ckpt/commit.h. */
#include "ckpt/root.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/commit.h"
#include "ckpt/step.h"
#include "core/file.h"

/* ---- the epoch ---- */

tp_status ckpt_epoch(int64_t *epoch, const char *root, struct tp_err *err)
{
    enum { EPOCH_TEXT_MAX = 32 };
    struct arena arena = { 0 };
    char path[PATH_MAX], *text = NULL, *end;
    size_t n = 0;
    tp_status st;

    TP_TRY(step_path(path, root, "epoch", err));
    st = file_read_own(&text, &n, path, EPOCH_TEXT_MAX, &arena, err);
    if (st == TP_E_NOTFOUND) {
        *epoch = 0;
        st = TP_OK;
        goto done;
    }
    if (st)
        goto done;
    errno = 0;
    *epoch = strtoll(text, &end, 10);
    if (errno || end == text || strcmp(end, "\n") != 0 || *epoch < 0 || *epoch == INT64_MAX)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: is no number; when no job is running, write the "
                     "highest epoch of its manifests into it",
                     path);
done:
    arena_free(&arena);
    return st;
}

/* Replace ROOT/epoch. Under the lock, so that the temporary can have one name, and what a dead job
 * left of it is no obstacle. */
static tp_status write_epoch(const char *root, int64_t epoch, struct tp_err *err)
{
    char path[PATH_MAX], tmp[PATH_MAX], text[32];
    int n = snprintf(text, sizeof text, "%" PRId64 "\n", epoch);
    tp_status st;

    TP_TRY(step_path(path, root, "epoch", err));
    TP_TRY(step_path(tmp, root, "epoch.tmp", err));
    unlink(tmp);
    TP_TRY(file_write_new(tmp, text, (size_t)n, err));
    if (rename(tmp, path) != 0) {
        tp_fail_errno(err, "%s: cannot rename %s to it", path, tmp);
        unlink(tmp);
        return TP_E_IO;
    }
    TP_TRY(file_sync_dir(root, err));
done:
    return st;
}

tp_status ckpt_check_root(const char *root, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st;

    if (file_exists(root) && !file_is_dir(root))
        return tp_fail(err, TP_E_USAGE, "%s: is no directory, so no checkpoints can lie in it",
                       root);
    if ((st = step_path(path, root, MANIFEST_FILE, err)))
        return st;
    if (file_exists(path))
        return tp_fail(err, TP_E_USAGE,
                       "%s: is one step of a checkpoint (it has a " MANIFEST_FILE
                       "); name the root that steps lie in",
                       root);
    return TP_OK;
}

tp_status ckpt_claim(int64_t *epoch, const char *root, struct tp_err *err)
{
    int64_t last = 0;
    int lock = -1;
    tp_status st;

    TP_TRY(ckpt_check_root(root, err));
    TP_TRY(file_make_dirs(root, err));
    TP_TRY(root_lock(&lock, root, err));
    root_reap_names(root); /* this job may have nothing left to save */
    TP_TRY(ckpt_epoch(&last, root, err));
    TP_TRY(write_epoch(root, last + 1, err));
    *epoch = last + 1;
done:
    if (lock >= 0)
        close(lock);
    return st;
}

/* ---- names ---- */

void root_reap_names(const char *root)
{
    static const char *const names[] = { "epoch.tmp", "latest.tmp" };
    char path[PATH_MAX];
    struct tp_err err;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (step_path(path, root, names[i], &err) == TP_OK)
            unlink(path);
}

void root_point_latest(const char *root)
{
    char link[PATH_MAX], tmp[PATH_MAX];
    struct ckpt_step *steps = NULL;
    struct tp_err err;
    int64_t step;
    int n = 0;

    if (step_path(link, root, "latest", &err) || step_path(tmp, root, "latest.tmp", &err) ||
        step_scan(&steps, &n, root, &err))
        return;
    while (n > 0 && step_name_parse(&step, steps[n - 1].name) != STEP_DIR)
        n--;
    unlink(tmp);
    if (n > 0 && symlink(steps[n - 1].name, tmp) == 0 && rename(tmp, link) != 0)
        unlink(tmp);
    free(steps);
}

void root_remove_empty(const char *root)
{
    char path[PATH_MAX];
    struct tp_err ignored;
    int lock = -1;

    if (root_lock(&lock, root, &ignored))
        return;
    if (!step_path(path, root, "lock", &ignored)) {
        unlink(path);
        if (rmdir(root) != 0) { /* others have begun here: they need the lock */
            int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);

            if (fd >= 0)
                close(fd);
        }
    }
    close(lock);
}
