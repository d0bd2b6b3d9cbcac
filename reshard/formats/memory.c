/* reshard/formats/memory.c - see reshard/formats/memory.h. */
#include "reshard/formats/memory.h"

#include <string.h>

/* Where a run of a extent begins, and its bytes. */
static char *find_run(const struct memory_endpoint *mp, int extent, const struct box *run,
                      size_t *n)
{
    const struct reshard_extent *r = &mp->extents[extent];
    int elem = dtype_bytes(mp->dtypes[r->tensor]);

    *n = (size_t)(box_elements(run) * elem);
    return (char *)mp->data[extent] + box_offset_in(&r->box, run) * elem;
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
    size_t n;
    char *at = find_run(ctx, extent, run, &n);

    (void)err;
    memcpy(at, buf, n);
    return TP_OK;
}

struct reshard_endpoint memory_endpoint_make(struct memory_endpoint *mp)
{
    return (struct reshard_endpoint){
        .name = "memory",
        .n_extents = mp->n,
        .extents = mp->extents,
        .dtypes = mp->dtypes,
        .ctx = mp,
        .read = memory_read,
        .write = memory_write,
    };
}
