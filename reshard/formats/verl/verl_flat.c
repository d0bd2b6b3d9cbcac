/* reshard/formats/verl/verl_flat.c - see reshard/formats/verl/verl_flat.h. */
#include "reshard/formats/verl/verl_flat.h"

#include "reshard/formats/pieces/flat_pieces.h"

/* Elements from .. to - 1 of a parameter go to byte `at` of the storage. */
static tp_status add_interval(struct torch_target *x, int storage, const struct module_param *p,
                              const char *group, int64_t from, int64_t to, int64_t at,
                              struct tp_err *err)
{
    const struct box whole = box_whole(p->ndim, p->shape);
    const int elem = dtype_bytes(module_param_dtype(p, group));
    int64_t stride[BOX_NDIM_MAX], i = from;
    tp_status st = TP_OK;

    flat_pieces_strides(stride, &whole);
    while (i < to && !st) {
        const struct box box = flat_pieces_box(&whole, stride, i, to);

        st = module_param_add(x, p, group, storage, &box, at + (i - from) * elem, err);
        i += box_elements(&box);
    }
    return st;
}

tp_status verl_flat_push(struct torch_target *x, const struct verl_flat *flat, int unit, int shard,
                         struct tp_err *err)
{
    const struct verl_units *u = flat->units;
    const struct verl_unit *list = &u->list[unit];
    const int64_t part = verl_units_part(u, unit), first = shard * part, end = first + part;
    const enum dtype dtype = module_param_dtype(flat->params[list->first], flat->group);
    const int storage = torch_save_tensor(&x->save, dtype, 1, &part);
    int64_t at = 0;
    tp_status st = TP_OK;

    for (int i = list->first; i <= list->last && !st; i++) {
        const int64_t n = verl_units_elements(&u->d->params[i]), from = first > at ? first - at : 0,
                      to = end < at + n ? end - at : n;

        if (u->of[i] != unit)
            continue;
        if (from < to)
            st = add_interval(x, storage, flat->params[i], flat->group, from, to,
                              (at + from - first) * dtype_bytes(dtype), err);
        at += n;
    }
    return st;
}
