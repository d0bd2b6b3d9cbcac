/*
 * tests/unit/fixture.h - checkpoints for tests, written without a trainer.
 *
 * Every element is a function of (seed, group, name, global index), so that checkpoints of the same
 * seed hold the same tensors at every layout.
 */
#ifndef TESTS_UNIT_FIXTURE_H
#define TESTS_UNIT_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "ckpt/shard_pack.h"
#include "ckpt/transaction.h"
#include "tests/unit/random_model.h"

/* A seed with this bit gives numbers that compress well: few exponents, short mantissas. */
#define FIXTURE_SMOOTH (UINT64_C(1) << 30)

/* Bits of element number `index`: a finite number of either sign, never NaN or infinity. */
static inline uint64_t fixture_bits(uint64_t seed, const struct tensor *t, int64_t index)
{
    struct rng r = { seed * 0x9e3779b97f4a7c15u };
    uint64_t bits;

    for (const char *p = t->group; *p; p++)
        r.state = r.state * 31 + (unsigned char)*p;
    for (const char *p = t->name; *p; p++)
        r.state = r.state * 31 + (unsigned char)*p;
    r.state ^= (uint64_t)index * 0xd1342543de82ef95u;
    bits = rng_next(&r);
    if (seed & FIXTURE_SMOOTH)
        bits &= UINT64_C(0x00000003807f0000) | 0x8060;
    switch (t->dtype) {
    case DTYPE_F32: /* exponents 2^-40 .. 2^23 */
        return (bits & 0x807fffff) | (uint64_t)(87 + (bits >> 32) % 64) << 23;
    case DTYPE_BF16:
        return (bits & 0x807f) | (uint64_t)(100 + (bits >> 32) % 32) << 7;
    case DTYPE_F16:
        return (bits & 0x83ff) | (uint64_t)(5 + (bits >> 32) % 20) << 10;
    case DTYPE_F64:
        return (bits & 0x800fffffffffffffu) | (uint64_t)1000 << 52;
    default:
        return bits;
    }
}

/* Fill data with box `b` of the tensor, row-major. */
static inline void fixture_fill(void *data, const struct tensor *t, const struct box *b,
                                uint64_t seed)
{
    const struct box whole = box_whole(t->ndim, t->shape);
    const int64_t n = box_elements(b);
    const size_t size = (size_t)dtype_bytes(t->dtype);

    for (int64_t i = 0; i < n; i++) {
        struct box one = *b;
        int64_t rest = i;
        uint64_t bits;

        for (int d = b->ndim - 1; d >= 0; d--) {
            one.lo[d] = b->lo[d] + rest % b->len[d];
            one.len[d] = 1;
            rest /= b->len[d];
        }
        bits = fixture_bits(seed, t, box_offset_in(&whole, &one));
        memcpy((char *)data + (size_t)i * size, &bits, size); /* little-endian */
    }
}

/* Compress what was written of a shard, on two threads. */
static inline tp_status fixture_flush(struct shard_writer *w, int level, struct tp_err *err)
{
    struct shard_packer packer;
    tp_status st = shard_packer_open(&packer, level, 2, err);

    if (!st)
        st = shard_pack_flush(&packer, &w, 1, err);
    shard_packer_close(&packer);
    return st;
}

/* Write the shard of one rank, each box in one or more runs. */
static inline tp_status fixture_shard(struct shard_info *info, const struct shard_plan *plan,
                                      uint64_t seed, struct tp_err *err)
{
    const struct stored_box *e = plan->boxes;
    struct shard_writer *w = NULL;
    tp_status st = shard_create(&w, plan, err);

    for (int i = 0; i < plan->n_boxes && !st; i++) {
        const struct tensor *t = &plan->layout->tensors[e[i].tensor];
        int64_t most = box_elements(&e[i].box) / 2 + 1;

        if (e[i].rank != plan->rank)
            continue;
        for (int64_t k = 0; k < box_run_count(&e[i].box, most) && !st; k++) {
            struct box run;
            void *data;

            box_run(&run, &e[i].box, most, k);
            data = malloc((size_t)(box_elements(&run) * dtype_bytes(t->dtype)));
            fixture_fill(data, t, &run, seed);
            st = shard_write(w, i, &run, data, err);
            free(data);
        }
    }
    if (!st && plan->zstd)
        st = fixture_flush(w, plan->zstd, err);
    if (!st)
        st = shard_finish(w, info, err);
    shard_close(w);
    return st;
}

/* Write a whole checkpoint: ROOT/step-N. zstd: the level of compression, or 0. */
static inline tp_status fixture_checkpoint_zstd(const char *root, int64_t step,
                                                const struct layout *l, const char *config,
                                                uint64_t seed, bool force, int zstd,
                                                struct tp_err *err)
{
    struct manifest m = { .layout = *l, .model_config = config };
    struct arena arena = { 0 };
    const struct ckpt_begin_request begin = { .root = root, .step = step, .force = force };
    struct ckpt_transaction txn = { 0 };
    struct stored_box *e;
    tp_status st;
    int n;

    m.state = (struct manifest_train_state){ .step = step,
                                             .next_sample = 8 * step,
                                             .tokens = 512 * step,
                                             .seed = seed,
                                             .dtype = "fp32",
                                             .options = "{\"lr\": 0.001, \"steps\": 100}" };
    TP_TRY(stored_box_list(&e, &n, l, &arena, err));
    m.shards = arena_array(&arena, (size_t)n, sizeof *m.shards);
    TP_TRY(ckpt_begin(&txn, &begin, err));
    for (int i = 0; i < n; i++)
        if (i == 0 || e[i].rank != e[i - 1].rank) {
            const struct shard_plan plan = { .dir = txn.tmp.path,
                                             .rank = e[i].rank,
                                             .layout = l,
                                             .boxes = e,
                                             .n_boxes = n,
                                             .zstd = zstd };

            TP_TRY(fixture_shard(&m.shards[m.n_shards++], &plan, seed, err));
        }
    TP_TRY(ckpt_commit(&txn, &m, err));
done:
    ckpt_abort(&txn);
    arena_free(&arena);
    return st;
}

static inline tp_status fixture_checkpoint(const char *root, int64_t step, const struct layout *l,
                                           const char *config, uint64_t seed, bool force,
                                           struct tp_err *err)
{
    return fixture_checkpoint_zstd(root, step, l, config, seed, force, 0, err);
}

#endif
