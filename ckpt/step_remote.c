/* ckpt/step_remote.c - see ckpt/step_remote.h. */
#include "ckpt/step_remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/thread_pool.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/object.h"

/* A manifest of up to AHEAD_BYTES comes in the request that opens it, so that another program
 * cannot remove or replace it between two. */
enum { CHECKS_AT_ONCE = 8, AHEAD_BYTES = 256 << 10 };

tp_status step_read_remote(struct manifest *m, const char *path, struct arena *arena,
                           struct tp_err *err)
{
    struct object object;
    struct json_scan_input in;
    char *text = NULL;
    int64_t size = 0;
    tp_status st = object_open_ahead(&object, &size, path, 0, AHEAD_BYTES, err);

    if (st)
        return st;
    if (size > MANIFEST_MAX_BYTES)
        TP_TRY(tp_fail(err, TP_E_CORRUPT, "%s: %lld bytes, more than the %d allowed", path,
                       (long long)size, MANIFEST_MAX_BYTES));
    text = malloc((size_t)size + 1);
    if (!text)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", path, (long long)size));
    TP_TRY(object_read_at(&object, path, 0, text, (size_t)size, err));
    in = json_scan_input_text(text, (size_t)size, path);
    st = manifest_parse(m, &in, arena, err);
done:
    object_close(&object);
    free(text);
    return st;
}

/* ---- shards ---- */

static tp_status check_size(const struct shard_info *shard, const char *dir, int64_t size,
                            struct tp_err *err)
{
    if (size == shard->size_bytes)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: has %lld bytes, but the manifest says %lld", dir,
                   shard->file, (long long)size, (long long)shard->size_bytes);
}

static tp_status fail_missing(const struct shard_info *shard, const char *dir, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: the shard of rank %d is missing", dir, shard->file,
                   shard->rank);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct folder_entry *)a)->name, ((const struct folder_entry *)b)->name);
}

/* A listing has all sizes, so a step of many shards needs few requests. */
static tp_status check_listed(const struct manifest *m, const char *dir, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    int n = 0;
    tp_status st = folder_list(&entries, &n, dir, err);

    if (st)
        return st;
    qsort(entries, (size_t)n, sizeof *entries, by_name);
    for (int i = 0; i < m->n_shards && !st; i++) {
        struct folder_entry key = { 0 };
        const struct folder_entry *found;

        memcpy(key.name, m->shards[i].file, sizeof m->shards[i].file);
        found = bsearch(&key, entries, (size_t)n, sizeof *entries, by_name);
        st = found ? check_size(&m->shards[i], dir, found->size, err)
                   : fail_missing(&m->shards[i], dir, err);
    }
    free(entries);
    return st;
}

struct step_shard_check {
    const struct manifest *m;
    const char *dir;
};

/* A thread_pool_fn: ask for the length of shard number `item`. */
static tp_status check_shard(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct step_shard_check *c = ctx;
    const struct shard_info *shard = &c->m->shards[item];
    struct object object;
    char path[PATH_MAX];
    int64_t size = 0;
    tp_status st = file_join(path, c->dir, shard->file, err);

    (void)worker;
    if (st)
        return st;
    st = object_open(&object, &size, path, err);
    if (st)
        return st == TP_E_NOTFOUND ? fail_missing(shard, c->dir, err) : st;
    object_close(&object);
    return check_size(shard, c->dir, size, err);
}

tp_status step_check_remote(const struct manifest *m, const char *dir, struct tp_err *err)
{
    struct step_shard_check check = { m, dir };

    if (location_kind(dir) == LOCATION_S3)
        return check_listed(m, dir, err);
    return thread_pool_run(check_shard, &check, m->n_shards,
                           m->n_shards < CHECKS_AT_ONCE ? m->n_shards : CHECKS_AT_ONCE, err);
}

/* ---- web servers ---- */

tp_status step_find_latest(int64_t *step, const char *root, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct manifest m;
    char path[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(path, root, "latest/" MANIFEST_FILE, err));
    st = step_read_remote(&m, path, &arena, err);
    if (st == TP_E_NOTFOUND)
        st =
            tp_fail(err, TP_E_NOTFOUND,
                    "%s: has neither " MANIFEST_FILE " nor latest/" MANIFEST_FILE
                    "; a web server has no listings, so name a step: %s/step-NNNNNNNN, or --step N",
                    root, root);
    if (!st)
        *step = m.step;
done:
    arena_free(&arena);
    return st;
}
