/*
 * torch/torch_tensor.h - tensors in the pickle of a torch file: type, shape, and where the elements
 * are in the file.
 */
#ifndef TORCH_TORCH_TENSOR_H
#define TORCH_TORCH_TENSOR_H

#include "layout/box.h"
#include "layout/dtype.h"
#include "torch/torch_file.h"

struct torch_tensor {
    enum dtype dtype; /* DTYPE_COUNT: a type that is not supported here */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    int64_t stride[BOX_NDIM_MAX];     /* elements; above 0, but where it means nothing */
    int64_t begin;                    /* byte of the first element, in the file itself */
    const struct zip_member *storage; /* the member that has it */
};

/* Whether a value is a tensor. */
bool torch_tensor_is(const struct pickle_value *v);

/* Whether a value is a tensor of which this file has the part of one rank: a DTensor, or a
 * ShardedTensor. */
bool torch_tensor_is_part(const struct pickle_value *v);

/* Read one. `name` is for messages. TP_E_CORRUPT: it is not a tensor, or it reaches out of its
 * storage; the message says how. */
tp_status torch_tensor_read(struct torch_tensor *out, const struct torch_file *f,
                            const struct pickle_value *v, const char *name, struct tp_err *err);

/* The type that a value such as torch.bfloat16 names; DTYPE_COUNT: another one, or no type. */
enum dtype torch_tensor_dtype(const struct pickle_value *v);

#endif
