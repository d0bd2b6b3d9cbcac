/* tests/fakecuda/product.cc - see tests/fakecuda/product.h. */
#include "tests/fakecuda/product.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fake
{

void matrix_check(const char *call, const char *name, const matrix &x)
{
    const char *begin;
    size_t size, n = (size_t)(((x.stored_cols() - 1) * x.ld + x.stored_rows()) * x.width());

    if (x.type != CUDA_R_32F && x.type != CUDA_R_16BF)
        report(nullptr, "%s: %s has the type %d, which the fake device lacks", call, name,
               (int)x.type);
    if (x.ld < x.stored_rows() || x.ld < 1)
        report(nullptr, "%s: the leading dimension of %s is %lld, and it has %lld rows", call, name,
               (long long)x.ld, (long long)x.stored_rows());
    if (x.rows == 0 || x.cols == 0)
        return;
    if (!is_kind(DEVICE_MEMORY, x.at) || !memory_contains(DEVICE_MEMORY, x.at, n, &begin, &size))
        report(nullptr, "%s: %zu bytes of %s at %p are not in device memory", call, n, name,
               (void *)x.at);
    if ((uintptr_t)x.at % (uintptr_t)x.width())
        report(nullptr, "%s: %s at %p is misaligned", call, name, (void *)x.at);
}

product product_of(const product &p, const product_batch &batch, int64_t i)
{
    product one = p;

    one.a.at += i * batch.step_a;
    one.b.at += i * batch.step_b;
    one.c.at += i * batch.step_c;
    if (one.bias)
        one.bias = (const char *)one.bias + i * batch.step_bias;
    return one;
}

/* Whether a matrix shares elements with one of its shape that begins `apart` bytes after it. */
static bool overlap(const matrix &x, int64_t apart)
{
    const int64_t ld = x.ld * x.width(), rows = x.stored_rows() * x.width();
    const int64_t col = apart / ld, row = apart % ld;

    return (row < rows && col < x.stored_cols()) || (ld - row < rows && col + 1 < x.stored_cols());
}

void product_check(const char *call, const product &p, const product_batch &batch)
{
    for (int64_t i = 0; i < batch.count; i++) {
        const product one = product_of(p, batch, i);

        matrix_check(call, "A", one.a);
        matrix_check(call, "B", one.b);
        matrix_check(call, "C", one.c);
        if (i > 0 && overlap(p.c, i * std::abs(batch.step_c)))
            report(nullptr, "%s: C of products that are %lld apart in a batch overlap", call,
                   (long long)i);
    }
}

static float element(cudaDataType type, const void *at, int64_t i)
{
    uint32_t bits;
    float f;

    if (type == CUDA_R_32F)
        return ((const float *)at)[i];
    bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest even. */
static void put(const matrix &x, int64_t i, float f)
{
    uint32_t bits;

    if (x.type == CUDA_R_32F) {
        ((float *)x.at)[i] = f;
        return;
    }
    memcpy(&bits, &f, sizeof bits);
    if (f == f)
        bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)x.at)[i] = (uint16_t)(bits >> 16 | (f == f ? 0 : 0x40));
}

/* op(X), row-major, so that the loops below run along rows. */
static std::vector<float> load(const matrix &x)
{
    std::vector<float> y((size_t)(x.rows * x.cols));

    for (int64_t j = 0; j < x.stored_cols(); j++) {
        watch_read(x.at + j * x.ld * x.width(), (size_t)(x.stored_rows() * x.width()));
        for (int64_t i = 0; i < x.stored_rows(); i++)
            y[(size_t)(x.trans ? j * x.cols + i : i * x.cols + j)] =
                element(x.type, x.at, j * x.ld + i);
    }
    return y;
}

static float gelu(float x)
{
    return x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));

    return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* What becomes of element i, j of the product. */
static float finish(const product &p, int64_t at_u, float x)
{
    if (p.after == GELU_GRADIENT)
        return x * gelu_slope(element(p.u.type, p.u.at, at_u));
    if (p.after == STORE)
        return x;
    put(p.u, at_u, x);
    return gelu(x);
}

void product_run(const product &p)
{
    const matrix &c = p.c;
    const int64_t n = p.b.cols;
    std::vector<float> x = load(p.a), y = load(p.b), old, row((size_t)n);

    if (p.beta != 0) /* otherwise C may have any content */
        old = load(c);
    if (p.bias)
        watch_read(p.bias, (size_t)(c.rows * c.width()));
    for (int64_t j = 0; j < n && p.after; j++) {
        char *u = p.u.at + j * p.u.ld * p.u.width();
        const size_t n_bytes = (size_t)(c.rows * p.u.width());

        if (p.after == GELU)
            watch_fill(u, n_bytes);
        else
            watch_read(u, n_bytes);
    }
    for (int64_t j = 0; j < n; j++)
        watch_fill(c.at + j * c.ld * c.width(), (size_t)(c.rows * c.width()));
    for (int64_t i = 0; i < p.a.rows; i++) {
        const float bias = p.bias ? element(c.type, p.bias, i) : 0;

        std::fill(row.begin(), row.end(), 0.f);
        for (int64_t l = 0; l < p.a.cols; l++) {
            const float *from = &y[(size_t)(l * n)], by = x[(size_t)(i * p.a.cols + l)];
            for (int64_t j = 0; j < n; j++)
                row[(size_t)j] += by * from[j];
        }
        for (int64_t j = 0; j < n; j++)
            put(c, j * c.ld + i,
                finish(p, j * p.u.ld + i,
                       p.alpha * row[(size_t)j] +
                           (p.beta != 0 ? p.beta * old[(size_t)(i * n + j)] : 0) + bias));
    }
}

} // namespace fake
