/* reshard/formats/memory.c - see reshard/formats/memory.h. */
#include "reshard/formats/memory.h"

#include <string.h>

/* The address and the bytes of a run of an extent. */
static char *find_run(const struct memory_endpoint *m, int extent, const struct box *run,
                      size_t *n_bytes)
{
    const struct reshard_extent *e = &m->extents[extent];
    int elem = dtype_bytes(m->dtypes[e->tensor]);

    *n_bytes = (size_t)(box_elements(run) * elem);
    return (char *)m->data[extent] + box_offset_in(&e->box, run) * elem;
}

static tp_status memory_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    size_t n;
    const char *at = find_run(ctx, extent, run, &n);

    (void)err;
    memcpy(buf, at, n);
    return TP_OK;
}

static tp_status memory_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    const struct memory_endpoint *m = ctx;
    size_t n;
    char *at = find_run(m, extent, run, &n);

    if (at == buf) /* it was gathered here */
        return TP_OK;
    if (m->staging)
        return staging_put(m->staging, at, buf, (int64_t)n, err);
    memcpy(at, buf, n);
    return TP_OK;
}

static void *memory_place(const void *ctx, int extent, const struct box *run)
{
    size_t n;

    return find_run(ctx, extent, run, &n);
}

struct reshard_endpoint memory_endpoint_make(struct memory_endpoint *m)
{
    return (struct reshard_endpoint){
        .name = "memory",
        .n_extents = m->n,
        .extents = m->extents,
        .dtypes = m->dtypes,
        .ctx = m,
        .read = memory_read,
        .write = memory_write,
        .place = memory_place,
    };
}
