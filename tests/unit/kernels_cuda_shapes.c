/*
 * tests/unit/kernels_cuda_shapes.c - the CUDA kernels in shapes of models: rows of 768, 2048 and
 * 4096 elements, heads of 64, 128 and 256. tests/cli/test_kernel_traffic.py runs it and counts the
 * kernels' accesses; results are compared with the CPU's here too.
 *
 * needs: libtp-cuda.so
 */
#include "tests/unit/cuda_arrays.h"

enum { ROWS = 9 };

static const int64_t COLS[] = { 768, 2048, 4096 };

/* body for each number of columns. */
#define SHAPES(name, body)                                      \
    Test(cuda_shapes, name)                                     \
    {                                                           \
        struct rng random = rng_start("cuda/shapes " #name);    \
        for (size_t i = 0; i < sizeof COLS / sizeof *COLS; i++) \
            for (int is_kept = 0; is_kept < 2; is_kept++) {     \
                start(&random);                                 \
                body(&random, is_kept, COLS[i]);                \
                end();                                          \
            }                                                   \
    }

/* f32, or bf16 on the GPU and f32 on the CPU. */
#define TYPE (is_kept ? KEPT : DTYPE_F32)

static struct pair either(struct rng *r, bool is_kept, int64_t n, double size)
{
    return is_kept ? numbers_kept(r, n, size) : floats(r, n, size);
}

static void similar(struct pair p, bool is_kept, double size, const char *what)
{
    assert_similar_types(p, is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, size, 4e-6, what);
}

/* ---- copies and casts ---- */

/* Rows of 512 bytes and more: gather and split, as resharding along the last axis does. */
static void copies(struct rng *r, bool is_kept, int64_t cols)
{
    const int elem = is_kept ? 2 : 4;
    const struct box whole = { 2, { 0, 0 }, { ROWS, cols } };
    const struct box half = { 2, { 0, cols / 2 }, { ROWS, cols / 2 } };
    struct pair x = floats(r, ROWS * cols, 1), y = floats(r, ROWS * cols, 1);
    struct pair small = floats(r, ROWS * cols / 2, 1);

    BOTH(copy_box, copy_box, AT(small), AT(x), half, whole, half, elem);
    BOTH(copy_box, copy_box, AT(y), AT(small), whole, half, half, elem);
    BOTH(copy_box, copy_box, AT(y), AT(x), whole, whole, whole, elem);
    assert_same_bits(y, "copies");
}
SHAPES(copy, copies)

/* The same as a table, with casts from f32 to bf16 and back. */
static void tables(struct rng *r, bool is_kept, int64_t cols)
{
    const enum dtype from = is_kept ? DTYPE_BF16 : DTYPE_F32;
    const struct box whole = { 2, { 0, 0 }, { ROWS, cols } };
    const struct box half = { 2, { 0, cols / 2 }, { ROWS, cols / 2 } };
    struct pair x = numbers(r, from, ROWS * cols, 1), y = floats(r, ROWS * cols, 1);
    struct copy_item items[2][2];
    struct pair table;
    struct tp_err err = { 0 };
    int64_t warps = 0;

    for (int side = 0; side < 2; side++) {
        struct copy_box c = { .dst_box = half, .src_box = whole, .region = half };

        on_gpu = side;
        c.elem_bytes = (int)dtype_bytes(from);
        c.dst = AT(y);
        c.src = AT(x);
        copy_item_make(&items[side][0], &c, from, from);
        c.dst = (char *)AT(y) + ROWS * cols * 2;
        copy_item_make(&items[side][1], &c, is_kept ? DTYPE_F32 : DTYPE_BF16, from);
        warps = copy_items_place(items[side], 2);
    }
    table = pair_of(items[0], sizeof items[0]);
    cr_assert_eq(staging_put(&staging, table.gpu, items[1], sizeof items[1], &err), TP_OK);
    BOTH(copy_table, copy_table, AT(table), 2, warps);
    assert_same_bits(y, "a table of copies");
}
SHAPES(copy_table, tables)

static void casts(struct rng *r, bool is_kept, int64_t cols)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    const int64_t n = ROWS * cols;

    for (int i = 0; i < 4; i++) {
        const enum dtype from = types[is_kept], to = types[i];
        struct pair x = numbers(r, from, n, 1), y = doubles(r, n);

        BOTH(cast, cast, AT(y), to, AT(x), from, n);
        BOTH(cast, cast, AT(x), from, AT(y), to, n);
        assert_same_bits(y, "a cast");
    }
}
SHAPES(cast, casts)

/* ---- element by element ---- */

static void gates(struct rng *r, bool is_kept, int64_t cols)
{
    struct pair h = either(r, is_kept, ROWS * 2 * cols, 4);
    struct pair y = either(r, is_kept, ROWS * cols, 1), dy = either(r, is_kept, ROWS * cols, 1);
    struct pair dh = either(r, is_kept, ROWS * 2 * cols, 1);

#define PART(p) ((char *)AT(p) + cols * dtype_bytes(TYPE))
    for (int kind = GATED_SWIGLU; kind <= GATED_GEGLU; kind++) {
        BOTH(gated_forward, gated_forward, kind, TYPE, AT(y), AT(h), PART(h), 2 * cols, ROWS, cols,
             NULL, TYPE);
        BOTH(gated_backward, gated_backward, kind, TYPE, AT(dh), PART(dh), AT(dy), AT(h), PART(h),
             2 * cols, ROWS, cols, NULL, TYPE);
        similar(y, is_kept, 1, "gated");
        similar(dh, is_kept, 1, "gated gradient");
    }
#undef PART
    for (int kind = ACTIVATION_GELU_TANH; kind <= ACTIVATION_RELU; kind++) {
        BOTH(activation_forward, activation_forward, AT(y), TYPE, AT(dy), ROWS * cols, TYPE, kind);
        similar(y, is_kept, 1, "activation");
        BOTH(activation_backward, activation_backward, AT(y), TYPE, AT(dy), AT(h), ROWS * cols,
             TYPE, kind);
        similar(y, is_kept, 1, "activation gradient");
    }
    BOTH(soft_cap, soft_cap, AT(dy), ROWS * cols, 2, TYPE);
    similar(dy, is_kept, 1, "capped");
}
SHAPES(gates_and_activations, gates)

static void biases(struct rng *r, bool is_kept, int64_t cols)
{
    struct pair x = floats(r, ROWS * cols, 1), bias = floats(r, cols, 1), sums = floats(r, cols, 1);
    struct pair residual = floats(r, ROWS * cols, 1);
    struct pair dy = numbers(r, is_kept ? DTYPE_BF16 : DTYPE_F32, ROWS * cols, 1);

    BOTH(bias_residual_add, bias_residual_add, AT(x), AT(residual), AT(bias), ROWS, cols,
         .block = NULL);
    BOTH(scale, scale, AT(x), ROWS * cols, 0.5f, 1.0f);
    BOTH(sum_add, sum_add, AT(x), AT(residual), ROWS, cols, cols, cols);
    BOTH(sum_add, sum_add, AT(x), AT(bias), ROWS, cols, cols, 0);
    assert_similar(x, DTYPE_F32, 1, 1e-6, "sum with a bias");
    BOTH(sum_add, sum_add, AT(sums), AT(residual), ROWS, cols, 0, cols);
    assert_same_bits(sums, "sum of rows");
    BOTH(bias_gradient, bias_gradient, AT(sums), AT(dy), is_kept ? DTYPE_BF16 : DTYPE_F32, ROWS,
         cols, 1, cols, ROWS * cols, .clear = true);
    assert_similar(sums, DTYPE_F32, 10, 3e-6, "bias gradient");
}
SHAPES(biases_and_sums, biases)

static void embeddings(struct rng *r, bool is_kept, int64_t cols)
{
    const enum dtype type = is_kept ? DTYPE_BF16 : DTYPE_F32;
    struct pair table = numbers(r, type, 40 * cols, 1), ids = integers(r, ROWS, 0, 39);
    struct pair x = floats(r, ROWS * cols, 1), dx = summands(r, ROWS * cols);
    struct pair dtable = summands(r, 40 * cols);

    BOTH(embedding_forward, embedding_forward, AT(x), AT(table), type, AT(ids), ROWS, 0, 40, cols);
    BOTH(embedding_backward, embedding_backward, AT(dtable), AT(dx), AT(ids), ROWS, 0, 40, cols);
    assert_same_bits(dtable, "embedding gradient");
}
SHAPES(embedding, embeddings)

/* Tokens of several tiles of the sort, of a vocabulary with one digit and of one with two. */
static void sorts(struct rng *r, bool is_kept, int64_t cols)
{
    const int64_t n = cols + 2000, rows = is_kept ? 5000 : 900;
    struct pair ids = integers(r, n, 0, (int32_t)rows - 1), dx = summands(r, n * 4);
    struct pair dtable = summands(r, rows * 4);

    BOTH(embedding_backward, embedding_backward, AT(dtable), AT(dx), AT(ids), n, 0, rows, 4);
    assert_same_bits(dtable, "embedding gradient of many tokens");
}
SHAPES(sort, sorts)

static void rotations(struct rng *r, bool is_kept, int64_t cols)
{
    const int64_t head_dim = cols > 768 ? 128 : 64;
    struct pair table = floats(r, ROWS * head_dim, 1), x = either(r, is_kept, ROWS * cols, 1);

    BOTH(rope_table, rope_table, AT(table), 0, ROWS, head_dim, 10000.0);
    BOTH(rope_apply, rope_apply, AT(x), AT(table), ROWS, ROWS, cols / head_dim, head_dim, head_dim,
         cols, 1, TYPE);
    similar(x, is_kept, 1, "rotation");
}
SHAPES(rope, rotations)

/* ---- rows ---- */

static void norms(struct rng *r, bool is_kept, int64_t cols)
{
    const enum dtype type = is_kept ? DTYPE_BF16 : DTYPE_F32;
    const int64_t n = ROWS * cols;
    const bool sums = cols <= 8192; /* else the kernel of a bias' gradient */
    struct pair x = floats(r, n, 3), residual = floats(r, n, 1), w = floats(r, cols, 2);
    struct pair y = numbers(r, type, n, 1), mean = floats(r, ROWS, 1), rstd = floats(r, ROWS, 1);
    struct pair b = floats(r, cols, 1), dy = either(r, is_kept, n, 1), dx = floats(r, n, 1);
    struct pair dw = floats(r, cols, 1), db = floats(r, cols, 1), dx_sum = floats(r, cols, 1);

    BOTH(rms_norm_forward, rms_norm_forward, AT(y), type, AT(rstd), AT(x), AT(residual), AT(w),
         ROWS, cols, 1e-5f, NULL);
    BOTH(rms_norm_backward, rms_norm_backward, AT(dx), AT(dw), AT(dy), AT(x), AT(rstd), AT(w), ROWS,
         cols, 0, cols, TYPE, DTYPE_F32, NULL);
    assert_similar(dx, DTYPE_F32, 10, 3e-6, "dx of RMS norm");
    BOTH(layer_norm_forward, layer_norm_forward, AT(y), type, AT(mean), AT(rstd), AT(x),
         AT(residual), NULL, AT(w), AT(b), ROWS, cols, 1e-5f, NULL);
    BOTH(layer_norm_backward, layer_norm_backward, AT(dx), AT(dw), AT(db), AT(dy), AT(x), AT(mean),
         AT(rstd), AT(w), ROWS, cols, 0, cols, TYPE, NULL, kept_sum(sums, &dx_sum));
    assert_similar(dx, DTYPE_F32, 10, 3e-6, "dx of layer norm");
    if (sums)
        assert_summed(dx_sum, &dx, ROWS, cols, 10);
}

/* And rows that nobody keeps in registers. */
static void norms_and_longer(struct rng *r, bool is_kept, int64_t cols)
{
    norms(r, is_kept, cols);
    if (cols == 4096) {
        end();
        start(r);
        norms(r, is_kept, 2 * cols);
        end();
        start(r);
        norms(r, is_kept, 2 * cols + 4);
    }
}
SHAPES(norms, norms_and_longer)

static void head_norms(struct rng *r, bool is_kept, int64_t cols)
{
    const int64_t dim = cols > 768 ? 128 : 64, heads = cols / dim, n = ROWS * cols;
    struct pair x = either(r, is_kept, n, 3), y = either(r, is_kept, n, 1);
    struct pair w = floats(r, dim, 2), rstd = floats(r, ROWS * heads, 1), dw = floats(r, dim, 1);

    BOTH(head_norm_forward, head_norm_forward, AT(y), AT(x), cols, cols, TYPE, AT(rstd), AT(w),
         ROWS, heads, dim, 1e-5f, .sums = NULL);
    similar(y, is_kept, 1, "norm of heads");
    y = either(r, is_kept, n, 1);
    BOTH(head_norm_backward, head_norm_backward, AT(y), AT(x), cols, cols, TYPE, AT(rstd), AT(w),
         AT(dw), ROWS, heads, dim, 0, dim, .sums = NULL);
    similar(y, is_kept, 10, "dx");
    BOTH(head_norm_sums, head_norm_sums, AT(rstd), AT(x), NULL, cols, cols, TYPE, AT(w), ROWS,
         heads, dim);
    assert_similar(rstd, DTYPE_F32, 1, 1e-5, "sums of squares");
}
SHAPES(head_norm, head_norms)

static void losses(struct rng *r, bool is_kept, int64_t cols)
{
    struct pair logits = either(r, is_kept, ROWS * cols, 5), d = either(r, is_kept, ROWS * cols, 1);
    struct pair max = floats(r, ROWS, 1), sum = floats(r, ROWS, 1), target = floats(r, ROWS, 1);
    struct pair targets = integers(r, ROWS, 0, (int32_t)cols - 1), total = doubles(r, 1);

    BOTH(loss_max, loss_max, AT(max), AT(sum), AT(target), AT(logits), TYPE, ROWS, cols, false);
    BOTH(loss_sum_exp, loss_sum_exp, AT(sum), AT(target), AT(logits), TYPE, AT(max), AT(targets), 0,
         ROWS, cols, 0.0f);
    BOTH(loss_total, loss_total, AT(total), AT(sum), AT(target), ROWS);
    BOTH(loss_backward, loss_backward, AT(d), TYPE, AT(logits), TYPE, AT(sum), AT(targets), 0, ROWS,
         cols, 0.125f, 0, AT(max));
    similar(d, is_kept, 0.125, "gradient of the loss");
}
SHAPES(loss, losses)

/* ---- the optimizer ---- */

static void steps(struct rng *r, bool is_kept, int64_t cols)
{
    const int64_t n = ROWS * cols;
    const struct adamw_rates values = { 0.1f, 4.5f, 0.999f };
    struct pair p = floats(r, n, 1), m = floats(r, n, 0.1), v, grad = floats(r, n, 1);
    struct pair half = numbers(r, DTYPE_BF16, n, 1), rates = pair_of(&values, sizeof values);
    struct pair scale = doubles(r, 1), sums = doubles(r, ROWS);
    float *squares = calloc((size_t)n, sizeof *squares);

    v = pair_of(squares, n * (int64_t)sizeof *squares);
    free(squares);
    for (on_gpu = false;; on_gpu = true) {
        const struct kernel_ops *ops = on_gpu ? cuda->kernels : &kernels_cpu;
        struct device_queue *q = on_gpu ? queue : kernels_on();
        const struct adamw_tensor t = { AT(p), AT(m), AT(v), AT(grad), is_kept ? AT(half) : NULL,
                                        n,     true };
        const struct grad_norm_tensor g = { AT(grad), n };

        ops->adamw_step(q,
                        &(struct adamw_step){ &t, 1, AT(scale), AT(rates), { 0.9, 0.95, 1e-8 } });
        ops->grad_norm_squares(q, &(struct grad_norm_squares){ AT(sums), &g, 1 });
        if (on_gpu)
            break;
    }
    assert_similar(p, DTYPE_F32, 1, 1e-6, "p");
    BOTH(grad_norm_squares_rows, grad_norm_squares_rows, AT(sums), AT(grad), ROWS, cols);
    assert_similar(sums, DTYPE_F64, 0, 1e-12, "sums of squares");
}
SHAPES(optimizer, steps)

/* ---- mixtures of experts ---- */

static void routes(struct rng *r, bool is_kept, int64_t cols)
{
    enum { PER_ROW = 4, TOKENS = 64 };
    const int experts = (int)(cols / 32);
    const enum dtype type = is_kept ? DTYPE_BF16 : DTYPE_F32;
    struct pair probs = floats(r, TOKENS * experts, 3),
                chosen = integers(r, TOKENS * PER_ROW, 0, 0);
    struct pair weights = floats(r, TOKENS * PER_ROW, 1), load = floats(r, 2 * experts, 1);
    struct pair dweights = floats(r, TOKENS * PER_ROW, 1), total = doubles(r, 1);
    struct pair dlogits = numbers(r, type, TOKENS * experts, 1);

    BOTH(router_forward, router_forward, AT(probs), AT(chosen), AT(weights), TOKENS, experts,
         PER_ROW, true);
    BOTH(router_load, router_load, AT(load), AT(probs), AT(chosen), TOKENS, TOKENS, experts,
         PER_ROW);
    BOTH(router_balance, router_balance, AT(total), AT(load), 1, experts, 0.7);
    BOTH(router_backward, router_backward, AT(dlogits), type, AT(dweights), AT(probs), AT(weights),
         AT(chosen), TOKENS, experts, PER_ROW, true, AT(load), TOKENS, 0.3f);
    assert_similar(dlogits, type, 1, 1e-5, "gradient of scores");
}
SHAPES(router, routes)

static void experts(struct rng *r, bool is_kept, int64_t cols)
{
    enum { EXPERTS = 64, PER_ROW = 4, N = ROWS * PER_ROW };
    const enum dtype type = is_kept ? DTYPE_BF16 : DTYPE_F32;
    struct pair chosen = integers(r, N, 0, EXPERTS - 1), offsets = integers(r, EXPERTS + 1, 0, 0);
    struct pair place = integers(r, N, -1, -1), source = integers(r, N, -1, -1);
    struct pair x = numbers(r, type, ROWS * cols, 1), copies = numbers(r, type, N * cols, 1);
    struct pair results = either(r, is_kept, N * cols, 1), y = floats(r, ROWS * cols, 1);
    struct pair weights = floats(r, N, 1), dweights = floats(r, N, 1);

    BOTH(permute_sort, permute_sort, AT(offsets), AT(place), AT(source), AT(chosen), N, EXPERTS);
    BOTH(permute_rows, permute_rows, AT(copies), AT(x), type, AT(source), N, cols, PER_ROW);
    assert_same_bits(copies, "copies");
    BOTH(permute_sum, permute_sum, AT(y), AT(results), AT(place), AT(weights), ROWS, cols, PER_ROW,
         false, .x_type = TYPE);
    assert_similar(y, DTYPE_F32, 1, 4e-6, "sums of copies");
    BOTH(permute_weight_backward, permute_weight_backward, AT(dweights), AT(results), AT(copies),
         type, AT(weights), AT(source), N, cols, NULL, TYPE);
    similar(results, is_kept, 1, "weighted gradients");
}
SHAPES(permute, experts)

/* ---- attention ---- */

struct attention_arrays {
    struct pair q, k, v, out, lse, d_out, dq, dk, dv, sum;
};

/* Two heads that share keys, of so many columns. `merges`: the result is a sum in f32. */
static void attention_of(struct rng *r, enum dtype type, int64_t dim, bool merges)
{
    enum { SEQ = 136, HEADS = 2 };
    const int64_t n = SEQ * HEADS * dim, kv = SEQ * dim;
    struct attention_arrays s = {
        numbers(r, type, n, 1), numbers(r, type, kv, 1),   numbers(r, type, kv, 1),
        numbers(r, type, n, 1), floats(r, HEADS * SEQ, 1), numbers(r, type, n, 1),
        floats(r, n, 1),        floats(r, kv, 1),          floats(r, kv, 1),
        floats(r, n, 1),
    };

    for (int side = 0; side < 2; side++) {
        const struct kernel_ops *ops = side ? cuda->kernels : &kernels_cpu;
        struct device_queue *q = side ? queue : kernels_on();

        on_gpu = side;
        struct attention a = { .batch = 1,
                               .seq = SEQ,
                               .heads = HEADS,
                               .kv_heads = 1,
                               .head_dim = dim,
                               .type = type,
                               .q = AT(s.q),
                               .k = AT(s.k),
                               .v = AT(s.v),
                               .out = AT(s.out),
                               .lse = AT(s.lse),
                               .sum = merges ? AT(s.sum) : NULL,
                               .ldq = HEADS * dim,
                               .ldk = dim,
                               .ldv = dim,
                               .ldo = HEADS * dim,
                               .scale = 0.125f };
        ops->attention_forward(q, &a);
        struct attention_backward g = { a,           AT(s.d_out), AT(s.dq), AT(s.dk), AT(s.dv),
                                        HEADS * dim, dim,         dim,      DTYPE_F32 };
        ops->attention_backward(q, &g);
    }
    assert_similar(s.lse, DTYPE_F32, 1, 2e-2, "log-sum-exp");
    assert_similar(s.dq, DTYPE_F32, 4, 5e-2, "dq");
}

static void attention_shapes(const char *name)
{
    struct rng r = rng_start(name);

    for (int64_t dim = 64; dim <= 256; dim *= 2)
        for (int merges = 0; merges < 2; merges++) {
            start(&r);
            attention_of(&r, DTYPE_BF16, dim, merges);
            end();
            start(&r);
            if (dim < 256 && !merges)
                attention_of(&r, DTYPE_F32, dim, false);
            end();
        }
}

Test(cuda_shapes, attention)
{
    attention_shapes("cuda/shapes attention");
}

Test(cuda_shapes, attention_without_warpgroups)
{
    load_cuda();
    if (fake)
        fake->capability(80);
    attention_shapes("cuda/shapes attention 8.0");
}
