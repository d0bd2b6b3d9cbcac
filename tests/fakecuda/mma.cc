/*
 * tests/fakecuda/mma.cc - tensor cores, as kernels/cuda/mma.cuh uses them: which lane has which
 * element of a matrix is as the PTX ISA says for mma.m16n8k16 and ldmatrix. Tensor cores round
 * their sums in ways that nobody documents; here a sum is rounded once.
 */
#include <cuda_runtime.h>

#include "kernels/cpu/vec.h"
#include "tests/fakecuda/fake.h"

namespace
{

enum { LANES = 32 };

int64_t products;

float element(const uint32_t *words, int i)
{
    uint32_t bits = (words[i / 2] >> (i % 2 * 16)) << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

struct product {
    float *d;
    const uint32_t *a, *b;
};

/* Gather the matrices from the lanes' fragments, multiply them, and give each lane its part. */
void multiply(void *const *of_lane)
{
    float a[16][16], b[16][8];

    for (int l = 0; l < LANES; l++) {
        const product *p = (const product *)of_lane[l];
        int g = l / 4, t = l % 4;

        for (int i = 0; i < 8; i++)
            a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = element(p->a, i);
        for (int i = 0; i < 4; i++)
            b[2 * t + i % 2 + i / 2 * 8][g] = element(p->b, i);
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            float *d = &((const product *)of_lane[l])->d[i];
            int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2;
            double sum = *d;

            for (int k = 0; k < 16; k++)
                sum += (double)a[row][k] * (double)b[k][col];
            *d = (float)sum;
        }
    products++;
}

struct load {
    uint32_t *to;
    const uint16_t *row;
    bool transposed;
};

void load_matrices(void *const *of_lane)
{
    for (int l = 0; l < LANES; l++) {
        const load *mine = (const load *)of_lane[l];

        for (int m = 0; m < 4; m++) {
            uint32_t two[2];

            for (int i = 0; i < 2; i++) {
                int row = l / 4, col = l % 4 * 2 + i;

                if (mine->transposed)
                    std::swap(row, col);
                two[i] = ((const load *)of_lane[8 * m + row])->row[col];
            }
            mine->to[m] = two[0] | two[1] << 16;
        }
    }
}

} // namespace

int64_t fake::mma_products()
{
    return products;
}

void fakecuda_mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b)
{
    product p = { d, a, b };

    fake::warp_together("mma.sync", multiply, &p, __builtin_return_address(0));
}

void fakecuda_ldmatrix_x4(uint32_t *to, const uint16_t *row, bool transposed)
{
    const void *pc = __builtin_return_address(0);
    const char *p = (const char *)row;
    load l = { to, row, transposed };

    if (p < fake::shared_begin() || p + 16 > fake::shared_end())
        fake::report(pc, "ldmatrix: the row at %p is not in shared memory", (const void *)p);
    if ((uintptr_t)p % 16)
        fake::report(pc, "ldmatrix: the row at %p is not a multiple of 16", (const void *)p);
    fake::watch_load(row, 16, pc);
    fake::count_access(row, 16, false, pc);
    fake::warp_together("ldmatrix", load_matrices, &l, pc);
}

uint32_t fakecuda_cvt_bf16x2(float upper, float lower)
{
    return (uint32_t)vec_to_bf16(upper) << 16 | vec_to_bf16(lower);
}
