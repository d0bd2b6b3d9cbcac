/* ckpt/tmp.c - see ckpt/tmp.h. */
#include "ckpt/tmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "ckpt/step.h"
#include "core/file.h"

tp_status tmp_save_id(char id[SAVE_ID_TEXT], struct tp_err *err)
{
    unsigned char random[(SAVE_ID_TEXT - 1) / 2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return tp_fail_errno(err, "no random numbers for a save id");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    return TP_OK;
}

/* Open a temporary to try its lock; *fd is -1 when it is gone, or not ours to judge. */
static tp_status open_tmp(char path[PATH_MAX], int *fd, const char *root, const char *name,
                          struct tp_err *err)
{
    tp_status st = step_path(path, root, name, err);

    *fd = st ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return st;
}

tp_status tmp_reap(const char *root, const char *name, bool dry_run, bool *dead, struct tp_err *err)
{
    char path[PATH_MAX];
    int fd;
    tp_status st = open_tmp(path, &fd, root, name, err);

    *dead = false;
    if (fd < 0)
        return st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *dead = true;
        st = dry_run ? TP_OK : file_remove_tree(path, err);
    }
    close(fd);
    return st;
}

tp_status tmp_reap_all(const char *root, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int64_t step;
    int n = 0;
    bool dead;
    tp_status st = step_scan(&steps, &n, root, err);

    for (int i = 0; i < n && !st; i++)
        if (step_name_parse(&step, steps[i].name) == STEP_TMP)
            st = tmp_reap(root, steps[i].name, false, &dead, err);
    free(steps);
    return st;
}

static tp_status make_locked(struct ckpt_txn *t, struct tp_err *err)
{
    if (mkdir(t->tmp, 0777) != 0)
        return tp_fail_errno(err, "%s: cannot create directory", t->tmp);
    t->alive = open(t->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (t->alive < 0)
        return tp_fail_errno(err, "%s: cannot open directory", t->tmp);
    if (flock(t->alive, LOCK_EX | LOCK_NB) != 0 && !root_lock_unsupported(errno))
        return tp_fail_errno(err, "%s: cannot lock", t->tmp);
    return TP_OK;
}

tp_status tmp_make(struct ckpt_txn *t, struct tp_err *err)
{
    char name[STEP_NAME_MAX];

    step_name(name, t->step);
    if (snprintf(t->tmp, sizeof t->tmp, "%s/%s.tmp-%s", t->root, name, t->save_id) >=
        (int)sizeof t->tmp) {
        t->tmp[0] = 0;
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", t->root);
    }
    return make_locked(t, err);
}

/* tmp_adopt, of one of the temporaries of our step. */
static tp_status adopt(struct ckpt_txn *t, const char *name, ckpt_fits_fn fits, void *ctx,
                       struct tp_err *err)
{
    const char *id = strstr(name, ".tmp-") + 5;
    char path[PATH_MAX];
    int fd;
    tp_status st = open_tmp(path, &fd, t->root, name, err);

    if (fd < 0)
        return st;
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

tp_status tmp_adopt(struct ckpt_txn *t, ckpt_fits_fn fits, void *ctx, struct tp_err *err)
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
