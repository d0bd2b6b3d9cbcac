/* device/host_copy.c - see device/host_copy.h. */
#include "device/host_copy.h"

#include <string.h>

static tp_status copy_now(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct device_copy *c = args;
    char *dst = c->dst;
    const char *src = c->src;

    (void)q;
    (void)err;
    for (int64_t r = 0; r < c->rows; r++)
        memcpy(dst + r * c->dst_pitch, src + r * c->src_pitch, (size_t)c->row_bytes);
    return TP_OK;
}

void host_copy(struct device_queue *q, const struct device_copy *c)
{
    device_submit(q, &(struct device_operation){ copy_now, c, sizeof *c, 0 });
}

struct fill_args {
    void *dst;
    int byte;
    int64_t n_bytes;
};

static tp_status fill_now(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct fill_args *f = args;

    (void)q;
    (void)err;
    memset(f->dst, f->byte, (size_t)f->n_bytes);
    return TP_OK;
}

void host_copy_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes)
{
    const struct fill_args args = { dst, byte, n_bytes };

    device_submit(q, &(struct device_operation){ fill_now, &args, sizeof args, 0 });
}
