/*
 * reshard/formats/gguf/gguf_tensors.h - the tensors of a GGUF file, and where the model's tensors
 * are in them.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_TENSORS_H
#define RESHARD_FORMATS_GGUF_GGUF_TENSORS_H

#include "core/arena.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/gguf/gguf_model.h"

enum { GGUF_ALIGN = 32, GGUF_NDIM_MAX = 3, GGUF_NAME_MAX = 64 };

/* ggml's numbers of types. */
enum gguf_type { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30 };

/* A tensor of the file. */
struct gguf_tensor {
    char name[GGUF_NAME_MAX];
    int ndim;
    int64_t dims[GGUF_NDIM_MAX]; /* the fastest first */
    enum gguf_type type;
    int64_t begin, bytes; /* from the first byte of data */
};

/* In which order a tensor's rows are in the file. */
enum gguf_order {
    GGUF_ORDER_SAME,
    GGUF_ORDER_PAIRS,      /* row (head, half, i) is (head, i, half) */
    GGUF_ORDER_QKV,        /* row (head, q or k or v, i) is (q or k or v, head, i) */
    GGUF_ORDER_TRANSPOSED, /* rows become columns */
};

/* Where a tensor of the model goes. A vector is rows of one element. */
struct gguf_part {
    const char *name; /* of the model's tensor */
    enum gguf_type type;
    enum gguf_order order;
    bool plus_one;
    int64_t rows, columns; /* of the model's tensor */
    int64_t head_dim, heads;
    int64_t begin; /* from the first byte of data */
};

struct gguf_tensors {
    struct gguf_tensor *list;
    int n;
    struct gguf_part *parts; /* [tensors that are written] in their order */
    int64_t bytes;           /* of all data */
    int rope_factors;        /* the tensor of factors in list; -1: none */
};

/* Lay out the tensors that q writes, in the arena. */
tp_status gguf_tensors_make(struct gguf_tensors *out, const struct gguf_arch *a,
                            const struct export_contents *q, struct arena *arena,
                            struct tp_err *err);

/* Add the tensors' entries to the header. */
void gguf_tensors_entries(struct gguf_bytes *b, const struct gguf_tensors *t);

/* Bytes of n elements; a multiple of 32 for Q8_0. */
int64_t gguf_type_bytes(enum gguf_type type, int64_t n);

/* The type in which the engine delivers elements that are stored as `type`. */
enum dtype gguf_type_dtype(enum gguf_type type);

/* The row of the file's tensor that row `row` becomes; not for GGUF_ORDER_TRANSPOSED. */
int64_t gguf_part_row(const struct gguf_part *p, int64_t row);

#endif
