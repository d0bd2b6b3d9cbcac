/* reshard/restore.c - see reshard/restore.h. */
#include "reshard/restore.h"

#include <stdlib.h>
#include <string.h>

#include "device/staging.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/memory.h"
#include "reshard/formats/safetensors/safetensors.h"

/* For tiles that the device does not copy: those of more parts than a ring's tables have room
 * for. */
enum { STAGING_BYTES = 256 << 10 };

/* Plan and execute. Executing ends with the source's own check of its checksums. */
static tp_status copy_to(struct memory_endpoint *memory, const struct restore_request *q,
                         const struct reshard_endpoint *from, const struct reshard_tensor *tensors,
                         struct transfer_stats *stats, struct tp_err *err)
{
    struct reshard_endpoint to = memory_endpoint_make(memory);
    struct transfer t = { .n_tensors = q->n_tensors,
                          .tensors = tensors,
                          .from = from,
                          .to = &to,
                          .memory_bytes = q->memory_bytes,
                          .threads = q->threads,
                          .device = q->device,
                          .partial = true };
    struct transfer_plan *plan = NULL;
    tp_status st;

    TP_TRY(transfer_plan_make(&plan, &t, err));
    TP_TRY(transfer_execute(plan, stats, err));
done:
    transfer_plan_free(plan);
    return st;
}

static tp_status copy_to_memory(const struct restore_request *q,
                                const struct reshard_endpoint *from,
                                const struct reshard_tensor *tensors, struct transfer_stats *stats,
                                struct tp_err *err)
{
    struct memory_endpoint memory = { q->extents, q->dtypes, q->data, q->n_extents, NULL };
    struct device_queue *queue = NULL;
    struct staging staging = { 0 };
    tp_status st;

    if (!q->device)
        return copy_to(&memory, q, from, tensors, stats, err);
    TP_TRY(device_queue_open(q->device->device, &queue, DEVICE_QUEUE_COPY, err));
    TP_TRY(staging_open(&staging, queue, STAGING_BYTES, err));
    memory.staging = &staging;
    TP_TRY(copy_to(&memory, q, from, tensors, stats, err));
    st = staging_finish(&staging, err);
done:
    staging_close(&staging);
    device_queue_close(queue);
    return st;
}

/* The tensors of a manifest as the engine takes them; malloc'ed, NULL without memory. */
static struct reshard_tensor *describe_tensors(const struct manifest *m, const int *ids, int n)
{
    struct reshard_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);

    for (int i = 0; tensors && i < n; i++) {
        const struct tensor *t = &m->layout.tensors[ids[i]];

        tensors[i] = (struct reshard_tensor){ .name = t->name, .ndim = t->ndim };
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    return tensors;
}

tp_status restore_checkpoint(const struct restore_request *request, const struct ckpt_found *step,
                             const int *ids, struct transfer_stats *stats, struct tp_err *err)
{
    const int n = request->n_tensors;
    struct reshard_tensor *tensors = describe_tensors(&step->manifest, ids, n);
    struct checkpoint_source *source = NULL;
    tp_status st = TP_OK;

    if (!tensors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to restore %d tensors", step->dir, n);
    TP_TRY(checkpoint_source_open(&source, step, ids, n, NULL, err));
    TP_TRY(copy_to_memory(request, checkpoint_source_endpoint(source), tensors, stats, err));
    stats->bytes_read += checkpoint_source_other_bytes(source);
done:
    checkpoint_source_close(source);
    free(tensors);
    return st;
}

tp_status restore_safetensors(const struct restore_request *request, const char *path,
                              const struct reshard_tensor *tensors, struct transfer_stats *stats,
                              struct tp_err *err)
{
    struct safetensors_source *source = NULL;
    tp_status st;

    TP_TRY(safetensors_open(&source, path, err));
    TP_TRY(safetensors_dequantize(source, NULL, err));
    TP_TRY(safetensors_select(source, tensors, request->n_tensors, err));
    TP_TRY(copy_to_memory(request, safetensors_source_endpoint(source), tensors, stats, err));
done:
    safetensors_source_close(source);
    return st;
}
