/* ckpt/shard_create.c - creates or opens the file of a shard that is written; see ckpt/shard.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ckpt/shard_hdf5.h"
#include "ckpt/shard_upload.h"
#include "ckpt/shard_writer.h"
#include "ckpt/tensor_name.h"
#include "core/file.h"
#include "storage/location.h"

/* ---- a writer without a file ---- */

static int64_t chunk_size(const struct shard_writer *w, const struct stored_box *b)
{
    const struct tensor *t = &w->layout->tensors[b->tensor];

    return w->zstd ? chunk_elements_packed(t, &b->box) : chunk_elements(t, &b->box);
}

static tp_status find_boxes(struct shard_writer *w, int n_boxes, struct tp_err *err)
{
    w->first = stored_box_of_rank(&w->n, w->boxes, n_boxes, w->rank);
    if (w->n < 1)
        return tp_fail(err, TP_E_INTERNAL, "rank %d has nothing to write", w->rank);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *b = &w->boxes[w->first + i];
        tp_status st = tensor_name_check(&w->layout->tensors[b->tensor], err);

        if (st)
            return st;
        if (b->part >= SHARD_PARTS_MAX || box_is_empty(&b->box))
            return tp_fail(err, TP_E_INTERNAL,
                           "tensor %s: part %d of rank %d is empty, or more than %d parts",
                           w->layout->tensors[b->tensor].name, b->part, w->rank, SHARD_PARTS_MAX);
    }
    return TP_OK;
}

static tp_status count_chunks(struct shard_writer *w, struct tp_err *err)
{
    w->first_chunk = calloc((size_t)w->n + 1, sizeof *w->first_chunk);
    if (!w->first_chunk)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *b = &w->boxes[w->first + i];

        w->first_chunk[i + 1] = w->first_chunk[i] + box_run_count(&b->box, chunk_size(w, b));
    }
    w->n_chunks = w->first_chunk[w->n];
    if (w->n_chunks > SHARD_CHUNKS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s: would have %lld chunks, more than %d; use more ranks",
                       w->path, (long long)w->n_chunks, SHARD_CHUNKS_MAX);
    return TP_OK;
}

/* Entries for all chunks, without offsets and checksums. */
static tp_status make_chunks(struct shard_writer *w, struct tp_err *err)
{
    tp_status st = count_chunks(w, err);

    if (st)
        return st;
    w->chunks = calloc((size_t)w->n_chunks, sizeof *w->chunks);
    w->sums = calloc((size_t)w->n_chunks * CHUNK_SUM_WORDS, sizeof *w->sums);
    if (!w->chunks || !w->sums)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *b = &w->boxes[w->first + i];
        const struct tensor *t = &w->layout->tensors[b->tensor];
        int64_t elements = chunk_size(w, b);

        for (int64_t k = w->first_chunk[i]; k < w->first_chunk[i + 1]; k++) {
            struct chunk_entry *c = &w->chunks[k];

            c->tensor = b->tensor;
            c->part = b->part;
            box_run(&c->box, &b->box, elements, k - w->first_chunk[i]);
            c->raw_bytes = c->stored_bytes = box_elements(&c->box) * dtype_bytes(t->dtype);
            c->frame_bytes = w->chunks[w->first_chunk[i]].raw_bytes;
        }
    }
    return TP_OK;
}

static tp_status name_file(struct shard_writer *w, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX];

    snprintf(w->file, sizeof w->file, "rank-%05d.h5", w->rank);
    if (snprintf(path, sizeof path, "%s/%s", dir, w->file) >= (int)sizeof path)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", dir);
    w->path = strdup(path);
    if (!w->path)
        return tp_fail(err, TP_E_NOMEM, "no memory for the shard of rank %d", w->rank);
    return TP_OK;
}

static tp_status writer_new(struct shard_writer **out, const struct shard_plan *plan,
                            struct tp_err *err)
{
    struct shard_writer *w = calloc(1, sizeof *w);
    tp_status st = TP_OK;

    if (!w)
        return tp_fail(err, TP_E_NOMEM, "no memory for the shard of rank %d", plan->rank);
    pthread_mutex_init(&w->lock, NULL);
    w->fd = -1;
    w->rank = plan->rank;
    w->layout = plan->layout;
    w->boxes = plan->boxes;
    w->zstd = plan->zstd;
    TP_TRY(name_file(w, plan->dir, err));
    TP_TRY(find_boxes(w, plan->n_boxes, err));
    TP_TRY(make_chunks(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* ---- the file ---- */

/* Set the file's length and allocate its blocks where the file system can, so that a full disk
 * fails now, before anything is written. A tmpfs would fill the blocks with zeros, which takes as
 * long as writing them; there, only the free space is compared. */
static tp_status allocate_blocks(const struct shard_writer *w, struct tp_err *err)
{
    struct statfs fs;
    int result;

    if (ftruncate(w->fd, w->size) != 0)
        return tp_fail_errno(err, "%s: cannot set its length to %lld bytes", w->path,
                             (long long)w->size);
    if (fstatfs(w->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC) {
        errno = ENOSPC;
        result = fs.f_blocks > 0 && (int64_t)fs.f_bavail < w->size / fs.f_bsize ? -1 : 0;
    } else {
        result = fallocate(w->fd, 0, 0, w->size);
    }
    if (result != 0 && (errno == ENOSPC || errno == EDQUOT))
        return tp_fail_errno(err, "%s: needs %lld bytes", w->path, (long long)w->size);
    return TP_OK;
}

/* Have libhdf5 create the structure, and take the offsets of payloads from it. */
static tp_status create_structure(struct shard_writer *w, struct tp_err *err)
{
    const struct shard_structure structure = { .layout = w->layout,
                                               .boxes = w->boxes + w->first,
                                               .n_boxes = w->n,
                                               .index_rows = w->n_chunks };
    struct shard_offsets offsets = { .payload = calloc((size_t)w->n, sizeof(int64_t)) };
    tp_status st = TP_OK;

    if (!offsets.payload)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    TP_TRY(shard_hdf5_create(&offsets, w->fd, w->path, &structure, err));
    w->index_offset = offsets.index;
    w->size = offsets.size;
    for (int i = 0; i < w->n; i++) {
        int64_t at = offsets.payload[i];

        for (int64_t k = w->first_chunk[i]; k < w->first_chunk[i + 1]; k++) {
            w->chunks[k].offset = at;
            at += w->chunks[k].stored_bytes;
        }
    }
    st = allocate_blocks(w, err);
done:
    free(offsets.payload);
    return st;
}

/* The file; of a shard in a store, one in memory for what is outside payloads. */
static tp_status create_file(struct shard_writer *w, struct tp_err *err)
{
    w->fd = location_is_remote(w->path)
                ? memfd_create("shard", MFD_CLOEXEC)
                : open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return w->fd < 0 ? tp_fail_errno(err, "%s: cannot create", w->path) : TP_OK;
}

tp_status shard_create(struct shard_writer **out, const struct shard_plan *plan, struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    TP_TRY(create_file(w, err));
    if (plan->zstd) {
        TP_TRY(shard_pack_begin(w, plan->pool, err));
    } else {
        TP_TRY(create_structure(w, err));
        TP_TRY(shard_write_index(w, w->layout_sha256,
                                 err)); /* without checksums yet; shard_join reads it */
    }
    if (location_is_remote(w->path))
        TP_TRY(shard_upload_begin(&w->upload, w, NULL, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* Open a file that exists. */
static tp_status open_existing(struct shard_writer *w, int64_t *size, struct tp_err *err)
{
    struct stat sb;

    w->fd = open(w->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (w->fd < 0)
        return tp_fail_errno(err, "%s: cannot open", w->path);
    if (fstat(w->fd, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot stat", w->path);
    if (!S_ISREG(sb.st_mode))
        return tp_fail(err, TP_E_CORRUPT, "%s: is not a regular file", w->path);
    if (sb.st_nlink != 1)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has %ld names, so it belongs to another step too and is not written",
                       w->path, (long)sb.st_nlink);
    *size = sb.st_size;
    return TP_OK;
}

/* Zero all bytes outside payloads. libhdf5 does not write all of them, and meta_sha256 would cover
 * what a crash or a damaged disk left there. */
static tp_status zero_outside(const struct shard_writer *w, struct tp_err *err)
{
    static const unsigned char zeros[4096];
    struct chunk_range *ranges = NULL;
    int64_t at = 0;
    tp_status st = chunks_sort_ranges(&ranges, w->chunks, w->n_chunks, err);

    for (int64_t i = 0; i <= w->n_chunks && !st; i++) {
        int64_t end = i < w->n_chunks ? ranges[i].offset : w->size;

        while (at < end && !st) {
            int64_t n = end - at < (int64_t)sizeof zeros ? end - at : (int64_t)sizeof zeros;

            st = file_write_at(w->fd, w->path, at, zeros, (size_t)n, err);
            at += n;
        }
        if (i < w->n_chunks)
            at = ranges[i].end;
    }
    free(ranges);
    return st;
}

tp_status shard_recreate(struct shard_writer **out, const struct shard_plan *plan,
                         struct tp_err *err)
{
    struct shard_writer *w = NULL;
    int64_t size = 0;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    TP_TRY(open_existing(w, &size, err));
    if (plan->zstd) { /* its length follows from the journal */
        TP_TRY(shard_pack_begin(w, plan->pool, err));
        w->pack->is_continued = true;
        *out = w;
        return TP_OK;
    }
    TP_TRY(create_structure(w, err));
    if (size != w->size) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: had %lld bytes, expected %lld", w->path,
                     (long long)size, (long long)w->size);
        goto done;
    }
    TP_TRY(zero_outside(w, err));
    TP_TRY(create_structure(w, err));
    TP_TRY(shard_write_index(w, w->layout_sha256, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

const char *shard_layout_sha256(const struct shard_writer *w)
{
    return w->layout_sha256;
}

/* Take the chunks' offsets from the index that the creator wrote. */
static tp_status read_offsets(struct shard_writer *w, struct tp_err *err)
{
    unsigned char buf[CHUNK_ENTRY_BYTES];
    int64_t n_chunks = 0;
    tp_status st = shard_hdf5_find_index(&w->index_offset, &n_chunks, w->fd, w->path, err);

    for (int64_t k = 0; !st && k < w->n_chunks && n_chunks == w->n_chunks; k++) {
        struct chunk_entry c;

        st = file_read_at(w->fd, w->path, w->index_offset + k * CHUNK_ENTRY_BYTES, buf, sizeof buf,
                          err);
        if (st)
            break;
        if (!chunk_entry_decode(&c, buf) || c.tensor != w->chunks[k].tensor ||
            !box_equal(&c.box, &w->chunks[k].box))
            n_chunks = -1;
        w->chunks[k].offset = c.offset;
    }
    if (!st && n_chunks != w->n_chunks)
        st = tp_fail(err, TP_E_INTERNAL, "%s: was created with other boxes than this process has",
                     w->path);
    return st;
}

/* Each process has the structure of a shard in a store in memory; it is the same in all. */
static tp_status join_upload(struct shard_writer *w, const char *id, struct tp_err *err)
{
    tp_status st;

    TP_TRY(create_file(w, err));
    TP_TRY(create_structure(w, err));
    TP_TRY(shard_write_index(w, w->layout_sha256, err));
    TP_TRY(shard_upload_begin(&w->upload, w, id, err));
done:
    return st;
}

tp_status shard_join(struct shard_writer **out, const struct shard_plan *plan, struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    if (location_is_remote(w->path)) {
        TP_TRY(join_upload(w, plan->upload_id, err));
        *out = w;
        return TP_OK;
    }
    TP_TRY(open_existing(w, &w->size, err));
    TP_TRY(read_offsets(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}
