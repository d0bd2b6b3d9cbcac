/* reshard/formats/torch/torchtitan_bias.c - see reshard/formats/torch/torchtitan_bias.h. */
#include "reshard/formats/torch/torchtitan_bias.h"

#include <string.h>

#include "reshard/formats/torch/torchtitan_map.h"

/* The first item of this name among the first n; -1: there is none. */
static int find(const struct dcp_items *d, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(d->items[i].item.name, name) == 0)
            return i;
    return -1;
}

static tp_status add_zeros(int *item, struct dcp_items *d, const struct model *m, const char *name,
                           struct tp_err *err)
{
    const int64_t shape[] = { m->experts };
    struct dcp_new_item bias = dcp_items_object(d, name);
    struct torch_target x;
    tp_status st;

    bias.item.is_object = false;
    bias.item.dtype = DTYPE_F32;
    bias.item.ndim = 1;
    bias.item.shape[0] = m->experts;
    bias.item.box = box_whole(1, shape);
    *item = d->n;
    st = dcp_items_begin(&x, d, 0, &bias, err);
    if (st)
        return st;
    torch_save_zeros(&x.save, DTYPE_F32, 1, shape);
    return dcp_items_end(&x, d, 0, err);
}

/* All boxes of an item by another name. */
static tp_status add_again(struct dcp_items *d, int n, int item, const char *name,
                           struct tp_err *err)
{
    const char *same = d->items[item].item.name;
    tp_status st = TP_OK;

    for (int i = item; i < n && !st; i++)
        if (strcmp(d->items[i].item.name, same) == 0)
            st = dcp_items_again(d, i, name, err);
    return st;
}

tp_status torchtitan_bias_add(struct dcp_items *d, const struct model *m, struct tp_err *err)
{
    const int n = d->n; /* what the source has is among these */
    int zeros = -1;
    tp_status st = TP_OK;

    for (int layer = 0; m->experts && layer < m->layers && !st; layer++) {
        const char *names[TORCHTITAN_NAMES];
        int found[TORCHTITAN_NAMES], source = -1;

        for (int k = 0; k < TORCHTITAN_NAMES; k++) {
            names[k] = torchtitan_map_bias(layer, k, d->arena);
            if (!names[k])
                return tp_fail(err, TP_E_NOMEM, "no memory for the items of .metadata");
            found[k] = find(d, n, names[k]);
            if (found[k] >= 0)
                source = found[k];
        }
        for (int k = 0; k < TORCHTITAN_NAMES && !st; k++) {
            if (found[k] >= 0)
                continue;
            st = source >= 0 ? add_again(d, n, source, names[k], err)
                 : zeros < 0 ? add_zeros(&zeros, d, m, names[k], err)
                             : dcp_items_again(d, zeros, names[k], err);
        }
    }
    return st;
}
