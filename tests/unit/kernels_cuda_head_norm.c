/*
 * tests/unit/kernels_cuda_head_norm.c - norms of each head's queries and keys, whole or cut, f32
 * and bf16: the CUDA kernels against the CPU's, on the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: kernels/cuda/head_norm
 */
#include "tests/unit/cuda_arrays.h"

/* Heads of rows that have more: in packs of 16 bytes, or not; narrower than a warp, or wider. */
static void head_norm_case(struct rng *r, bool is_kept, int64_t rows)
{
    const int pack = rng_int(r, 0, 2) ? 8 : 1;
    const int64_t head_dim = pack * rng_int(r, 1, (rng_int(r, 0, 3) ? 128 : 320) / pack);
    const int64_t heads = rng_int(r, 1, 5), width = heads * head_dim;
    const int64_t ldx = width + pack * rng_int(r, 0, 2), ldy = width + pack * rng_int(r, 0, 2);
    const int64_t column = ldy - width, step = head_dim + rng_int(r, 0, 2);
    const int blocks = rows % 3 == 0 && rng_int(r, 0, 1) ? 3 : 0;
    const double error = is_kept ? 2e-6 : 1e-6;
    struct pair x = is_kept ? numbers_kept(r, rows * ldx, 3) : floats(r, rows * ldx, 3);
    struct pair y = is_kept ? numbers_kept(r, rows * ldy, 1) : floats(r, rows * ldy, 1);
    struct pair w = floats(r, head_dim, 2), rstd = floats(r, rows * heads, 1);
    struct pair dw = floats(r, 3 * step, 1), sums = floats(r, rows * heads, 1);
    const bool is_cut = rng_int(r, 0, 1);
    const float columns = is_cut ? 1.5f * (float)head_dim : 0;

#define TYPE      (is_kept ? KEPT : DTYPE_F32)
#define AT_COLUMN ((char *)AT(y) + column * dtype_bytes(TYPE))
#define SUMS      (is_cut ? AT(sums) : NULL)
    BOTH(head_norm_sums, head_norm_sums, AT(sums), AT(x), NULL, ldx, ldy, TYPE, AT(w), rows, heads,
         head_dim);
    assert_similar(sums, DTYPE_F32, 0, 4e-6, "sums of squares");
    BOTH(head_norm_forward, head_norm_forward, AT_COLUMN, AT(x), ldy, ldx, TYPE, AT(rstd), AT(w),
         rows, heads, head_dim, 1e-5f, SUMS, columns);
    assert_similar(rstd, DTYPE_F32, 0, is_cut ? 4e-6 : 1e-6, "rstd");
    assert_similar_types(y, is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, 1e-2, error,
                         "norm of heads");
    y = is_kept ? numbers_kept(r, rows * ldy, 1) : floats(r, rows * ldy, 1);
    BOTH(head_norm_sums, head_norm_sums, AT(sums), AT(x), AT_COLUMN, ldx, ldy, TYPE, AT(w), rows,
         heads, head_dim);
    assert_similar(sums, DTYPE_F32, (double)head_dim, 4e-6, "sums of d w x");
    BOTH(head_norm_backward, head_norm_backward, AT_COLUMN, AT(x), ldy, ldx, TYPE, AT(rstd), AT(w),
         AT(dw), rows, heads, head_dim, blocks, step, SUMS, columns);
    assert_similar(dw, DTYPE_F32, rows > 50 ? 100 : 20, 1e-6, "dw");
    assert_similar_types(y, is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, 10, error, "dx");
#undef SUMS
#undef AT_COLUMN
#undef TYPE
}

static void head_norms(const char *name, bool is_kept)
{
    struct rng r = rng_start(name);

    for (int i = 0; i < 24; i++) {
        start(&r);
        skew = rng_int(&r, 0, 3) == 0;
        head_norm_case(&r, is_kept, i % 8 ? rng_int(&r, 1, 12) : rng_int(&r, 100, 200));
        end();
    }
}

Test(cuda_head_norm, f32_heads)
{
    head_norms("cuda/head_norm", false);
}

Test(cuda_head_norm, bf16_heads)
{
    head_norms("cuda/head_norm kept", true);
}
