/* ckpt/step_cleaner.c - see ckpt/step_cleaner.h. */
#include "ckpt/step_cleaner.h"

#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "core/thread_pool.h"
#include "storage/object.h"
#include "storage/store_object.h"

enum { DELETES_AT_ONCE = 8 };

tp_status step_cleaner_read(char id[SAVE_ID_TEXT], const char *dir, struct tp_err *err)
{
    struct arena arena = { 0 };
    char path[PATH_MAX], *text = NULL;
    size_t n = 0;
    tp_status st;

    id[0] = 0;
    TP_TRY(file_join(path, dir, STEP_CLEANER_FILE, err));
    st = object_read_all(&text, &n, path, SAVE_ID_TEXT - 1, &arena, err);
    if (st == TP_E_NOTFOUND)
        st = TP_OK;
    else if (!st)
        memcpy(id, text, n + 1);
done:
    arena_free(&arena);
    return st;
}

tp_status step_cleaner_write(const char *dir, const char *id, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = file_join(path, dir, STEP_CLEANER_FILE, err);

    return st ? st : store_object_replace(path, id, strlen(id), err);
}

bool step_cleaner_is_shard(const struct folder_entry *entry)
{
    return !entry->is_folder && strncmp(entry->name, "rank-", strlen("rank-")) == 0;
}

struct step_cleaner_job {
    const char *dir;
    const struct folder_entry *entries;
};

/* A thread_pool_fn. */
static tp_status remove_entry(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct step_cleaner_job *job = ctx;
    char path[PATH_MAX];
    tp_status st;

    (void)worker;
    if (!step_cleaner_is_shard(&job->entries[item]))
        return TP_OK;
    st = file_join(path, job->dir, job->entries[item].name, err);
    return st ? st : store_object_delete(path, err);
}

tp_status step_cleaner_remove_shards(const char *dir, const struct folder_entry *entries, int n,
                                     struct tp_err *err)
{
    struct step_cleaner_job job = { dir, entries };

    return thread_pool_run(remove_entry, &job, n, n < DELETES_AT_ONCE ? n : DELETES_AT_ONCE, err);
}
