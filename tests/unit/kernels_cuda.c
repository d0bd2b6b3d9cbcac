/*
 * tests/unit/kernels_cuda.c - each operation of the CUDA kernels against the CPU's, on the fake
 * CUDA device, which also finds races, accesses out of bounds and reads of undefined memory.
 *
 * needs: libtp-cuda.so
 * covers: comm/cuda/library kernels/cpu/part_sums kernels/cuda/part_sums kernels/cuda/reduce
 */
#include "ckpt/crc.h"
#include "ckpt/digest.h"
#include "kernels/part_sums.h"
#include "tests/unit/cuda_arrays.h"

static enum dtype any_type(struct rng *r)
{
    return rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
}

/* Two or three thousand elements, in rows that are often longer than a block has threads. */
static void any_shape(struct rng *r, int64_t *rows, int64_t *cols)
{
    *rows = rng_int(r, 0, 1) ? rng_int(r, 1, 40) : rng_int(r, 1, 5);
    *cols = *rows > 5 ? rng_int(r, 1, 70) : rng_int(r, 1, 600);
    if (rng_int(r, 0, 1)) /* whole packs of 16 bytes */
        *cols = (*cols + 3) / 4 * 4;
}

/* sometimes: 0, or the skew of every fourth case. */
#define SKEWED_CASES(name, n, sometimes)                   \
    static void name##_case(struct rng *r);                \
    Test(cuda_kernels, name)                               \
    {                                                      \
        struct rng r = rng_start("cuda/" #name);           \
        for (int i = 0; i < (n); i++) {                    \
            start(&r);                                     \
            skew = rng_int(&r, 0, 3) == 0 ? sometimes : 0; \
            name##_case(&r);                               \
            end();                                         \
        }                                                  \
    }                                                      \
    static void name##_case(struct rng *r)
#define CASES(name, n) SKEWED_CASES(name, n, 1)
/* Of arrays that also have elements of eight bytes, which must be aligned. */
#define ALIGNED_CASES(name, n) SKEWED_CASES(name, n, 0)

/* ---- copies and casts: the same bits ---- */

static struct box around(struct rng *r, const struct box *region)
{
    struct box b = *region;

    for (int d = 0; d < b.ndim; d++) {
        int64_t before = rng_int(r, 0, 2);

        b.lo[d] -= before;
        b.len[d] += before + rng_int(r, 0, 2);
    }
    return b;
}

CASES(copy_box, 30)
{
    struct box region = { .ndim = (int)rng_int(r, 0, 4) }, to, from;
    int elem = 1 << rng_int(r, 0, 3);
    struct pair dst, src;

    for (int d = 0; d < region.ndim; d++) {
        region.lo[d] = 10;
        region.len[d] = rng_int(r, rng_int(r, 0, 9) > 0, d + 1 == region.ndim ? 90 : 5);
    }
    to = around(r, &region);
    from = around(r, &region);
    dst = floats(r, box_elements(&to) * elem / 4 + 1, 1);
    src = floats(r, box_elements(&from) * elem / 4 + 1, 1);
    BOTH(copy_box, copy_box, AT(dst), AT(src), to, from, region, elem);
    assert_same_bits(dst, "copy_box");
}

/* Of 2-byte types random bits, which are all kinds of numbers, also infinity and NaN. */
static struct pair numbers_to_cast(struct rng *r, enum dtype type, int64_t n)
{
    float *x = random_floats(r, n, 1e5);
    double *y = calloc((size_t)n + 1, sizeof *y);
    struct pair p;

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)ldexp((double)x[i], (int)rng_int(r, -40, 4));
    cast(y, type, x, DTYPE_F32, n);
    for (int64_t i = 0; i < n && dtype_bytes(type) == 2; i++)
        ((uint16_t *)y)[i] = (uint16_t)rng_next(r);
    p = pair_of(y, n * dtype_bytes(type));
    free(x);
    free(y);
    return p;
}

CASES(cast, 48)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    enum dtype to = types[rng_int(r, 0, 3)], from = types[rng_int(r, 0, 3)];
    int64_t n = rng_int(r, 0, 1500), skip = rng_int(r, 0, 2);
    struct pair src = numbers_to_cast(r, from, n + skip), dst = doubles(r, n + skip);

    BOTH(cast, cast, (char *)AT(dst) + skip * dtype_bytes(to), to,
         (char *)AT(src) + skip * dtype_bytes(from), from, n);
    assert_same_bits(dst, dtype_name(to));
}

/* A table in device memory for the GPU, in host memory for the CPU. */
static struct pair table_of(const void *cpu_items, const void *gpu_items, int64_t n_bytes)
{
    struct pair p = pair_of(cpu_items, n_bytes);
    struct tp_err err = { 0 };

    cr_assert_eq(staging_put(&staging, p.gpu, gpu_items, n_bytes, &err), TP_OK, "%s", err.msg);
    return p;
}

enum { TABLE_ITEMS = 12 };

/* Copies with and without conversion, each to a place of its own. */
ALIGNED_CASES(copy_table, 20)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    struct copy_item cpu[TABLE_ITEMS], gpu[TABLE_ITEMS];
    struct pair dst = floats(r, 40000, 1), src = floats(r, 20000, 1), table;
    int64_t to = 0, warps;
    int n = 0;

    while (n < TABLE_ITEMS) {
        struct copy_box c = { .region = { .ndim = (int)rng_int(r, 1, 3) } };
        enum dtype from_type = types[rng_int(r, 0, 3)], to_type = types[rng_int(r, 0, 3)];
        int64_t from = rng_int(r, 0, 9) * 8;

        c.elem_bytes = 1 << rng_int(r, 0, 3);
        for (int d = 0; d < c.region.ndim; d++)
            c.region.len[d] = rng_int(r, 0, d + 1 == c.region.ndim ? 70 : 5);
        c.dst_box = around(r, &c.region);
        c.src_box = around(r, &c.region);
        if (from_type == to_type)
            from += c.elem_bytes * rng_int(r, 0, 15); /* any alignment */
        for (on_gpu = false;; on_gpu = true) {
            c.dst = (char *)AT(dst) + to;
            c.src = (char *)AT(src) + from;
            copy_item_make(on_gpu ? &gpu[n] : &cpu[n], &c, to_type, from_type);
            if (on_gpu)
                break;
        }
        to = (to + box_elements(&c.dst_box) * 8 + 15) / 8 * 8;
        n += to < dst.n_bytes;
        if (to >= dst.n_bytes)
            break;
    }
    warps = copy_items_place(gpu, n);
    table = table_of(cpu, gpu, n * (int64_t)sizeof *cpu);
    BOTH(copy_table, copy_table, AT(table), n, warps);
    assert_same_bits(dst, "table of copies");
}

/* The powers of both points, as a table for the kernels. */
static struct pair digest_powers(void)
{
    uint64_t powers[PART_SUMS_POINTS][PART_SUMS_POWERS];

    for (int p = 0; p < PART_SUMS_POINTS; p++)
        for (int k = 0; k < PART_SUMS_POWERS; k++)
            powers[p][k] = digest_power(p, UINT64_C(1) << k);
    return pair_of(powers, sizeof powers);
}

/* What the CRC and the digest of a part should be. */
static void assert_sums(const struct part_sums_result *got, const struct part_sums_item *it,
                        const struct box *part, const struct box *whole)
{
    int64_t n = box_elements(part);
    void *cast_to = calloc((size_t)n + 1, 8);
    struct digest want;

    if (it->cast == it->type)
        memcpy(cast_to, it->data, (size_t)(n * dtype_bytes(it->type)));
    else
        cast(cast_to, it->cast, it->data, it->type, n);
    want = digest_box(cast_to, part, whole->ndim, whole->len, dtype_bytes(it->cast));
    cr_assert_eq(got->crc, crc32c_part(it->data, (size_t)it->crc_bytes, (uint64_t)it->after),
                 "CRC");
    for (int p = 0; p < PART_SUMS_POINTS; p++)
        cr_assert_eq(
            digest_mod_add(got->low[p] % DIGEST_PRIME,
                           digest_mod_multiply(got->high[p] % DIGEST_PRIME, UINT64_C(1) << 32)),
            want.d[p], "digest %d", p);
    free(cast_to);
}

ALIGNED_CASES(part_sums, 20)
{
    static const enum dtype floating[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    struct part_sums_item cpu[TABLE_ITEMS], gpu[TABLE_ITEMS];
    struct box part[TABLE_ITEMS], whole[TABLE_ITEMS];
    struct pair data = floats(r, 60000, 1), table, powers = digest_powers();
    struct pair results = floats(r, TABLE_ITEMS * (int64_t)sizeof(struct part_sums_result) / 4, 1);
    struct part_sums_result *got;
    struct part_sums_work work;

    for (int i = 0; i < TABLE_ITEMS; i++) {
        enum dtype type = (enum dtype)rng_int(r, 0, DTYPE_COUNT - 1), to = type;
        int64_t bytes, after = rng_int(r, 0, 1) * rng_int(r, 0, 1 << 20), at;

        if (dtype_is_float(type) && rng_int(r, 0, 1))
            to = floating[rng_int(r, 0, 3)];
        part[i] = (struct box){ .ndim = (int)rng_int(r, 0, 3) };
        for (int d = 0; d < part[i].ndim; d++) {
            part[i].lo[d] = rng_int(r, 3, 9);
            part[i].len[d] = rng_int(r, rng_int(r, 0, 9) > 0, d ? 20 : 40);
        }
        if (i == 0) /* several pieces */
            part[i] = (struct box){ .ndim = 1, .lo = { 5 }, .len = { 20000 } };
        whole[i] = around(r, &part[i]);
        for (int d = 0; d < part[i].ndim; d++) {
            whole[i].len[d] += whole[i].lo[d];
            whole[i].lo[d] = 0;
        }
        bytes = box_elements(&part[i]) * dtype_bytes(type);
        at = rng_int(r, 0, (data.n_bytes - bytes) / 8) * 8;
        if (at + bytes + dtype_bytes(type) <= data.n_bytes)
            at += dtype_bytes(type) * rng_int(r, 0, 1);
        cpu[i] = part_sums_item_crc((char *)data.cpu + at, bytes, after);
        part_sums_item_digest(&cpu[i], &part[i], &whole[i], type, to);
    }
    work = part_sums_place(cpu, TABLE_ITEMS);
    memcpy(gpu, cpu, sizeof gpu);
    for (int i = 0; i < TABLE_ITEMS; i++)
        gpu[i].data = (char *)data.gpu + (cpu[i].data - (char *)data.cpu);
    table = table_of(cpu, gpu, sizeof cpu);
    for (on_gpu = false;; on_gpu = true) {
        struct part_sums a = { AT(results), AT(table), AT(powers), TABLE_ITEMS, work, { 0 } };

        part_sums_crc_powers(a.crc_powers);
        (on_gpu ? cuda->kernels : &kernels_cpu)->part_sums(on_gpu ? queue : kernels_on(), &a);
        if (on_gpu)
            break;
    }
    got = from_gpu(&results);
    for (int i = 0; i < TABLE_ITEMS; i++) {
        assert_sums(&got[i], &cpu[i], &part[i], &whole[i]);
        assert_sums((struct part_sums_result *)results.cpu + i, &cpu[i], &part[i], &whole[i]);
    }
    free(got);
}

/* ---- element by element ---- */

CASES(gated, 30)
{
    enum gated_kind kind = rng_int(r, 0, 1) ? GATED_GEGLU : GATED_SWIGLU;
    int64_t rows, cols, ld;
    enum dtype type = any_type(r);

    any_shape(r, &rows, &cols);
    ld = 2 * cols + rng_int(r, 0, 3);
    struct pair h = floats(r, rows * ld, 4), y = numbers(r, type, rows * cols, 1);
    struct pair dy = floats(r, rows * cols, 1), dh = numbers(r, type, rows * ld, 1);

    BOTH(gated_forward, gated_forward, kind, type, AT(y), AT(h), (float *)AT(h) + cols, ld, rows,
         cols, NULL, DTYPE_F32);
    assert_similar(y, type, 1e-1, 2e-6, "gated");
    BOTH(gated_backward, gated_backward, kind, type, AT(dh),
         (char *)AT(dh) + cols * dtype_bytes(type), AT(dy), AT(h), (float *)AT(h) + cols, ld, rows,
         cols, NULL, DTYPE_F32);
    assert_similar(dh, type, 1, 2e-6, "gated gradient");
    BOTH(gated_backward, gated_backward, kind, DTYPE_F32, AT(h), (float *)AT(h) + cols, AT(dy),
         AT(h), (float *)AT(h) + cols, ld, rows, cols, NULL, DTYPE_F32);
    assert_similar(h, DTYPE_F32, 1, 2e-6, "gated gradient in place");
}

/* What a product wrote in bf16; rows are whole packs, or not. */
CASES(gated_kept, 30)
{
    enum gated_kind kind = rng_int(r, 0, 1) ? GATED_GEGLU : GATED_SWIGLU;
    bool is_packed = rng_int(r, 0, 2);
    int64_t rows, cols, ld;

    any_shape(r, &rows, &cols);
    cols = is_packed ? 8 * ((cols + 7) / 8) : cols;
    ld = 2 * cols + (is_packed ? 8 : 1) * rng_int(r, 0, 3);
    struct pair h = numbers_kept(r, rows * ld, 4), y = numbers_kept(r, rows * cols, 1);
    struct pair dy = numbers_kept(r, rows * cols, 1), dh = numbers_kept(r, rows * ld, 1);

    BOTH(gated_forward, gated_forward, kind, KEPT, AT(y), AT(h), AT_KEPT(h, cols), ld, rows, cols,
         NULL, KEPT);
    assert_similar_kept(y, 1e-1, 2e-6, "gated");
    BOTH(gated_backward, gated_backward, kind, KEPT, AT(dh), AT_KEPT(dh, cols), AT(dy), AT(h),
         AT_KEPT(h, cols), ld, rows, cols, NULL, KEPT);
    assert_similar_kept(dh, 1, 2e-6, "gated gradient");
    BOTH(gated_backward, gated_backward, kind, KEPT, AT(h), AT_KEPT(h, cols), AT(dy), AT(h),
         AT_KEPT(h, cols), ld, rows, cols, NULL, KEPT);
    assert_similar_kept(h, 1, 2e-6, "gated gradient in place");
}

CASES(scale, 10)
{
    int64_t n = rng_int(r, 0, 3000);
    float by = (float)rng_real(r), plus = rng_int(r, 0, 1) ? 1.0f : 0.0f;
    struct pair x = floats(r, n, 4);

    BOTH(scale, scale, AT(x), n, by, plus);
    assert_similar(x, DTYPE_F32, 1, 1e-6, "scaled");
}

CASES(soft_cap, 10)
{
    int64_t n = rng_int(r, 0, 3000);
    float cap = (float)rng_int(r, 1, 40) / 8;
    struct pair x = floats(r, n, 4);

    struct pair kept = numbers_kept(r, n, 4);

    BOTH(soft_cap, soft_cap, AT(x), n, cap, DTYPE_F32);
    assert_similar(x, DTYPE_F32, 1, 1e-6, "capped");
    BOTH(soft_cap, soft_cap, AT(kept), n, cap, KEPT);
    assert_similar_kept(kept, 1, 1e-6, "capped in bf16");
}

/* How exact a kind of activation is. */
static double activation_tolerance(enum activation_kind kind)
{
    return kind == ACTIVATION_RELU ? 0 : 2e-6;
}

CASES(activation, 40)
{
    int64_t n = rng_int(r, 0, 3000);
    enum activation_kind kind = (enum activation_kind)rng_int(r, 0, ACTIVATION_RELU);
    enum dtype type = any_type(r);
    struct pair u = floats(r, n, 4), y = numbers(r, type, n, 1), dy = floats(r, n, 1);
    double e = activation_tolerance(kind);

    BOTH(activation_forward, activation_forward, AT(y), type, AT(u), n, DTYPE_F32, kind);
    assert_similar(y, type, 1e-1, e, "activation");
    BOTH(activation_backward, activation_backward, AT(y), type, AT(dy), AT(u), n, DTYPE_F32, kind);
    assert_similar(y, type, 1, e, "its gradient");
    BOTH(activation_backward, activation_backward, AT(u), DTYPE_F32, AT(dy), AT(u), n, DTYPE_F32,
         kind);
    assert_similar(u, DTYPE_F32, 1, e, "its gradient in place");
}

/* In whole packs, or not; also from an address that is not a multiple of 16. */
CASES(activation_kept, 40)
{
    int64_t at = rng_int(r, 0, 2) ? 0 : 1, pack = rng_int(r, 0, 1) ? 8 : 1;
    int64_t n = rng_int(r, 0, 3000) / pack * pack;
    struct pair u = numbers_kept(r, n + at, 4), y = numbers_kept(r, n + at, 1);
    struct pair dy = numbers_kept(r, n + at, 1);
    enum activation_kind kind = (enum activation_kind)rng_int(r, 0, ACTIVATION_RELU);
    double e = activation_tolerance(kind);

    BOTH(activation_forward, activation_forward, AT_KEPT(y, at), KEPT, AT_KEPT(u, at), n, KEPT,
         kind);
    assert_similar_kept(y, 1e-1, e, "activation");
    BOTH(activation_backward, activation_backward, AT_KEPT(y, at), KEPT, AT_KEPT(dy, at),
         AT_KEPT(u, at), n, KEPT, kind);
    assert_similar_kept(y, 1, e, "its gradient");
    BOTH(activation_backward, activation_backward, AT_KEPT(u, at), KEPT, AT_KEPT(dy, at),
         AT_KEPT(u, at), n, KEPT, kind);
    assert_similar_kept(u, 1, e, "its gradient in place");
}

CASES(bias, 20)
{
    int64_t rows, cols;
    enum dtype type = any_type(r);
    int count = (int)rng_int(r, 0, 3);

    any_shape(r, &rows, &cols);
    struct pair x = floats(r, rows * cols, 1), residual = floats(r, rows * cols, 1);
    struct pair bias = floats(r, cols, 1), sums = floats(r, (cols + 2) * 3, 1);
    struct pair dy = numbers(r, type, rows * cols * 3, 1);
    bool no_bias = rng_int(r, 0, 1), clear = rng_int(r, 0, 1), add = rng_int(r, 0, 1);
    struct pair block = numbers_kept(r, rows * cols, 1);

    BOTH(bias_residual_add, bias_residual_add, AT(x), NULL, AT(bias), rows, cols, .block = NULL);
    BOTH(bias_residual_add, bias_residual_add, AT(x), AT(residual), no_bias ? NULL : AT(bias), rows,
         cols, .block = NULL);
    assert_same_bits(x, "bias");
    x.cpu = block.cpu;
    BOTH(bias_residual_add, bias_residual_add, AT(x), add ? AT(residual) : NULL,
         no_bias ? NULL : AT(bias), rows, cols, on_gpu ? block.gpu : NULL);
    assert_same_bits(x, "a block with a bias");
    BOTH(bias_gradient, bias_gradient, AT(sums), AT(dy), type, rows, cols, count, cols + 2,
         rows * cols, .clear = clear);
    assert_similar(sums, DTYPE_F32, 1, 3e-6, "bias gradient");
}

CASES(rope, 20)
{
    int64_t half = rng_int(r, 1, 20), positions = rng_int(r, 1, 12), heads = rng_int(r, 1, 5);
    int64_t first = rng_int(r, 0, 1000), rows = positions * rng_int(r, 1, 3);
    int64_t head_dim = half * 2 + (rng_int(r, 0, 1) ? 4 * rng_int(r, 0, 5) : rng_int(r, 0, 20));
    int64_t stride = heads * head_dim + (rng_int(r, 0, 1) ? 4 : 1) * rng_int(r, 0, 5);
    struct pair table = floats(r, positions * half * 2, 1), x = floats(r, rows * stride, 1);
    int sign = rng_int(r, 0, 1) ? 1 : -1;

    BOTH(rope_table, rope_table, AT(table), first, positions, half * 2, 10000.0);
    if (fake)
        assert_same_bits(table, "table of positions");
    assert_similar(table, DTYPE_F32, 1, 1e-7, "table of positions"); /* a GPU has its own cos */
    BOTH(rope_apply, rope_apply, AT(x), AT(table), rows, positions, heads, head_dim, half * 2,
         stride, sign, DTYPE_F32);
    assert_similar(x, DTYPE_F32, 1, 1e-6, "rotation");
}

/* In whole packs, or not. */
CASES(rope_kept, 20)
{
    bool is_packed = rng_int(r, 0, 1);
    int64_t half = is_packed ? 8 * rng_int(r, 1, 3) : rng_int(r, 1, 20), heads = rng_int(r, 1, 5);
    int64_t positions = rng_int(r, 1, 12), rows = positions * rng_int(r, 1, 3);
    int64_t head_dim = half * 2 + (is_packed ? 8 : 1) * rng_int(r, 0, 3);
    int64_t stride = heads * head_dim + (is_packed ? 8 : 1) * rng_int(r, 0, 5);
    struct pair table = floats(r, positions * half * 2, 1), x = numbers_kept(r, rows * stride, 1);
    int sign = rng_int(r, 0, 1) ? 1 : -1;

    BOTH(rope_apply, rope_apply, AT(x), AT(table), rows, positions, heads, head_dim, half * 2,
         stride, sign, KEPT);
    assert_similar_kept(x, 1, 1e-6, "rotation");
}

/* Small arrays are cleared together, large ones alone. */
CASES(clear, 4)
{
    enum { MOST = 2000 };
    const int64_t size = rng_int(r, 0, 1) ? rng_int(r, 1, 60) : 70000;
    const int n = size > 60 ? 3 : (int)rng_int(r, 0, MOST);
    struct pair x = floats(r, n * size + 1, 1);
    struct clear_array *arrays = malloc(MOST * sizeof *arrays);

    for (on_gpu = false;; on_gpu = true) {
        for (int i = 0; i < n; i++)
            arrays[i] = (struct clear_array){ (float *)AT(x) + i * size, size - i % 2 };
        (on_gpu ? cuda->kernels : &kernels_cpu)
            ->clear(on_gpu ? queue : kernels_on(), &(struct clear){ arrays, n });
        if (on_gpu)
            break;
    }
    free(arrays);
    assert_same_bits(x, "zeros");
}

/* Texts of few different tokens, and of many. */
CASES(embedding, 30)
{
    int64_t n = rng_int(r, 1, rng_int(r, 0, 2) ? 60 : 3000), rows = rng_int(r, 1, 12),
            cols = rng_int(r, 1, 300);
    int64_t first = rng_int(r, 0, 5);
    enum dtype type = any_type(r);
    struct pair table = numbers(r, type, rows * cols, 1);
    struct pair ids = integers(r, n, 0, (int32_t)rng_int(r, 0, 18));
    struct pair x = floats(r, n * cols, 1), dx = summands(r, n * cols);
    struct pair dtable = summands(r, rows * cols);

    BOTH(embedding_forward, embedding_forward, AT(x), AT(table), type, AT(ids), n, first, rows,
         cols);
    assert_same_bits(x, "embedding");
    BOTH(embedding_backward, embedding_backward, AT(dtable), AT(dx), AT(ids), n, first, rows, cols);
    assert_same_bits(dtable, "embedding gradient");
}

/* Vocabularies that the sort of tokens divides into one, two and three digits. */
CASES(embedding_of_many_rows, 6)
{
    static const int64_t SIZES[] = { 600, 70000, 1100000 };
    static int number;
    int64_t rows = SIZES[number++ % 3], n = rng_int(r, 1, 6000), cols = rng_int(r, 1, 2);
    struct pair ids = integers(r, n, 0, (int32_t)rows + 50), dx = summands(r, n * cols);
    struct pair dtable = summands(r, rows * cols);

    BOTH(embedding_backward, embedding_backward, AT(dtable), AT(dx), AT(ids), n, 7, rows, cols);
    assert_same_bits(dtable, "embedding gradient");
}

/* A few tokens, far from each other, have ids that are here; a GPU adds so few one after the
 * other, and the rounding shows in which order. */
CASES(embedding_adds_tokens_in_their_order, 6)
{
    int64_t n = rng_int(r, 32, 9000), rows = rng_int(r, 0, 1) ? 3 : 3000;
    int32_t *of = malloc((size_t)n * sizeof *of);
    float *zeros = filled_floats(rows, 0);

    for (int64_t i = 0; i < n; i++)
        of[i] = -1;
    for (int i = 0; i < 32; i++)
        of[rng_int(r, 0, n - 1)] = (int32_t)(rng_int(r, 1, 3) * (rows / 3) - 1);
    struct pair ids = pair_of(of, n * (int64_t)sizeof *of), dx = floats(r, n, 1);
    struct pair dtable = pair_of(zeros, rows * (int64_t)sizeof *zeros);

    BOTH(embedding_backward, embedding_backward, AT(dtable), AT(dx), AT(ids), n, 0, rows, 1);
    assert_same_bits(dtable, "embedding gradient");
    free(of), free(zeros);
}

/* ---- rows ---- */

/* Numbers that the GPU has in bf16 if `is_kept`, and the CPU always in f32. */
static struct pair maybe_kept(struct rng *r, bool is_kept, int64_t n, double size)
{
    return is_kept ? numbers_kept(r, n, size) : floats(r, n, size);
}

static enum dtype kept_type(bool is_kept)
{
    return is_kept ? KEPT : DTYPE_F32;
}

/* What a block computed, which the GPU reads in bf16, and the CPU in x. */
static const uint16_t *kept_block(bool has_block, const struct pair *block)
{
    return has_block && on_gpu ? block->gpu : NULL;
}

/* Where the GPU rounds dx to. */
static uint16_t *kept_rounded(bool rounds, const struct pair *rounded)
{
    return rounds && on_gpu ? rounded->gpu : NULL;
}

/* `rounded` has the bf16 of the GPU's x, bit for bit. */
static void assert_rounded(struct pair rounded, struct pair x)
{
    void *of = from_gpu(&x);

    cast(rounded.cpu, DTYPE_BF16, of, DTYPE_F32, x.n_bytes / (int64_t)sizeof(float));
    assert_same_bits(rounded, "dx in bf16");
    free(of);
}

static void check_rms_norm(struct rng *r, int64_t rows, int64_t cols)
{
    enum dtype type = any_type(r);
    bool add = rng_int(r, 0, 1), has_block = rng_int(r, 0, 1), is_dy_kept = rng_int(r, 0, 1);
    bool is_stored = !has_block || rng_int(r, 0, 2) > 0, rounds = rng_int(r, 0, 1);
    int blocks = (int)(rows % 3 == 0 ? 3 : 0);
    int64_t n = rows * cols;
    struct pair x = floats(r, n, 3), residual = floats(r, n, 1), w = floats(r, cols, 2);
    struct pair y = numbers(r, type, n, 1), rstd = floats(r, rows, 1);
    struct pair block = numbers_kept(r, n, 3), dy = maybe_kept(r, is_dy_kept, n, 1);
    struct pair dx = floats(r, n, 1), dw = floats(r, (cols + 2) * 3, 1);
    struct pair rounded = numbers(r, DTYPE_BF16, n, 1);

    add = add && is_stored;
    if (!is_stored) { /* a norm of what a block computed, whose dy is f32 */
        dy = floats(r, n, 1);
        is_dy_kept = false;
    }
    if (has_block)
        x = is_stored ? (struct pair){ block.cpu, x.gpu, x.n_bytes } : block;
    BOTH(rms_norm_forward, rms_norm_forward, AT(y), type, AT(rstd),
         is_stored || !on_gpu ? AT(x) : NULL, add ? AT(residual) : NULL, AT(w), rows, cols, 1e-5f,
         kept_block(has_block, &block));
    if (is_stored)
        assert_same_bits(x, "sum with the residual");
    assert_similar(rstd, DTYPE_F32, 0, 1e-6, "rstd");
    assert_similar(y, type, 1e-2, 1e-6, "RMS norm");
    BOTH(rms_norm_backward, rms_norm_backward, AT(dx), AT(dw), AT(dy), AT(x), AT(rstd), AT(w), rows,
         cols, blocks, cols + 2, kept_type(is_dy_kept), kept_type(!is_stored),
         kept_rounded(rounds, &rounded));
    if (rounds)
        assert_rounded(rounded, dx);
    assert_similar(dx, DTYPE_F32, 10, 1e-6, "dx");
    assert_similar(dw, DTYPE_F32, 10, 1e-6, "dw");
}

static void check_layer_norm(struct rng *r, int64_t rows, int64_t cols)
{
    enum dtype type = any_type(r);
    bool add = rng_int(r, 0, 1), bias = rng_int(r, 0, 1);
    bool has_block = rng_int(r, 0, 1), is_dy_kept = rng_int(r, 0, 1), rounds = rng_int(r, 0, 1);
    int blocks = (int)(rows % 3 == 0 ? 3 : 0);
    bool sums = !blocks && rng_int(r, 0, 1);
    int64_t n = rows * cols;
    struct pair x = floats(r, n, 3), residual = floats(r, n, 1), x_bias = floats(r, cols, 1);
    struct pair w = floats(r, cols, 2), b = floats(r, cols, 1), y = numbers(r, type, n, 1);
    struct pair mean = floats(r, rows, 1), rstd = floats(r, rows, 1);
    struct pair block = numbers_kept(r, n, 3), dy = maybe_kept(r, is_dy_kept, n, 1);
    struct pair dx = floats(r, n, 1), dw = floats(r, (cols + 2) * 3, 1);
    struct pair db = floats(r, (cols + 2) * 3, 1), rounded = numbers(r, DTYPE_BF16, n, 1);
    struct pair dx_sum = floats(r, cols, 1);

    if (has_block)
        x.cpu = block.cpu;
    BOTH(layer_norm_forward, layer_norm_forward, AT(y), type, AT(mean), AT(rstd), AT(x),
         add ? AT(residual) : NULL, bias ? AT(x_bias) : NULL, AT(w), AT(b), rows, cols, 1e-5f,
         kept_block(has_block, &block));
    assert_same_bits(x, "sum with the residual");
    assert_similar(mean, DTYPE_F32, 1, 1e-6, "mean");
    assert_similar(rstd, DTYPE_F32, 0, 3e-6, "rstd");
    assert_similar(y, type, 3, 3e-6, "layer norm");
    BOTH(layer_norm_backward, layer_norm_backward, AT(dx), AT(dw), AT(db), AT(dy), AT(x), AT(mean),
         AT(rstd), AT(w), rows, cols, blocks, cols + 2, kept_type(is_dy_kept),
         kept_rounded(rounds, &rounded), kept_sum(sums, &dx_sum));
    if (rounds)
        assert_rounded(rounded, dx);
    if (sums)
        assert_summed(dx_sum, &dx, rows, cols, 10);
    assert_similar(dx, DTYPE_F32, 10, 3e-6, "dx");
    assert_similar(dw, DTYPE_F32, 10, 3e-6, "dw");
    assert_similar(db, DTYPE_F32, 10, 3e-6, "db");
}

CASES(rms_norm, 20)
{
    int64_t rows, cols;

    any_shape(r, &rows, &cols);
    check_rms_norm(r, rows, cols);
}

CASES(layer_norm, 20)
{
    int64_t rows, cols;

    any_shape(r, &rows, &cols);
    check_layer_norm(r, rows, cols + 4);
}

/* Rows that a warp, that a block, and that nobody keeps in registers (kernels/cuda/row.cuh). */
CASES(norms_of_long_rows, 6)
{
    static const int64_t COLS[] = { 1024, 1028, 2052, 4100, 8192, 8196, 8195 };

    for (size_t i = 0; i < sizeof COLS / sizeof *COLS; i++) {
        int64_t rows = COLS[i] < 4096 ? 20 : 2; /* several for each block */

        check_rms_norm(r, rows, COLS[i]);
        end();
        start(r);
        check_layer_norm(r, rows, COLS[i]);
        end();
        start(r);
    }
}

/* Whole packs or not: the order of the sum is the same. */
ALIGNED_CASES(gradients_of_biases, 10)
{
    enum dtype type = any_type(r);
    int64_t rows = rng_int(r, 0, 1300), cols = 8 * rng_int(r, 1, 80);
    struct pair sums = floats(r, cols, 1), again;
    struct pair dy = numbers(r, type, rows * cols, 1);
    struct pair moved = skewed_pair_of(dy.cpu, dy.n_bytes, dtype_bytes(type));

    again = pair_of(sums.cpu, sums.n_bytes);
    BOTH(bias_gradient, bias_gradient, AT(sums), AT(dy), type, rows, cols, .count = 0);
    assert_similar(sums, DTYPE_F32, 100, 1e-6, "bias gradient");
    BOTH(bias_gradient, bias_gradient, AT(again), AT(moved), type, rows, cols, .count = 0);
    again.cpu = from_gpu(&sums);
    assert_same_bits(again, "bias gradient without packs");
    free(again.cpu);
}

/* So many that a GPU sums them in parts. */
CASES(sums_over_many_rows, 6)
{
    int64_t rows = rng_int(r, 250, 1300), cols = rng_int(r, 1, 40), n = rows * cols;
    int count = (int)rng_int(r, 0, 2), blocks = rows % 3 == 0 ? 3 : 0;
    struct pair x = floats(r, n, 1), dy = floats(r, 2 * n, 1), w = floats(r, cols, 1);
    struct pair mean = floats(r, rows, 0.5), rstd = floats(r, rows, 1), dx = floats(r, n, 1);
    struct pair dw = floats(r, (cols + 2) * 3, 1), db = floats(r, (cols + 2) * 3, 1);
    struct pair dx_sum = floats(r, cols, 1);

    BOTH(bias_gradient, bias_gradient, AT(db), AT(dy), DTYPE_F32, rows, cols, count, cols + 2, n,
         .clear = true);
    assert_similar(db, DTYPE_F32, 100, 1e-6, "bias gradient");
    BOTH(rms_norm_backward, rms_norm_backward, AT(dx), AT(dw), AT(dy), AT(x), AT(rstd), AT(w), rows,
         cols, blocks, cols + 2, .dy_type = DTYPE_F32);
    assert_similar(dw, DTYPE_F32, 100, 1e-6, "dw of RMS norm");
    BOTH(layer_norm_backward, layer_norm_backward, AT(dx), AT(dw), AT(db), AT(dy), AT(x), AT(mean),
         AT(rstd), AT(w), rows, cols, blocks, cols + 2, DTYPE_F32, NULL,
         kept_sum(!blocks, &dx_sum));
    if (!blocks)
        assert_summed(dx_sum, &dx, rows, cols, 100);
    assert_similar(dw, DTYPE_F32, 100, 1e-6, "dw of layer norm");
    assert_similar(db, DTYPE_F32, 100, 1e-6, "db of layer norm");
}

/* ---- sums ---- */

CASES(sums, 20)
{
    int64_t rows, cols;
    int count = (int)rng_int(r, 1, 40), n_levels = (int)rng_int(r, 0, 3);

    any_shape(r, &rows, &cols);
    int64_t n = rows * cols, step = n + rng_int(r, 0, 3);
    struct pair y = floats(r, rows * (cols + 2), 1), x = floats(r, rows * (cols + 1), 1);
    struct pair parts = floats(r, count * step, 1), level = floats(r, n * 3, 1);

    BOTH(sum_add, sum_add, AT(y), AT(x), rows, cols, cols + 2, cols + 1);
    assert_same_bits(y, "sum");
    BOTH(sum_add, sum_add, AT(y), AT(x), rows, cols, cols + 2, 0);
    BOTH(sum_add, sum_add, AT(y), AT(x), rows, cols, 0, cols + 1);
    assert_same_bits(y, "sum of one row and many");
    BOTH(sum_tree, sum_tree, AT(parts), AT(parts), count, step, n);
    assert_same_bits(parts, "sum along the tree");
    BOTH(sum_levels, sum_levels, AT(x), AT(x), n_levels,
         { AT(level), (float *)AT(level) + n, (float *)AT(level) + 2 * n }, n);
    assert_same_bits(x, "sum of levels");
}

CASES(sums_of_doubles, 20)
{
    int64_t n = rng_int(r, 0, 600), size = rng_int(r, 1, 4), power = INT64_C(1) << rng_int(r, 0, 9);
    struct pair x = doubles(r, n * size), y = doubles(r, power), out = doubles(r, 1);

    BOTH(sum_doubles, sum_doubles, AT(x), AT(x), n, size);
    assert_same_bits(x, "sums of doubles");
    BOTH(sum_halves, sum_halves, AT(out), AT(y), power);
    assert_same_bits(out, "sum by halves");
}

/* ---- what is refused ---- */

Test(cuda_kernels, a_cast_of_whole_numbers_is_refused)
{
    struct rng r = rng_start("cuda/refused");
    struct tp_err err = { 0 };

    start(&r);
    cuda->kernels->cast(queue, &(struct cast){ NULL, DTYPE_F32, NULL, DTYPE_I64, 1 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert_str_eq(err.msg, "no conversion from i64 to f32");
}

Test(cuda_kernels, a_library_that_is_missing_or_another_is_refused)
{
    const struct cuda_library *library = NULL;
    struct tp_err err = { 0 };

    cr_assert_eq(cuda_library_load(&library, "/nowhere/libtp-cuda.so", &err), TP_E_NOTFOUND);
    cr_assert(strstr(err.msg, "/nowhere/libtp-cuda.so") && !library, "%s", err.msg);
    cr_assert_eq(cuda_library_load(&library, "libm.so.6", &err), TP_E_NOTFOUND);
    cr_assert(strstr(err.msg, "libm.so.6: version ") && !library, "%s", err.msg);
}
