/* reshard/formats/pieces/piece_endpoint.c - pieces as the source of a transfer; see
 * reshard/formats/pieces/piece.h. */
#include <stdlib.h>
#include <string.h>

#include "reshard/formats/pieces/piece_source_state.h"
#include "storage/location.h"
#include "storage/remote_object.h"

/* ---- reading ---- */

enum { GATHER_BYTES = 16 << 10 };

/* A run of a piece that is being read: a box of the tensor, and where its elements go. */
struct piece_run {
    struct file_part part;
    const struct piece *piece;
    struct box box;
    int64_t to_stride[BOX_NDIM_MAX]; /* bytes, in the row-major buffer */
    char *buf;
    int elem;
    const struct piece_sums *sums; /* that the parts are added to; NULL: none */
    uint32_t parts;                /* exclusive or of what was read */
};

/* The innermost axes that lie in the file as in the buffer, as one row: from axis *first on.
 * Returns the bytes of such a row. */
static int64_t dense_bytes(const struct piece_run *r, int *first)
{
    int64_t elements = 1;
    int d = r->box.ndim;

    while (d > 0 && (r->box.len[d - 1] == 1 || r->piece->stride[d - 1] == elements)) {
        d--;
        elements *= r->box.len[d];
    }
    *first = d;
    return elements * r->elem;
}

static int64_t file_offset(const struct piece_run *r, const int64_t *at)
{
    int64_t offset = 0;

    for (int d = 0; d < r->box.ndim; d++)
        offset += (r->box.lo[d] + at[d] - r->piece->box.lo[d]) * r->piece->stride[d];
    return r->piece->begin + offset * r->elem;
}

static char *memory_at(const struct piece_run *r, const int64_t *at)
{
    char *p = r->buf;

    for (int d = 0; d < r->box.ndim; d++)
        p += at[d] * r->to_stride[d];
    return p;
}

/* The next index below `n` on all axes but `skip`. False: it was the last one. */
static bool next_index(int64_t *at, const int64_t *len, int n, int skip)
{
    for (int d = n - 1; d >= 0; d--) {
        if (d == skip)
            continue;
        if (++at[d] < len[d])
            return true;
        at[d] = 0;
    }
    return false;
}

static tp_status read_part(struct piece_run *r, int64_t at, char *to, int64_t bytes,
                           struct tp_err *err)
{
    tp_status st = file_part_read(&r->part, at, to, bytes, err);

    if (!st && r->sums)
        r->parts ^= piece_sums_part(r->sums, r->piece, at, to, bytes);
    return st;
}

/* Rows that are contiguous in the file and in the buffer. */
static tp_status read_rows(struct piece_run *r, int first, int64_t bytes, struct tp_err *err)
{
    int64_t at[BOX_NDIM_MAX] = { 0 };
    tp_status st;

    do
        st = read_part(r, file_offset(r, at), memory_at(r, at), bytes, err);
    while (!st && next_index(at, r->box.len, first, -1));
    return st;
}

/* A line of elements along an axis, which are contiguous in the file but not in the buffer. */
static tp_status read_line(struct piece_run *r, int64_t *at, int axis, struct tp_err *err)
{
    char bounce[GATHER_BYTES];
    const int64_t room = GATHER_BYTES / r->elem;
    tp_status st = TP_OK;

    for (at[axis] = 0; at[axis] < r->box.len[axis] && !st;) {
        int64_t n = r->box.len[axis] - at[axis] < room ? r->box.len[axis] - at[axis] : room;
        char *to = memory_at(r, at);

        st = read_part(r, file_offset(r, at), bounce, n * r->elem, err);
        for (int64_t i = 0; i < n && !st; i++)
            memcpy(to + i * r->to_stride[axis], bounce + i * r->elem, (size_t)r->elem);
        at[axis] += n;
    }
    at[axis] = 0;
    return st;
}

/* Elements that lie apart in the buffer: line by line along the axis that is dense in the file, or
 * one by one when there is none. */
static tp_status read_lines(struct piece_run *r, struct tp_err *err)
{
    int64_t at[BOX_NDIM_MAX] = { 0 };
    int axis = -1;
    tp_status st;

    for (int d = 0; d < r->box.ndim; d++)
        if (r->piece->stride[d] == 1 && r->box.len[d] > 1)
            axis = d;
    if (axis < 0)
        return read_rows(r, r->box.ndim, r->elem, err);
    do
        st = read_line(r, at, axis, err);
    while (!st && next_index(at, r->box.len, r->box.ndim, axis));
    return st;
}

static tp_status read_run(struct piece_run *r, const struct piece_source *s, struct tp_err *err)
{
    const struct piece *p = r->piece;
    int64_t step = r->elem, bytes;
    int first;
    tp_status st;

    for (int d = r->box.ndim - 1; d >= 0; d--) {
        r->to_stride[d] = step;
        step *= r->box.len[d];
    }
    st = file_table_use(s->files, p->file, &r->part, err);
    if (st)
        return st;
    bytes = dense_bytes(r, &first);
    st = bytes > r->elem || first == 0 ? read_rows(r, first, bytes, err) : read_lines(r, err);
    file_table_release(s->files, p->file);
    return st;
}

/* Read a run, and add it to the CRC-32 of its file's range if it counts. */
static tp_status read_piece(struct piece_source *s, int extent, const struct box *run, void *buf,
                            bool counts, struct tp_err *err)
{
    const struct piece *p = s->extents[extent];
    struct piece_run r = { .piece = p,
                           .box = *run,
                           .buf = buf,
                           .elem = dtype_bytes(p->dtype),
                           .sums = counts && s->read.added[extent] ? &s->read : NULL };
    tp_status st;

    if (box_is_empty(run))
        return TP_OK;
    st = p->decoder ? p->decoder->read(p->decoder->ctx, run, buf, err) : read_run(&r, s, err);
    if (st)
        return tp_fail_in(err, "tensor %s/%s", p->group, p->name);
    if (r.sums) {
        pthread_mutex_lock(&s->lock);
        piece_sums_add(&s->read, p->sum - 1, r.parts, box_elements(run) * r.elem);
        pthread_mutex_unlock(&s->lock);
    }
    return TP_OK;
}

static tp_status source_read_undigested(void *ctx, int extent, const struct box *run, void *buf,
                                        struct tp_err *err)
{
    return read_piece(ctx, extent, run, buf, true, err);
}

static tp_status source_read_uncounted(void *ctx, int extent, const struct box *run, void *buf,
                                       struct tp_err *err)
{
    return read_piece(ctx, extent, run, buf, false, err);
}

/* Only what is contiguous in the file is named; the rest is fetched when it is read. */
static void source_will_read(void *ctx, int extent, const struct box *run)
{
    struct piece_source *s = ctx;
    struct piece_run r = { .piece = s->extents[extent],
                           .box = *run,
                           .elem = dtype_bytes(s->extents[extent]->dtype) };
    const struct piece_decoder *decoder = r.piece->decoder;
    const int64_t at[BOX_NDIM_MAX] = { 0 };
    struct file_table_range range = { .files = s->files, .file = r.piece->file };
    int first;
    const int64_t bytes = decoder || box_is_empty(run) ? 0 : dense_bytes(&r, &first);

    if (decoder)
        decoder->will_read(decoder->ctx, run);
    if (bytes == 0 || bytes < box_elements(run) * r.elem)
        return;
    range.begin = file_offset(&r, at);
    range.size = bytes;
    file_table_range_will_read(&range);
}

static void source_add_digest(void *ctx, int tensor, const struct digest *part)
{
    tensor_digests_add(&((struct piece_source *)ctx)->digests, tensor, part);
}

static tp_status source_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    struct piece_source *s = ctx;
    const struct piece *p = s->extents[extent];
    struct digest part;
    tp_status st = source_read_undigested(ctx, extent, run, buf, err);

    if (st || box_is_empty(run))
        return st;
    part = digest_box(buf, run, p->ndim, p->shape, dtype_bytes(p->dtype));
    source_add_digest(ctx, s->endpoint.extents[extent].tensor, &part);
    return TP_OK;
}

static struct digest source_digest(const void *ctx, int tensor)
{
    return tensor_digests_of(&((const struct piece_source *)ctx)->digests, tensor);
}

static tp_status source_combine(void *ctx, struct comm_control *control, struct tp_err *err)
{
    struct piece_source *s = ctx;
    tp_status st = tensor_digests_combine(&s->digests, control, err);

    return st ? st : piece_sums_combine(&s->read, control, err);
}

static tp_status source_check(void *ctx, struct tp_err *err)
{
    const struct piece_source *s = ctx;

    return piece_sums_check(&s->read, err);
}

static int source_sums(const void *ctx, struct reshard_sums *sums)
{
    const struct piece_source *s = ctx;

    if (sums) {
        sums[0] = tensor_digests_words(&s->digests);
        sums[1] = (struct reshard_sums){ s->read.words, 2 * (int64_t)s->read.n };
    }
    return 2;
}

static const struct reshard_resumable source_resumable = { .sums = source_sums };

/* ---- choosing ---- */

static tp_status match(int *out, const struct piece_source *s, const struct tensor *want,
                       const char *group, struct tp_err *err)
{
    int i = piece_source_find(s, group, want->name);
    struct box want_box = box_whole(want->ndim, want->shape), found_box;
    char want_text[BOX_TEXT_MAX], found_text[BOX_TEXT_MAX];
    const struct piece *p;

    if (i < 0)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s is missing%s", s->path, group,
                       want->name,
                       strcmp(want->group, GROUP_PARAM) == 0
                           ? ", which the model of config.json has; --config names another one"
                           : "; --no-optim takes the weights alone, without the optimizer");
    p = s->tensors[i].pieces;
    found_box = box_whole(p->ndim, p->shape);
    if (!box_equal(&want_box, &found_box))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: tensor %s/%s is %s, but the model of config.json has %s; --config names "
            "another one",
            file_table_path(s->files, p->file), group, want->name,
            box_format_shape(found_text, sizeof found_text, p->ndim, p->shape),
            box_format_shape(want_text, sizeof want_text, want->ndim, want->shape));
    if (p->dtype == DTYPE_COUNT)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s has a dtype that is not supported; supported are f32, "
                       "bf16, f16, f64, i64, i32 and u8",
                       file_table_path(s->files, p->file), group, want->name);
    *out = i;
    return TP_OK;
}

static tp_status add_extents(struct piece_source *s, const int *chosen, int n, int n_extents,
                             struct tp_err *err)
{
    struct reshard_extent *extents = arena_array(&s->arena, (size_t)n_extents + 1, sizeof *extents);
    enum dtype *dtypes = arena_array(&s->arena, (size_t)n + 1, sizeof *dtypes);
    int k = 0;

    s->extents = arena_array(&s->arena, (size_t)n_extents + 1, sizeof *s->extents);
    if (!extents || !dtypes || !s->extents || !tensor_digests_make(&s->digests, n, &s->arena))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->path);
    for (int i = 0; i < n; i++) {
        const struct piece_tensor *t = &s->tensors[chosen[i]];

        dtypes[i] = t->pieces->dtype;
        for (int j = 0; j < t->n; j++) {
            extents[k] = (struct reshard_extent){ i, t->pieces[j].box };
            s->extents[k++] = &t->pieces[j];
        }
    }
    s->endpoint = (struct reshard_endpoint){ .name = s->path,
                                             .n_extents = n_extents,
                                             .extents = extents,
                                             .dtypes = dtypes,
                                             .ctx = s,
                                             .read = source_read,
                                             .read_undigested = source_read_undigested,
                                             .read_uncounted = source_read_uncounted,
                                             .add_digest = source_add_digest,
                                             .resumable = &source_resumable,
                                             .combine = source_combine,
                                             .check = source_check,
                                             .digest = source_digest };
    if (location_is_remote(s->path)) {
        s->endpoint.will_read = source_will_read;
        s->endpoint.ahead_bytes = remote_object_ahead_bytes();
    }
    s->endpoint.any_order = !location_is_remote(s->path);
    s->read = (struct piece_sums){ .sums = s->sums, .files = s->files, .n = s->n_sums };
    return piece_sums_make(&s->read, s->extents, n_extents, &s->arena, err);
}

tp_status piece_source_select(struct piece_source *s, const struct tensor *wanted,
                              const char *const *from, int n, struct tp_err *err)
{
    int *chosen = calloc((size_t)n + 1, sizeof *chosen), n_extents = 0;
    tp_status st = TP_OK;

    if (!chosen)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->path);
    for (int i = 0; i < n; i++) {
        TP_TRY(match(&chosen[i], s, &wanted[i], from[i], err));
        n_extents += s->tensors[chosen[i]].n;
    }
    st = add_extents(s, chosen, n, n_extents, err);
done:
    free(chosen);
    return st;
}

bool piece_source_has_sums(const struct piece_source *s)
{
    for (int i = 0; i < s->endpoint.n_extents; i++)
        if (!piece_has_sum(s->extents[i]) && !box_is_empty(&s->extents[i]->box))
            return false;
    return true;
}

const struct reshard_endpoint *piece_source_endpoint(const struct piece_source *s)
{
    return &s->endpoint;
}
