/* reshard/formats/gguf/gguf_target.c - writes the data of a GGUF file; see
 * reshard/formats/gguf/gguf.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "reshard/engine/tensor_digests.h"
#include "reshard/formats/gguf/gguf.h"
#include "reshard/formats/gguf/gguf_header.h"
#include "reshard/formats/gguf/gguf_matrix.h"
#include "reshard/formats/gguf/gguf_q8_0.h"
#include "reshard/formats/gguf/gguf_tensors.h"

enum { STRIP_ROWS = 64 };

struct gguf_target {
    struct reshard_endpoint endpoint;
    struct arena arena;
    struct gguf_tensors tensors;
    int64_t *staged; /* [n] where the part lies in the file of staged parts; -1: nowhere */
    struct tensor_digests digests;
    int n;
    int fd, staged_fd;              /* -1: none */
    struct upload_set *uploads;     /* the tensors go to a store; NULL: into the file */
    struct gguf_matrices *matrices; /* of a store; staged parts */
    int64_t data;                   /* byte at which data begins */
    int64_t largest;                /* elements of the largest staged part */
    char path[PATH_MAX], staged_path[PATH_MAX];
};

/* ---- elements on their way into the file ---- */

static tp_status put_bytes(const struct gguf_target *t, int64_t at, const void *bytes, int64_t n,
                           struct tp_err *err)
{
    return t->uploads ? upload_set_write(t->uploads, 0, at, bytes, n, err)
                      : file_write_at(t->fd, t->path, at, bytes, (size_t)n, err);
}

/* n elements of a part, from element `first` of the file's tensor on, in the engine's type. */
static tp_status put(const struct gguf_target *t, const struct gguf_part *p, int64_t first,
                     const void *elements, int64_t n, struct tp_err *err)
{
    const int64_t at = t->data + p->begin, bytes = gguf_type_bytes(p->type, n);
    void *blocks;
    tp_status st = TP_OK;

    if (p->type != GGUF_Q8_0)
        return put_bytes(t, at + gguf_type_bytes(p->type, first), elements, bytes, err);
    if (first % GGUF_Q8_0_ELEMENTS != 0 || n % GGUF_Q8_0_ELEMENTS != 0)
        return tp_fail(
            err, TP_E_BUDGET,
            "%s: a row of tensor %s does not fit in memory as a whole, which Q8_0 needs; "
            "give more --mem or use fewer --jobs",
            t->path, p->name);
    blocks = malloc((size_t)bytes);
    if (!blocks)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", t->path, (long long)bytes);
    if (gguf_q8_0_quantize(blocks, elements, n))
        st = put_bytes(t, at + gguf_type_bytes(p->type, first), blocks, bytes, err);
    else
        st = tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has values that Q8_0 cannot store: %s",
                     t->path, p->name, "infinite, NaN, or too large");
    free(blocks);
    return st;
}

/* n elements that follow each other in the model's tensor, and whose rows lie elsewhere in the
 * file's. */
static tp_status put_rows(const struct gguf_target *t, const struct gguf_part *p, int64_t first,
                          const char *elements, int64_t n, struct tp_err *err)
{
    const int size = dtype_bytes(gguf_type_dtype(p->type));
    tp_status st = TP_OK;

    for (int64_t at = first; at < first + n && !st;) {
        const int64_t row = at / p->columns, column = at % p->columns, left = first + n - at,
                      rest = p->columns - column, now = rest < left ? rest : left;

        st = put(t, p, gguf_part_row(p, row) * p->columns + column, elements + (at - first) * size,
                 now, err);
        at += now;
    }
    return st;
}

/* Norms of Gemma, which are f32. */
static tp_status put_plus_one(const struct gguf_target *t, const struct gguf_part *p, int64_t first,
                              const float *elements, int64_t n, struct tp_err *err)
{
    float *sums = malloc((size_t)n * sizeof *sums);
    tp_status st;

    if (!sums)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld elements", t->path, (long long)n);
    for (int64_t i = 0; i < n; i++)
        sums[i] = elements[i] + 1;
    st = put(t, p, first, sums, n, err);
    free(sums);
    return st;
}

/* ---- transposition ---- */

/* Columns from .. from + n - 1 of a matrix as rows. */
static void transpose(char *to, const char *matrix, const struct gguf_part *p, int64_t from,
                      int64_t n, int size)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < n; c++)
            memcpy(to + (c * p->rows + r) * size, matrix + (r * p->columns + from + c) * size,
                   (size_t)size);
}

/* Write a whole matrix transposed. strip: room for STRIP_ROWS rows of the result. */
static tp_status put_transposed(const struct gguf_target *t, const struct gguf_part *p,
                                const char *matrix, char *strip, struct tp_err *err)
{
    const int size = dtype_bytes(gguf_type_dtype(p->type));
    tp_status st = TP_OK;

    for (int64_t c = 0; c < p->columns && !st; c += STRIP_ROWS) {
        const int64_t n = p->columns - c < STRIP_ROWS ? p->columns - c : STRIP_ROWS;

        transpose(strip, matrix, p, c, n, size);
        st = put(t, p, c * p->rows, strip, n * p->rows, err);
    }
    return st;
}

/* For a store: n bytes at `at` of a matrix, which is sent when all of it has come. */
static tp_status collect(const struct gguf_target *t, int i, int64_t at, const void *bytes,
                         int64_t n, struct tp_err *err)
{
    const struct gguf_part *p = &t->tensors.parts[i];
    const int size = dtype_bytes(gguf_type_dtype(p->type));
    char *matrix, *strip;
    tp_status st =
        gguf_matrices_add(&matrix, t->matrices, i, p->rows * p->columns * size, at, bytes, n, err);

    if (st || !matrix)
        return st;
    strip = malloc((size_t)(STRIP_ROWS * p->rows * size));
    st = strip ? put_transposed(t, p, matrix, strip, err)
               : tp_fail(err, TP_E_NOMEM, "%s: no memory to transpose %s", t->path, p->name);
    free(strip);
    free(matrix);
    return st;
}

static tp_status target_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct gguf_target *t = ctx;
    const struct reshard_extent *x = &t->endpoint.extents[extent];
    const struct gguf_part *p = &t->tensors.parts[extent];
    const int size = dtype_bytes(gguf_type_dtype(p->type));
    const int64_t first = box_offset_in(&x->box, run), n = box_elements(run);
    struct digest part = digest_box(buf, run, x->box.ndim, x->box.len, size);

    tensor_digests_add(&t->digests, extent, &part);
    if (t->staged[extent] >= 0 && t->uploads)
        return collect(t, extent, first * size, buf, n * size, err);
    if (t->staged[extent] >= 0)
        return file_write_at(t->staged_fd, t->staged_path, t->staged[extent] + first * size, buf,
                             (size_t)(n * size), err);
    if (p->plus_one)
        return put_plus_one(t, p, first, buf, n, err);
    return p->order == GGUF_ORDER_SAME ? put(t, p, first, buf, n, err)
                                       : put_rows(t, p, first, buf, n, err);
}

static struct digest target_digest(const void *ctx, int tensor)
{
    return tensor_digests_of(&((const struct gguf_target *)ctx)->digests, tensor);
}

/* ---- creation ---- */

static tp_status write_rope_factors(const struct gguf_target *t, const struct model *m,
                                    struct tp_err *err)
{
    const struct gguf_tensor *x = &t->tensors.list[t->tensors.rope_factors];
    struct gguf_bytes b = { 0 };
    tp_status st;

    for (int64_t i = 0; i < x->dims[0]; i++)
        gguf_bytes_f32(&b, gguf_model_rope_factor(m, i));
    if (b.failed)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its header", t->path);
    st = file_write_at(t->fd, t->path, t->data + x->begin, b.data, b.n, err);
    gguf_bytes_free(&b);
    return st;
}

static tp_status open_new(int *fd, const char *path, struct tp_err *err)
{
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    return *fd < 0 ? tp_fail_errno(err, "%s: cannot create", path) : TP_OK;
}

/* The file that is written, with its header and its final length. */
static tp_status create_file(struct gguf_target *t, const struct gguf_arch *a,
                             const struct export_contents *q, struct tp_err *err)
{
    struct gguf_bytes header = { 0 };
    tp_status st;

    TP_TRY(file_join(t->path, q->dir, "model.gguf", err));
    TP_TRY(gguf_header_make(&header, &t->tensors, a, q, &t->arena, err));
    t->data = ((int64_t)header.n + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    TP_TRY(open_new(&t->fd, t->path, err));
    TP_TRY(file_write_at(t->fd, t->path, 0, header.data, header.n, err));
    if (ftruncate(t->fd, t->data + t->tensors.bytes) != 0)
        st = tp_fail_errno(err, "%s: cannot set its length", t->path);
    if (!st && t->tensors.rope_factors >= 0)
        st = write_rope_factors(t, q->model, err);
done:
    gguf_bytes_free(&header);
    return st;
}

/* A file without a name, for what must be transposed. */
static tp_status create_staged(struct gguf_target *t, const char *dir, struct tp_err *err)
{
    tp_status st;

    if (t->largest == 0)
        return TP_OK;
    TP_TRY(file_join(t->staged_path, dir, "transposed.tmp", err));
    TP_TRY(open_new(&t->staged_fd, t->staged_path, err));
    if (unlink(t->staged_path) != 0)
        st = tp_fail_errno(err, "%s: cannot remove its name", t->staged_path);
done:
    return st;
}

static tp_status allocate(struct gguf_target *t, const struct export_contents *q,
                          struct tp_err *err)
{
    struct reshard_extent *extents = arena_array(&t->arena, (size_t)q->n + 1, sizeof *extents);
    enum dtype *dtypes = arena_array(&t->arena, (size_t)q->n + 1, sizeof *dtypes);
    int64_t staged = 0;

    t->n = q->n;
    t->staged = arena_array(&t->arena, (size_t)q->n + 1, sizeof *t->staged);
    if (!extents || !dtypes || !t->staged || !tensor_digests_make(&t->digests, q->n, &t->arena))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", q->dir, q->n);
    for (int i = 0; i < q->n; i++) {
        const struct gguf_part *p = &t->tensors.parts[i];
        const int64_t n = p->rows * p->columns;

        extents[i] =
            (struct reshard_extent){ i, box_whole(q->tensors[i].ndim, q->tensors[i].shape) };
        dtypes[i] = gguf_type_dtype(p->type);
        t->staged[i] = -1;
        if (p->order != GGUF_ORDER_TRANSPOSED)
            continue;
        t->staged[i] = staged;
        staged += n * dtype_bytes(dtypes[i]);
        t->largest = n > t->largest ? n : t->largest;
    }
    t->endpoint = (struct reshard_endpoint){ .name = t->path,
                                             .n_extents = q->n,
                                             .extents = extents,
                                             .dtypes = dtypes,
                                             .ctx = t,
                                             .write = target_write,
                                             .digest = target_digest };
    return TP_OK;
}

static void target_close(struct gguf_target *t)
{
    if (t->fd >= 0)
        close(t->fd);
    if (t->staged_fd >= 0)
        close(t->staged_fd);
    gguf_matrices_free(t->matrices);
    tensor_digests_end(&t->digests);
    arena_free(&t->arena);
    free(t);
}

tp_status gguf_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err)
{
    struct gguf_target *t = calloc(1, sizeof *t);
    const struct gguf_arch *arch;
    tp_status st;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its files", q->dir);
    t->fd = t->staged_fd = -1;
    tensor_digests_init(&t->digests);
    TP_TRY(gguf_model_arch(&arch, q->model, q->source, err));
    TP_TRY(gguf_tensors_make(&t->tensors, arch, q, &t->arena, err));
    TP_TRY(allocate(t, q, err));
    TP_TRY(create_file(t, arch, q, err));
    TP_TRY(create_staged(t, q->dir, err));
    gguf_header_notes(q);
    *w = (struct export_writer){ .endpoint = &t->endpoint,
                                 .files = 1,
                                 .bytes = t->tensors.bytes,
                                 .later_bytes = t->largest * 2 * (int64_t)sizeof(float),
                                 .ctx = t };
    t = NULL;
done:
    if (t)
        target_close(t);
    return st;
}

tp_status gguf_export_send(struct export_writer *w, struct upload_set *to, struct tp_err *err)
{
    struct gguf_target *t = w->ctx;
    tp_status st;

    w->later_bytes = 0; /* nothing is left for the end; matrices are transposed as they come */
    w->send_bytes = t->largest * 2 * (int64_t)sizeof(float);
    TP_TRY(gguf_matrices_new(&t->matrices, t->n, err));
    TP_TRY(upload_set_add(to, t->path, err));
    for (int i = 0; i < t->n; i++) {
        const struct gguf_part *p = &t->tensors.parts[i];

        TP_TRY(upload_set_expect(to, 0, t->data + p->begin,
                                 gguf_type_bytes(p->type, p->rows * p->columns), i, i, err));
        upload_set_places(to, i, 1, false);
    }
    t->uploads = to;
done:
    return st;
}

/* ---- what is left for the end ---- */

/* Read a staged part back, prove it, and write it transposed. */
static tp_status finish_part(const struct gguf_target *t, int i, char *matrix, char *strip,
                             struct tp_err *err)
{
    const struct gguf_part *p = &t->tensors.parts[i];
    const struct box *whole = &t->endpoint.extents[i].box;
    const int size = dtype_bytes(gguf_type_dtype(p->type));
    const struct digest written = tensor_digests_of(&t->digests, i);
    struct digest read;
    tp_status st = file_read_at(t->staged_fd, t->staged_path, t->staged[i], matrix,
                                (size_t)(p->rows * p->columns * size), err);

    if (st)
        return st;
    read = digest_box(matrix, whole, whole->ndim, whole->len, size);
    if (memcmp(read.d, written.d, sizeof read.d) != 0)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is not what was written", t->staged_path,
                       p->name);
    return put_transposed(t, p, matrix, strip, err);
}

static tp_status finish_staged(const struct gguf_target *t, struct tp_err *err)
{
    const size_t bytes = (size_t)t->largest * sizeof(float);
    char *matrix = malloc(bytes), *strip = malloc(bytes);
    tp_status st = TP_OK;

    if (!matrix || !strip)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its largest matrix", t->path);
    for (int i = 0; i < t->n && !st; i++)
        if (t->staged[i] >= 0)
            st = finish_part(t, i, matrix, strip, err);
    free(matrix);
    free(strip);
    return st;
}

tp_status gguf_export_finish(struct export_writer *w, struct tp_err *err)
{
    struct gguf_target *t = w->ctx;
    const int fd = t->fd;
    tp_status st;

    if (t->uploads)
        return upload_set_finish(t->uploads, err);
    st = t->largest > 0 ? finish_staged(t, err) : TP_OK;
    if (!st)
        st = file_sync(fd, t->path, false, err);
    if (st)
        return st;
    t->fd = -1;
    return close(fd) != 0 ? tp_fail_errno(err, "%s: close failed", t->path) : TP_OK;
}

void gguf_export_close(struct export_writer *w)
{
    target_close(w->ctx);
}
