/* kernels/cuda/reduce.cu - see kernels/cuda/reduce.cuh. */
#include "kernels/cuda/reduce.cuh"

/* Blocks on a processor, with registers for the loads that are in flight together: these kernels
 * have few blocks, and wait for memory. */
enum { SUM_BLOCKS = 4, SUM_LOADS = 16 };

int reduce_full_parts(const struct device_queue *q, int64_t cols, int count, int width,
                      int blocks_a_processor)
{
    const int64_t blocks = launch_blocks(q, INT64_MAX, blocks_a_processor);
    const int64_t parts = blocks / (pack_count(cols, 32 * width) * count);

    return (int)(parts < 1 ? 1 : parts < REDUCE_PARTS ? parts : (int64_t)REDUCE_PARTS);
}

/* No part is without rows. */
bool reduce_plan_make(struct reduce_plan *p, struct device_queue *q, int64_t rows, int64_t cols,
                      int count, int sums, int most_parts)
{
    const int64_t least = (int64_t)REDUCE_PART * most_parts;
    const int64_t each = (rows + least - 1) / least * REDUCE_PART;

    p->parts = nullptr;
    p->cols = cols;
    p->count = count;
    p->n_parts = each > 0 ? (int)((rows + each - 1) / each) : 1;
    if (p->n_parts > 1)
        p->parts = static_cast<float *>(
            device_scratch(q, sums * p->n_parts * count * cols * (int64_t)sizeof *p->parts));
    return p->n_parts == 1 || p->parts;
}

/* A column here is one of one of the sums. Few threads have one each, so eight warps share the
 * parts of each. */
__global__ void __launch_bounds__(LAUNCH_THREADS, SUM_BLOCKS)
    reduce_parts_kernel(const __grid_constant__ struct reduce_plan p, const float *parts,
                        float *out, int64_t out_step, bool is_stored)
{
    const int64_t n = p.count * p.cols, i = reduce_column<1>(n);
    float sums[1];

    reduce_columns<1, SUM_LOADS>(sums, p.n_parts, n, [&](int64_t part, int64_t col) {
        return pack_set<1, 1>{ { pack_load<1>(parts, part * n + col) } };
    });
    if (i >= 0) {
        float *to = out + i / p.cols * out_step + i % p.cols;

        *to = is_stored ? sums[0] : *to + sums[0];
    }
}

void reduce_plan_add(struct device_queue *q, const struct reduce_plan *p, int i, float *out,
                     int64_t out_step, bool is_stored)
{
    const float *parts = reduce_plan_parts(p, i);

    if (parts)
        launch(q, "a sum of parts", reduce_columns_grid(p->count * p->cols, 1), reduce_parts_kernel,
               *p, parts, out, out_step, is_stored);
}

__global__ void __launch_bounds__(LAUNCH_THREADS, SUM_BLOCKS)
    reduce_rows_kernel(const float *parts, int64_t rows, int64_t cols,
                       const __grid_constant__ struct reduce_outputs out)
{
    const float *from = parts + blockIdx.y * rows * cols;
    float sums[1];

    reduce_columns<1, SUM_LOADS>(sums, rows, cols, [&](int64_t row, int64_t col) {
        return pack_set<1, 1>{ { pack_load<1>(from, row * cols + col) } };
    });
    reduce_store<1>(out.of[blockIdx.y], nullptr, cols, false, sums[0]);
}

int reduce_outputs_count(const struct reduce_outputs *out)
{
    const int most = (int)(sizeof out->of / sizeof *out->of);
    int n = 0;

    while (n < most && out->of[n])
        n++;
    return n;
}

void reduce_rows_add(struct device_queue *q, const float *parts, int64_t rows, int64_t cols,
                     const struct reduce_outputs *out)
{
    launch(q, "a sum of parts", reduce_columns_grid(cols, reduce_outputs_count(out)),
           reduce_rows_kernel, parts, rows, cols, *out);
}
