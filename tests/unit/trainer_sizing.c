/*
 * tests/unit/trainer_sizing.c - a pool counts the buffers that it gives; a size that overflows 64
 * bits is the largest one. trainer_step.c checks that a trainer allocates exactly what is counted.
 * covers: trainer/sizing/buffer_pool trainer/sizing/activations trainer/sizing/memory
 * covers: trainer/sizing/param_count trainer/sizing/param_list trainer/sizing/param_spans
 * covers: trainer/sizing/rank_dims trainer/sizing/step_buffers trainer/sizing/gpu_memory
 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "trainer/sizing/activations.h"
#include "trainer/sizing/gpu_memory.h"
#include "trainer/sizing/memory.h"

Test(sizing, a_pool_counts_what_it_gives)
{
    struct buffer_pools count = { 0 }, real = { 0 };

    for (int round = 0; round < 2; round++) {
        struct buffer_pools *p = round ? &real : &count;
        int64_t n;

        if (round)
            real.own.base = aligned_alloc(64, (size_t)count.own.used);
        buffer_pool_take(&p->own, BUFFER_WEIGHTS, 3, 4);
        n = buffer_pools_repeat(p, 5);
        for (int64_t i = 0; i < n; i++) {
            int64_t inner = buffer_pools_repeat(p, 7);

            for (int64_t k = 0; k < inner; k++)
                buffer_pool_take(&p->own, BUFFER_ACTIVATIONS, 65, 1);
            buffer_pools_repeat_end(p, 7);
            buffer_pool_take(&p->own, BUFFER_ACTIVATIONS, 1, 8);
        }
        buffer_pools_repeat_end(p, 5);
        n = buffer_pools_repeat(p, 0);
        cr_assert_eq(n, 0);
        buffer_pools_repeat_end(p, 0);
        buffer_pool_take(&p->own, BUFFER_WEIGHTS, 1, 1);
        cr_expect_eq(p->own.used, 64 + 5 * (7 * 128 + 64) + 64);
        cr_expect_eq(buffer_pools_bytes(p, BUFFER_ACTIVATIONS), 5 * (7 * 128 + 64));
        cr_expect_eq(buffer_pools_bytes(p, BUFFER_WEIGHTS), 128);
    }
    free(real.own.base);
}

Test(sizing, a_pool_that_overflows_has_the_largest_size)
{
    struct buffer_pools p = { 0 };

    buffer_pools_repeat(&p, INT64_C(1) << 40);
    buffer_pool_take(&p.own, BUFFER_WEIGHTS, INT64_C(1) << 30, 4);
    cr_expect_eq(p.own.used, INT64_MAX);
}

/* A size that does not fit into 64 bits must not look small. */
Test(sizing, a_size_beyond_64_bits_is_the_largest)
{
    struct model m = { .vocab = 256, .layers = 1000, .heads = 8, .kv_heads = 8, .head_dim = 64 };
    struct workload w = { .seq_length = 1 << 10,
                          .global_batch_size = 1 << 20,
                          .micro_batch_size = 1 };
    struct spec s = spec_default();
    struct memory_model mm;
    struct arena a = { 0 };
    struct tp_err err = { 0 };
    int64_t before = 0;

    m.hidden = m.ffn = 1 << 20;
    cr_assert_eq(memory_model_make(&mm, &m, &a, &err), TP_OK, "%s", err.msg);
    for (; w.micro_batch_size <= 1 << 20; w.micro_batch_size *= 2) {
        int64_t need = memory_estimate(&mm, &s, &w, true).total;

        cr_assert(need > before || need == MEMORY_MOST, "%lld", (long long)need);
        before = need;
    }
    cr_assert_eq(before, MEMORY_MOST);
    arena_free(&a);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What a device that keeps_bf16 saves of one layer's activations: half of what the up projection
 * writes. And of the scratch: rounded gradients of that and of the logits, half of the logits or,
 * where these are wider, of the gradients of the up projection's result, half of the gradients of
 * query, key and value, and half of what a block computes, which is shared with other ranks. */
static void check_saved_by_bf16(int vocab)
{
    enum { ROWS = 64, HIDDEN = 64, FFN = 4096, LAYERS = 3, QKV = 3 * 4 * 16 };
    const struct model m = { .vocab = vocab,
                             .layers = LAYERS,
                             .heads = 4,
                             .kv_heads = 4,
                             .head_dim = 16,
                             .hidden = HIDDEN,
                             .ffn = FFN };
    struct workload w = { .seq_length = ROWS, .global_batch_size = 1, .micro_batch_size = 1 };
    const struct spec s = spec_default();
    struct arena a = { 0 };
    struct tp_err err = { 0 };
    struct memory_model mm;

    cr_assert_eq(memory_model_make(&mm, &m, &a, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < 2; i++) {
        struct memory_rank was, is;
        const int64_t by = i; /* in fp32 nothing changes */

        w.dtype = i ? DTYPE_BF16 : DTYPE_F32;
        w.keeps_bf16 = false;
        cr_assert(memory_rank_count(&was, &mm, &s, &w, 0));
        w.keeps_bf16 = true;
        cr_assert(memory_rank_count(&is, &mm, &s, &w, 0));
        cr_expect_eq(buffer_pools_bytes(&was.pools, BUFFER_ACTIVATIONS) -
                         buffer_pools_bytes(&is.pools, BUFFER_ACTIVATIONS),
                     by * LAYERS * ROWS * 2 * FFN * 2);
        cr_expect_eq(buffer_pools_bytes(&was.pools, BUFFER_WORKSPACE) -
                         buffer_pools_bytes(&is.pools, BUFFER_WORKSPACE),
                     by * ROWS * 2 * (most(FFN, vocab) + most(2 * FFN, vocab) + QKV + HIDDEN));
        cr_expect_eq(was.pools.shared.used - is.pools.shared.used, by * ROWS * 2 * HIDDEN);
    }
    arena_free(&a);
}

Test(sizing, activations_between_products_and_logits_are_half_as_large_in_bf16)
{
    check_saved_by_bf16(256);
    check_saved_by_bf16(50304);
}

/* The bytes of a kind that a bf16 run of m at cp needs more where the device keeps no bf16. */
static int64_t saved(const struct model *m, int cp, enum buffer_kind kind)
{
    struct workload w = {
        .seq_length = 64, .global_batch_size = 1, .micro_batch_size = 1, .dtype = DTYPE_BF16
    };
    struct spec s = spec_default();
    struct arena a = { 0 };
    struct tp_err err = { 0 };
    struct memory_model mm;
    int64_t bytes[2];

    s.cp = cp;
    cr_assert_eq(memory_model_make(&mm, m, &a, &err), TP_OK, "%s", err.msg);
    for (int keeps = 0; keeps < 2; keeps++) {
        struct memory_rank r;

        w.keeps_bf16 = keeps;
        cr_assert(memory_rank_count(&r, &mm, &s, &w, 0));
        bytes[keeps] = buffer_pools_bytes(&r.pools, kind);
    }
    arena_free(&a);
    return bytes[0] - bytes[1];
}

/* With cp, sums in f32 of the gradients of query, key and value are beside these; each of two ranks
 * has half of the rows. */
Test(sizing, queries_and_keys_are_half_as_large_in_bf16_and_sums_of_their_gradients_are_not)
{
    enum { LAYERS = 3, ROWS = 64, HEADS = 4, HEAD = 16, QKV = 3 * HEADS * HEAD };
    struct model m = { .vocab = 256,
                       .layers = LAYERS,
                       .heads = HEADS,
                       .kv_heads = HEADS,
                       .head_dim = HEAD,
                       .hidden = 64,
                       .ffn = 512 };
    int64_t kept = saved(&m, 1, BUFFER_ACTIVATIONS), scratch = saved(&m, 1, BUFFER_WORKSPACE);

    cr_expect_eq(saved(&m, 2, BUFFER_WORKSPACE), (scratch - ROWS * 4 * QKV) / 2);
    m.head_norms = true;
    cr_expect_eq(saved(&m, 1, BUFFER_ACTIVATIONS) - kept, LAYERS * ROWS * 2 * HEADS * HEAD * 2);
    cr_expect_eq(saved(&m, 1, BUFFER_WORKSPACE), scratch);
}

/* The embedding reads rows of its table, so only the head's stage has scratch for the
 * vocabulary. */
Test(sizing, scratch_is_as_wide_as_the_vocabulary_only_where_the_head_is)
{
    enum { ROWS = 16, WIDE = 4096 };
    struct model m = {
        .layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 16, .hidden = 64, .ffn = 128
    };
    struct workload w = { .seq_length = ROWS, .global_batch_size = 2, .micro_batch_size = 1 };
    struct spec s = spec_default();
    struct tp_err err = { 0 };

    s.pp = 2;
    for (int pp = 0; pp < 2; pp++) {
        int64_t bytes[2];

        for (int i = 0; i < 2; i++) {
            struct arena a = { 0 };
            struct memory_model mm;
            struct memory_rank r;

            m.vocab = WIDE << i;
            cr_assert_eq(memory_model_make(&mm, &m, &a, &err), TP_OK, "%s", err.msg);
            cr_assert(memory_rank_count(&r, &mm, &s, &w, pp));
            bytes[i] = buffer_pools_bytes(&r.pools, BUFFER_WORKSPACE);
            arena_free(&a);
        }
        cr_expect_eq(bytes[1] - bytes[0], pp * ROWS * WIDE * (int64_t)sizeof(float));
    }
}

/* ---- a GPU ---- */

static struct gpu_memory on_gpu_wide(const char *text, int64_t sequences, int64_t hidden)
{
    const struct model m = { .vocab = 256,
                             .layers = 4,
                             .heads = 64,
                             .kv_heads = 64,
                             .head_dim = 16,
                             .hidden = hidden,
                             .ffn = 4096 };
    const struct workload w = { .dtype = DTYPE_BF16,
                                .seq_length = 4096,
                                .global_batch_size = 64,
                                .micro_batch_size = sequences };
    struct gpu_memory g;
    struct spec s;
    struct memory_model mm;
    struct arena a = { 0 };
    struct tp_err err = { 0 };

    cr_assert_eq(spec_parse(&s, text, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(memory_model_make(&mm, &m, &a, &err), TP_OK, "%s", err.msg);
    g = gpu_memory_estimate(&mm, &s, &w);
    arena_free(&a);
    return g;
}

static struct gpu_memory on_gpu(const char *text, int64_t sequences)
{
    return on_gpu_wide(text, sequences, 256);
}

Test(sizing, what_cuda_and_nccl_take_is_estimated_beside_the_tensors_of_a_gpu)
{
    const struct gpu_memory one = on_gpu("tp1", 1), two = on_gpu("dp2", 1), ring = on_gpu("cp2", 1);
    const int64_t mib = INT64_C(1) << 20;

    cr_expect_eq(one.total, one.tensors + one.scratch + one.cuda + one.collectives);
    cr_expect_eq(one.collectives, 0);
    cr_expect_eq(one.cuda, 512 * mib);
    cr_expect_eq(two.cuda, (512 + 1024) * mib, "several ranks load all kernels");
    cr_expect_eq(two.collectives, 2 * 688 * mib, "one of all ranks, one of dp");
    cr_expect_gt(ring.collectives, two.collectives);
    cr_expect(one.host > 0 && two.host < one.host, "replicas share what they save");
}

/* A ring for reading a checkpoint is not smaller than the workspace of cuBLAS. A longer batch needs
 * more for the gradient of attention, in new scratch beside the old. */
Test(sizing, scratch_is_what_the_queue_keeps)
{
    const int64_t mib = INT64_C(1) << 20, blas = 32 * mib + (64 << 10);

    cr_expect_eq(on_gpu("tp1", 1).scratch, 48 * mib);
    cr_expect_eq(on_gpu("tp1", 33).scratch, 3 * blas, "33 MiB wanted, twice the old taken");
    cr_expect_eq(on_gpu("tp1", 64).scratch, 3 * blas);
    cr_expect_eq(on_gpu("tp2", 64).scratch, 48 * mib, "half of the heads");
}

/* It needs a fourth of the residual, for two sums of each 32 tokens, and sorts the tokens. What the
 * gradient of attention took before it stays. */
Test(sizing, scratch_has_room_for_the_gradient_of_the_embedding)
{
    const int64_t tokens = INT64_C(64) * 4096, blas = (INT64_C(32) << 20) + (64 << 10);
    const int64_t sums = 2 * tokens / 32 * 4096, sorting = 3 * tokens + tokens / 2048 * 1024;

    cr_expect_eq(on_gpu_wide("tp2pp2", 64, 4096).scratch, blas + 4 * (sums + sorting));
    cr_expect_eq(on_gpu_wide("tp1", 64, 4096).scratch, 3 * blas + 4 * (sums + sorting));
}

Test(sizing, a_gpu_that_cannot_be_counted_is_the_largest)
{
    cr_expect_eq(on_gpu("tp1", INT64_C(1) << 50).total, MEMORY_MOST);
}
