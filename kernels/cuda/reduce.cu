/* kernels/cuda/reduce.cu - see kernels/cuda/reduce.cuh. */
#include "kernels/cuda/reduce.cuh"

bool reduce_plan_make(struct reduce_plan *p, struct device_queue *q, int64_t rows, int64_t cols,
                      int count, int sums)
{
    const int64_t parts = (rows + REDUCE_PART - 1) / REDUCE_PART;

    p->parts = nullptr;
    p->cols = cols;
    p->count = count;
    p->n_parts = (int)(parts < 1 ? 1 : parts < REDUCE_PARTS ? parts : (int64_t)REDUCE_PARTS);
    if (p->n_parts > 1)
        p->parts = static_cast<float *>(
            device_scratch(q, sums * p->n_parts * count * cols * (int64_t)sizeof *p->parts));
    return p->n_parts == 1 || p->parts;
}

/* A thread has a column of one of the sums. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    reduce_parts_kernel(const __grid_constant__ struct reduce_plan p, const float *parts,
                        float *out, int64_t out_step, bool is_stored)
{
    const int64_t n = p.count * p.cols;

    for (int64_t i = launch_thread(); i < n; i += launch_threads()) {
        float *to = out + i / p.cols * out_step + i % p.cols, sum = is_stored ? 0 : *to;

#pragma unroll 8
        for (int k = 0; k < p.n_parts; k++)
            sum += parts[k * n + i];
        *to = sum;
    }
}

void reduce_plan_add(struct device_queue *q, const struct reduce_plan *p, int i, float *out,
                     int64_t out_step, bool is_stored)
{
    const float *parts = reduce_plan_parts(p, i);

    if (parts)
        launch_elements(q, "a sum of parts", p->count * p->cols, reduce_parts_kernel, *p, parts,
                        out, out_step, is_stored);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    reduce_rows_kernel(const float *parts, int64_t rows, int64_t cols, float *first, float *second)
{
    const float *from = parts + blockIdx.y * rows * cols;
    float sums[1];

    reduce_columns<1>(sums, rows, cols, [&](int64_t row, int64_t col) {
        return pack_set<1, 1>{ { pack_load<1>(from, row * cols + col) } };
    });
    reduce_store<1>(blockIdx.y ? second : first, nullptr, cols, false, sums[0]);
}

void reduce_rows_add(struct device_queue *q, const float *parts, int64_t rows, int64_t cols,
                     float *const *out, int n_sums)
{
    launch(q, "a sum of parts", reduce_columns_grid(cols, n_sums), reduce_rows_kernel, parts, rows,
           cols, out[0], out[n_sums - 1]);
}
