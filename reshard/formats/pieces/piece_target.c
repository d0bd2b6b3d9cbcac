/* reshard/formats/pieces/piece_target.c - see reshard/formats/pieces/piece_target.h. */
#include "reshard/formats/pieces/piece_target.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/thread_pool.h"
#include "reshard/formats/pieces/piece_resume.h"
#include "torch/crc32.h"

enum { GATHER_BYTES = 8 << 10 };

static tp_status no_memory(const struct piece_target *t, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->dir);
}

tp_status piece_target_new(struct piece_target **out, const char *dir, const struct tensor *tensors,
                           int n, struct tp_err *err)
{
    struct piece_target *t = calloc(1, sizeof *t);

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", dir);
    pthread_mutex_init(&t->lock, NULL);
    tensor_digests_init(&t->digests);
    t->dir = dir;
    t->tensors = tensors;
    t->n_tensors = n;
    t->files = file_table_new_writable();
    if (!t->files || !tensor_digests_make(&t->digests, n, &t->arena)) {
        piece_target_close(t);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", dir);
    }
    *out = t;
    return TP_OK;
}

void piece_target_close(struct piece_target *t)
{
    if (!t)
        return;
    file_table_free(t->files);
    pthread_mutex_destroy(&t->lock);
    tensor_digests_end(&t->digests);
    free(t->places);
    free(t->sums);
    arena_free(&t->arena);
    free(t);
}

struct arena *piece_target_arena(struct piece_target *t)
{
    return &t->arena;
}

/* ---- files ---- */

/* Make the folders of a file below the target's own. They are synced at the end, all together:
 * a format may have one for each tensor. */
static tp_status make_folders(const struct piece_target *t, const char *file, struct tp_err *err)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s", file);
    for (char *p = path + strlen(t->dir) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return tp_fail_errno(err, "%s: cannot create directory", path);
    }
    return TP_OK;
}

tp_status piece_target_file(struct piece_target *t, int *file, const char *name, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(path, t->dir, name, err));
    TP_TRY(make_folders(t, path, err));
    TP_TRY(file_table_add(t->files, file, path, err));
    t->n_files++;
done:
    return st;
}

tp_status piece_target_use(struct piece_target *t, int file, struct file_part *part,
                           struct tp_err *err)
{
    return file_table_use(t->files, file, part, err);
}

void piece_target_release(struct piece_target *t, int file)
{
    file_table_release(t->files, file);
}

/* ---- places ---- */

/* Make room for one more element of an array. */
static tp_status grow(const struct piece_target *t, void *array, int n, int *room, size_t size,
                      struct tp_err *err)
{
    void **at = array, *grown;
    const int wanted = *room ? 2 * *room : 64;

    if (n < *room)
        return TP_OK;
    grown = n > 1 << 28 ? NULL : realloc(*at, (size_t)wanted * size);
    if (!grown)
        return no_memory(t, err);
    *at = grown;
    *room = wanted;
    return TP_OK;
}

tp_status piece_target_sum(struct piece_target *t, int *number, const struct piece_target_sum *sum,
                           struct tp_err *err)
{
    tp_status st = grow(t, &t->sums, t->n_sums, &t->sums_room, sizeof *t->sums, err);

    if (st)
        return st;
    t->sums[t->n_sums++] = *sum;
    *number = t->n_sums;
    return TP_OK;
}

tp_status piece_target_add(struct piece_target *t, const struct piece_place *place,
                           struct tp_err *err)
{
    tp_status st = grow(t, &t->places, t->n_places, &t->places_room, sizeof *t->places, err);

    if (!st && !box_is_empty(&place->box))
        t->places[t->n_places++] = *place;
    return st;
}

static int by_tensor_and_box(const struct piece_place *x, const struct piece_place *y)
{
    int order = (x->tensor > y->tensor) - (x->tensor < y->tensor);

    for (int d = 0; d < x->box.ndim && !order; d++)
        order = (x->box.lo[d] > y->box.lo[d]) - (x->box.lo[d] < y->box.lo[d]);
    for (int d = 0; d < x->box.ndim && !order; d++)
        order = (x->box.len[d] > y->box.len[d]) - (x->box.len[d] < y->box.len[d]);
    return order;
}

static int by_place(const void *a, const void *b)
{
    const struct piece_place *x = a, *y = b;
    int order = by_tensor_and_box(x, y);

    if (!order)
        order = (x->file > y->file) - (x->file < y->file);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* ---- the endpoint ---- */

/* Write bytes to a file, or send them; a file that is sent is not used. */
static tp_status put(const struct piece_target *t, int file, const struct file_part *part,
                     int64_t at, const void *bytes, int64_t n, struct tp_err *err)
{
    return t->uploads ? upload_set_write(t->uploads, file, at, bytes, n, err)
                      : file_write_at(part->object.fd, part->path, at, bytes, (size_t)n, err);
}

/* A place while a run is written to it. */
struct open_place {
    const struct piece_target *t;
    const struct piece_place *place;
    struct file_part part; /* its file, in use */
    int elem;              /* bytes of an element */
    uint32_t crc;          /* of what was written, as a part of the place's sum */
};

/* Write bytes from byte `at` of the file on. */
static tp_status write_bytes(struct open_place *p, int64_t at, const void *bytes, int64_t n,
                             struct tp_err *err)
{
    if (p->place->sum) {
        const struct piece_target_sum *sum = &p->t->sums[p->place->sum - 1];

        p->crc ^= crc32_part(bytes, (size_t)n, (uint64_t)(sum->begin + sum->size - at - n));
    }
    return put(p->t, p->place->file, &p->part, at, bytes, n, err);
}

/* Write a span that is gathered from the buffer. */
static tp_status write_gathered(struct open_place *p, const struct piece_span *s, const char *buf,
                                struct tp_err *err)
{
    const int elem = p->elem;
    char room[GATHER_BYTES];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < s->n && !st;) {
        const int64_t left = s->n - i, n = left < GATHER_BYTES / elem ? left : GATHER_BYTES / elem;

        for (int64_t k = 0; k < n; k++)
            memcpy(room + k * elem, buf + (s->first + (i + k) * s->stride) * elem, (size_t)elem);
        st = write_bytes(p, s->at + i * elem, room, n * elem, err);
        i += n;
    }
    return st;
}

tp_status piece_target_write_sum(struct piece_target *t, int number, struct tp_err *err)
{
    const struct piece_target_sum *sum = &t->sums[number];
    const uint32_t crc = crc32_whole((uint32_t)t->parts[number], (uint64_t)sum->size);
    unsigned char bytes[PIECE_CRC_BYTES];
    struct file_part part;
    tp_status st = file_table_use(t->files, sum->file, &part, err);

    if (st)
        return st;
    for (int i = 0; i < PIECE_CRC_BYTES; i++)
        bytes[i] = (unsigned char)(crc >> (8 * i));
    for (int i = 0; i < 2 && !st; i++)
        st = put(t, sum->file, &part, sum->crc_at[i], bytes, sizeof bytes, err);
    file_table_release(t->files, sum->file);
    return st;
}

/* n bytes of a sum were written, with this part of it. */
static tp_status add_sum(struct piece_target *t, int number, uint32_t crc, int64_t n,
                         struct tp_err *err)
{
    bool complete;

    pthread_mutex_lock(&t->lock);
    t->parts[number] ^= crc;
    complete = t->uploads && (t->sum_left[number] -= n) == 0;
    pthread_mutex_unlock(&t->lock);
    return complete ? piece_target_write_sum(t, number, err) : TP_OK;
}

/* Write a run to one of its places. */
static tp_status write_place(struct piece_target *t, const struct piece_place *place,
                             const struct box *run, const char *buf, struct tp_err *err)
{
    const int elem = dtype_bytes(t->tensors[place->tensor].dtype);
    struct open_place p = { .t = t, .place = place, .elem = elem };
    tp_status st = file_table_use(t->files, place->file, &p.part, err);

    if (st)
        return st;
    for (int64_t i = 0; i < piece_place_spans(place, run) && !st; i++) {
        const struct piece_span s = piece_place_span(place, run, i, elem);

        st = s.stride != 1 ? write_gathered(&p, &s, buf, err)
                           : write_bytes(&p, s.at, buf + s.first * elem, s.n * elem, err);
    }
    file_table_release(t->files, place->file);
    return !st && place->sum ? add_sum(t, place->sum - 1, p.crc, box_elements(run) * elem, err)
                             : st;
}

static tp_status target_write_digested(void *ctx, int extent, const struct box *run,
                                       const void *buf, struct digest *written, struct tp_err *err)
{
    struct piece_target *t = ctx;
    const int number = t->endpoint.extents[extent].tensor;
    const struct tensor *tensor = &t->tensors[number];
    tp_status st = TP_OK;

    *written = digest_box(buf, run, tensor->ndim, tensor->shape, dtype_bytes(tensor->dtype));
    tensor_digests_add(&t->digests, number, written);
    for (int i = t->first[extent]; i < t->first[extent + 1] && !st; i++)
        st = write_place(t, &t->places[i], run, buf, err);
    return st;
}

static tp_status target_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct digest written;

    return target_write_digested(ctx, extent, run, buf, &written, err);
}

static struct digest target_digest(const void *ctx, int tensor)
{
    return tensor_digests_of(&((const struct piece_target *)ctx)->digests, tensor);
}

tp_status piece_target_plan(struct piece_target *t, struct tp_err *err)
{
    struct reshard_extent *extents =
        arena_array(&t->arena, (size_t)t->n_places + 1, sizeof *extents);
    enum dtype *dtypes = arena_array(&t->arena, (size_t)t->n_tensors + 1, sizeof *dtypes);
    int n = 0;

    t->first = arena_array(&t->arena, (size_t)t->n_places + 2, sizeof *t->first);
    t->parts = arena_array(&t->arena, (size_t)t->n_sums + 1, sizeof *t->parts);
    if (!extents || !dtypes || !t->first || !t->parts)
        return no_memory(t, err);
    if (t->n_places)
        qsort(t->places, (size_t)t->n_places, sizeof *t->places, by_place);
    for (int i = 0; i < t->n_places; i++) {
        const struct piece_place *p = &t->places[i];

        if (i > 0 && by_tensor_and_box(p - 1, p) == 0)
            continue;
        t->first[n] = i;
        extents[n++] = (struct reshard_extent){ p->tensor, p->box };
    }
    t->first[n] = t->n_places;
    for (int i = 0; i < t->n_tensors; i++)
        dtypes[i] = t->tensors[i].dtype;
    t->endpoint = (struct reshard_endpoint){ .name = t->dir,
                                             .n_extents = n,
                                             .extents = extents,
                                             .dtypes = dtypes,
                                             .ctx = t,
                                             .read = piece_resume_read,
                                             .write = target_write,
                                             .write_digested = target_write_digested,
                                             .resumable = &piece_resumable,
                                             .suspects = piece_resume_suspects,
                                             .any_order = true,
                                             .digest = target_digest };
    return TP_OK;
}

const struct reshard_endpoint *piece_target_endpoint(const struct piece_target *t)
{
    return &t->endpoint;
}

/* ---- the end ---- */

/* fsync the folders between the target's own and a file, but not those that have the next file
 * too: the last of their files is enough. */
static tp_status sync_folders(const struct piece_target *t, const char *file, const char *next,
                              struct tp_err *err)
{
    const size_t top = strlen(t->dir);
    char path[PATH_MAX], *slash;
    tp_status st = TP_OK;

    snprintf(path, sizeof path, "%s", file);
    while (!st && (slash = strrchr(path, '/')) && (size_t)(slash - path) > top) {
        if (strncmp(path, next, (size_t)(slash - path) + 1) == 0)
            break;
        *slash = 0;
        st = file_sync_dir(path, err);
    }
    return st;
}

/* A thread_pool_fn: the folders of a file. */
static tp_status sync_folders_of(void *target, int64_t file, int worker, struct tp_err *err)
{
    const struct piece_target *t = target;

    (void)worker;
    return sync_folders(t, file_table_path(t->files, (int)file),
                        file + 1 < t->n_files ? file_table_path(t->files, (int)file + 1) : "", err);
}

tp_status piece_target_finish(struct piece_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (t->uploads) /* each sum was sent with the last byte of it */
        return upload_set_finish(t->uploads, err);
    for (int i = 0; i < t->n_sums && !st; i++)
        st = piece_target_write_sum(t, i, err);
    if (!st)
        st = file_table_sync(t->files, err);
    if (!st)
        st = thread_pool_run(sync_folders_of, t, t->n_files, FILE_SYNC_THREADS, err);
    return st;
}

struct export_writer piece_target_writer(struct piece_target *t)
{
    return (struct export_writer){ .endpoint = piece_target_endpoint(t),
                                   .files = t->n_files,
                                   .ctx = t };
}

tp_status piece_target_export_send(struct export_writer *w, struct upload_set *to,
                                   struct tp_err *err)
{
    return piece_target_send(w->ctx, to, err);
}

tp_status piece_target_export_finish(struct export_writer *w, struct tp_err *err)
{
    return piece_target_finish(w->ctx, err);
}

tp_status piece_target_export_keep(struct export_writer *w, const char *dir, const char *journal,
                                   struct tp_err *err)
{
    return piece_resume_keep(w->ctx, dir, journal, err);
}

void piece_target_export_close(struct export_writer *w)
{
    piece_target_close(w->ctx);
}
