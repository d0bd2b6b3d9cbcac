/*
 * reshard/formats/megatron/megatron_flat.h - where the parameters of a rank are in the flat buffers
 * of Megatron-LM's distributed optimizer.
 *
 * An optimizer (r->part) has one buffer for each model chunk with parameters of its own. The
 * parameters are in it in the opposite order of modules (reshard/formats/megatron/
 * megatron_buckets.h). Positions here are in the buffer without the padding between buckets.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_FLAT_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_FLAT_H

#include "reshard/formats/megatron/megatron_rank.h"

struct megatron_flat_param {
    const struct megatron_rank_param *param;
    int64_t begin, n; /* elements */
};

/* A buffer. */
struct megatron_flat {
    struct megatron_flat_param *params; /* ascending by begin */
    int n;
    int64_t numel; /* elements, as far as parameters reach */
};

/* How many buffers the optimizer of r->part has. */
int megatron_flat_buffers(const struct megatron_rank *r);

/* Find the parameters of buffer `number`, below that many. sizes[n_sizes] has the elements of each
 * bucket; with NULL buckets are cut as the program's arguments say. The table lives as long as the
 * source. TP_E_CORRUPT: the parameters of the model do not fill these buckets. */
tp_status megatron_flat_make(struct megatron_flat *out, const struct megatron_rank *r, int number,
                             const int64_t *sizes, int n_sizes, struct tp_err *err);

/* The same as one bucket. */
tp_status megatron_flat_make_whole(struct megatron_flat *out, const struct megatron_rank *r,
                                   int number, struct tp_err *err);

/* The first parameter that ends after element `at`, as an index; f->n: there is none. */
int megatron_flat_find(const struct megatron_flat *f, int64_t at);

/* Add what a flat piece has of the parameters. Its first element is number `at` of the buffer. */
tp_status megatron_flat_add(struct megatron_rank *r, const struct megatron_flat *f,
                            const struct piece *flat, int64_t at, struct tp_err *err);

#endif
