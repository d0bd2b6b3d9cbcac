/* ckpt/epoch.c - see ckpt/epoch.h. */
#include "ckpt/epoch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "storage/location.h"
#include "storage/object.h"
#include "storage/store_object.h"

enum { CLAIMS_MAX = 6 };

tp_status ckpt_epoch(int64_t *epoch, const char *root, struct tp_err *err)
{
    enum { EPOCH_TEXT_MAX = 32 };
    struct arena arena = { 0 };
    char path[PATH_MAX], *text = NULL, *end;
    size_t n = 0;
    tp_status st;

    TP_TRY(file_join(path, root, "epoch", err));
    st = object_read_all(&text, &n, path, EPOCH_TEXT_MAX, &arena, err);
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
                     "%s: does not contain a number; stop all jobs that use this root, then write "
                     "the highest epoch of its manifests into the file",
                     path);
done:
    arena_free(&arena);
    return st;
}

/* Replace ROOT/epoch. Under ROOT/lock, so the temporary file can have a fixed name, and one that a
 * dead job left does no harm. */
static tp_status write_epoch(const char *root, int64_t epoch, struct tp_err *err)
{
    char path[PATH_MAX], tmp[PATH_MAX], text[32];
    int n = snprintf(text, sizeof text, "%lld\n", (long long)epoch);
    tp_status st;

    TP_TRY(file_join(path, root, "epoch", err));
    TP_TRY(file_join(tmp, root, "epoch.tmp", err));
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

/* In a store there is no lock: ROOT/epoch is replaced only if it is still what was read. Otherwise
 * another job has claimed the root, or a try of ours whose reply was lost: then the next number is
 * tried, so that no two jobs have the same one. */
static tp_status claim_in_store(int64_t *epoch, const char *root, struct tp_err *err)
{
    char path[PATH_MAX], before[32], after[32];
    int64_t last = 0;
    tp_status st;

    TP_TRY(file_join(path, root, "epoch", err));
    for (int i = 0; i < CLAIMS_MAX; i++) {
        TP_TRY(ckpt_epoch(&last, root, err));
        snprintf(before, sizeof before, "%lld\n", (long long)last);
        snprintf(after, sizeof after, "%lld\n", (long long)(last + 1));
        /* 0 is no epoch yet, or what someone wrote into a root whose manifests have no other one */
        st = store_object_swap(path, last > 0 || i > 0 ? before : NULL, after, err);
        *epoch = last + 1;
        if (st != TP_E_EXISTS)
            break;
    }
done:
    return st;
}

tp_status ckpt_claim(int64_t *epoch, const char *root, const struct root_lock_wait *wait,
                     struct tp_err *err)
{
    int64_t last = 0;
    int lock = -1;
    tp_status st;

    if (location_is_remote(root))
        return claim_in_store(epoch, root, err);
    TP_TRY(ckpt_check_root(root, err));
    TP_TRY(root_lock_make(&lock, root, wait, err));
    root_remove_leftovers(root); /* this job may have nothing left to save, so do it now */
    TP_TRY(ckpt_epoch(&last, root, err));
    TP_TRY(write_epoch(root, last + 1, err));
    *epoch = last + 1;
done:
    if (lock >= 0)
        close(lock);
    return st;
}

tp_status ckpt_epoch_check(const char *root, int64_t epoch, int64_t step, struct tp_err *err)
{
    int64_t newest = 0;
    tp_status st = ckpt_epoch(&newest, root, err);

    if (!st && newest > epoch)
        st = tp_fail(err, TP_E_STALE,
                     "%s: belongs to a newer job (epoch %lld; this one has %lld); step %lld was "
                     "not committed",
                     root, (long long)newest, (long long)epoch, (long long)step);
    return st;
}
