/*
 * kernels/cuda/cuda.h - copies and conversions on a GPU: copy_box and cast on device memory.
 * Built only where nvcc is found. Everything is queued on a stream and returns at once; nothing
 * allocates, so the calls may be captured in a graph. Results are bit for bit those of the C
 * kernels.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/err.h"
#include "kernels/copy_body.h"
#include "layout/box.h"
#include "layout/dtype.h"

/* As CUDA declares it, so that callers compile without CUDA's headers. */
typedef struct CUstream_st *cudaStream_t;

/* copy_box (kernels/copy.h); dst and src are device memory. TP_E_INTERNAL: the launch failed. */
tp_status copy_box_cuda(void *dst, const struct box *dst_box, const void *src,
                        const struct box *src_box, const struct box *region, int elem_bytes,
                        cudaStream_t stream, struct tp_err *err);

/* Give the items of a table (made by copy_item_make with device pointers, in host memory) places
 * next to each other, so that many small ones fill the device. */
void copy_table_place(struct copy_item *items, int n_items);

/* All copies of a table in one launch. items is device memory and must stay until the stream has
 * passed; no destination overlaps another or a source. */
tp_status copy_table_cuda(const struct copy_item *items, int n_items, cudaStream_t stream,
                          struct tp_err *err);

/* cast (kernels/cast.h) in device memory; f32, bf16, f16 and f64 in any pairing. */
tp_status cast_cuda(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t n,
                    cudaStream_t stream, struct tp_err *err);

#ifdef __cplusplus
}
#endif

#endif
