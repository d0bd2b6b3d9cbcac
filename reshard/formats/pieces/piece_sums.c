/* reshard/formats/pieces/piece_sums.c - see reshard/formats/pieces/piece_sums.h. */
#include "reshard/formats/pieces/piece_sums.h"

#include <stdlib.h>

#include "reshard/engine/reduce_sums.h"
#include "torch/crc32.h"
#include "torch/zip.h"

enum { GAP_BYTES = 1 << 20 };

/* ---- which bytes ---- */

static int by_sum_and_begin(const void *a, const void *b)
{
    const struct piece_sums_range *x = a, *y = b;
    int order = (x->sum > y->sum) - (x->sum < y->sum);

    if (!order)
        order = (x->begin > y->begin) - (x->begin < y->begin);
    if (!order)
        order = (x->end > y->end) - (x->end < y->end);
    return order ? order : (x->extent > y->extent) - (x->extent < y->extent);
}

/* Whether the elements of a piece fill a range of the file, in any order of the axes. */
static bool is_dense(const struct piece *p)
{
    bool taken[BOX_NDIM_MAX] = { false };
    int64_t elements = 1;

    for (int i = 0; i < p->ndim; i++) {
        int axis = -1;

        for (int d = 0; d < p->ndim && axis < 0; d++)
            if (!taken[d] && (p->box.len[d] == 1 || p->stride[d] == elements))
                axis = d;
        if (axis < 0)
            return false;
        taken[axis] = true;
        elements *= p->box.len[axis];
    }
    return true;
}

/* Decide which extents are added up. Two with the same range, as a weight that is made from its
 * master, count once. */
static void choose(struct piece_sums *s, const struct piece *const *extents, int n_extents)
{
    for (int i = 0; i < n_extents; i++) {
        const struct piece *p = extents[i];

        for (int k = 0; p->decoder && k < p->decoder->n_sums; k++) {
            s->wanted[p->decoder->sums[k] - 1] = true;
            s->separate[p->decoder->sums[k] - 1] = true;
        }
        if (!p->sum || box_is_empty(&p->box))
            continue;
        s->wanted[p->sum - 1] = true;
        s->separate[p->sum - 1] |= !is_dense(p);
        s->ranges[s->n_ranges++] =
            (struct piece_sums_range){ p->sum - 1, i, p->begin,
                                       p->begin + box_elements(&p->box) * dtype_bytes(p->dtype) };
    }
    if (s->n_ranges > 0)
        qsort(s->ranges, (size_t)s->n_ranges, sizeof *s->ranges, by_sum_and_begin);
    for (int i = 0; i < s->n_ranges; i++) {
        const struct piece_sums_range *r = &s->ranges[i];
        const struct piece_sum *sum = &s->sums[r->sum];
        const bool follows = i > 0 && r[-1].sum == r->sum;

        s->added[r->extent] = !follows || r[-1].begin != r->begin || r[-1].end != r->end;
        if (r->begin < sum->begin || r->end > sum->begin + sum->size ||
            (follows && s->added[r->extent] && r->begin < r[-1].end))
            s->separate[r->sum] = true;
    }
}

/* Forget the extents that are not added up. */
static void keep_added(struct piece_sums *s)
{
    int n = 0;

    for (int i = 0; i < s->n_ranges; i++) {
        const struct piece_sums_range *r = &s->ranges[i];

        s->added[r->extent] &= !s->separate[r->sum];
        if (s->added[r->extent])
            s->ranges[n++] = *r;
    }
    s->n_ranges = n;
}

tp_status piece_sums_make(struct piece_sums *s, const struct piece *const *extents, int n_extents,
                          struct arena *arena, struct tp_err *err)
{
    const size_t n = (size_t)s->n + 1;

    s->n_ranges = 0;
    s->ranges = arena_array(arena, (size_t)n_extents + 1, sizeof *s->ranges);
    s->added = arena_array(arena, (size_t)n_extents + 1, sizeof *s->added);
    s->wanted = arena_array(arena, n, sizeof *s->wanted);
    s->separate = arena_array(arena, n, sizeof *s->separate);
    s->words = arena_array(arena, 2 * n, sizeof *s->words);
    if (!s->ranges || !s->added || !s->wanted || !s->separate || !s->words)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d checksums", s->n);
    choose(s, extents, n_extents);
    keep_added(s);
    return TP_OK;
}

/* ---- adding up ---- */

uint32_t piece_sums_part(const struct piece_sums *s, const struct piece *p, int64_t at,
                         const void *data, int64_t n)
{
    const struct piece_sum *sum = &s->sums[p->sum - 1];

    return crc32_part(data, (size_t)n, (uint64_t)(sum->begin + sum->size - at - n));
}

void piece_sums_add(struct piece_sums *s, int sum, uint32_t parts, int64_t n)
{
    s->words[2 * (size_t)sum] ^= parts;
    s->words[2 * (size_t)sum + 1] += (uint64_t)n;
}

/* A reduce_sums_fn. */
static void add_words(uint64_t *into, const uint64_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) {
        into[i] ^= from[i];
        into[i + 1] += from[i + 1];
    }
}

tp_status piece_sums_combine(struct piece_sums *s, struct comm_control *control, struct tp_err *err)
{
    const struct reduce_sums sums = { s->words, 2 * (int64_t)s->n, 2, add_words };
    tp_status st = reduce_sums(control, &sums, err);

    s->first = control_rank(control);
    s->step = control_size(control);
    return st ? st
              : control_broadcast(control, s->words, sums.n * (int64_t)sizeof *s->words, 0, err);
}

/* ---- the end ---- */

/* Read bytes from .. to - 1 of a file, which no piece has. */
static tp_status add_gap(uint32_t *parts, const struct piece_sum *sum, const struct file_part *part,
                         int64_t from, int64_t to, struct tp_err *err)
{
    unsigned char *buf = from < to ? malloc(GAP_BYTES) : NULL;
    tp_status st = TP_OK;

    if (from < to && !buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to check it", part->path);
    while (from < to && !st) {
        const int64_t n = to - from < GAP_BYTES ? to - from : GAP_BYTES;

        st = file_part_read(part, from, buf, n, err);
        if (!st)
            *parts ^= crc32_part(buf, (size_t)n, (uint64_t)(sum->begin + sum->size - from - n));
        from += n;
    }
    free(buf);
    return st;
}

/* Compare a sum of which all pieces were read, r .. r + n - 1. */
static tp_status compare(const struct piece_sums *s, int number, const struct piece_sums_range *r,
                         int n, struct tp_err *err)
{
    const struct piece_sum *sum = &s->sums[number];
    uint32_t parts = (uint32_t)s->words[2 * (size_t)number], found;
    int64_t at = sum->begin;
    struct file_part part;
    tp_status st = file_table_use(s->files, sum->file, &part, err);

    if (st)
        return st;
    for (int i = 0; i < n && !st; at = r[i++].end)
        st = add_gap(&parts, sum, &part, at, r[i].begin, err);
    if (!st)
        st = add_gap(&parts, sum, &part, at, sum->begin + sum->size, err);
    found = crc32_whole(parts, (uint64_t)sum->size);
    if (!st && found != sum->crc)
        st = tp_fail(err, TP_E_CORRUPT, "%s: %s has CRC-32 %08x, but the archive says %08x",
                     part.path, sum->what, found, sum->crc);
    file_table_release(s->files, sum->file);
    return st;
}

tp_status piece_sums_separate(const struct piece_sum *sum, struct file_table *files,
                              struct tp_err *err)
{
    struct file_part part;
    tp_status st = file_table_use(files, sum->file, &part, err);

    if (st)
        return st;
    st = zip_check_range(&part, sum->begin, sum->size, sum->crc, sum->what, err);
    file_table_release(files, sum->file);
    return st;
}

tp_status piece_sums_check(const struct piece_sums *s, struct tp_err *err)
{
    int first = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < s->n && !st; i++) {
        uint64_t bytes = 0;
        int end = first;

        for (; end < s->n_ranges && s->ranges[end].sum == i; end++)
            bytes += (uint64_t)(s->ranges[end].end - s->ranges[end].begin);
        if (s->wanted[i] && (s->step == 0 || i % s->step == s->first))
            st = s->separate[i] || bytes != s->words[2 * (size_t)i + 1]
                     ? piece_sums_separate(&s->sums[i], s->files, err)
                     : compare(s, i, s->ranges + first, end - first, err);
        first = end;
    }
    return st;
}
