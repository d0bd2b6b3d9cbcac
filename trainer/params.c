/* trainer/params.c - see trainer/params.h. */
#include "trainer/params.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/cast.h"
#include "trainer/parallel.h"

enum { GAP_ELEMENTS = 16 }; /* tensors start on cache lines */

/* Whether a tensor goes straight behind the one before it: they are one matrix to the products. */
static bool joins_previous(const char *name)
{
    return strstr(name, ".k_proj.") || strstr(name, ".v_proj.") || strstr(name, ".up_proj.");
}

static tp_status add(struct params *p, const struct layout *l, int t, int rank, struct tp_err *err)
{
    const struct tensor *tensor = &l->tensors[t];
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    struct box boxes[TENSOR_BOXES_MAX];
    int n = layout_boxes(l, t, rank, boxes);
    struct param *q = &p->list[p->n];

    if (n > 1)
        return tp_fail(err, TP_E_INTERNAL, "%s: a fused tensor in %d parts", tensor->name, n);
    *q = (struct param){ .tensor = t,
                         .decay = tensor->ndim >= 2,
                         .shared = tensor->rule.share,
                         .counted = parallel_first_holder(tensor, &l->spec, at.tp) == at.tp };
    q->box.ndim = tensor->ndim;
    if (n == 1)
        q->box = boxes[0];
    q->n = n == 1 ? box_elements(&boxes[0]) : 0;
    if (!joins_previous(tensor->name))
        p->n_elements = (p->n_elements + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    q->at = p->n_elements;
    if (__builtin_add_overflow(p->n_elements, q->n, &p->n_elements))
        return tp_fail(err, TP_E_LAYOUT, "%s: too many parameters", tensor->name);
    p->n++;
    return TP_OK;
}

tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    tp_status st;

    *p = (struct params){ .dtype = dtype };
    p->list = arena_array(arena, (size_t)l->n_tensors, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int t = 0; t < l->n_tensors; t++)
        if (!strcmp(l->tensors[t].group, GROUP_PARAM) && (st = add(p, l, t, rank, err)))
            return st;
    p->n_elements = (p->n_elements + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    return TP_OK;
}

void params_take(struct params *p, struct span *shared, struct span *own)
{
    p->grad = span_take(shared, p->n_elements, sizeof(float));
    p->value = span_take(own, p->n_elements, sizeof(float));
    p->exp_avg = span_take(own, p->n_elements, sizeof(float));
    p->exp_avg_sq = span_take(own, p->n_elements, sizeof(float));
    if (p->dtype == DTYPE_BF16)
        p->value_bf16 = span_take(own, p->n_elements, sizeof(uint16_t));
}

int params_find(const struct params *p, const struct layout *l, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(l->tensors[p->list[i].tensor].name, name))
            return i;
    return -1;
}

const void *params_operand(const struct params *p, int64_t at)
{
    if (p->dtype == DTYPE_BF16)
        return p->value_bf16 + at;
    return p->value + at;
}

void params_round(struct params *p)
{
    if (p->value_bf16)
        cast(p->value_bf16, DTYPE_BF16, p->value, DTYPE_F32, p->n_elements);
}

void *params_span(const struct params *p, const char *group, enum dtype *dtype)
{
    *dtype = DTYPE_F32;
    if (!strcmp(group, GROUP_EXP_AVG))
        return p->exp_avg;
    if (!strcmp(group, GROUP_EXP_AVG_SQ))
        return p->exp_avg_sq;
    if (!strcmp(group, p->dtype == DTYPE_BF16 ? GROUP_MASTER : GROUP_PARAM))
        return p->value;
    if (!strcmp(group, GROUP_PARAM)) {
        *dtype = DTYPE_BF16;
        return p->value_bf16;
    }
    return NULL;
}
