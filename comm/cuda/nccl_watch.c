/* comm/cuda/nccl_watch.c - see comm/cuda/nccl_watch.h. */
#include "comm/cuda/nccl_watch.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/cuda/nccl_failure.h"
#include "core/background_thread.h"
#include "device/cuda/cuda_device.h"

enum {
    LOOK_MS = 200,
    /* Looks at ncclRemoteError until it counts as this rank's failure, 2.4 s. It may only follow
     * from the failure of another rank, whose message has the reason. That rank may take a second
     * to end, and launchers end this one then: comm/launch.h after 1.2 s, tp-run within two
     * seconds. tp-run calls a rank hung after 3 s at least. */
    REMOTE_LOOKS = 12,
    /* An abort can wait for other ranks, or hang inside of NCCL. The process then ends without it,
     * and before launchers end it (comm/launch.h). */
    ABORT_MS = 800,
};

struct nccl_watch {
    struct device *device;
    pthread_t thread;
    pthread_mutex_t lock; /* for all that follows, and for calls of NCCL */
    pthread_cond_t changed;
    ncclComm_t *comms; /* once `aborted` is set, the thread's alone */
    int n_comms, n_max, n_users;
    int remote_looks;
    bool began, closing, aborted, ended;
};

/* ---- the thread ---- */

/* Wait until the watch changes, or this time is over. The lock is held. */
static void wait_ms(struct nccl_watch *w, int ms)
{
    struct timespec t;
    int64_t ns;

    clock_gettime(CLOCK_MONOTONIC, &t);
    ns = t.tv_nsec + ms * INT64_C(1000000);
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&w->changed, &w->lock, &t);
}

static ncclResult_t first_error(const struct nccl_watch *w)
{
    for (int i = 0; i < w->n_comms; i++) {
        ncclResult_t error = ncclSuccess, r = ncclCommGetAsyncError(w->comms[i], &error);

        r = r == ncclSuccess ? error : r;
        if (r != ncclSuccess && r != ncclInProgress)
            return r;
    }
    return ncclSuccess;
}

/* Whether the device has failed, or fails now because a communicator has. */
static bool has_failed(struct nccl_watch *w)
{
    struct tp_err err;
    ncclResult_t r;

    if (cuda_device_failure(w->device, &err))
        return true;
    r = first_error(w);
    if (r == ncclSuccess || (r == ncclRemoteError && w->remote_looks++ < REMOTE_LOOKS))
        return false;
    nccl_fail_async(&err, cuda_device_of(w->device)->ordinal, r);
    device_fail(w->device, &err);
    return true;
}

/* In one group, so that NCCL tells all kernels to end before it waits for some: one after the
 * other, an abort would free memory of the GPU, which waits for kernels of the next communicator.
 * No lock is held: it also waits until the main thread has closed its CUDA graphs, and can hang. */
static void abort_all(struct nccl_watch *w)
{
    if (!w->n_comms)
        return;
    (void)ncclGroupStart();
    for (int i = 0; i < w->n_comms; i++)
        (void)ncclCommAbort(w->comms[i]);
    (void)ncclGroupEnd();
}

static void *watch(void *ctx)
{
    struct nccl_watch *w = ctx;

    /* Otherwise what aborts allocate or free would be GPU 0's. */
    (void)cudaSetDevice(cuda_device_of(w->device)->ordinal);
    pthread_mutex_lock(&w->lock);
    w->began = true;
    pthread_cond_broadcast(&w->changed);
    while (!w->closing && !has_failed(w))
        wait_ms(w, LOOK_MS);
    w->aborted = true;
    pthread_mutex_unlock(&w->lock);
    abort_all(w);
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static void watch_free(struct nccl_watch *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->comms);
    free(w);
}

/* The thread selects its GPU before the caller uses it: a call of CUDA may wait for one that hangs,
 * and the thread must not. */
static void wait_for_begin(struct nccl_watch *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->began)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

tp_status nccl_watch_open(struct nccl_watch **out, struct device *d, struct tp_err *err)
{
    struct nccl_watch *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    int code;

    if (!w)
        return tp_fail(err, TP_E_NOMEM, "out of memory for the communicators of NCCL");
    w->device = d;
    w->n_users = 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if ((code = background_thread_start(&w->thread, watch, w))) {
        watch_free(w);
        return tp_fail(err, TP_E_NOMEM, "a thread that watches NCCL cannot be started: %s",
                       strerror(code));
    }
    wait_for_begin(w);
    *out = w;
    return TP_OK;
}

struct nccl_watch *nccl_watch_share(struct nccl_watch *w)
{
    w->n_users++;
    return w;
}

/* End the process when it calls exit, without destructors: those of CUDA's and NCCL's libraries
 * could wait for the thread that hangs, or crash it. */
static void exit_at_once(int code, void *ctx)
{
    (void)ctx;
    fflush(NULL);
    _exit(code);
}

/* Wait for the thread's end. False: it hangs. */
static bool has_ended(struct nccl_watch *w)
{
    bool ended;

    pthread_mutex_lock(&w->lock);
    for (int waited = 0; !w->ended && waited < ABORT_MS; waited += LOOK_MS)
        wait_ms(w, LOOK_MS);
    ended = w->ended;
    pthread_mutex_unlock(&w->lock);
    return ended;
}

void nccl_watch_close(struct nccl_watch *w)
{
    bool is_last;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    is_last = --w->n_users == 0;
    w->closing = is_last;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (!is_last)
        return;
    if (has_ended(w)) {
        pthread_join(w->thread, NULL);
        watch_free(w);
    } else {
        pthread_detach(w->thread); /* which still uses w */
        (void)on_exit(exit_at_once, NULL);
    }
}

/* ---- communicators ---- */

bool nccl_watch_begin(struct nccl_watch *w)
{
    pthread_mutex_lock(&w->lock);
    if (!w->aborted)
        return true;
    pthread_mutex_unlock(&w->lock);
    return false;
}

void nccl_watch_end(struct nccl_watch *w)
{
    pthread_mutex_unlock(&w->lock);
}

tp_status nccl_watch_add(struct nccl_watch *w, ncclComm_t comm, struct tp_err *err)
{
    int n = w->n_comms == w->n_max ? 2 * w->n_max + 8 : w->n_max;
    ncclComm_t *comms = n > w->n_max ? realloc(w->comms, (size_t)n * sizeof *comms) : w->comms;

    if (!comms) {
        (void)ncclCommAbort(comm);
        return tp_fail(err, TP_E_NOMEM, "out of memory for the communicators of NCCL");
    }
    w->comms = comms;
    w->n_max = n;
    w->comms[w->n_comms++] = comm;
    return TP_OK;
}

/* Destroying may wait for other ranks, while the thread watches the other communicators. */
void nccl_watch_destroy(struct nccl_watch *w, ncclComm_t comm)
{
    int i = 0;

    if (!comm || !nccl_watch_begin(w))
        return;
    while (w->comms[i] != comm)
        i++;
    w->comms[i] = w->comms[--w->n_comms];
    nccl_watch_end(w);
    (void)ncclCommDestroy(comm);
}
