/*
 * reshard/formats/gguf/gguf_matrix.h - matrices that are collected in memory until all of their
 * elements have come, in any order, because a store takes them transposed.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_MATRIX_H
#define RESHARD_FORMATS_GGUF_GGUF_MATRIX_H

#include <stdint.h>

#include "core/err.h"

struct gguf_matrices;

/* For n matrices, none of which has memory yet. */
tp_status gguf_matrices_new(struct gguf_matrices **out, int n, struct tp_err *err);

/* n bytes at byte `at` of matrix i, which has `bytes`; each byte comes once. *whole is the matrix
 * when these were its last bytes, and then the caller frees it; else NULL. Thread safe. */
tp_status gguf_matrices_add(char **whole, struct gguf_matrices *m, int i, int64_t bytes, int64_t at,
                            const void *data, int64_t n, struct tp_err *err);

/* Free; m may be NULL. */
void gguf_matrices_free(struct gguf_matrices *m);

#endif
