/* ckpt/temporary.c - see ckpt/temporary.h. */
#include "ckpt/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/access.h"
#include "ckpt/root_lock.h"
#include "ckpt/step.h"
#include "core/file.h"
#include "core/file_tree.h"

tp_status ckpt_list_temporaries(const char ***paths, int *n, const char *root, int64_t step,
                                struct arena *arena, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    const char **list = NULL;
    int64_t number;
    int n_steps = 0, found = 0;
    tp_status st = file_is_dir(root) ? step_scan(&steps, &n_steps, root, err) : TP_OK;

    if (st)
        return st;
    list = arena_array(arena, (size_t)n_steps + 1, sizeof *list);
    for (int i = 0; list && i < n_steps; i++) {
        if (step_parse_name(&number, steps[i].name) != STEP_TMP || number != step)
            continue;
        list[found] = arena_printf(arena, "%s/%s", root, steps[i].name);
        if (!list[found++])
            list = NULL;
    }
    free(steps);
    if (!list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", root);
    *paths = list;
    *n = found;
    return TP_OK;
}

tp_status temporary_save_id(char id[SAVE_ID_TEXT], struct tp_err *err)
{
    unsigned char random[(SAVE_ID_TEXT - 1) / 2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return tp_fail_errno(err, "no random numbers for a save id");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 2 * i, 3, "%02x", random[i]);
    return TP_OK;
}

/* Open a directory to try its lock; *fd is -1 when it does not exist or cannot be opened. */
static tp_status open_dir(char path[PATH_MAX], int *fd, const char *root, const char *name,
                          struct tp_err *err)
{
    tp_status st = file_join(path, root, name, err);

    *fd = st ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return st;
}

tp_status temporary_remove_dead(const char *root, const char *name, bool dry_run, bool *dead,
                                struct tp_err *err)
{
    char path[PATH_MAX];
    int fd;
    tp_status st = open_dir(path, &fd, root, name, err);

    *dead = false;
    if (fd < 0)
        return st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *dead = true;
        st = dry_run ? TP_OK : file_tree_remove(path, err);
    }
    close(fd);
    return st;
}

tp_status temporary_remove_all_dead(const char *root, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int64_t step;
    int n = 0;
    bool dead;
    tp_status st = step_scan(&steps, &n, root, err);

    for (int i = 0; i < n && !st; i++) {
        struct tp_err why;

        if (step_parse_name(&step, steps[i].name) != STEP_TMP)
            continue;
        st = temporary_remove_dead(root, steps[i].name, false, &dead, &why);
        if (st == TP_E_IO) /* it stays */
            st = TP_OK;
        else if (st)
            *err = why;
    }
    free(steps);
    return st;
}

tp_status temporary_make(struct temporary *t, const char *root, int64_t step, struct tp_err *err)
{
    char name[STEP_NAME_MAX], tmp_name[STEP_NAME_MAX + SAVE_ID_TEXT + 8], path[PATH_MAX];
    tp_status st;

    TP_TRY(temporary_save_id(t->save_id, err));
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp-%s", step_name(name, step), t->save_id);
    TP_TRY(file_join(path, root, tmp_name, err));
    if (mkdir(path, 0700) != 0) /* the commit gives it its mode: see ckpt/access.h */
        return tp_fail_errno(err, "%s: cannot create the directory", path);
    memcpy(t->path, path, sizeof path);
    t->lock_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (t->lock_fd < 0)
        return tp_fail_errno(err, "%s: cannot open the directory", path);
    if (flock(t->lock_fd, LOCK_EX | LOCK_NB) != 0 && !root_lock_unsupported(errno))
        return tp_fail_errno(err, "%s: cannot lock", path);
    access_limit(t->lock_fd, root);
done:
    return st;
}

/* temporary_adopt for one entry of the root, a temporary directory of the step. */
static tp_status adopt(struct temporary *t, const char *root, int64_t step, const char *name,
                       const char *wanted, struct tp_err *err)
{
    const char *id = strstr(name, ".tmp-") + 5;
    char path[PATH_MAX];
    int fd;
    tp_status st = open_dir(path, &fd, root, name, err);

    if (fd < 0)
        return st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            st = tp_fail(err, TP_E_EXISTS,
                         "%s: another process is writing step %lld (%s); wait until it ends, or "
                         "stop it and run this again",
                         root, (long long)step, name);
        close(fd);
        return st;
    }
    if (!wanted || strcmp(path, wanted) != 0 || strlen(id) != SAVE_ID_TEXT - 1 ||
        strspn(id, "0123456789abcdef") != SAVE_ID_TEXT - 1) {
        close(fd);
        return TP_OK;
    }
    access_limit(fd, root);
    unlinkat(fd, MANIFEST_FILE, 0); /* of a commit that did not happen */
    memcpy(t->save_id, id, SAVE_ID_TEXT);
    memcpy(t->path, path, sizeof t->path);
    t->lock_fd = fd;
    return TP_OK;
}

tp_status temporary_adopt(struct temporary *t, const char *root, int64_t step, const char *wanted,
                          struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    int64_t number;
    int n = 0;
    tp_status st = step_scan(&steps, &n, root, err);

    for (int i = 0; i < n && !st && !t->path[0]; i++)
        if (step_parse_name(&number, steps[i].name) == STEP_TMP && number == step)
            st = adopt(t, root, step, steps[i].name, wanted, err);
    free(steps);
    return st;
}

void temporary_release(struct temporary *t)
{
    if (t->path[0] && t->lock_fd >= 0)
        close(t->lock_fd);
    t->lock_fd = -1;
    t->path[0] = 0;
}
