/* reshard/formats/megatron/megatron_flat.c - see reshard/formats/megatron/megatron_flat.h. */
#include "reshard/formats/megatron/megatron_flat.h"

#include "reshard/formats/megatron/megatron_buckets.h"

/* ---- buffers ---- */

static bool is_in(const struct megatron_rank *r, const struct megatron_rank_param *p, int chunk)
{
    return p->chunk == chunk && megatron_part_has(r->part, p->expert);
}

static bool has_buffer(const struct megatron_rank *r, int chunk)
{
    for (int i = 0; i < r->n_params; i++)
        if (is_in(r, &r->params[i], chunk))
            return true;
    return false;
}

int megatron_flat_buffers(const struct megatron_rank *r)
{
    int n = 0;

    for (int chunk = 0; chunk < r->args.vpp; chunk++)
        n += has_buffer(r, chunk);
    return n;
}

/* The model chunk of a buffer. */
static int chunk_of(const struct megatron_rank *r, int number)
{
    int chunk = 0;

    while (!has_buffer(r, chunk) || number-- > 0)
        chunk++;
    return chunk;
}

/* ---- buckets ---- */

static int64_t bucket_size(const struct megatron_rank *r, int chunk)
{
    int64_t all = 0;

    for (int i = 0; i < r->n_params; i++)
        all += megatron_rank_elements(&r->params[i]);
    return megatron_buckets_full(r->pp_rank == 0 && chunk == 0, r->args.bucket_size,
                                 r->args.buckets, all);
}

static tp_status place_params(struct megatron_flat *f, const struct megatron_rank *r, int chunk,
                              const struct megatron_bucket_rule *rule, struct tp_err *err)
{
    const size_t room = (size_t)r->n_params + 1;
    struct megatron_slot *slots = arena_array(r->map.arena, room, sizeof *slots);

    *f = (struct megatron_flat){ .params = arena_array(r->map.arena, room, sizeof *f->params) };
    if (!f->params || !slots)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", r->dir);
    for (int i = r->n_params - 1; i >= 0; i--) {
        const struct megatron_rank_param *p = &r->params[i];

        if (!is_in(r, p, chunk))
            continue;
        slots[f->n] = (struct megatron_slot){ megatron_rank_elements(p), p->shared, 0 };
        f->params[f->n++].param = p;
    }
    f->numel = megatron_buckets_place(slots, f->n, rule);
    for (int i = 0; i < f->n; i++) {
        f->params[i].begin = slots[i].begin;
        f->params[i].n = slots[i].n;
    }
    return TP_OK;
}

tp_status megatron_flat_make(struct megatron_flat *out, const struct megatron_rank *r, int number,
                             const int64_t *sizes, int n_sizes, struct tp_err *err)
{
    const int chunk = chunk_of(r, number);
    const struct megatron_bucket_rule rule = { sizes, n_sizes, bucket_size(r, chunk) };
    int64_t all = 0;
    tp_status st = place_params(out, r, chunk, &rule, err);

    for (int i = 0; i < n_sizes; i++)
        all += sizes[i];
    if (!st && sizes && all != out->numel)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: the optimizer's buckets of tensor-parallel rank %d, stage %d have %lld "
                       "elements, but the model's parameters there need %lld",
                       r->dir, r->tp_rank, r->pp_rank, (long long)all, (long long)out->numel);
    return st;
}

tp_status megatron_flat_make_whole(struct megatron_flat *out, const struct megatron_rank *r,
                                   int number, struct tp_err *err)
{
    const struct megatron_bucket_rule rule = { NULL, 0, 0 };

    return place_params(out, r, chunk_of(r, number), &rule, err);
}

int megatron_flat_find(const struct megatron_flat *f, int64_t at)
{
    int lo = 0, hi = f->n;

    while (lo < hi) {
        const int middle = lo + (hi - lo) / 2;

        if (f->params[middle].begin + f->params[middle].n > at)
            hi = middle;
        else
            lo = middle + 1;
    }
    return lo;
}

tp_status megatron_flat_add(struct megatron_rank *r, const struct megatron_flat *f,
                            const struct piece *flat, int64_t at, struct tp_err *err)
{
    const int64_t end = at + flat->shape[0];
    tp_status st = TP_OK;

    for (int i = megatron_flat_find(f, at); i < f->n && f->params[i].begin < end && !st; i++) {
        const struct megatron_flat_param *p = &f->params[i];
        const int64_t from = p->begin > at ? p->begin : at,
                      to = p->begin + p->n < end ? p->begin + p->n : end;
        struct piece part = *flat;

        part.begin += (from - at) * dtype_bytes(flat->dtype);
        st = megatron_rank_add(r, p->param, &part, from - p->begin, to - from, err);
    }
    return st;
}
