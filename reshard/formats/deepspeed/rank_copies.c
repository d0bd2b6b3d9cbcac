/* reshard/formats/deepspeed/rank_copies.c - see reshard/formats/deepspeed/rank_copies.h. */
#include "reshard/formats/deepspeed/rank_copies.h"

#include <string.h>

#include "kernels/cast.h"

enum { GROUPS = 4, CHUNK = 1024 };

static const char *const group_names[GROUPS] = { GROUP_PARAM, GROUP_MASTER, GROUP_EXP_AVG,
                                                 GROUP_EXP_AVG_SQ };

/* An interval of a rank's copy. */
struct copies_part {
    struct copies_part *next;
    int rank, file, sum;
    int64_t first, n, begin;
};

/* A tensor of a group. */
struct copies_vector {
    struct piece piece; /* name NULL: no rank has it */
    enum rank_copies_rule rule;
    struct copies_part *parts, *last; /* in the order of ranks */
    struct piece_decoder decoder;
    const struct rank_copies *all;
};

struct rank_copies {
    struct piece_source *source;
    int n_tensors, ranks;
    struct copies_vector *vectors; /* [n_tensors * GROUPS] */
};

static tp_status no_memory(const struct rank_copies *c, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for the copies that ranks have of tensors",
                   piece_source_path(c->source));
}

tp_status rank_copies_new(struct rank_copies **out, struct piece_source *s, int n_tensors,
                          int ranks, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(s);
    struct rank_copies *c = arena_array(arena, 1, sizeof *c);

    if (c)
        *c = (struct rank_copies){ .source = s,
                                   .n_tensors = n_tensors,
                                   .ranks = ranks,
                                   .vectors = arena_array(arena, (size_t)n_tensors * GROUPS + 1,
                                                          sizeof *c->vectors) };
    if (!c || !c->vectors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", piece_source_path(s),
                       n_tensors);
    *out = c;
    return TP_OK;
}

tp_status rank_copies_add(struct rank_copies *c, const struct rank_copies_of *of,
                          const struct piece *p, int64_t first, int64_t n, struct tp_err *err)
{
    struct copies_part *part = arena_array(piece_source_arena(c->source), 1, sizeof *part);
    struct copies_vector *v;
    int group = 0;

    while (group < GROUPS && strcmp(group_names[group], p->group) != 0)
        group++;
    if (group == GROUPS || n == 0) /* the state of another optimizer stays behind */
        return TP_OK;
    v = &c->vectors[(size_t)of->tensor * GROUPS + (size_t)group];
    if (!part)
        return no_memory(c, err);
    if (p->dtype == DTYPE_COUNT || (v->piece.name && v->piece.dtype != p->dtype))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s has another type than on the ranks before, or one that is "
                       "not read",
                       file_table_path(piece_source_files(c->source), p->file), p->group, p->name);
    if (!v->piece.name)
        v->piece = *p;
    v->all = c;
    v->rule = of->rule;
    *part = (struct copies_part){
        .rank = of->rank, .file = p->file, .sum = p->sum, .first = first, .n = n, .begin = p->begin
    };
    *(v->last ? &v->last->next : &v->parts) = part;
    v->last = part;
    return TP_OK;
}

/* ---- reading ---- */

/* Elements from .. from + n - 1 of a part, n at most CHUNK. */
static tp_status read_part(const struct copies_vector *v, const struct copies_part *part,
                           int64_t from, int64_t n, void *to, struct tp_err *err)
{
    const int64_t bytes = dtype_bytes(v->piece.dtype);

    return file_table_read(piece_source_files(v->all->source), part->file,
                           part->begin + (from - part->first) * bytes, to, n * bytes, err);
}

/* Join the copies of elements at .. at + n - 1, n at most CHUNK. */
static tp_status read_chunk(const struct copies_vector *v, int64_t at, int64_t n, void *out,
                            struct tp_err *err)
{
    const enum dtype type = v->piece.dtype;
    double sum[CHUNK] = { 0 }, values[CHUNK];
    char stored[CHUNK * sizeof(double)];

    for (const struct copies_part *p = v->parts; p; p = p->next) {
        const int64_t lo = p->first > at ? p->first : at,
                      hi = p->first + p->n < at + n ? p->first + p->n : at + n;
        tp_status st;

        if (lo >= hi)
            continue;
        st = read_part(v, p, lo, hi - lo, stored, err);
        if (st)
            return st;
        cast(values, DTYPE_F64, stored, type, hi - lo);
        for (int64_t i = lo; i < hi; i++)
            sum[i - at] = p->rank > 0 ? sum[i - at] + values[i - lo] : values[i - lo];
    }
    for (int64_t i = 0; i < n && v->rule == RANK_COPIES_MEAN; i++)
        sum[i] /= v->all->ranks;
    cast(out, type, sum, DTYPE_F64, n);
    return TP_OK;
}

static tp_status read_copies(const void *ctx, const struct box *run, void *buf, struct tp_err *err)
{
    const struct copies_vector *v = ctx;
    const bool is_matrix = v->piece.ndim == 2;
    const int64_t rows = is_matrix ? run->len[0] : 1, columns = run->len[is_matrix],
                  bytes = dtype_bytes(v->piece.dtype);
    char *to = buf;
    tp_status st = TP_OK;

    for (int64_t row = 0; row < rows; row++) {
        const int64_t first =
            run->lo[is_matrix] + (is_matrix ? (run->lo[0] + row) * v->piece.shape[1] : 0);

        for (int64_t i = 0, n; i < columns && !st; i += n, to += n * bytes) {
            n = columns - i < CHUNK ? columns - i : CHUNK;
            st = read_chunk(v, first + i, n, to, err);
        }
    }
    return st;
}

/* Each copy is read when it is joined. */
static void will_read_copies(const void *ctx, const struct box *run)
{
    (void)ctx;
    (void)run;
}

/* ---- adding ---- */

/* Whether each rank has each element once: ranks have theirs in order. */
static tp_status check_parts(const struct copies_vector *v, struct tp_err *err)
{
    const int64_t all = box_elements(&v->piece.box);
    const struct copies_part *p = v->parts;

    for (int rank = 0; rank < v->all->ranks; rank++) {
        int64_t at = 0;

        for (; p && p->rank == rank && p->first == at; p = p->next)
            at += p->n;
        if (at != all)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor-parallel rank %d has %lld of the %lld elements of tensor "
                           "%s/%s, which each rank must have whole",
                           piece_source_path(v->all->source), rank, (long long)at, (long long)all,
                           v->piece.group, v->piece.name);
    }
    if (p)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor-parallel rank %d has tensor %s/%s twice, here too",
                       file_table_path(piece_source_files(v->all->source), p->file), p->rank,
                       v->piece.group, v->piece.name);
    return TP_OK;
}

/* The sums of all parts, if all have one. */
static tp_status find_sums(struct copies_vector *v, struct tp_err *err)
{
    int *sums, n = 0;

    for (const struct copies_part *p = v->parts; p; p = p->next)
        n++;
    sums = arena_array(piece_source_arena(v->all->source), (size_t)n + 1, sizeof *sums);
    if (!sums)
        return no_memory(v->all, err);
    n = 0;
    for (const struct copies_part *p = v->parts; p; p = p->next) {
        if (!p->sum)
            return TP_OK;
        sums[n++] = p->sum;
    }
    v->decoder.sums = sums;
    v->decoder.n_sums = n;
    return TP_OK;
}

static tp_status add_vector(struct copies_vector *v, struct tp_err *err)
{
    static const char *const rules[] = { [RANK_COPIES_MEAN] = "mean", [RANK_COPIES_SUM] = "sum" };
    struct piece whole = v->piece;
    const char *joined = arena_printf(piece_source_arena(v->all->source),
                                      "the %s of the copies of %d tensor-parallel ranks, of which "
                                      "rank 0's is named",
                                      rules[v->rule], v->all->ranks);
    tp_status st;

    if (!joined)
        return no_memory(v->all, err);
    TP_TRY(check_parts(v, err));
    v->decoder = (struct piece_decoder){ .ctx = v,
                                         .stored_bytes = v->all->ranks * box_elements(&whole.box) *
                                                         dtype_bytes(whole.dtype),
                                         .read = read_copies,
                                         .will_read = will_read_copies,
                                         .joined = joined };
    TP_TRY(find_sums(v, err));
    whole.sum = 0;
    whole.decoder = &v->decoder;
    st = piece_source_add(v->all->source, &whole, err);
done:
    return st;
}

tp_status rank_copies_finish(struct rank_copies *c, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (size_t i = 0; i < (size_t)c->n_tensors * GROUPS && !st; i++)
        if (c->vectors[i].piece.name)
            st = add_vector(&c->vectors[i], err);
    return st;
}
