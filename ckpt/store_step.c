/* ckpt/store_step.c - see ckpt/store_step.h. */
#include "ckpt/store_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/step.h"
#include "ckpt/step_cleaner.h"
#include "ckpt/step_remote.h"
#include "ckpt/temporary.h"
#include "core/file.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/object.h"
#include "storage/store_object.h"

tp_status store_step_check_root(const char *root, struct tp_err *err)
{
    char path[PATH_MAX];
    bool is_step = false;
    tp_status st;

    if (location_kind(root) != LOCATION_S3)
        return tp_fail(err, TP_E_USAGE,
                       "%.400s: a web server cannot be written to; name a folder, "
                       "or s3://BUCKET/PREFIX",
                       root);
    TP_TRY(location_check(root, err));
    TP_TRY(file_join(path, root, MANIFEST_FILE, err));
    TP_TRY(object_exists(&is_step, path, err));
    if (is_step)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: is one step of a checkpoint (it contains " MANIFEST_FILE
                     "); name the root, the prefix of its steps",
                     root);
    else
        st = step_check_no_name(root, err);
done:
    return st;
}

/* List what is there of the step. */
static tp_status look(struct store_step *s, struct folder_entry **entries, int *n,
                      struct tp_err *err)
{
    tp_status st;

    free(*entries);
    *entries = NULL;
    *n = 0;
    st = folder_list(entries, n, s->dir, err);
    if (st == TP_E_NOTFOUND)
        return TP_OK;
    for (int i = 0; i < *n && !st; i++)
        s->replaces = s->replaces || strcmp((*entries)[i].name, MANIFEST_FILE) == 0;
    return st;
}

static bool has_shards(const struct folder_entry *entries, int n)
{
    for (int i = 0; i < n; i++)
        if (step_cleaner_is_shard(&entries[i]))
            return true;
    return false;
}

tp_status store_step_begin(struct store_step *s, const char *root, int64_t step, bool force,
                           struct tp_err *err)
{
    char name[STEP_NAME_MAX];
    struct folder_entry *entries = NULL;
    int n = 0;
    tp_status st;

    *s = (struct store_step){ .step = step };
    TP_TRY(store_step_check_root(root, err));
    if (snprintf(s->root, sizeof s->root, "%s", root) >= (int)sizeof s->root)
        TP_TRY(tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", root));
    TP_TRY(file_join(s->dir, root, step_name(name, step), err));
    TP_TRY(ckpt_epoch(&s->epoch, root, err));
    TP_TRY(temporary_save_id(s->save_id, err));
    TP_TRY(look(s, &entries, &n, err));
    if (n > 0)
        TP_TRY(step_cleaner_read(s->cleaner, s->dir, err));
    if (!s->replaces && has_shards(entries, n)) {
        TP_TRY(step_cleaner_write(s->dir, s->save_id, err));
        /* not what is there now: of two that clean, the first one has to notice */
        memcpy(s->cleaner, s->save_id, sizeof s->cleaner);
        TP_TRY(look(s, &entries, &n, err));
    }
    if (s->replaces && !force)
        TP_TRY(tp_fail(err, TP_E_EXISTS,
                       "%s: exists already; a store cannot replace a step in one go, so remove it "
                       "first, or name another prefix",
                       s->dir));
    if (!s->replaces)
        st = step_cleaner_remove_shards(s->dir, entries, n, err);
done:
    free(entries);
    return st;
}

/* Whether another writer may have taken these shards for a dead writer's. */
static tp_status check_cleaner(const struct store_step *s, struct tp_err *err)
{
    char now[SAVE_ID_TEXT];
    tp_status st = step_cleaner_read(now, s->dir, err);

    if (st || strcmp(now, s->cleaner) == 0)
        return st;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: another writer of this step began while its shards appeared; nothing was "
                   "committed; let one of them run alone",
                   s->dir);
}

bool store_step_owns(const struct store_step *s)
{
    struct tp_err ignored;

    return check_cleaner(s, &ignored) == TP_OK;
}

tp_status store_step_clear(const struct store_step *s, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    char path[PATH_MAX];
    int n = 0;
    tp_status st = TP_OK;

    TP_TRY(ckpt_epoch_check(s->root, s->epoch, s->step, err));
    TP_TRY(check_cleaner(s, err));
    if (!s->replaces)
        return TP_OK;
    TP_TRY(file_join(path, s->dir, MANIFEST_FILE, err));
    TP_TRY(store_object_delete(path, err));
    st = folder_list(&entries, &n, s->dir, err);
    st = st == TP_E_NOTFOUND ? TP_OK : st;
    if (!st)
        st = step_cleaner_remove_shards(s->dir, entries, n, err);
done:
    free(entries);
    return st;
}

tp_status store_step_commit(const struct store_step *s, struct manifest *m, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    struct tp_err ignored;
    size_t size = 0;
    tp_status st;

    memcpy(m->save_id, s->save_id, sizeof m->save_id);
    m->step = s->step;
    m->epoch = s->epoch;
    TP_TRY(file_join(path, s->dir, MANIFEST_FILE, err));
    TP_TRY(manifest_format(&text, &size, m, err));
    TP_TRY(ckpt_epoch_check(s->root, s->epoch, s->step, err));
    TP_TRY(store_object_create(path, text, size, err));
    st = check_cleaner(s, err);
    if (!st) /* a job that has claimed the root since then does not expect this step any more */
        st = ckpt_epoch_check(s->root, s->epoch, s->step, err);
    if (!st)
        st = step_check_remote(m, s->dir, err);
    if (st)
        store_object_withdraw(path, text, size, &ignored);
done:
    free(text);
    return st;
}
