/* ckpt/store_prune.c - see ckpt/store_prune.h. */
#include "ckpt/store_prune.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/step.h"
#include "ckpt/step_cleaner.h"
#include "ckpt/store_step.h"
#include "ckpt/temporary.h"
#include "core/file.h"
#include "storage/folder.h"
#include "storage/store_object.h"

/* How the id of a cleaner begins that removes a whole step. */
static const char mark[] = "pruned-";

static bool is_marked(const char *id)
{
    return strncmp(id, mark, strlen(mark)) == 0;
}

tp_status store_prune_begin(struct store_prune *p, const char *root, struct tp_err *err)
{
    tp_status st = store_step_check_root(root, err);

    *p = (struct store_prune){ .root = root };
    return st ? st : ckpt_epoch(&p->epoch, root, err);
}

/* Right before a removal. */
static tp_status check_epoch(const struct store_prune *p, const char *dir, struct tp_err *err)
{
    int64_t now = 0;
    tp_status st = ckpt_epoch(&now, p->root, err);

    if (st || now == p->epoch)
        return st;
    return tp_fail(err, TP_E_STALE,
                   "%s: stays, because a job has claimed the root meanwhile (epoch %lld, before "
                   "%lld) and may write this step; run this again",
                   dir, (long long)now, (long long)p->epoch);
}

/* The save id and the epoch of a step. TP_E_NOTFOUND: it has no manifest. */
static tp_status read_save(char save_id[SAVE_ID_TEXT], int64_t *epoch, const char *dir,
                           struct tp_err *err)
{
    struct arena arena = { 0 };
    struct manifest m = { 0 };
    tp_status st = step_read_manifest(&m, dir, &arena, err);

    if (!st) {
        memcpy(save_id, m.save_id, SAVE_ID_TEXT);
        *epoch = m.epoch;
    }
    arena_free(&arena);
    return st;
}

tp_status store_prune_is_owned(bool *is, const struct store_prune *p, const char *name,
                               struct tp_err *err)
{
    char dir[PATH_MAX], save_id[SAVE_ID_TEXT];
    int64_t epoch = -1;
    tp_status st;

    TP_TRY(file_join(dir, p->root, name, err));
    TP_TRY(read_save(save_id, &epoch, dir, err));
    *is = epoch == p->epoch;
done:
    return st;
}

tp_status store_prune_rest(enum store_prune_rest *rest, const struct store_prune *p,
                           const char *name, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    char dir[PATH_MAX], cleaner[SAVE_ID_TEXT];
    int n = 0;
    tp_status st;

    *rest = STORE_REST_NONE;
    TP_TRY(file_join(dir, p->root, name, err));
    TP_TRY(step_cleaner_read(cleaner, dir, err));
    st = folder_list(&entries, &n, dir, err);
    if (st == TP_E_NOTFOUND)
        st = TP_OK;
    for (int i = 0; i < n && !st; i++)
        if (step_cleaner_is_shard(&entries[i]))
            *rest = STORE_REST_SHARDS;
    if (!st && is_marked(cleaner))
        *rest = STORE_REST_PRUNED;
done:
    free(entries);
    return st;
}

/* Remove the shards of a step whose manifest is gone, then what says so. Another program that
 * cleans the step now does the rest. */
static tp_status remove_rest(const char *dir, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    char path[PATH_MAX], cleaner[SAVE_ID_TEXT];
    int n = 0;
    tp_status st;

    TP_TRY(folder_list(&entries, &n, dir, err));
    TP_TRY(step_cleaner_read(cleaner, dir, err));
    if (!is_marked(cleaner))
        goto done;
    TP_TRY(step_cleaner_remove_shards(dir, entries, n, err));
    TP_TRY(file_join(path, dir, STEP_CLEANER_FILE, err));
    st = store_object_delete(path, err);
done:
    free(entries);
    return st == TP_E_NOTFOUND ? TP_OK : st;
}

/* Become the cleaner of the step in dir. */
static tp_status announce(const char *dir, struct tp_err *err)
{
    char id[SAVE_ID_TEXT], random[SAVE_ID_TEXT];
    tp_status st = temporary_save_id(random, err);

    if (st)
        return st;
    snprintf(id, sizeof id, "%s%.*s", mark, (int)(sizeof id - sizeof mark), random);
    return step_cleaner_write(dir, id, err);
}

tp_status store_prune_remove(bool *deleted, const struct store_prune *p, const char *name,
                             struct tp_err *err)
{
    char dir[PATH_MAX], path[PATH_MAX], before[SAVE_ID_TEXT] = "", now[SAVE_ID_TEXT] = "";
    enum store_prune_rest rest = STORE_REST_NONE;
    int64_t epoch;
    tp_status st;

    *deleted = false;
    TP_TRY(file_join(dir, p->root, name, err));
    TP_TRY(file_join(path, dir, MANIFEST_FILE, err));
    st = read_save(before, &epoch, dir, err);
    if (st == TP_E_NOTFOUND)
        st = store_prune_rest(&rest, p, name, err);
    if (st || (!before[0] && rest != STORE_REST_PRUNED))
        goto done;
    TP_TRY(announce(dir, err));
    TP_TRY(check_epoch(p, dir, err));
    st = read_save(now, &epoch, dir, err);
    if (st == TP_E_NOTFOUND)
        st = TP_OK;
    if (st || strcmp(before, now) != 0) /* another program was faster */
        goto done;
    *deleted = true;
    if (before[0])
        TP_TRY(store_object_delete(path, err));
    st = remove_rest(dir, err);
done:
    return st;
}
