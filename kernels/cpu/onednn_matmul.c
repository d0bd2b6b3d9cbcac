/* kernels/cpu/onednn_matmul.c - see kernels/cpu/onednn_matmul.h. */
#include "kernels/cpu/onednn_matmul.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the versions of oneDNN have in different ways ---- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t matrix_desc;

static dnnl_status_t matrix_desc_create(matrix_desc *out, const dnnl_dims_t dims,
                                        const dnnl_dims_t strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static void matrix_desc_destroy(matrix_desc d)
{
    dnnl_memory_desc_destroy(d);
}

static dnnl_status_t product_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         matrix_desc a, matrix_desc b, matrix_desc c)
{
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, NULL, c, NULL);
}

#else

typedef dnnl_memory_desc_t *matrix_desc;

static dnnl_status_t matrix_desc_create(matrix_desc *out, const dnnl_dims_t dims,
                                        const dnnl_dims_t strides, dnnl_data_type_t type)
{
    *out = malloc(sizeof **out);
    return *out ? dnnl_memory_desc_init_by_strides(*out, 2, dims, type, strides)
                : dnnl_out_of_memory;
}

static void matrix_desc_destroy(matrix_desc d)
{
    free(d);
}

static dnnl_status_t product_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                         matrix_desc a, matrix_desc b, matrix_desc c)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t s = dnnl_matmul_desc_init(&desc, a, b, NULL, c);

    return s ? s : dnnl_primitive_desc_create(out, &desc, NULL, engine, NULL);
}

#endif

/* ---- the primitive ---- */

/* Row-major rows x cols with ld between rows, as stored, seen transposed when trans. */
static dnnl_status_t stored_desc(matrix_desc *out, bool trans, int64_t rows, int64_t cols,
                                 int64_t ld, dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols };
    dnnl_dims_t strides = { trans ? 1 : ld, trans ? ld : 1 };

    return matrix_desc_create(out, dims, strides, type);
}

/* oneDNN 3.7 takes a matrix of one row or one column for dense, whatever its strides are, and then
 * reads or writes the wrong elements. */
static bool is_computed_wrongly(const struct onednn_matmul_shape *shape)
{
    return DNNL_VERSION_MAJOR >= 3 && (shape->m == 1 || shape->n == 1);
}

static bool is_reference(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
           strncmp(name, "ref", 3) == 0;
}

dnnl_status_t onednn_matmul_make(struct onednn_matmul *p, const struct onednn_matmul_shape *shape,
                                 dnnl_engine_t engine)
{
    matrix_desc a = NULL, b = NULL, c = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s;

    if (is_computed_wrongly(shape))
        return dnnl_unimplemented;
    if ((s = stored_desc(&a, shape->trans_a, shape->m, shape->k, shape->lda, dnnl_bf16)) ||
        (s = stored_desc(&b, shape->trans_b, shape->k, shape->n, shape->ldb, dnnl_bf16)) ||
        (s = stored_desc(&c, false, shape->m, shape->n, shape->ldc, dnnl_f32)) ||
        (s = product_desc_create(&pd, engine, a, b, c)))
        goto done;
    if (is_reference(pd)) {
        s = dnnl_unimplemented;
        goto done;
    }
    if ((s = dnnl_primitive_create(&p->primitive, pd)) ||
        (s = dnnl_memory_create(&p->a, a, engine, DNNL_MEMORY_NONE)) ||
        (s = dnnl_memory_create(&p->b, b, engine, DNNL_MEMORY_NONE)))
        goto done;
    s = dnnl_memory_create(&p->c, c, engine, DNNL_MEMORY_NONE);
done:
    dnnl_primitive_desc_destroy(pd);
    matrix_desc_destroy(a);
    matrix_desc_destroy(b);
    matrix_desc_destroy(c);
    return s;
}

void onednn_matmul_clear(struct onednn_matmul *p)
{
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->b);
    dnnl_memory_destroy(p->c);
    dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}
