/* cli/ckpt/cmd_diff.c - tp-ckpt diff: compare two checkpoints by value, across layouts. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt/cmd.h"
#include "cli/ckpt/foreign.h"
#include "cli/print.h"
#include "cli/report.h"
#include "layout/box.h"
#include "reshard/tensor_view.h"

enum { BUFFER_BYTES = 8 << 20, CAST_BYTES = 8, SHAPE_TEXT = 160, WHAT_TEXT = 512 };

/* What both sides need while they are compared: a buffer each, and one for a part of it. */
enum { SIDES_BYTES = 4 * BUFFER_BYTES };

static const char intro[] =
    "Compares two checkpoints tensor by tensor, by value. Their layouts may differ, and their\n"
    "formats: of this project, safetensors, PyTorch, Megatron-LM, DeepSpeed. Without --atol and\n"
    "--rtol every bit must be equal (NaN equals the same NaN, and 0 differs from -0); with them\n"
    "|a - b| <= atol + rtol |b|, where an infinity equals only itself. A tensor that only one of\n"
    "them has, or that has another shape or dtype, is a difference. Weights in f32 are their own\n"
    "masters: where one of them has only these and the other has masters too, both are compared\n"
    "with them. Where there are only masters (ZeRO-3), weights are compared with the rounded\n"
    "masters.";

static const char tail[] =
    "Each difference is a line; below it are the files that hold the first element that differs.\n"
    "exit codes: 0 equal; 1 different; 2 the request is wrong; 3 it failed.";

/* One of the two checkpoints. */
struct diff_side {
    struct foreign_contents_request from;
    struct tensor_view *view;
    unsigned char *buffer;
    int tensor; /* number of the tensor that is compared */
};

struct diff_tolerance {
    bool exact;
    double atol, rtol;
};

/* How one tensor differs. */
struct diff_result {
    int64_t count;  /* elements that differ */
    int64_t first;  /* index of the first, in row-major order */
    double max_abs; /* largest |a - b| */
};

/* ---- values ---- */

static double float16_value(uint16_t bits)
{
    double mantissa = bits & 0x3ff, value;
    int exponent = bits >> 10 & 31;

    if (exponent == 31)
        value = mantissa != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, -24);
    else
        value = ldexp(mantissa + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* As a type in which every value of every dtype is exact, an i64 too. */
static long double value_at(const unsigned char *data, enum dtype dtype, int64_t i)
{
    const unsigned char *p = data + i * dtype_bytes(dtype);
    uint16_t u16;
    uint32_t u32;
    int32_t i32;
    int64_t i64;
    double f64;
    float f32;

    switch (dtype) {
    case DTYPE_F32:
        memcpy(&f32, p, sizeof f32);
        return f32;
    case DTYPE_BF16:
        memcpy(&u16, p, sizeof u16);
        u32 = (uint32_t)u16 << 16;
        memcpy(&f32, &u32, sizeof f32);
        return f32;
    case DTYPE_F16:
        memcpy(&u16, p, sizeof u16);
        return float16_value(u16);
    case DTYPE_F64:
        memcpy(&f64, p, sizeof f64);
        return f64;
    case DTYPE_I64:
        memcpy(&i64, p, sizeof i64);
        return i64;
    case DTYPE_I32:
        memcpy(&i32, p, sizeof i32);
        return i32;
    default:
        return *p;
    }
}

/* A run of n elements of both sides; `first` is the index of the first in the tensor. */
struct diff_run {
    const unsigned char *a, *b;
    enum dtype dtype;
    int64_t n, first;
};

/* Whether two values that differ are equal within the tolerance. An infinity is near no number,
 * though rtol times it is infinite. */
static bool is_near(long double x, long double y, const struct diff_tolerance *tol)
{
    return x == y ||
           (isfinite(x) && isfinite(y) && fabsl(x - y) <= tol->atol + tol->rtol * fabsl(y));
}

static void compare_run(struct diff_result *d, const struct diff_run *r,
                        const struct diff_tolerance *tol)
{
    const int64_t elem = dtype_bytes(r->dtype);

    if (memcmp(r->a, r->b, (size_t)(r->n * elem)) == 0)
        return;
    for (int64_t i = 0; i < r->n; i++) {
        long double x, y;
        double gap;

        if (memcmp(r->a + i * elem, r->b + i * elem, (size_t)elem) == 0)
            continue;
        x = value_at(r->a, r->dtype, i);
        y = value_at(r->b, r->dtype, i);
        gap = (double)fabsl(x - y);
        if (!tol->exact && is_near(x, y, tol))
            continue;
        if (d->count++ == 0)
            d->first = r->first + i;
        if (gap > d->max_abs || isnan(gap))
            d->max_abs = gap;
    }
}

/* How many elements a buffer holds; where they are cast, in both types (tensor_view_read_as). Many,
 * because each chunk is read as a whole for each run that overlaps it. */
static int64_t elements_at_once(const struct diff_side *a, const struct diff_side *b,
                                enum dtype dtype)
{
    const int64_t elem = dtype_bytes(dtype);
    const bool casts = tensor_view_tensor(a->view, a->tensor)->dtype != dtype ||
                       tensor_view_tensor(b->view, b->tensor)->dtype != dtype;

    return casts ? (BUFFER_BYTES - CAST_BYTES) / (elem + CAST_BYTES) : BUFFER_BYTES / elem;
}

/* Compare the chosen tensors of both sides as values of t's type. */
static tp_status compare_tensor(struct diff_result *d, struct diff_side *a, struct diff_side *b,
                                const struct tensor *t, const struct diff_tolerance *tol,
                                struct tp_err *err)
{
    const struct box whole = box_whole(t->ndim, t->shape);
    const int64_t most = elements_at_once(a, b, t->dtype);
    const int64_t n = box_run_count(&whole, most);
    tp_status st = TP_OK;

    for (int64_t i = 0; i < n; i++) {
        struct diff_run run = { .a = a->buffer, .b = b->buffer, .dtype = t->dtype };
        struct box box;

        box_run(&box, &whole, most, i);
        TP_TRY(tensor_view_read_as(a->view, a->tensor, t->dtype, &box, a->buffer, err));
        TP_TRY(tensor_view_read_as(b->view, b->tensor, t->dtype, &box, b->buffer, err));
        run.n = box_elements(&box);
        run.first = box_offset_in(&whole, &box);
        compare_run(d, &run, tol);
    }
done:
    return st;
}

/* ---- results ---- */

/* Where differences go: lines, or a JSON list. */
struct diff_output {
    bool json;
    json_t *list;
    int n, compared;   /* differences; tensors of which values were compared */
    const char *group; /* the only one that is compared; NULL: all */
};

static void put_text(struct diff_output *o, const struct tensor *t, const char *what)
{
    o->n++;
    if (o->json)
        json_array_append_new(o->list,
                              json_pack("{s:s, s:o, s:o}", "group", t->group, "name",
                                        print_text(t->name), "difference", print_text(what)));
    else {
        print_tensor(t->group, t->name);
        print_field(": ", what);
    }
}

/* Where the first element that differs is, of one side. */
static json_t *put_place(const struct diff_side *s, const int64_t *at, const char *which, bool json)
{
    struct tensor_view_place place;

    tensor_view_locate(&place, s->view, s->tensor, at);
    if (json)
        return json_pack("{s:o, s:o}", "file", print_text(place.file), "rank",
                         place.rank < 0 ? json_null() : json_integer(place.rank));
    printf("    %s: ", which);
    print_safe(place.file);
    if (place.rank >= 0)
        printf(" (rank %d)", place.rank);
    putchar('\n');
    return NULL;
}

/* ", compared with param of the second", or "". */
static const char *other_group(char buf[SHAPE_TEXT], const struct tensor *t,
                               const struct diff_side *a, const struct diff_side *b)
{
    const char *groups[] = { tensor_view_tensor(a->view, a->tensor)->group,
                             tensor_view_tensor(b->view, b->tensor)->group };
    const bool first = strcmp(groups[0], t->group) != 0;

    buf[0] = 0;
    if (first || strcmp(groups[1], t->group) != 0)
        snprintf(buf, SHAPE_TEXT, ", compared with %s of the %s", groups[!first],
                 first ? "first" : "second");
    return buf;
}

static void put_difference(struct diff_output *o, const struct tensor *t, const struct diff_side *a,
                           const struct diff_side *b, const struct diff_result *d)
{
    const struct box whole = box_whole(t->ndim, t->shape);
    char what[WHAT_TEXT], index[SHAPE_TEXT], other[SHAPE_TEXT];
    int64_t at[BOX_NDIM_MAX] = { 0 }, rest = d->first;
    json_t *places[2], *entry;

    for (int k = t->ndim - 1; k >= 0; k--) {
        at[k] = rest % t->shape[k];
        rest /= t->shape[k];
    }
    snprintf(what, sizeof what, "%lld of %lld elements differ, first at %s, by at most %.9g%s",
             (long long)d->count, (long long)box_elements(&whole),
             box_format_shape(index, sizeof index, t->ndim, at), d->max_abs,
             other_group(other, t, a, b));
    put_text(o, t, what);
    places[0] = put_place(a, at, "first ", o->json);
    places[1] = put_place(b, at, "second", o->json);
    if (!o->json)
        return;
    entry = json_array_get(o->list, json_array_size(o->list) - 1);
    json_object_set_new(entry, "a", places[0]);
    json_object_set_new(entry, "b", places[1]);
}

static bool same_kind(struct diff_output *o, const struct tensor *t, const struct tensor *a,
                      const struct tensor *b)
{
    char what[512], left[SHAPE_TEXT], right[SHAPE_TEXT];
    const bool same_type = a->dtype == b->dtype || strcmp(a->group, b->group) != 0;
    const bool same = same_type && tensor_same_shape(a, b);

    if (!same) {
        snprintf(what, sizeof what, "is %s %s in the first, %s %s in the second",
                 dtype_name(a->dtype), box_format_shape(left, sizeof left, a->ndim, a->shape),
                 dtype_name(b->dtype), box_format_shape(right, sizeof right, b->ndim, b->shape));
        put_text(o, t, what);
    }
    return same;
}

/* Whether a tensor is compared. */
static bool is_chosen(const struct tensor *t, const char *group)
{
    return !group || strcmp(t->group, group) == 0;
}

/* Compare t with the tensors that a and b have chosen, one of which is t. */
static tp_status compare_pair(struct diff_output *o, const struct tensor *t, struct diff_side *a,
                              struct diff_side *b, const struct diff_tolerance *tol,
                              struct tp_err *err)
{
    struct diff_result d = { 0 };
    tp_status st;

    if (!same_kind(o, t, tensor_view_tensor(a->view, a->tensor),
                   tensor_view_tensor(b->view, b->tensor)))
        return TP_OK;
    st = compare_tensor(&d, a, b, t, tol, err);
    o->compared++;
    if (!st && d.count)
        put_difference(o, t, a, b, &d);
    return st;
}

/* Whether tensor i of b was compared when the first side's were gone through. */
static bool was_compared(const struct diff_side *a, const struct diff_side *b, int i)
{
    const struct tensor *t = tensor_view_tensor(b->view, i);
    const int like = tensor_view_find_like(a->view, t);

    return like >= 0 && tensor_view_find_like(b->view, tensor_view_tensor(a->view, like)) == i;
}

static tp_status compare(struct diff_output *o, struct diff_side *a, struct diff_side *b,
                         const struct diff_tolerance *tol, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < tensor_view_count(a->view); i++) {
        const struct tensor *t = tensor_view_tensor(a->view, i);

        if (!is_chosen(t, o->group))
            continue;
        a->tensor = i;
        b->tensor = tensor_view_find_like(b->view, t);
        if (b->tensor < 0)
            put_text(o, t, "is only in the first");
        else
            TP_TRY(compare_pair(o, t, a, b, tol, err));
    }
    for (int i = 0; i < tensor_view_count(b->view); i++) {
        const struct tensor *t = tensor_view_tensor(b->view, i);

        if (!is_chosen(t, o->group) || was_compared(a, b, i))
            continue;
        a->tensor = tensor_view_find_like(a->view, t);
        b->tensor = i;
        if (a->tensor < 0)
            put_text(o, t, "is only in the second");
        else
            TP_TRY(compare_pair(o, t, a, b, tol, err));
    }
    TP_TRY(tensor_view_check(a->view, err));
    TP_TRY(tensor_view_check(b->view, err));
done:
    return st;
}

static void print_result(const struct diff_output *o, const struct diff_side *a,
                         const struct diff_side *b)
{
    if (o->json) {
        json_t *root = json_pack("{s:o, s:o, s:b, s:O}", "a", print_text(tensor_view_path(a->view)),
                                 "b", print_text(tensor_view_path(b->view)), "equal", o->n == 0,
                                 "differences", o->list);

        print_json(root);
        json_decref(root);
        return;
    }
    if (o->n)
        printf("different: %d tensor%s\n", o->n, o->n == 1 ? "" : "s");
    else
        printf("equal: %d tensors\n", o->compared);
}

static tp_status open_side(struct diff_side *s, struct tp_err *err)
{
    tp_status st = tensor_view_open(&s->view, &s->from, err);

    if (st)
        return st;
    if (tensor_view_note(s->view)[0])
        report_note("tp-ckpt", "%s", tensor_view_note(s->view));
    s->buffer = malloc(BUFFER_BYTES);
    return s->buffer ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory to compare");
}

static void close_side(struct diff_side *s)
{
    tensor_view_close(s->view);
    free(s->buffer);
}

/* Compare and print. TP_E_NO: they differ, which has been printed. */
static tp_status diff(struct diff_output *o, struct diff_side *a, struct diff_side *b,
                      const struct diff_tolerance *tol, struct tp_err *err)
{
    tp_status st = TP_OK;

    o->list = json_array();
    if (tol->atol < 0 || tol->rtol < 0)
        st = tp_fail(err, TP_E_USAGE, "--atol %g and --rtol %g must not be negative", tol->atol,
                     tol->rtol);
    TP_TRY(st);
    TP_TRY(open_side(a, err));
    TP_TRY(open_side(b, err));
    TP_TRY(compare(o, a, b, tol, err));
    if (o->group && o->compared == 0 && o->n == 0) {
        st = tp_fail(err, TP_E_USAGE, "--group %s: neither %s nor %s has tensors of this group",
                     o->group, a->from.path, b->from.path);
        goto done;
    }
    print_result(o, a, b);
    st = print_done(err);
    if (!st && o->n)
        st = tp_fail(err, TP_E_NO, "%s", "");
done:
    close_side(a);
    close_side(b);
    json_decref(o->list);
    return st;
}

int cmd_diff(int argc, char **argv)
{
    struct diff_side a = { .from = { .step = -1,
                                     .memory_bytes = FOREIGN_MEMORY_BYTES,
                                     .buffer_bytes = SIDES_BYTES } },
                     b = { 0 };
    const char *other = NULL;
    struct diff_output o = { 0 };
    struct diff_tolerance tol = { .exact = true };
    bool atol_given = false, rtol_given = false;
    struct tp_err err = { 0 };
    int code;
    const struct opt opts[] = {
        OPT_ARG("A", &a.from.path,
                "checkpoint root or step directory, or one of another framework"),
        OPT_ARG("B", &other, "the checkpoint to compare it with"),
        { OPT_KIND_DOUBLE, 0, "atol", "X", &tol.atol, "absolute difference allowed", &atol_given },
        { OPT_KIND_DOUBLE, 0, "rtol", "X", &tol.rtol, "relative difference allowed", &rtol_given },
        OPT_STR(0, "group", "NAME", &o.group,
                "compare only this group of tensors, such as param: the weights"),
        OPT_INT64(0, "step", "N", &a.from.step,
                  "this step of both roots (default: the newest of each)"),
        FOREIGN_OPTIONS(&a.from),
        OPT_FLAG(0, "json", &o.json, "print one JSON object"),
        OPT_END
    };

    if (!report_options(&code, "tp-ckpt diff", opts, argc, argv, intro, tail))
        return code;
    a.from.weights = o.group && strcmp(o.group, GROUP_PARAM) == 0;
    b.from = a.from;
    b.from.path = other;
    tol.exact = !atol_given && !rtol_given;
    return report_json(o.json, "tp-ckpt", diff(&o, &a, &b, &tol, &err), &err);
}
