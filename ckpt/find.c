/* ckpt/find.c - the finding half of ckpt/commit.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/step.h"
#include "core/file.h"

/* Whether a step directory can be read, by its manifest and the lengths of its shards. */
static bool is_complete(const char *root, const struct ckpt_step *s)
{
    struct arena arena = { 0 };
    struct manifest m;
    struct tp_err err = { 0 };
    char path[PATH_MAX];
    int64_t step;
    bool ok = step_name_parse(&step, s->name) == STEP_DIR &&
              !step_path(path, root, s->name, &err) && !step_load(&m, path, &arena, &err);

    arena_free(&arena);
    return ok;
}

tp_status ckpt_list(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                    struct tp_err *err)
{
    struct ckpt_step *found = NULL, *copy;
    int count = 0;
    tp_status st = step_scan(&found, &count, root, err);

    if (st)
        return st;
    copy = arena_array(arena, (size_t)count, sizeof *copy);
    if (!copy) {
        free(found);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", root);
    }
    for (int i = 0; i < count; i++) {
        copy[i] = found[i];
        copy[i].complete = is_complete(root, &found[i]);
    }
    free(found);
    *steps = copy;
    *n = count;
    return TP_OK;
}

/* dir without slashes at its end. */
static tp_status clean_path(char out[PATH_MAX], const char *path, struct tp_err *err)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0)
        return tp_fail(err, TP_E_USAGE, "an empty path names no checkpoint");
    if (n >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", path);
    memcpy(out, path, n);
    out[n] = 0;
    return TP_OK;
}

static bool is_step_dir(const char *path)
{
    char manifest[PATH_MAX];
    const char *name = strrchr(path, '/');
    struct tp_err err;
    int64_t step;

    if (step_name_parse(&step, name ? name + 1 : path) != STEP_NONE)
        return true;
    return !step_path(manifest, path, MANIFEST_FILE, &err) && file_exists(manifest);
}

static tp_status check_is_dir(const char *path, struct tp_err *err)
{
    struct stat sb;

    if (stat(path, &sb) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such directory", path);
    if (stat(path, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    if (!S_ISDIR(sb.st_mode))
        return tp_fail(err, TP_E_NOTFOUND, "%s: is no directory, so it is no checkpoint", path);
    return TP_OK;
}

static tp_status open_step_dir(char dir[PATH_MAX], struct manifest *m, const char *path,
                               int64_t step, struct arena *arena, struct tp_err *err)
{
    struct manifest found = { 0 };
    tp_status st = step_load(&found, path, arena, err);

    if (st == TP_E_NOTFOUND)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has no " MANIFEST_FILE ", so it is no complete "
                       "checkpoint; a save may have been interrupted",
                       path);
    if (st)
        return st;
    if (step >= 0 && found.step != step)
        return tp_fail(err, TP_E_NOTFOUND, "%s: is step %lld, not %lld", path,
                       (long long)found.step, (long long)step);
    *m = found;
    memmove(dir, path, strlen(path) + 1);
    return TP_OK;
}

/* The newest step that loads. Newer ones that do not are told of in err->msg. */
static tp_status open_newest(char dir[PATH_MAX], struct manifest *m, const char *root,
                             const struct ckpt_step *steps, int n, struct arena *arena,
                             struct tp_err *err)
{
    struct tp_err first = { 0 };
    int64_t step = 0;
    char path[PATH_MAX];

    for (int i = n - 1; i >= 0; i--) {
        struct tp_err why = { 0 };
        tp_status st;

        if (step_name_parse(&step, steps[i].name) != STEP_DIR)
            continue;
        st = step_path(path, root, steps[i].name, &why);
        if (!st)
            st = open_step_dir(dir, m, path, -1, arena, &why);
        if (!st) {
            if (first.status)
                tp_fail(err, TP_OK, "%.700s; going back to %s", first.msg, steps[i].name);
            return TP_OK;
        }
        if (st == TP_E_NOMEM) { /* says nothing of the step */
            *err = why;
            return st;
        }
        if (!first.status)
            first = why;
    }
    if (!first.status)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has no complete checkpoint, only what an "
                       "interrupted save left (%s)",
                       root, steps[n - 1].name);
    *err = first;
    return err->status;
}

/* What a path names: a step directory (*n is 0), or a root and its entries. */
static tp_status look_at(char clean[PATH_MAX], struct ckpt_step **steps, int *n, const char *path,
                         struct tp_err *err)
{
    tp_status st;

    *n = 0;
    TP_TRY(clean_path(clean, path, err));
    TP_TRY(check_is_dir(clean, err));
    if (is_step_dir(clean))
        return TP_OK;
    TP_TRY(step_scan(steps, n, clean, err));
    if (*n == 0)
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: is no checkpoint: it has neither a " MANIFEST_FILE
                     " nor step-NNNNNNNN directories",
                     clean);
done:
    return st;
}

static tp_status step_dir_of(char dir[PATH_MAX], const char *root, int64_t step, const char *newest,
                             struct tp_err *err)
{
    char name[STEP_NAME_MAX];
    tp_status st = step_path(dir, root, step_name(name, step), err);

    if (!st && !file_is_dir(dir))
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no step %lld; its newest entry is %s", root,
                     (long long)step, newest);
    return st;
}

tp_status ckpt_open(char dir[PATH_MAX], struct manifest *m, const char *path, int64_t step,
                    struct arena *arena, struct tp_err *err)
{
    char clean[PATH_MAX], step_dir[PATH_MAX];
    struct ckpt_step *steps = NULL;
    int n = 0;
    tp_status st;

    TP_TRY(look_at(clean, &steps, &n, path, err));
    if (n == 0) {
        st = open_step_dir(dir, m, clean, step, arena, err);
    } else if (step < 0) {
        st = open_newest(dir, m, clean, steps, n, arena, err);
    } else {
        TP_TRY(step_dir_of(step_dir, clean, step, steps[n - 1].name, err));
        st = open_step_dir(dir, m, step_dir, step, arena, err);
    }
done:
    free(steps);
    return st;
}

tp_status ckpt_locate(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    char clean[PATH_MAX];
    int64_t number = 0;
    int n = 0, newest;
    tp_status st;

    TP_TRY(look_at(clean, &steps, &n, path, err));
    newest = n - 1;
    while (newest > 0 && step_name_parse(&number, steps[newest].name) != STEP_DIR)
        newest--;
    if (n == 0)
        memcpy(dir, clean, sizeof clean);
    else if (step >= 0)
        st = step_dir_of(dir, clean, step, steps[n - 1].name, err);
    else
        st = step_path(dir, clean, steps[newest].name, err);
done:
    free(steps);
    return st;
}
