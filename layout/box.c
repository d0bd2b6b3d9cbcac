/* layout/box.c - see layout/box.h. */
#include "layout/box.h"

#include <stdio.h>
#include <string.h>

struct box box_whole(int ndim, const int64_t *shape)
{
    struct box b = { .ndim = ndim };

    for (int d = 0; d < ndim; d++)
        b.len[d] = shape[d];
    return b;
}

int64_t box_elements(const struct box *b)
{
    int64_t n = 1;

    for (int d = 0; d < b->ndim; d++)
        n *= b->len[d];
    return n;
}

bool box_is_empty(const struct box *b)
{
    for (int d = 0; d < b->ndim; d++)
        if (b->len[d] <= 0)
            return true;
    return false;
}

bool box_equal(const struct box *a, const struct box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->lo[d] != b->lo[d] || a->len[d] != b->len[d])
            return false;
    return true;
}

bool box_contains(const struct box *outer, const struct box *inner)
{
    if (outer->ndim != inner->ndim)
        return false;
    for (int d = 0; d < outer->ndim; d++)
        if (inner->lo[d] < outer->lo[d] ||
            inner->lo[d] + inner->len[d] > outer->lo[d] + outer->len[d])
            return false;
    return true;
}

bool box_meet(struct box *out, const struct box *a, const struct box *b)
{
    if (a->ndim != b->ndim)
        return false;
    out->ndim = a->ndim;
    for (int d = 0; d < a->ndim; d++) {
        int64_t lo = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        int64_t a_end = a->lo[d] + a->len[d], b_end = b->lo[d] + b->len[d];
        int64_t end = a_end < b_end ? a_end : b_end;

        if (end <= lo)
            return false;
        out->lo[d] = lo;
        out->len[d] = end - lo;
    }
    return true;
}

int64_t box_offset_in(const struct box *outer, const struct box *inner)
{
    int64_t offset = 0;

    for (int d = 0; d < outer->ndim; d++)
        offset = offset * outer->len[d] + (inner->lo[d] - outer->lo[d]);
    return offset;
}

bool box_is_run_in(const struct box *outer, const struct box *inner)
{
    int d = 0;

    if (box_is_empty(inner))
        return true;
    while (d < inner->ndim && inner->len[d] == 1)
        d++;
    for (d++; d < inner->ndim; d++) /* after the first axis that is a range, all must be whole */
        if (inner->len[d] != outer->len[d])
            return false;
    return true;
}

/* The axis that runs take ranges of, and in *step the length of a range. Axes before it have length
 * 1 in a run, and axes after it are whole. */
static int run_axis(const struct box *b, int64_t max_elements, int64_t *step)
{
    int64_t inner = 1; /* elements of the axes after d */
    int d = b->ndim - 1;

    if (max_elements < 1)
        max_elements = 1;
    while (d > 0 && inner * b->len[d] <= max_elements)
        inner *= b->len[d--];
    *step = max_elements / inner;
    if (*step < 1)
        *step = 1;
    if (d >= 0 && *step > b->len[d])
        *step = b->len[d];
    return d;
}

int64_t box_run_count(const struct box *b, int64_t max_elements)
{
    int64_t step, n;
    int axis;

    if (box_is_empty(b))
        return 0;
    if (b->ndim == 0)
        return 1;
    axis = run_axis(b, max_elements, &step);
    n = (b->len[axis] + step - 1) / step;
    for (int d = 0; d < axis; d++)
        n *= b->len[d];
    return n;
}

void box_run(struct box *out, const struct box *b, int64_t max_elements, int64_t i)
{
    int64_t step, per_row;
    int axis;

    *out = *b;
    if (b->ndim == 0)
        return;
    axis = run_axis(b, max_elements, &step);
    per_row = (b->len[axis] + step - 1) / step;
    out->lo[axis] += i % per_row * step;
    if (out->lo[axis] + step > b->lo[axis] + b->len[axis])
        step = b->lo[axis] + b->len[axis] - out->lo[axis];
    out->len[axis] = step;
    i /= per_row;
    for (int d = axis - 1; d >= 0; d--) {
        out->lo[d] += i % b->len[d];
        out->len[d] = 1;
        i /= b->len[d];
    }
}

char *box_format(char buf[BOX_TEXT_MAX], const struct box *b)
{
    size_t used = 1;

    buf[0] = '[';
    for (int d = 0; d < b->ndim && used < BOX_TEXT_MAX; d++)
        used += (size_t)snprintf(buf + used, BOX_TEXT_MAX - used, "%s%lld:%lld", d ? ", " : "",
                                 (long long)b->lo[d], (long long)(b->lo[d] + b->len[d]));
    if (used < BOX_TEXT_MAX)
        snprintf(buf + used, BOX_TEXT_MAX - used, "]");
    return buf;
}

char *box_format_shape(char *buf, size_t size, int ndim, const int64_t *shape)
{
    size_t used = (size_t)snprintf(buf, size, "[");

    for (int d = 0; d < ndim && used < size; d++)
        used +=
            (size_t)snprintf(buf + used, size - used, d ? ", %lld" : "%lld", (long long)shape[d]);
    if (used < size)
        snprintf(buf + used, size - used, "]");
    return buf;
}
