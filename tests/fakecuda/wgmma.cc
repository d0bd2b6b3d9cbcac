/*
 * tests/fakecuda/wgmma.cc - products of warpgroups, as kernels/cuda/wgmma.cuh uses them: which lane
 * has which element, and what a matrix descriptor means, is as the PTX ISA says for
 * wgmma.mma_async.m64n64k16 and shared memory with swizzles of 128 bytes.
 *
 * A product runs as late as PTX allows: when its threads wait for its group. Until then its results
 * are not numbers, and what it reads may neither change in registers nor in shared memory. A warp
 * computes its 16 rows; when the block ends, the four warps of a warpgroup must have executed the
 * same products.
 */
#include <cuda_runtime.h>

#include <list>

#include "tests/fakecuda/block.h"

namespace
{

enum { LANES = 32, M = 16, N = 64, K = 16, RESULTS = M * N / LANES };

int64_t products;

struct product {
    float *d;
    const uint32_t *a; /* NULL: in shared memory */
    uint64_t descriptor_a, descriptor_b;
    bool adds, transposed, has_old;
    int group;
    unsigned warp;
    float old[RESULTS]; /* what it adds to, if no product before it still writes that */

    product()
    {
    }
};

/* The products of a thread that are not complete, the oldest first. A list: see async_copy.cc. */
struct products_of {
    std::list<product> in_flight;
    int group;      /* number of the group that is not committed */
    bool is_fenced; /* a fence, and no wait since */
};

products_of of_thread[fake::THREADS_MAX];

/* What the warps of the block have executed: how many products, and a sum of which. */
struct history {
    uint64_t n, sum;
} of_warp[fake::THREADS_MAX / fake::WARP];

products_of &mine()
{
    return of_thread[fake::here.thread];
}

bool is_first_lane()
{
    return fake::here.thread % LANES == 0;
}

/* ---- matrices in shared memory ---- */

/* Where 16 bytes of a matrix are: of row `row`, from byte `at` on. */
const char *place(uint64_t descriptor, int row, int at)
{
    const uint64_t begin = (descriptor & 0x3fff) * 16, stride = (descriptor >> 32 & 0x3fff) * 16;
    const uint64_t of_dynamic = fakecuda_shared_address(fake::dynamic_begin());
    uint64_t offset = (begin - of_dynamic) & 0x3ffff;

    offset += (uint64_t)(row / 8) * stride + (uint64_t)(row % 8) * 128 + (uint64_t)at;
    return fake::dynamic_begin() + (offset ^ (offset >> 7 & 7) << 4);
}

void check_descriptor(uint64_t descriptor, const void *pc)
{
    if (descriptor >> 62 != 1 || (descriptor >> 46 & 0xffff) != 0)
        fake::report(pc,
                     "wgmma: the descriptor %#zx has not the swizzle of 128 bytes, or a base "
                     "offset; the fake device knows no others",
                     (size_t)descriptor);
}

void watch_16(const char *p, const void *pc)
{
    if (p < fake::dynamic_begin() || p + 16 > fake::dynamic_begin() + fake::dynamic_bytes())
        fake::report(pc, "wgmma: %p is not in the block's dynamic shared memory", (const void *)p);
    fake::watch_product(p, 16, pc);
}

/* The reads of a warp. */
void watch(const product &p, const void *pc)
{
    if (!is_first_lane())
        return;
    for (int row = 0; row < M && !p.a; row++)
        for (int at = 0; at < K * 2; at += 16)
            watch_16(place(p.descriptor_a, (int)p.warp * M + row, at), pc);
    for (int row = 0; row < (p.transposed ? K : N); row++)
        for (int at = 0; at < (p.transposed ? N : K) * 2; at += 16)
            watch_16(place(p.descriptor_b, row, at), pc);
}

float number(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &wide, sizeof x);
    return x;
}

float element(uint64_t descriptor, int row, int col)
{
    uint16_t bits;

    memcpy(&bits, place(descriptor, row, col / 8 * 16) + col % 8 * 2, sizeof bits);
    return number(bits);
}

/* ---- products ---- */

void multiply(void *const *of_lane)
{
    const product *first = (const product *)of_lane[0];
    float a[M][K], b[K][N];

    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 8 && first->a; i++) {
            uint32_t word = ((const product *)of_lane[l])->a[i / 2];

            a[l / 4 + i / 2 % 2 * 8][l % 4 * 2 + i % 2 + i / 4 * 8] =
                number((uint16_t)(word >> i % 2 * 16));
        }
    for (int row = 0; row < M && !first->a; row++)
        for (int k = 0; k < K; k++)
            a[row][k] = element(first->descriptor_a, (int)first->warp * M + row, k);
    for (int k = 0; k < K; k++)
        for (int col = 0; col < N; col++)
            b[k][col] = first->transposed ? element(first->descriptor_b, k, col)
                                          : element(first->descriptor_b, col, k);
    for (int l = 0; l < LANES; l++) {
        const product *p = (const product *)of_lane[l];

        for (int i = 0; i < RESULTS; i++) {
            int row = l / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + l % 4 * 2 + i % 2;
            double sum = !p->adds ? 0 : (double)(p->has_old ? p->old[i] : p->d[i]);

            for (int k = 0; k < K; k++)
                sum += (double)a[row][k] * (double)b[k][col];
            p->d[i] = (float)sum;
        }
    }
    products++;
}

/* A product begins: what does not depend on when it runs. */
void begin(product *p, const void *pc)
{
    if (!mine().is_fenced)
        fake::report(pc, "wgmma: there is no wgmma.fence before it, since the last wait");
    if (!p->a)
        check_descriptor(p->descriptor_a, pc);
    check_descriptor(p->descriptor_b, pc);
    p->warp = fake::here.thread / LANES % 4;
    watch(*p, pc);
    if (!is_first_lane())
        return;
    history &h = of_warp[fake::here.thread / LANES];
    h.n++;
    h.sum = (h.sum ^ p->descriptor_b ^ (p->a ? 1 : p->descriptor_a << 7) ^ (uint64_t)pc << 20) *
            0x100000001b3u;
}

void fill(product *p, float *d, const uint32_t *a, uint64_t descriptor_a, uint64_t descriptor_b,
          bool adds, bool transposed)
{
    p->d = d;
    p->a = a;
    p->descriptor_a = descriptor_a;
    p->descriptor_b = descriptor_b;
    p->adds = adds;
    p->transposed = transposed;
    p->has_old = false;
    p->group = mine().group;
}

} // namespace

int64_t fake::wgmma_products()
{
    return products;
}

void fake::wgmma_begin_block()
{
    for (history &h : of_warp)
        h = { 0, 0 };
}

void fake::wgmma_end_thread()
{
    if (!mine().in_flight.empty())
        report(nullptr, "a thread ends, and has not waited for its products (wgmma)");
    mine().is_fenced = false;
}

void fake::wgmma_end_block()
{
    for (unsigned w = 0; w < block.n / WARP; w++) {
        const history &h = of_warp[w], &first = of_warp[w / 4 * 4];

        if (h.n != first.n || h.sum != first.sum)
            report(nullptr,
                   "wgmma: warps %u and %u of a warpgroup have executed different products: %zu "
                   "and %zu (%s, block %u)",
                   w / 4 * 4, w, (size_t)first.n, (size_t)h.n, symbol_of(here.kernel), here.block);
        if (h.n && (w / 4 + 1) * 4 > block.n / WARP)
            report(nullptr, "wgmma: warp %u is not in a warpgroup of four warps", w);
    }
}

void fakecuda_wgmma_m64n64k16(float *d, const uint32_t *a, uint64_t descriptor_a,
                              uint64_t descriptor_b, bool adds, bool transposed)
{
    const void *pc = __builtin_return_address(0);
    bool is_written = false;

    for (const product &before : mine().in_flight)
        is_written = is_written || before.d == d;
    product &p = mine().in_flight.emplace_back();
    fill(&p, d, a, descriptor_a, descriptor_b, adds, transposed);
    begin(&p, pc);
    if (!is_written) {
        p.has_old = true;
        fake::copy_unwatched(p.old, d, sizeof p.old);
        fake::fill_unwatched(d, 0xff, sizeof p.old);
    }
}

void fakecuda_wgmma_now(float *d, const uint32_t *a, uint64_t descriptor_a, uint64_t descriptor_b,
                        bool adds, bool transposed)
{
    const void *pc = __builtin_return_address(0);
    product p;

    fill(&p, d, a, descriptor_a, descriptor_b, adds, transposed);
    begin(&p, pc);
    fake::warp_together("wgmma", multiply, &p, pc);
}

void fakecuda_wgmma_fence()
{
    mine().is_fenced = true;
}

void fakecuda_wgmma_commit()
{
    mine().group++;
}

/* Until at most n_groups of the groups that are committed are not complete. */
void fakecuda_wgmma_wait(int n_groups)
{
    const void *pc = __builtin_return_address(0);
    products_of &t = mine();

    while (!t.in_flight.empty() && t.in_flight.front().group < t.group - n_groups) {
        watch(t.in_flight.front(), pc);
        fake::warp_together("wgmma.wait_group", multiply, &t.in_flight.front(), pc);
        t.in_flight.pop_front();
    }
    t.is_fenced = false;
}

void fakecuda_fence_proxy_async()
{
    fake::here.proxy_fences[fake::here.thread]++;
}
