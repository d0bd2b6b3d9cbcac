/* device/cuda/cuda_queue.c - see device/cuda/cuda_queue.h. */
#include "device/cuda/cuda_queue.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "device/cuda/cuda_copy.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_error.h"

enum { SCRATCHES_MAX = 48 }; /* each is twice as large as the one before */

struct cuda_queue {
    struct device_queue queue;
    cudaStream_t stream;
    void *scratch[SCRATCHES_MAX]; /* the last one is in use; queued work may still use the others */
    int n_scratches;
    int64_t scratch_bytes; /* of the last one */
    struct cuda_attachment attachment;
};

static struct cuda_queue *queue_of(const struct device_queue *q)
{
    return (struct cuda_queue *)(uintptr_t)q; /* its first member */
}

/* ---- for kernels and collectives ---- */

bool cuda_queue_begin(struct device_queue *q)
{
    return cuda_device_begin(q->device);
}

struct CUstream_st *cuda_queue_stream(const struct device_queue *q)
{
    return queue_of(q)->stream;
}

struct cuda_attachment *cuda_queue_attachment(struct device_queue *q)
{
    return &queue_of(q)->attachment;
}

int cuda_queue_processors(const struct device_queue *q)
{
    return cuda_device_of(q->device)->processors;
}

int cuda_queue_capability(const struct device_queue *q)
{
    return cuda_device_of(q->device)->capability;
}

void cuda_queue_check(struct device_queue *q, const char *what, int error)
{
    cuda_device_check(q->device, what, error);
}

bool cuda_queue_probe(struct device_queue *q, const char *what)
{
    return cuda_device_probe(q->device, what);
}

/* ---- opening and closing ---- */

int cuda_queue_open_stream(struct CUstream_st **out, enum device_queue_kind kind)
{
    bool is_comm = kind == DEVICE_QUEUE_COMM || kind == DEVICE_QUEUE_EXCHANGE;
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (e != cudaSuccess)
        return e;
    return cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, is_comm ? greatest : least);
}

tp_status cuda_queue_open(struct device *d, struct device_queue **out, enum device_queue_kind kind,
                          struct tp_err *err)
{
    struct cuda_device *c = cuda_device_of(d);
    struct cuda_queue *q;
    int e;

    if (!cuda_device_begin(d))
        return cuda_device_failure(d, err);
    if (!(q = calloc(1, sizeof *q)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a queue of GPU %d", c->ordinal);
    q->queue = (struct device_queue){ .device = d, .kind = kind };
    if ((e = cuda_queue_open_stream(&q->stream, kind)) != cudaSuccess) {
        free(q);
        return cuda_error_fail(err, c->ordinal, "opening a stream", e);
    }
    *out = &q->queue;
    return TP_OK;
}

static void end_queue(struct cuda_queue *q)
{
    for (int i = 0; i < q->n_scratches; i++)
        (void)cudaFree(q->scratch[i]);
    (void)cudaStreamDestroy(q->stream);
}

/* After a failure a collective may wait for other ranks for ever, and cublasDestroy and cudaFree
 * wait for it. So what the queue has ends with the process. */
void cuda_queue_close(struct device_queue *queue)
{
    struct cuda_queue *q = queue_of(queue);
    bool works = cuda_device_begin(queue->device);

    if (works)
        cuda_device_check(queue->device, "work on a queue", cudaStreamSynchronize(q->stream));
    works = cuda_device_begin(queue->device);
    if (q->attachment.close)
        q->attachment.close(q->attachment.p, !works);
    if (works)
        end_queue(q);
    free(q);
}

/* ---- operations ---- */

void cuda_queue_submit(struct device_queue *q, const struct device_operation *o)
{
    struct cuda_device *c = cuda_device_of(q->device);
    struct tp_err err;

    (void)o;
    tp_fail(&err, TP_E_INTERNAL, "GPU %d cannot run a function of the host", c->ordinal);
    cuda_device_fail(q->device, &err);
}

/* When the memory has to grow, which happens in the first step only, the old memory is kept.
 * Freeing it would wait for all queued work, and that may wait for messages of which this rank has
 * not queued its part yet. cudaMalloc may let later work wait like that, too, so the new memory is
 * taken in the order of the stream. */
void *cuda_queue_scratch(struct device_queue *queue, int64_t n_bytes)
{
    struct cuda_device *c = cuda_device_of(queue->device);
    struct cuda_queue *q = queue_of(queue);
    struct tp_err err;
    void *p = NULL;

    if (q->n_scratches && n_bytes <= q->scratch_bytes)
        return q->scratch[q->n_scratches - 1];
    if (!cuda_device_begin(queue->device))
        return NULL;
    n_bytes = n_bytes > 2 * q->scratch_bytes ? n_bytes : 2 * q->scratch_bytes;
    if (q->n_scratches == SCRATCHES_MAX)
        tp_fail(&err, TP_E_INTERNAL, "scratch has grown %d times", q->n_scratches);
    if (q->n_scratches == SCRATCHES_MAX ||
        cuda_memory_take_queued(&c->memory, &p, n_bytes, q->stream, &err)) {
        cuda_device_fail(queue->device, &err);
        return NULL;
    }
    q->scratch[q->n_scratches++] = p;
    q->scratch_bytes = n_bytes;
    return p;
}

void cuda_queue_copy(struct device_queue *q, const struct device_copy *copy)
{
    struct cuda_device *c = cuda_device_of(q->device);

    if (cuda_device_begin(q->device))
        cuda_queue_check(q, "a copy", cuda_copy(queue_of(q)->stream, copy, c->pitch_max));
}

void cuda_queue_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes)
{
    if (cuda_device_begin(q->device))
        cuda_device_check(q->device, "a fill",
                          cudaMemsetAsync(dst, byte, (size_t)n_bytes, queue_of(q)->stream));
}
