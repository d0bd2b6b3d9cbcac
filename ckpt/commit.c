/*
 * ckpt/commit.c - the adding half of ckpt/commit.h.
 *
 * Two locks, both flock, both free when their holder dies. ROOT/lock is held for moments, over
 * check and rename. Every temporary directory is locked by its writer for as long as it writes, so
 * that leftovers of the dead can be told from the work of the living. Where a file system has no
 * flock, leftovers stay, and two writers of one step are told apart by rename alone, which fails
 * when the target exists.
 */
#include "ckpt/commit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/step.h"
#include "core/file.h"

/* ---- locks and the epoch ---- */

static bool lock_unsupported(int error)
{
    return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EBADF ||
           error == EINVAL;
}

/* Take ROOT/lock; *fd is closed to give it back. */
static tp_status lock_root(int *fd, const char *root, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = step_path(path, root, "lock", err);
    int f, result;

    if (st)
        return st;
    f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (f < 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    while ((result = flock(f, LOCK_EX)) != 0 && errno == EINTR)
        ;
    if (result != 0 && !lock_unsupported(errno)) {
        tp_fail_errno(err, "%s: cannot lock", path);
        close(f);
        return TP_E_IO;
    }
    *fd = f;
    return TP_OK;
}

/* The newest job's number; 0 when no job has claimed the root. */
static tp_status read_epoch(int64_t *epoch, const char *root, struct tp_err *err)
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

tp_status ckpt_epoch(int64_t *epoch, const char *root, struct tp_err *err)
{
    return read_epoch(epoch, root, err);
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

/* Remove what was to become ROOT/epoch or ROOT/latest when its writer died. Under ROOT/lock. */
static void reap_names(const char *root)
{
    static const char *const names[] = { "epoch.tmp", "latest.tmp" };
    char path[PATH_MAX];
    struct tp_err err;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (step_path(path, root, names[i], &err) == TP_OK)
            unlink(path);
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
    TP_TRY(lock_root(&lock, root, err));
    reap_names(root); /* this job may have nothing left to save */
    TP_TRY(read_epoch(&last, root, err));
    TP_TRY(write_epoch(root, last + 1, err));
    *epoch = last + 1;
done:
    if (lock >= 0)
        close(lock);
    return st;
}

/* ---- temporaries ---- */

static tp_status make_save_id(char id[SAVE_ID_TEXT], struct tp_err *err)
{
    unsigned char random[(SAVE_ID_TEXT - 1) / 2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return tp_fail_errno(err, "no random numbers for a save id");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    return TP_OK;
}

/* Remove a temporary directory when its writer is dead. Under ROOT/lock, so that none is met
 * between its mkdir and its flock. */
static tp_status reap(const char *root, const char *name, bool dry_run, bool *dead,
                      struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = step_path(path, root, name, err);
    int fd;

    *dead = false;
    if (st)
        return st;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return TP_OK; /* gone, or not ours to judge */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *dead = true;
        st = dry_run ? TP_OK : file_remove_tree(path, err);
    }
    close(fd);
    return st;
}

/* Remove what dead writers left. */
static tp_status reap_all(const char *root, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int64_t step;
    int n = 0;
    bool dead;
    tp_status st = step_scan(&steps, &n, root, err);

    for (int i = 0; i < n && !st; i++)
        if (step_name_parse(&step, steps[i].name) == STEP_TMP)
            st = reap(root, steps[i].name, false, &dead, err);
    free(steps);
    return st;
}

/* Make the temporary directory and hold its lock. */
static tp_status make_tmp(struct ckpt_txn *t, struct tp_err *err)
{
    if (mkdir(t->tmp, 0777) != 0)
        return tp_fail_errno(err, "%s: cannot create directory", t->tmp);
    t->alive = open(t->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (t->alive < 0)
        return tp_fail_errno(err, "%s: cannot open directory", t->tmp);
    if (flock(t->alive, LOCK_EX | LOCK_NB) != 0 && !lock_unsupported(errno))
        return tp_fail_errno(err, "%s: cannot lock", t->tmp);
    return TP_OK;
}

static tp_status refuse_existing(const char *root, int64_t step, bool force, struct tp_err *err)
{
    char name[STEP_NAME_MAX], path[PATH_MAX];
    tp_status st = step_path(path, root, step_name(name, step), err);

    if (!st && !force && file_exists(path))
        st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", path);
    return st;
}

/* Go on with one temporary of our step, when it fits and its writer is dead. Under ROOT/lock. */
static tp_status adopt(struct ckpt_txn *t, const char *name, ckpt_fits_fn fits, void *ctx,
                       struct tp_err *err)
{
    const char *id = strstr(name, ".tmp-") + 5;
    char path[PATH_MAX];
    tp_status st = step_path(path, t->root, name, err);
    int fd;

    if (st)
        return st;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return TP_OK; /* gone, or not ours to judge */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            st = tp_fail(err, TP_E_EXISTS,
                         "%s: another process is writing step %lld there (%s); wait for it, or "
                         "stop it and run this again",
                         t->root, (long long)t->step, name);
        close(fd);
        return st;
    }
    if (strlen(id) != SAVE_ID_TEXT - 1 || strspn(id, "0123456789abcdef") != SAVE_ID_TEXT - 1 ||
        !fits(ctx, path)) {
        close(fd);
        return TP_OK;
    }
    unlinkat(fd, MANIFEST_FILE, 0); /* of a commit that did not happen */
    memcpy(t->save_id, id, SAVE_ID_TEXT);
    memcpy(t->tmp, path, sizeof t->tmp);
    t->alive = fd;
    return TP_OK;
}

/* Go on with any of them. */
static tp_status adopt_any(struct ckpt_txn *t, ckpt_fits_fn fits, void *ctx, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int64_t step;
    int n = 0;
    tp_status st = step_scan(&steps, &n, t->root, err);

    for (int i = 0; i < n && !st && !t->tmp[0]; i++)
        if (step_name_parse(&step, steps[i].name) == STEP_TMP && step == t->step)
            st = adopt(t, steps[i].name, fits, ctx, err);
    free(steps);
    return st;
}

void ckpt_look_tmp(const char *root, int64_t step, ckpt_fits_fn fits, void *ctx)
{
    struct ckpt_step *steps = NULL;
    struct tp_err ignored;
    char path[PATH_MAX];
    int64_t found;
    int n = 0;

    if (!file_is_dir(root) || step_scan(&steps, &n, root, &ignored))
        return;
    for (int i = 0; i < n; i++)
        if (step_name_parse(&found, steps[i].name) == STEP_TMP && found == step &&
            !step_path(path, root, steps[i].name, &ignored) && fits(ctx, path))
            break;
    free(steps);
}

/* Begin anew, when there is nothing to go on with: what dead writers left goes. */
static tp_status begin_tmp(struct ckpt_txn *t, struct tp_err *err)
{
    char name[STEP_NAME_MAX];

    step_name(name, t->step);
    if (snprintf(t->tmp, sizeof t->tmp, "%s/%s.tmp-%s", t->root, name, t->save_id) >=
        (int)sizeof t->tmp) {
        t->tmp[0] = 0;
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", t->root);
    }
    return make_tmp(t, err);
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
    TP_TRY(make_save_id(txn.save_id, err));
    txn.made_root = !file_exists(root);
    TP_TRY(file_make_dirs(root, err));
    TP_TRY(lock_root(&lock, root, err));
    if (fits)
        TP_TRY(adopt_any(&txn, fits, ctx, err));
    *resumed = txn.tmp[0] != 0; /* then it is locked, and not reaped */
    TP_TRY(reap_all(root, err));
    reap_names(root);
    if (!*resumed)
        TP_TRY(begin_tmp(&txn, err));
    *t = txn;
    txn.tmp[0] = 0;
    txn.alive = -1;
done:
    ckpt_abort(&txn);
    if (lock >= 0)
        close(lock);
    return st;
}

/* A root that we made and that holds nothing but its lock goes again. */
static void remove_root(const char *root)
{
    char path[PATH_MAX];
    struct tp_err ignored;
    int lock = -1;

    if (lock_root(&lock, root, &ignored))
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

void ckpt_abort(struct ckpt_txn *t)
{
    struct tp_err ignored;

    if (!t->tmp[0])
        return;
    file_remove_tree(t->tmp, &ignored);
    if (t->made_root)
        remove_root(t->root);
    if (t->alive >= 0)
        close(t->alive);
    t->alive = -1;
    t->tmp[0] = 0;
}

void ckpt_leave(struct ckpt_txn *t)
{
    if (t->alive >= 0)
        close(t->alive);
    t->alive = -1;
    t->tmp[0] = 0;
}

/* ---- commit ---- */

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

/* ROOT/latest -> the step with the highest number. A convenience: failure is none. Under the lock,
 * as write_epoch. */
static void point_latest(const char *root)
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

static tp_status check_epoch(const struct ckpt_txn *t, struct tp_err *err)
{
    int64_t newest = 0;
    tp_status st = read_epoch(&newest, t->root, err);

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

    TP_TRY(lock_root(&lock, t->root, err));
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
    point_latest(t->root);
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
    if (t->tmp[0])
        ckpt_abort(t); /* the step that was replaced */
    if (t->alive >= 0)
        close(t->alive);
    t->alive = -1;
done:
    return st;
}

/* ---- prune ---- */

static tp_status remove_step(const char *root, const char *name, struct tp_err *err)
{
    char from[PATH_MAX], to[PATH_MAX], tmp_name[NAME_MAX + 1], id[SAVE_ID_TEXT];
    tp_status st;

    TP_TRY(make_save_id(id, err));
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
        TP_TRY(lock_root(&lock, root, err));
    for (int i = n - 1; i >= 0; i--) {
        int64_t step = 0;
        bool dead = false;

        if (step_name_parse(&step, steps[i].name) == STEP_TMP) {
            TP_TRY(reap(root, steps[i].name, dry_run, &dead, err));
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
