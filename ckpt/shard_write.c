/* ckpt/shard_write.c - the writing half of ckpt/shard.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/name.h"
#include "ckpt/row_sums.h"
#include "ckpt/shard.h"
#include "ckpt/shard_hdf5.h"
#include "ckpt/shard_row.h"
#include "core/file.h"

enum { WRITEBACK_BYTES = 256 << 10 };

struct shard_writer {
    char path[PATH_MAX];
    char file[SHARD_NAME_MAX];
    int fd, rank;
    const struct layout *layout;
    const struct stored_box *extents; /* all; ours are first .. first + n - 1 */
    int first, n;
    int64_t *row_of; /* [n + 1]: number of each extent's first row */
    struct shard_row *rows;
    uint64_t *sums;                /* [n_rows * ROW_SUM_WORDS] */
    char places_sha256[HASH_TEXT]; /* of the index without checksums */
    int64_t n_rows, index_offset, size;
    pthread_mutex_t lock; /* guards sums */
};

/* ---- making ---- */

static tp_status find_extents(struct shard_writer *w, int n_extents, struct tp_err *err)
{
    while (w->first < n_extents && w->extents[w->first].rank != w->rank)
        w->first++;
    while (w->first + w->n < n_extents && w->extents[w->first + w->n].rank == w->rank)
        w->n++;
    if (w->n == 0)
        return tp_fail(err, TP_E_INTERNAL, "rank %d has nothing to write", w->rank);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *e = &w->extents[w->first + i];
        tp_status st = name_check(&w->layout->tensors[e->tensor], err);

        if (st)
            return st;
        if (e->part >= SHARD_PARTS_MAX || box_is_empty(&e->box))
            return tp_fail(err, TP_E_INTERNAL, "tensor %s: part %d of rank %d is empty or too many",
                           w->layout->tensors[e->tensor].name, e->part, w->rank);
    }
    return TP_OK;
}

/* Rows of every extent, without their offsets. */
static tp_status make_rows(struct shard_writer *w, struct tp_err *err)
{
    w->row_of = calloc((size_t)w->n + 1, sizeof *w->row_of);
    if (!w->row_of)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *e = &w->extents[w->first + i];
        int64_t chunk = shard_chunk_elements(&w->layout->tensors[e->tensor], &e->box);

        w->row_of[i + 1] = w->row_of[i] + box_run_count(&e->box, chunk);
    }
    w->n_rows = w->row_of[w->n];
    if (w->n_rows > SHARD_ROWS_MAX)
        return tp_fail(err, TP_E_USAGE, "%s: would have %lld chunks, more than %d; use more ranks",
                       w->path, (long long)w->n_rows, SHARD_ROWS_MAX);
    w->rows = calloc((size_t)w->n_rows, sizeof *w->rows);
    w->sums = calloc((size_t)w->n_rows * ROW_SUM_WORDS, sizeof *w->sums);
    if (!w->rows || !w->sums)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int i = 0; i < w->n; i++) {
        const struct stored_box *e = &w->extents[w->first + i];
        const struct tensor *t = &w->layout->tensors[e->tensor];
        int64_t chunk = shard_chunk_elements(t, &e->box);

        for (int64_t r = w->row_of[i]; r < w->row_of[i + 1]; r++) {
            struct shard_row *row = &w->rows[r];

            row->tensor = e->tensor;
            row->part = e->part;
            box_run(&row->box, &e->box, chunk, r - w->row_of[i]);
            row->raw_bytes = row->stored_bytes = box_elements(&row->box) * dtype_bytes(t->dtype);
        }
    }
    return TP_OK;
}

/* A writer with its rows, without a file. */
static tp_status writer_new(struct shard_writer **out, const char *dir, int rank,
                            const struct layout *layout, const struct stored_box *extents,
                            int n_extents, struct tp_err *err)
{
    struct shard_writer *w = calloc(1, sizeof *w);
    tp_status st = TP_OK;

    if (!w)
        return tp_fail(err, TP_E_NOMEM, "no memory for the shard of rank %d", rank);
    pthread_mutex_init(&w->lock, NULL);
    w->fd = -1;
    w->rank = rank;
    w->layout = layout;
    w->extents = extents;
    snprintf(w->file, sizeof w->file, "rank-%05d.h5", rank);
    if (snprintf(w->path, sizeof w->path, "%s/%s", dir, w->file) >= (int)sizeof w->path) {
        st = tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", dir);
        goto done;
    }
    TP_TRY(find_extents(w, n_extents, err));
    TP_TRY(make_rows(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

static tp_status write_index(struct shard_writer *w, char sha[HASH_TEXT], struct tp_err *err)
{
    size_t bytes = (size_t)w->n_rows * SHARD_ROW_BYTES;
    unsigned char *buf = malloc(bytes);
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int64_t r = 0; r < w->n_rows; r++)
        row_encode(buf + r * SHARD_ROW_BYTES, &w->rows[r]);
    st = hash_bytes(sha, buf, bytes, err);
    if (!st)
        st = file_write_at(w->fd, w->path, w->index_offset, buf, bytes, err);
    free(buf);
    return st;
}

/* Let libhdf5 lay out the file, then give it its length and, where the file system can, its blocks:
 * a full disk says so now, before anything is written. */
static tp_status lay_out(struct shard_writer *w, struct tp_err *err)
{
    struct shard_places places = { .payload = calloc((size_t)w->n, sizeof(int64_t)) };
    tp_status st = TP_OK;

    if (!places.payload)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    TP_TRY(shard_hdf5_create(&places, w->fd, w->path, w->layout, w->extents + w->first, w->n,
                             w->n_rows, err));
    w->index_offset = places.index;
    w->size = places.size;
    for (int i = 0; i < w->n; i++) {
        int64_t at = places.payload[i];

        for (int64_t r = w->row_of[i]; r < w->row_of[i + 1]; r++) {
            w->rows[r].offset = at;
            at += w->rows[r].stored_bytes;
        }
    }
    if (ftruncate(w->fd, w->size) != 0)
        st = tp_fail_errno(err, "%s: cannot make it %lld bytes long", w->path, (long long)w->size);
    else if (fallocate(w->fd, 0, 0, w->size) != 0 && (errno == ENOSPC || errno == EDQUOT))
        st = tp_fail_errno(err, "%s: needs %lld bytes", w->path, (long long)w->size);
done:
    free(places.payload);
    return st;
}

tp_status shard_create(struct shard_writer **out, const char *dir, int rank,
                       const struct layout *layout, const struct stored_box *extents, int n_extents,
                       struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, dir, rank, layout, extents, n_extents, err));
    w->fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (w->fd < 0) {
        st = tp_fail_errno(err, "%s: cannot create", w->path);
        goto done;
    }
    TP_TRY(lay_out(w, err));
    TP_TRY(write_index(w, w->places_sha256, err)); /* without checksums: for shard_join */
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* Open a file that was created before, and see how long it is. */
static tp_status open_again(struct shard_writer *w, int64_t *size, struct tp_err *err)
{
    struct stat sb;

    w->fd = open(w->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (w->fd < 0)
        return tp_fail_errno(err, "%s: cannot open", w->path);
    if (fstat(w->fd, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot stat", w->path);
    if (!S_ISREG(sb.st_mode))
        return tp_fail(err, TP_E_CORRUPT, "%s: expected a regular file", w->path);
    *size = sb.st_size;
    return TP_OK;
}

tp_status shard_recreate(struct shard_writer **out, const char *dir, int rank,
                         const struct layout *layout, const struct stored_box *extents,
                         int n_extents, struct tp_err *err)
{
    struct shard_writer *w = NULL;
    int64_t size = 0;
    tp_status st;

    TP_TRY(writer_new(&w, dir, rank, layout, extents, n_extents, err));
    TP_TRY(open_again(w, &size, err));
    TP_TRY(lay_out(w, err));
    if (size != w->size) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: had %lld bytes, not %lld", w->path, (long long)size,
                     (long long)w->size);
        goto done;
    }
    TP_TRY(write_index(w, w->places_sha256, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

const char *shard_places_sha256(const struct shard_writer *w)
{
    return w->places_sha256;
}

/* Take the rows' offsets from the index that the creator wrote. */
static tp_status read_offsets(struct shard_writer *w, struct tp_err *err)
{
    unsigned char buf[SHARD_ROW_BYTES];
    int64_t n_rows = 0;
    struct stat sb;
    tp_status st = shard_hdf5_find_index(&w->index_offset, &n_rows, w->fd, w->path, err);

    if (st)
        return st;
    if (fstat(w->fd, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot stat", w->path);
    w->size = sb.st_size;
    for (int64_t r = 0; r < w->n_rows && n_rows == w->n_rows; r++) {
        struct shard_row row;

        st = file_read_at(w->fd, w->path, w->index_offset + r * SHARD_ROW_BYTES, buf, sizeof buf,
                          err);
        if (st)
            return st;
        if (!row_decode(&row, buf) || row.tensor != w->rows[r].tensor ||
            !box_equal(&row.box, &w->rows[r].box))
            n_rows = -1;
        w->rows[r].offset = row.offset;
    }
    if (n_rows != w->n_rows)
        return tp_fail(err, TP_E_INTERNAL, "%s: was created for other boxes than this process has",
                       w->path);
    return TP_OK;
}

tp_status shard_join(struct shard_writer **out, const char *dir, int rank,
                     const struct layout *layout, const struct stored_box *extents, int n_extents,
                     struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, dir, rank, layout, extents, n_extents, err));
    w->fd = open(w->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (w->fd < 0) {
        st = tp_fail_errno(err, "%s: cannot open", w->path);
        goto done;
    }
    TP_TRY(read_offsets(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* ---- writing ---- */

/* Add the checksums of n bytes at `skip` of a row; box is those elements. */
static void add_sums(struct shard_writer *w, int64_t r, const struct box *box, int64_t skip,
                     const void *data, int64_t n)
{
    const struct shard_row *row = &w->rows[r];
    const struct tensor *t = &w->layout->tensors[row->tensor];
    uint64_t part[ROW_SUM_WORDS];

    row_sums_of(part, data, skip, n, row->raw_bytes,
                digest_box(data, box, t->ndim, t->shape, dtype_bytes(t->dtype)));
    pthread_mutex_lock(&w->lock);
    row_sums_add(w->sums + r * ROW_SUM_WORDS, part, ROW_SUM_WORDS);
    pthread_mutex_unlock(&w->lock);
}

/* The row of extent i (counted from w->first) that holds file offset `at`. */
static int64_t row_holding(const struct shard_writer *w, int i, int64_t at)
{
    int64_t lo = w->row_of[i], hi = w->row_of[i + 1] - 1;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;

        if (w->rows[mid].offset <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static tp_status check_run(const struct shard_writer *w, int extent, const struct box *run,
                           struct tp_err *err)
{
    const struct stored_box *e = &w->extents[extent];
    char text[BOX_TEXT_MAX];

    if (extent < w->first || extent >= w->first + w->n)
        return tp_fail(err, TP_E_INTERNAL, "%s: extent %d belongs to another rank", w->path,
                       extent);
    if (!box_contains(&e->box, run) || !box_is_run_in(&e->box, run))
        return tp_fail(err, TP_E_INTERNAL, "%s: tensor %s: %s is no run of its box", w->path,
                       w->layout->tensors[e->tensor].name, box_format(text, run));
    return TP_OK;
}

tp_status shard_write(struct shard_writer *w, int extent, const struct box *run, const void *data,
                      struct tp_err *err)
{
    const unsigned char *bytes = data;
    const struct stored_box *e = &w->extents[extent];
    int64_t at, left, r;
    tp_status st = check_run(w, extent, run, err);
    int elem;

    if (st || box_is_empty(run))
        return st;
    elem = dtype_bytes(w->layout->tensors[e->tensor].dtype);
    at = w->rows[w->row_of[extent - w->first]].offset + box_offset_in(&e->box, run) * elem;
    left = box_elements(run) * elem;
    r = row_holding(w, extent - w->first, at);
    st = file_write_at(w->fd, w->path, at, data, (size_t)left, err);
    if (st)
        return st;
    /* Have the kernel begin to write it now, so that shard_finish's fsync finds little to do. A
     * hint: when it is refused, fsync does the work. */
    if (left >= WRITEBACK_BYTES)
        (void)sync_file_range(w->fd, at, left, SYNC_FILE_RANGE_WRITE);
    for (; left > 0; r++) {
        const struct shard_row *row = &w->rows[r];
        int64_t skip = at - row->offset;
        int64_t n = row->raw_bytes - skip < left ? row->raw_bytes - skip : left;
        struct box meet;

        box_meet(&meet, run, &row->box);
        add_sums(w, r, &meet, skip, bytes, n);
        bytes += n;
        at += n;
        left -= n;
    }
    return TP_OK;
}

tp_status shard_sync(struct shard_writer *w, struct tp_err *err)
{
    return file_sync(w->fd, w->path, true, err);
}

uint64_t *shard_sums(struct shard_writer *w, int64_t *n_words)
{
    *n_words = w->n_rows * ROW_SUM_WORDS;
    return w->sums;
}

/* ---- finishing ---- */

static tp_status fill_checksums(struct shard_writer *w, struct tp_err *err)
{
    char text[BOX_TEXT_MAX];

    for (int64_t r = 0; r < w->n_rows; r++) {
        struct shard_row *row = &w->rows[r];
        const uint64_t *sum = w->sums + r * ROW_SUM_WORDS;

        if (!row_sum_crc(&row->crc32c, sum, row->raw_bytes))
            return tp_fail(err, TP_E_INTERNAL,
                           "%s: tensor %s: not every byte of %s was written once", w->path,
                           w->layout->tensors[row->tensor].name, box_format(text, &row->box));
        row->digest = row_sum_digest(sum);
    }
    return TP_OK;
}

tp_status shard_finish(struct shard_writer *w, struct shard_info *info, struct tp_err *err)
{
    struct shard_info found = { .rank = w->rank,
                                .size_bytes = w->size,
                                .index_offset = w->index_offset,
                                .index_rows = w->n_rows };
    tp_status st;

    memcpy(found.file, w->file, sizeof found.file);
    TP_TRY(fill_checksums(w, err));
    TP_TRY(write_index(w, found.index_sha256, err));
    TP_TRY(rows_hash_rest(found.meta_sha256, w->fd, w->path, w->size, w->rows, w->n_rows, err));
    TP_TRY(file_sync(w->fd, w->path, false, err));
    *info = found;
done:
    return st;
}

void shard_close(struct shard_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->lock);
    free(w->row_of);
    free(w->rows);
    free(w->sums);
    free(w);
}
