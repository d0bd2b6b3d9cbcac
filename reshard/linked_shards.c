/* reshard/linked_shards.c - see reshard/linked_shards.h. */
#include "reshard/linked_shards.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/shard.h"
#include "core/file.h"
#include "storage/location.h"

/* ---- before ---- */

static bool same_tensors(const struct layout *from, const struct layout *to, const int *ids)
{
    if (from->n_tensors != to->n_tensors)
        return false;
    for (int i = 0; i < to->n_tensors; i++)
        if (ids[i] != i || from->tensors[i].dtype != to->tensors[i].dtype)
            return false;
    return true;
}

bool linked_shards_possible(const struct ckpt_found *from, const struct layout *to, const int *ids,
                            const char *out, char why[LINKED_SHARDS_TEXT])
{
    const struct manifest *m = &from->manifest;
    const int world = spec_world(&to->spec);

    why[0] = 0;
    if (!same_tensors(&m->layout, to, ids))
        snprintf(why, LINKED_SHARDS_TEXT, "tensors are left out or cast");
    else if (m->layout.spec.tp != to->spec.tp)
        snprintf(why, LINKED_SHARDS_TEXT, "tp changes from %d to %d, so every file changes",
                 m->layout.spec.tp, to->spec.tp);
    else if (location_is_remote(from->dir) || location_is_remote(out))
        snprintf(why, LINKED_SHARDS_TEXT, "one of the two is not a local folder");
    else if (!file_same_system(from->dir, out))
        snprintf(why, LINKED_SHARDS_TEXT, "the output is on another file system");
    for (int i = 0; i < m->n_shards && !why[0]; i++)
        if (m->shards[i].rank >= world)
            snprintf(why, LINKED_SHARDS_TEXT,
                     "the new layout has %d ranks, but the checkpoint has a file of rank %d", world,
                     m->shards[i].rank);
    return !why[0];
}

/* ---- linking ---- */

/* Everything of the shard but payload; adds up its payload. */
static tp_status check_shard(const struct ckpt_found *from, int number, int64_t *bytes,
                             struct tp_err *err)
{
    struct shard_reader *reader = NULL;
    const struct chunk_entry *chunks;
    int64_t n = 0;
    tp_status st = ckpt_open_shard(&reader, from->dir, &from->manifest, number, err);

    if (st)
        return st;
    chunks = shard_chunks(reader, &n);
    for (int64_t k = 0; k < n; k++)
        *bytes += chunks[k].stored_bytes;
    st = shard_check_meta(reader, err);
    shard_reader_close(reader);
    return st;
}

/* The file was synced when its step was committed, but perhaps not when somebody copied the
 * step. */
static tp_status link_shard(const struct ckpt_found *from, const char *file, const char *dir,
                            struct tp_err *err)
{
    char old_path[PATH_MAX], new_path[PATH_MAX];
    int64_t size;
    int fd = -1;
    tp_status st;

    TP_TRY(file_join(old_path, from->dir, file, err));
    TP_TRY(file_join(new_path, dir, file, err));
    if (link(old_path, new_path) != 0)
        return tp_fail_errno(err, "%s: cannot link it; run the same command without --link",
                             old_path);
    TP_TRY(file_open_own(&fd, &size, new_path, err));
    st = file_sync(fd, new_path, false, err);
done:
    if (fd >= 0)
        close(fd);
    return st;
}

tp_status linked_shards_check(const struct ckpt_found *from, int64_t *rank_bytes,
                              struct tp_err *err)
{
    const struct manifest *m = &from->manifest;
    tp_status st = TP_OK;

    for (int i = 0; i < m->n_shards && !st; i++)
        st = check_shard(from, i, &rank_bytes[m->shards[i].rank], err);
    return st;
}

/* Another program may have replaced the step since its manifest was read. So the file that was
 * linked is checked too: its index states the checksums of all its payload. */
static tp_status check_link(const struct ckpt_found *from, int number, const char *dir,
                            struct tp_err *err)
{
    const struct manifest *m = &from->manifest;
    struct shard_reader *linked = NULL, *source = NULL;
    struct tp_err why = { 0 };
    tp_status st = shard_open(&linked, dir, &m->shards[number], &m->layout, err);

    if (!st)
        st = shard_check_meta(linked, err);
    if (st == TP_E_CORRUPT && ckpt_open_shard(&source, from->dir, m, number, &why)) {
        *err = why; /* it says when the step was replaced */
        st = err->status;
    }
    shard_reader_close(source);
    shard_reader_close(linked);
    return st;
}

tp_status linked_shards_make(const struct ckpt_found *from, const char *dir, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < from->manifest.n_shards && !st; i++) {
        st = link_shard(from, from->manifest.shards[i].file, dir, err);
        if (!st)
            st = check_link(from, i, dir, err);
    }
    return st;
}
