/* device/cuda/cuda_copy.c - see device/cuda/cuda_copy.h. */
#include "device/cuda/cuda_copy.h"

#include <cuda_runtime_api.h>

static cudaError_t copy_bytes(void *dst, const void *src, int64_t n_bytes, cudaStream_t s)
{
    return cudaMemcpyAsync(dst, src, (size_t)n_bytes, cudaMemcpyDefault, s);
}

static cudaError_t copy_rows(const struct device_copy *c, int64_t pitch_max, cudaStream_t s)
{
    cudaError_t e = cudaSuccess;

    if (c->rows == 1)
        return copy_bytes(c->dst, c->src, c->row_bytes, s);
    if (c->dst_pitch <= pitch_max && c->src_pitch <= pitch_max)
        return cudaMemcpy2DAsync(c->dst, (size_t)c->dst_pitch, c->src, (size_t)c->src_pitch,
                                 (size_t)c->row_bytes, (size_t)c->rows, cudaMemcpyDefault, s);
    for (int64_t r = 0; r < c->rows && e == cudaSuccess; r++)
        e = copy_bytes((char *)c->dst + r * c->dst_pitch, (const char *)c->src + r * c->src_pitch,
                       c->row_bytes, s);
    return e;
}

/* One row to all. The rows that are there are copied behind themselves until there are enough. */
static cudaError_t repeat_row(const struct device_copy *c, int64_t pitch_max, cudaStream_t s)
{
    cudaError_t e = copy_bytes(c->dst, c->src, c->row_bytes, s);

    for (int64_t have = 1; have < c->rows && e == cudaSuccess; have *= 2) {
        const struct device_copy more = {
            .dst = (char *)c->dst + have * c->dst_pitch,
            .src = c->dst,
            .rows = c->rows - have < have ? c->rows - have : have,
            .row_bytes = c->row_bytes,
            .dst_pitch = c->dst_pitch,
            .src_pitch = c->dst_pitch,
        };

        e = copy_rows(&more, pitch_max, s);
    }
    return e;
}

int cuda_copy(struct CUstream_st *s, const struct device_copy *c, int64_t pitch_max)
{
    if (c->dst_pitch == c->row_bytes && c->src_pitch == c->row_bytes)
        return (int)copy_bytes(c->dst, c->src, c->rows * c->row_bytes, s);
    return (int)(c->src_pitch == 0 && c->rows > 1 ? repeat_row(c, pitch_max, s)
                                                  : copy_rows(c, pitch_max, s));
}
