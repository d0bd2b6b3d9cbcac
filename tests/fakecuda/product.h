/*
 * tests/fakecuda/product.h - a product of matrices as plain loops, for the doubles of cuBLAS and
 * cuBLASLt.
 */
#ifndef TESTS_FAKECUDA_PRODUCT_H
#define TESTS_FAKECUDA_PRODUCT_H

#include <cublas_v2.h>

#include "tests/fakecuda/fake.h"

namespace fake
{

/* A stored matrix, column-major: op(X) has rows x cols. */
struct matrix {
    char *at;
    cudaDataType type;
    int64_t ld;
    bool trans;
    int64_t rows, cols;

    int64_t stored_rows() const
    {
        return trans ? cols : rows;
    }
    int64_t stored_cols() const
    {
        return trans ? rows : cols;
    }
    int64_t width() const
    {
        return type == CUDA_R_16BF ? 2 : 4;
    }
};

/* End the process if `call` cannot use x: its type, leading dimension, memory or alignment. */
void matrix_check(const char *call, const char *name, const matrix &x);

/* C = alpha op(A) op(B) + beta C; then bias[i], which has the type of C, is added to row i, if
 * there is one. Sums are f32, and C is rounded once. GELU (the form with tanh): the result goes to
 * u, which has C's type, and its GELU to C. GELU_GRADIENT: it is multiplied by the derivative of
 * GELU at u. By the operation that runs. */
enum then { STORE, GELU, GELU_GRADIENT };
struct product {
    matrix a, b, c;
    float alpha, beta;
    const void *bias;
    then after;
    matrix u;
};
void product_run(const product &p);

/* `count` products; the bytes from each matrix to the same one of the next product. */
struct product_batch {
    int64_t count = 1, step_a = 0, step_b = 0, step_c = 0, step_bias = 0;
};

/* Product i of a batch whose first one is p; and the end of the process if `call` cannot use the
 * matrices of all, or if two share elements of C, because products are computed in any order. */
product product_of(const product &p, const product_batch &batch, int64_t i);
void product_check(const char *call, const product &p, const product_batch &batch);

} // namespace fake

#endif
