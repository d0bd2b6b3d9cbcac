/* device/cuda/cuda_memory.c - see device/cuda/cuda_memory.h. */
#include "device/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread_pool.h"
#include "device/cuda/cuda_error.h"

struct cuda_buffer {
    struct cuda_buffer *next;
    void *at;
    bool is_pinned;
};

/* Pinned memory that is set to zero: the copy of a state that is saved has many GB, more than one
 * thread clears in a moment. */
enum { CLEAR_BYTES = 16 << 20, CLEAR_THREADS = 8 };

struct cleared {
    char *at;
    size_t n;
};

tp_status cuda_memory_open(struct cuda_memory *m, int ordinal, struct tp_err *err)
{
    cudaError_t e;

    *m = (struct cuda_memory){ .ordinal = ordinal };
    pthread_mutex_init(&m->lock, NULL);
    e = cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking);
    return e == cudaSuccess ? TP_OK : cuda_error_fail(err, ordinal, "opening a stream", e);
}

static void give(void *p, bool is_pinned)
{
    (void)(is_pinned ? cudaFreeHost(p) : cudaFree(p));
}

/* Take the buffer at p, NULL: the first one, off the list. NULL: there is none. */
static struct cuda_buffer *take_off(struct cuda_memory *m, const void *p)
{
    struct cuda_buffer **link = &m->buffers, *b;

    pthread_mutex_lock(&m->lock);
    while (p && *link && (*link)->at != p)
        link = &(*link)->next;
    b = *link;
    if (b)
        *link = b->next;
    pthread_mutex_unlock(&m->lock);
    return b;
}

static void put_on(struct cuda_memory *m, struct cuda_buffer *b)
{
    pthread_mutex_lock(&m->lock);
    b->next = m->buffers;
    m->buffers = b;
    pthread_mutex_unlock(&m->lock);
}

static void drop(struct cuda_buffer *b, bool works)
{
    if (works)
        give(b->at, b->is_pinned);
    free(b);
}

void cuda_memory_close(struct cuda_memory *m, bool works)
{
    struct cuda_buffer *b;

    while ((b = take_off(m, NULL)))
        drop(b, works);
    if (m->stream && works)
        (void)cudaStreamDestroy(m->stream);
    pthread_mutex_destroy(&m->lock);
}

void cuda_memory_free(struct cuda_memory *m, void *p, bool works)
{
    struct cuda_buffer *b = take_off(m, p);

    if (b)
        drop(b, works);
}

static tp_status taken(const struct cuda_memory *m, int64_t n_bytes, cudaError_t e,
                       struct tp_err *err)
{
    char what[64];

    if (e == cudaErrorMemoryAllocation) {
        snprintf(what, sizeof what, "%lld bytes of tensors do not fit", (long long)n_bytes);
        return cuda_error_no_memory(err, m->ordinal, what);
    }
    return e == cudaSuccess ? TP_OK : cuda_error_fail(err, m->ordinal, "an allocation", e);
}

/* In a capture the allocation would become a part of the graph, and its memory end with it. */
tp_status cuda_memory_take_queued(const struct cuda_memory *m, void **out, int64_t n_bytes,
                                  struct CUstream_st *stream, struct tp_err *err)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    size_t n = n_bytes > 0 ? (size_t)n_bytes : 1;
    cudaError_t e = cudaStreamIsCapturing(stream, &status);

    if (e == cudaSuccess && status != cudaStreamCaptureStatusNone)
        return tp_fail(err, TP_E_INTERNAL,
                       "GPU %d: a step that is recorded needs %lld bytes of scratch, more than the "
                       "steps before. Use --cuda-graphs off",
                       m->ordinal, (long long)n_bytes);
    if (e == cudaSuccess)
        e = cudaMallocAsync(out, n, stream);
    if (e == cudaErrorNotSupported) { /* some virtual GPUs have no pools of memory */
        (void)cudaGetLastError();
        e = cudaMalloc(out, n);
    }
    return taken(m, n_bytes, e, err);
}

/* Zeroed device memory. Waits, because operations of any queue may follow. */
static tp_status take_zeroed(const struct cuda_memory *m, void **out, int64_t n_bytes,
                             struct tp_err *err)
{
    cudaError_t e = cudaMalloc(out, n_bytes > 0 ? (size_t)n_bytes : 1);
    tp_status st = taken(m, n_bytes, e, err);

    if (st)
        return st;
    e = cudaMemsetAsync(*out, 0, (size_t)n_bytes, m->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(m->stream);
    if (e == cudaSuccess)
        return TP_OK;
    (void)cudaFree(*out);
    return cuda_error_fail(err, m->ordinal, "setting new memory to zero", e);
}

/* A thread_pool_fn. */
static tp_status clear_piece(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct cleared *c = ctx;
    const size_t at = (size_t)item * CLEAR_BYTES;

    (void)worker;
    (void)err;
    memset(c->at + at, 0, c->n - at < CLEAR_BYTES ? c->n - at : CLEAR_BYTES);
    return TP_OK;
}

static void clear(void *p, size_t n)
{
    const int cores = thread_pool_cores();
    struct tp_err ignored;

    if (thread_pool_run(clear_piece, &(struct cleared){ p, n },
                        (int64_t)((n + CLEAR_BYTES - 1) / CLEAR_BYTES),
                        cores < CLEAR_THREADS ? cores : CLEAR_THREADS, &ignored))
        memset(p, 0, n);
}

static tp_status take_pinned(const struct cuda_memory *m, void **out, int64_t n_bytes,
                             struct tp_err *err)
{
    size_t n = n_bytes > 0 ? (size_t)n_bytes : 1;
    cudaError_t e = cudaHostAlloc(out, n, cudaHostAllocPortable);

    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return tp_fail(err, TP_E_NOMEM, "out of pinned host memory: %lld bytes",
                       (long long)n_bytes);
    }
    if (e != cudaSuccess)
        return cuda_error_fail(err, m->ordinal, "an allocation of pinned memory", e);
    clear(*out, n);
    return TP_OK;
}

tp_status cuda_memory_alloc(struct cuda_memory *m, void **out, int64_t n_bytes, bool is_pinned,
                            struct tp_err *err)
{
    struct cuda_buffer *b = malloc(sizeof *b);
    void *p = NULL;
    tp_status st;

    if (!b)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a list of buffers");
    st = is_pinned ? take_pinned(m, &p, n_bytes, err) : take_zeroed(m, &p, n_bytes, err);
    if (st) {
        free(b);
        return st;
    }
    *b = (struct cuda_buffer){ .at = p, .is_pinned = is_pinned };
    put_on(m, b);
    *out = p;
    return TP_OK;
}
