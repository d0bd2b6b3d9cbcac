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

#include "ckpt/chunk_sums.h"
#include "ckpt/shard.h"
#include "ckpt/shard_hdf5.h"
#include "ckpt/tensor_name.h"
#include "core/file.h"

enum { WRITEBACK_BYTES = 256 << 10 };

struct shard_writer {
    char path[PATH_MAX];
    char file[SHARD_NAME_MAX];
    int fd, rank;
    const struct layout *layout;
    const struct stored_box *boxes; /* of all ranks; this rank's are first .. first + n - 1 */
    int first, n;
    int64_t *first_chunk; /* [n + 1] number of the first chunk of each box */
    struct chunk_entry *chunks;
    uint64_t *sums;                  /* [n_chunks * CHUNK_SUM_WORDS] */
    char layout_sha256[SHA256_TEXT]; /* of the index before it has checksums */
    int64_t n_chunks, index_offset, size;
    pthread_mutex_t lock; /* guards sums */
};

/* ---- a writer without a file ---- */

static tp_status find_boxes(struct shard_writer *w, int n_boxes, struct tp_err *err)
{
    while (w->first < n_boxes && w->boxes[w->first].rank != w->rank)
        w->first++;
    while (w->first + w->n < n_boxes && w->boxes[w->first + w->n].rank == w->rank)
        w->n++;
    if (w->n == 0)
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
        int64_t elements = chunk_elements(&w->layout->tensors[b->tensor], &b->box);

        w->first_chunk[i + 1] = w->first_chunk[i] + box_run_count(&b->box, elements);
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
        int64_t elements = chunk_elements(t, &b->box);

        for (int64_t k = w->first_chunk[i]; k < w->first_chunk[i + 1]; k++) {
            struct chunk_entry *c = &w->chunks[k];

            c->tensor = b->tensor;
            c->part = b->part;
            box_run(&c->box, &b->box, elements, k - w->first_chunk[i]);
            c->raw_bytes = c->stored_bytes = box_elements(&c->box) * dtype_bytes(t->dtype);
        }
    }
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
    snprintf(w->file, sizeof w->file, "rank-%05d.h5", plan->rank);
    if (snprintf(w->path, sizeof w->path, "%s/%s", plan->dir, w->file) >= (int)sizeof w->path) {
        st = tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", plan->dir);
        goto done;
    }
    TP_TRY(find_boxes(w, plan->n_boxes, err));
    TP_TRY(make_chunks(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* ---- the file ---- */

static tp_status write_index(struct shard_writer *w, char sha[SHA256_TEXT], struct tp_err *err)
{
    size_t bytes = (size_t)w->n_chunks * CHUNK_ENTRY_BYTES;
    unsigned char *buf = malloc(bytes);
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int64_t k = 0; k < w->n_chunks; k++)
        chunk_entry_encode(buf + k * CHUNK_ENTRY_BYTES, &w->chunks[k]);
    st = sha256_of(sha, buf, bytes, err);
    if (!st)
        st = file_write_at(w->fd, w->path, w->index_offset, buf, bytes, err);
    free(buf);
    return st;
}

/* Have libhdf5 create the structure, then set the file's length and allocate its blocks where the
 * file system can. So a full disk fails now, before anything is written. */
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
    if (ftruncate(w->fd, w->size) != 0)
        st = tp_fail_errno(err, "%s: cannot set its length to %lld bytes", w->path,
                           (long long)w->size);
    else if (fallocate(w->fd, 0, 0, w->size) != 0 && (errno == ENOSPC || errno == EDQUOT))
        st = tp_fail_errno(err, "%s: needs %lld bytes", w->path, (long long)w->size);
done:
    free(offsets.payload);
    return st;
}

tp_status shard_create(struct shard_writer **out, const struct shard_plan *plan, struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    w->fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (w->fd < 0) {
        st = tp_fail_errno(err, "%s: cannot create", w->path);
        goto done;
    }
    TP_TRY(create_structure(w, err));
    TP_TRY(write_index(w, w->layout_sha256, err)); /* without checksums yet; shard_join reads it */
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
    *size = sb.st_size;
    return TP_OK;
}

tp_status shard_recreate(struct shard_writer **out, const struct shard_plan *plan,
                         struct tp_err *err)
{
    struct shard_writer *w = NULL;
    int64_t size = 0;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    TP_TRY(open_existing(w, &size, err));
    TP_TRY(create_structure(w, err));
    if (size != w->size) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: had %lld bytes, expected %lld", w->path,
                     (long long)size, (long long)w->size);
        goto done;
    }
    TP_TRY(write_index(w, w->layout_sha256, err));
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

tp_status shard_join(struct shard_writer **out, const struct shard_plan *plan, struct tp_err *err)
{
    struct shard_writer *w = NULL;
    tp_status st;

    TP_TRY(writer_new(&w, plan, err));
    TP_TRY(open_existing(w, &w->size, err));
    TP_TRY(read_offsets(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    return st;
}

/* ---- writing ---- */

/* Add the checksums of a part of chunk k; box is the elements of the part. */
static void add_sums(struct shard_writer *w, int64_t k, const struct box *box,
                     struct chunk_part *part)
{
    const struct tensor *t = &w->layout->tensors[w->chunks[k].tensor];
    uint64_t sums[CHUNK_SUM_WORDS];

    part->digest = digest_box(part->data, box, t->ndim, t->shape, dtype_bytes(t->dtype));
    chunk_sums_of(sums, part, w->chunks[k].raw_bytes);
    pthread_mutex_lock(&w->lock);
    chunk_sums_add(w->sums + k * CHUNK_SUM_WORDS, sums, CHUNK_SUM_WORDS);
    pthread_mutex_unlock(&w->lock);
}

/* The chunk of this rank's box number i that contains the file offset `at`. */
static int64_t chunk_at(const struct shard_writer *w, int i, int64_t at)
{
    int64_t lo = w->first_chunk[i], hi = w->first_chunk[i + 1] - 1;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;

        if (w->chunks[mid].offset <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static tp_status check_run(const struct shard_writer *w, int box, const struct box *run,
                           struct tp_err *err)
{
    const struct stored_box *b = &w->boxes[box];
    char text[BOX_TEXT_MAX];

    if (box < w->first || box >= w->first + w->n)
        return tp_fail(err, TP_E_INTERNAL, "%s: box %d belongs to another rank", w->path, box);
    if (!box_contains(&b->box, run) || !box_is_run_in(&b->box, run))
        return tp_fail(err, TP_E_INTERNAL, "%s: tensor %s: %s is not a run of its box", w->path,
                       w->layout->tensors[b->tensor].name, box_format(text, run));
    return TP_OK;
}

tp_status shard_write(struct shard_writer *w, int box, const struct box *run, const void *data,
                      struct tp_err *err)
{
    const unsigned char *bytes = data;
    const struct stored_box *b = &w->boxes[box];
    int64_t at, left, k;
    tp_status st = check_run(w, box, run, err);
    int elem;

    if (st || box_is_empty(run))
        return st;
    elem = dtype_bytes(w->layout->tensors[b->tensor].dtype);
    at = w->chunks[w->first_chunk[box - w->first]].offset + box_offset_in(&b->box, run) * elem;
    left = box_elements(run) * elem;
    k = chunk_at(w, box - w->first, at);
    st = file_write_at(w->fd, w->path, at, data, (size_t)left, err);
    if (st)
        return st;
    /* Ask the kernel to start writing back now, so that the fsync of shard_finish has little left
     * to do. Only a hint: if it fails, fsync does the work. */
    if (left >= WRITEBACK_BYTES)
        (void)sync_file_range(w->fd, at, left, SYNC_FILE_RANGE_WRITE);
    for (; left > 0; k++) {
        const struct chunk_entry *c = &w->chunks[k];
        struct chunk_part part = { .data = bytes, .skip = at - c->offset };
        struct box overlap;

        part.n = c->raw_bytes - part.skip < left ? c->raw_bytes - part.skip : left;
        box_meet(&overlap, run, &c->box);
        add_sums(w, k, &overlap, &part);
        bytes += part.n;
        at += part.n;
        left -= part.n;
    }
    return TP_OK;
}

tp_status shard_sync(struct shard_writer *w, struct tp_err *err)
{
    return file_sync(w->fd, w->path, true, err);
}

uint64_t *shard_sums(struct shard_writer *w, int64_t *n_words)
{
    *n_words = w->n_chunks * CHUNK_SUM_WORDS;
    return w->sums;
}

/* ---- finishing ---- */

static tp_status fill_checksums(struct shard_writer *w, struct tp_err *err)
{
    char text[BOX_TEXT_MAX];

    for (int64_t k = 0; k < w->n_chunks; k++) {
        struct chunk_entry *c = &w->chunks[k];
        const uint64_t *sums = w->sums + k * CHUNK_SUM_WORDS;

        if (!chunk_sums_crc(&c->crc32c, sums, c->raw_bytes))
            return tp_fail(err, TP_E_INTERNAL,
                           "%s: tensor %s: a byte of %s was not written, or was written twice",
                           w->path, w->layout->tensors[c->tensor].name, box_format(text, &c->box));
        c->digest = chunk_sums_digest(sums);
    }
    return TP_OK;
}

tp_status shard_finish(struct shard_writer *w, struct shard_info *info, struct tp_err *err)
{
    const struct chunk_file file = { w->fd, w->path, w->size, w->chunks, w->n_chunks };
    struct shard_info found = { .rank = w->rank,
                                .size_bytes = w->size,
                                .index_offset = w->index_offset,
                                .index_rows = w->n_chunks };
    tp_status st;

    memcpy(found.file, w->file, sizeof found.file);
    TP_TRY(fill_checksums(w, err));
    TP_TRY(write_index(w, found.index_sha256, err));
    TP_TRY(chunks_hash_outside(found.meta_sha256, &file, err));
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
    free(w->first_chunk);
    free(w->chunks);
    free(w->sums);
    free(w);
}
