/* reshard/engine/extent_index.c - see reshard/engine/extent_index.h. */
#include "reshard/engine/extent_index.h"

#include <stdlib.h>
#include <string.h>

struct extent_index {
    const struct reshard_extent *extents;
    int *first;        /* [n_tensors + 1] first entry of a tensor in the arrays below */
    signed char *axis; /* [n_tensors] the axis that its extents are sorted along */
    int *order;        /* extent numbers, ascending by lo[axis] */
    int64_t *max_end;  /* largest end on the axis among the tensor's extents so far */
};

static int64_t end_of(const struct box *b, int axis)
{
    return b->lo[axis] + b->len[axis];
}

/* Whether extent number i belongs into an index of these tensors. */
static bool is_of(const struct extent_index_tensors *which, const struct reshard_endpoint *endpoint,
                  int i)
{
    const struct reshard_extent *r = &endpoint->extents[i];

    return r->tensor >= which->begin && r->tensor < which->end && !box_is_empty(&r->box);
}

static tp_status check_extent(const struct reshard_endpoint *endpoint, int i,
                              const struct extent_index_tensors *which, struct tp_err *err)
{
    const struct reshard_extent *r = &endpoint->extents[i];
    const struct reshard_tensor *t;
    char text[BOX_TEXT_MAX];
    struct box whole;

    if (r->tensor < 0 || r->tensor >= which->n)
        return tp_fail(err, TP_E_INTERNAL,
                       "%s: extent %d belongs to tensor %d, but there are %d tensors",
                       endpoint->name, i, r->tensor, which->n);
    t = &which->tensors[r->tensor];
    whole = box_whole(t->ndim, t->shape);
    if (r->box.ndim != t->ndim || (!box_is_empty(&r->box) && !box_contains(&whole, &r->box)))
        return tp_fail(err, TP_E_INTERNAL, "%s: the box %s does not fit into tensor %s",
                       endpoint->name, box_format(text, &r->box), t->name);
    return TP_OK;
}

/* Counting sort by tensor. It is stable: extents keep the endpoint's order. */
static void group_by_tensor(struct extent_index *x, const struct reshard_endpoint *endpoint,
                            const struct extent_index_tensors *which)
{
    for (int i = 0; i < endpoint->n_extents; i++)
        if (is_of(which, endpoint, i))
            x->first[endpoint->extents[i].tensor + 1]++;
    for (int t = 0; t < which->n; t++)
        x->first[t + 1] += x->first[t];
    for (int i = 0; i < endpoint->n_extents; i++)
        if (is_of(which, endpoint, i))
            x->order[x->first[endpoint->extents[i].tensor]++] = i;
    for (int t = which->n; t > 0; t--) /* each now points to the start of the next */
        x->first[t] = x->first[t - 1];
    x->first[0] = 0;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The axis with the most distinct offsets; scratch has room for n values. */
static int widest_axis(const struct extent_index *x, const int *order, int n, int64_t *scratch)
{
    int ndim = x->extents[order[0]].box.ndim, best = 0, best_distinct = 0;

    for (int axis = 0; axis < ndim; axis++) {
        int distinct = 1;

        for (int i = 0; i < n; i++)
            scratch[i] = x->extents[order[i]].box.lo[axis];
        qsort(scratch, (size_t)n, sizeof *scratch, by_value);
        for (int i = 1; i < n; i++)
            distinct += scratch[i] != scratch[i - 1];
        if (distinct > best_distinct) {
            best_distinct = distinct;
            best = axis;
        }
    }
    return best;
}

struct extent_order {
    const struct reshard_extent *extents;
    int axis;
};

static int by_offset(const void *a, const void *b, void *arg)
{
    const struct extent_order *by = arg;
    int i = *(const int *)a, j = *(const int *)b;
    int64_t x = by->extents[i].box.lo[by->axis], y = by->extents[j].box.lo[by->axis];

    return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

static void sort_tensor(struct extent_index *x, int tensor)
{
    int begin = x->first[tensor], n = x->first[tensor + 1] - begin;
    int64_t max_end = 0;

    if (n == 0)
        return;
    if (n > 1 && x->extents[x->order[begin]].box.ndim > 0) {
        struct extent_order by = { x->extents, 0 };

        by.axis = widest_axis(x, x->order + begin, n, x->max_end + begin);
        x->axis[tensor] = (signed char)by.axis;
        qsort_r(x->order + begin, (size_t)n, sizeof *x->order, by_offset, &by);
    }
    for (int i = begin; i < begin + n; i++) {
        const struct box *b = &x->extents[x->order[i]].box;
        int64_t end = b->ndim > 0 ? end_of(b, x->axis[tensor]) : 1;

        if (end > max_end)
            max_end = end;
        x->max_end[i] = max_end;
    }
}

tp_status extent_index_make(struct extent_index **out, const struct reshard_endpoint *endpoint,
                            const struct reshard_tensor *tensors, int n_tensors, struct tp_err *err)
{
    const struct extent_index_tensors all = { tensors, n_tensors, 0, n_tensors };

    return extent_index_make_of(out, endpoint, &all, err);
}

tp_status extent_index_make_of(struct extent_index **out, const struct reshard_endpoint *endpoint,
                               const struct extent_index_tensors *which, struct tp_err *err)
{
    struct extent_index *x = calloc(1, sizeof *x);
    size_t n = 0;
    tp_status st = TP_OK;

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for the plan", endpoint->name);
    for (int i = 0; i < endpoint->n_extents; i++)
        n += is_of(which, endpoint, i);
    x->extents = endpoint->extents;
    x->first = calloc((size_t)which->n + 1, sizeof *x->first);
    x->axis = calloc((size_t)which->n + 1, sizeof *x->axis);
    x->order = calloc(n + 1, sizeof *x->order);
    x->max_end = calloc(n + 1, sizeof *x->max_end);
    if (!x->first || !x->axis || !x->order || !x->max_end) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a plan of %zu boxes", endpoint->name, n);
        goto done;
    }
    for (int i = 0; i < endpoint->n_extents; i++)
        TP_TRY(check_extent(endpoint, i, which, err));
    group_by_tensor(x, endpoint, which);
    for (int t = which->begin; t < which->end; t++)
        sort_tensor(x, t);
    *out = x;
    x = NULL;
done:
    extent_index_free(x);
    return st;
}

void extent_index_free(struct extent_index *x)
{
    if (!x)
        return;
    free(x->first);
    free(x->axis);
    free(x->order);
    free(x->max_end);
    free(x);
}

int extent_index_count(const struct extent_index *x, int tensor)
{
    return x->first[tensor + 1] - x->first[tensor];
}

int extent_index_number(const struct extent_index *x, int tensor, int position)
{
    return x->order[x->first[tensor] + position];
}

const struct box *extent_index_box(const struct extent_index *x, int tensor, int position)
{
    return &x->extents[extent_index_number(x, tensor, position)].box;
}

/* First position whose max_end is greater than `at`; all extents before it end at or before it. */
static int first_reaching(const int64_t *max_end, int n, int64_t at)
{
    int low = 0, high = n;

    while (low < high) {
        int mid = low + (high - low) / 2;

        if (max_end[mid] > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

int extent_index_find(const struct extent_index *x, int tensor, const struct box *b, int *positions)
{
    int n = extent_index_count(x, tensor), found = 0, axis = x->axis[tensor];
    struct box overlap;

    if (box_is_empty(b))
        return 0;
    if (b->ndim == 0) {
        for (int i = 0; positions && i < n; i++)
            positions[i] = i;
        return n;
    }
    for (int i = first_reaching(x->max_end + x->first[tensor], n, b->lo[axis]); i < n; i++) {
        const struct box *r = extent_index_box(x, tensor, i);

        if (r->lo[axis] >= end_of(b, axis))
            break;
        if (!box_meet(&overlap, r, b))
            continue;
        if (positions)
            positions[found] = i;
        found++;
    }
    return found;
}

bool extent_index_overlap(const struct extent_index *x, int tensor, int *a, int *b)
{
    int n = extent_index_count(x, tensor), axis = x->axis[tensor];
    struct box overlap;

    for (int i = 0; i < n; i++) {
        const struct box *p = extent_index_box(x, tensor, i);

        for (int j = i + 1; j < n; j++) {
            const struct box *q = extent_index_box(x, tensor, j);

            if (p->ndim > 0 && q->lo[axis] >= end_of(p, axis))
                break;
            if (box_meet(&overlap, p, q)) {
                *a = i;
                *b = j;
                return true;
            }
        }
    }
    return false;
}
