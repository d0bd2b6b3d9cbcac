/* trainer/snapshot_copy.c - see trainer/snapshot_copy.h. */
#include "trainer/snapshot_copy.h"

#include "kernels/copy.h"
#include "kernels/copy_body.h"
#include "trainer/sizing/buffer_pool.h"

/* A GPU has engines for copies to the host, of equal rows at most; a kernel that writes there keeps
 * processors from training for as long as the bus needs. */
static void copy_part(struct device_queue *q, const struct kernel_ops *ops,
                      const struct copy_box *copy)
{
    struct copy_rows r;

    copy_rows_make(&r, &copy->dst_box, &copy->src_box, &copy->region, copy->elem_bytes);
    if (r.n_axes > 1)
        ops->copy_box(q, copy);
    else
        device_copy_2d(
            q, &(struct device_copy){ .dst = (char *)copy->dst + r.dst_offset,
                                      .src = (const char *)copy->src + r.src_offset,
                                      .rows = r.n_rows,
                                      .row_bytes = r.run_bytes,
                                      .dst_pitch = r.n_axes ? r.dst_stride[0] : r.run_bytes,
                                      .src_pitch = r.n_axes ? r.src_stride[0] : r.run_bytes });
}

/* Copy this rank's part of a box, entry by entry, because it may have several shards of a
 * tensor. */
static void copy_stored(struct device_queue *q, const struct kernel_ops *ops,
                        const struct layout *l, const struct params *p, const struct stored_box *e,
                        void *dst)
{
    const struct tensor *tensor = &l->tensors[e->tensor];
    const int param = layout_find(l, GROUP_PARAM, tensor->name);

    for (int i = param < 0 ? -1 : p->first_of[param]; i >= 0; i = p->list[i].next) {
        struct copy_box copy = { .dst = dst, .dst_box = e->box };
        enum dtype dtype;

        copy.src = params_place(p, i, tensor->group, &copy.src_box, &dtype);
        copy.elem_bytes = dtype_bytes(dtype);
        if (copy.src && box_meet(&copy.region, &copy.src_box, &e->box))
            copy_part(q, ops, &copy);
    }
}

void snapshot_copy(struct device_queue *q, const struct kernel_ops *ops,
                   const struct snapshot_shard *s, const struct params *p, char *copies)
{
    struct buffer_pool to = { .base = copies };

    for (int i = s->first; i < s->first + s->n_own; i++) {
        const struct stored_box *e = &s->boxes[i];
        enum dtype dtype = s->layout->tensors[e->tensor].dtype;

        copy_stored(
            q, ops, s->layout, p, e,
            buffer_pool_take(&to, BUFFER_STAGING, box_elements(&e->box), dtype_bytes(dtype)));
    }
}
