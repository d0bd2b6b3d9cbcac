/* reshard/restore.c - see reshard/restore.h. */
#include "reshard/restore.h"

#include <stdlib.h>
#include <string.h>

#include "reshard/port_ckpt.h"
#include "reshard/port_memory.h"
#include "reshard/safetensors.h"

/* Plan and execute; from->check sees to the checksums. */
static tp_status run(const struct reshard_endpoint *from, struct memory_port *to,
                     const struct move *base, struct move_stats *stats, struct tp_err *err)
{
    struct reshard_endpoint port = memory_port_make(to);
    struct move m = *base;
    struct move_plan *plan = NULL;
    tp_status st;

    m.from = from;
    m.to = &port;
    m.partial = true;
    TP_TRY(move_plan(&plan, &m, err));
    TP_TRY(move_execute(plan, stats, err));
done:
    move_plan_free(plan);
    return st;
}

static struct move_tensor *name_tensors(const struct manifest *m, const int *ids, int n)
{
    struct move_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);

    for (int i = 0; tensors && i < n; i++) {
        const struct tensor *t = &m->layout.tensors[ids[i]];

        tensors[i] = (struct move_tensor){ .name = t->name, .ndim = t->ndim };
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    return tensors;
}

tp_status restore_boxes(const char *dir, const struct manifest *m, const int *ids, int n,
                        const struct reshard_extent *regions, void *const *data,
                        const enum dtype *dtypes, int n_regions, int64_t memory_bytes, int jobs,
                        struct move_stats *stats, struct tp_err *err)
{
    struct memory_port to = { regions, dtypes, data, n_regions };
    struct move_tensor *tensors = name_tensors(m, ids, n);
    struct move move = {
        .n_tensors = n, .tensors = tensors, .memory_bytes = memory_bytes, .jobs = jobs
    };
    struct ckpt_source *source = NULL;
    tp_status st = TP_OK;

    if (!tensors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to restore %d tensors", dir, n);
    TP_TRY(ckpt_source_open(&source, dir, m, ids, n, NULL, err));
    TP_TRY(run(ckpt_source_port(source), &to, &move, stats, err));
    stats->bytes_read += ckpt_source_other_bytes(source);
done:
    ckpt_source_close(source);
    free(tensors);
    return st;
}

tp_status restore_safetensors(const char *path, const struct move_tensor *tensors, int n,
                              const struct reshard_extent *regions, void *const *data,
                              const enum dtype *dtypes, int n_regions, int64_t memory_bytes,
                              int jobs, struct move_stats *stats, struct tp_err *err)
{
    struct memory_port to = { regions, dtypes, data, n_regions };
    struct move move = {
        .n_tensors = n, .tensors = tensors, .memory_bytes = memory_bytes, .jobs = jobs
    };
    struct safetensors_source *source = NULL;
    tp_status st;

    TP_TRY(safetensors_open(&source, path, err));
    TP_TRY(safetensors_select(source, tensors, n, err));
    TP_TRY(run(safetensors_source_port(source), &to, &move, stats, err));
done:
    safetensors_source_close(source);
    return st;
}
