/* reshard/port_memory.c - see reshard/port_memory.h. */
#include "reshard/port_memory.h"

#include <string.h>

/* Where a run of a region begins, and its bytes. */
static char *find_run(const struct memory_port *mp, int region, const struct box *run, size_t *n)
{
    const struct reshard_extent *r = &mp->regions[region];
    int elem = dtype_bytes(mp->dtypes[r->tensor]);

    *n = (size_t)(box_elements(run) * elem);
    return (char *)mp->data[region] + box_offset_in(&r->box, run) * elem;
}

static tp_status memory_read(void *ctx, int region, const struct box *run, void *buf,
                             struct tp_err *err)
{
    size_t n;
    const char *at = find_run(ctx, region, run, &n);

    (void)err;
    memcpy(buf, at, n);
    return TP_OK;
}

static tp_status memory_write(void *ctx, int region, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    size_t n;
    char *at = find_run(ctx, region, run, &n);

    (void)err;
    memcpy(at, buf, n);
    return TP_OK;
}

struct reshard_endpoint memory_port_make(struct memory_port *mp)
{
    return (struct reshard_endpoint){
        .what = "memory",
        .n_regions = mp->n,
        .regions = mp->regions,
        .dtypes = mp->dtypes,
        .ctx = mp,
        .read = memory_read,
        .write = memory_write,
    };
}
