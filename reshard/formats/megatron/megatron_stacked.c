/* reshard/formats/megatron/megatron_stacked.c - weight1 and weight2 of GroupedMLP; see
 * reshard/formats/megatron/megatron_rank.h. */
#include "reshard/formats/megatron/megatron_rank.h"

#include <stdio.h>
#include <string.h>

enum { STACKED_NAME_BYTES = 96 };

bool megatron_stacked_is(const char *name)
{
    return strcmp(name, MEGATRON_EXPERTS "weight1") == 0 ||
           strcmp(name, MEGATRON_EXPERTS "weight2") == 0;
}

bool megatron_stacked_find(struct megatron_rank_param *p, const struct megatron_rank *r,
                           const char *name, int layer)
{
    const int experts = r->map.model->experts / r->map.ep, number = name[strlen(name) - 1] - '0';
    const int64_t hidden = r->map.model->hidden;
    struct megatron_rows *rows;
    int n = 0;

    p->rows = arena_array(r->map.arena, 2 * (size_t)experts, sizeof *p->rows);
    for (int e = 0; e < experts && p->rows; e++) {
        char of_expert[STACKED_NAME_BYTES];

        snprintf(of_expert, sizeof of_expert,
                 MEGATRON_EXPERTS "local_experts.%d.linear_fc%d.weight", e, number);
        if (megatron_map_find(&rows, &n, &r->map, of_expert, layer, r->tp_rank) != MEGATRON_FOUND ||
            n > 2)
            return false;
        memcpy(p->rows + p->n_rows, rows, (size_t)n * sizeof *rows);
        p->n_rows += n;
    }
    if (!p->rows || p->n_rows == 0)
        return false;
    rows = &p->rows[0];
    p->ndim = 2;
    p->stack.n = experts;
    p->stack.out = rows[n - 1].row + rows[n - 1].n;
    p->stack.in = megatron_rows_columns(rows) / (number == 2 ? r->map.tp : 1);
    p->shape[0] = number == 1 ? hidden : experts * p->stack.in;
    p->shape[1] = number == 1 ? experts * p->stack.out : hidden;
    return true;
}

/* A block of an expert's matrix: `in` inputs and `out` outputs. */
struct block {
    int64_t in, n_in, out, n_out;
};

/* Add the elements of a block, which is at `begin` in the file, that are of some rows. */
static tp_status add_block(struct megatron_rank *r, const struct megatron_rank_param *param,
                           const struct megatron_rows *rows, const struct piece *p, int64_t begin,
                           const struct block *b, struct tp_err *err)
{
    const int64_t rows_end = rows->row + rows->n, end = b->out + b->n_out,
                  lo = rows->row > b->out ? rows->row : b->out,
                  hi = rows_end < end ? rows_end : end;
    struct megatron_rows some = *rows;
    struct piece part = *p;

    if (lo >= hi)
        return TP_OK;
    some.to += lo - rows->row;
    some.n = hi - lo;
    part.name = rows->tensor->name;
    part.ndim = rows->tensor->ndim;
    memcpy(part.shape, rows->tensor->shape, sizeof part.shape);
    part.box = megatron_rows_box(&some, b->in, b->n_in);
    part.begin = begin + (lo - b->out) * dtype_bytes(p->dtype);
    part.stride[0] = 1;
    part.stride[1] = param->stack.out;
    return piece_source_add(r->source, &part, err);
}

/* Add elements at .. end - 1 of expert `e`, which are at p's beginning: the rest of an input's
 * outputs, those of whole inputs, the beginning of an input's. */
static tp_status add_expert(struct megatron_rank *r, const struct megatron_rank_param *param, int e,
                            const struct piece *p, int64_t at, int64_t end, struct tp_err *err)
{
    const int of_expert = param->n_rows / param->stack.n;
    const int64_t outs = param->stack.out, first = at;
    tp_status st = TP_OK;

    for (int64_t next; at < end && !st; at = next) {
        const int64_t out = at % outs, left = end - at, whole = out == 0 ? left / outs : 0;
        const struct block b = { at / outs, whole ? whole : 1, out,
                                 whole               ? outs
                                 : left < outs - out ? left
                                                     : outs - out };

        next = at + b.n_in * b.n_out;
        for (int i = 0; i < of_expert && !st; i++)
            st = add_block(r, param, &param->rows[e * of_expert + i], p,
                           p->begin + (at - first) * dtype_bytes(p->dtype), &b, err);
    }
    return st;
}

tp_status megatron_stacked_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                               const struct piece *p, int64_t first, int64_t n, struct tp_err *err)
{
    const int64_t size = param->stack.in * param->stack.out;
    tp_status st = TP_OK;

    for (int e = 0; e < param->stack.n && !st; e++) {
        const int64_t begin = e * size, from = begin > first ? begin : first,
                      to = begin + size < first + n ? begin + size : first + n;
        struct piece of_expert = *p;

        of_expert.begin += (from - first) * dtype_bytes(p->dtype);
        if (from < to)
            st = add_expert(r, param, e, &of_expert, from - begin, to - begin, err);
    }
    return st;
}
