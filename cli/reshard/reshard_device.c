/* cli/reshard/reshard_device.c - see cli/reshard/reshard_device.h. */
#include "cli/reshard/reshard_device.h"

#include <stdio.h>
#include <string.h>

#include "cli/cuda_library.h"
#include "comm/control.h"
#include "core/background_thread.h"
#include "core/size.h"
#include "device/device.h"

/* CUDA needs some hundred megabytes of host memory, so a small --mem would not suffice. */
static const int64_t AUTO_MEMORY_MIN = INT64_C(1) << 30;

tp_status reshard_device_kind_parse(enum reshard_device_kind *out, const char *text,
                                    struct tp_err *err)
{
    static const char *const names[] = {
        [RESHARD_DEVICE_AUTO] = "auto", [RESHARD_DEVICE_CPU] = "cpu", [RESHARD_DEVICE_CUDA] = "cuda"
    };

    *out = RESHARD_DEVICE_DEFAULT;
    for (int i = RESHARD_DEVICE_AUTO; text && i <= RESHARD_DEVICE_CUDA; i++)
        if (strcmp(text, names[i]) == 0)
            *out = (enum reshard_device_kind)i;
    if (!text || *out != RESHARD_DEVICE_DEFAULT)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--device is auto, cpu or cuda, not '%s'", text);
}

/* Several processes may use one GPU. */
static tp_status open_gpu(struct reshard_device *d, struct tp_err *err)
{
    const struct cuda_library *cuda = NULL;
    int n = 0;
    tp_status st;

    TP_TRY(cuda_library_find(&cuda, err));
    TP_TRY(cuda->count(&n, err));
    d->is_there = true;
    if (atomic_load(&d->opening.is_unwanted))
        return TP_OK;
    st = cuda->device_open(&d->transfer.device, d->opening.local_rank % n, err);
    d->is_there = !st;
    TP_TRY(st);
    d->transfer.ops = cuda->kernels;
    d->is_open = true;
done:
    return st;
}

/* ---- in a thread ---- */

static void *open_in_thread(void *ctx)
{
    struct reshard_device *d = ctx;
    struct reshard_device_opening *o = &d->opening;

    o->st = open_gpu(d, &o->err);
    return NULL;
}

static tp_status wait_for_gpu(void *ctx, struct tp_err *err)
{
    struct reshard_device *d = ctx;
    struct reshard_device_opening *o = &d->opening;

    pthread_mutex_lock(&o->lock);
    if (o->has_thread)
        pthread_join(o->thread, NULL);
    o->has_thread = false;
    pthread_mutex_unlock(&o->lock);
    if (!o->st)
        return TP_OK;
    *err = o->err;
    return d->kind == RESHARD_DEVICE_CUDA ? tp_fail_in(err, "--device cuda") : o->st;
}

/* Whether a thread opens the GPU. Processes agree on it before. With a small --mem the plan has to
 * know what CUDA takes of it, and a --device-mem that is too small matters only if there is a GPU.
 * Where there is no driver the answer is known at once. */
static bool begin_in_thread(struct reshard_device *d, const struct reshard_device_options *o)
{
    if (control_size(comm_control(o->ranks)) > 1 || o->memory_bytes < AUTO_MEMORY_MIN ||
        o->device_memory_bytes < TRANSFER_DEVICE_MIN || !cuda_library_is_likely())
        return false;
    pthread_mutex_init(&d->opening.lock, NULL);
    if (background_thread_start(&d->opening.thread, open_in_thread, d)) {
        pthread_mutex_destroy(&d->opening.lock);
        return false;
    }
    d->opening.is_begun = d->opening.has_thread = d->is_usable = true;
    d->transfer.wait = wait_for_gpu;
    d->transfer.ctx = d;
    return true;
}

tp_status reshard_device_finish(struct reshard_device *d, tp_status st, struct tp_err *err)
{
    struct tp_err why = { 0 };

    if (!d->opening.is_begun)
        return st;
    if (d->kind != RESHARD_DEVICE_CUDA)
        atomic_store(&d->opening.is_unwanted, true);
    if (!wait_for_gpu(d, &why))
        return st;
    if (d->kind == RESHARD_DEVICE_CUDA && st != TP_E_STOPPED) {
        *err = why;
        return why.status;
    }
    if (d->kind == RESHARD_DEVICE_AUTO)
        snprintf(d->why, sizeof d->why, "%s", why.msg);
    return st;
}

/* ---- opening ---- */

/* If one process has no GPU, none of them uses one. */
static tp_status open_together(struct reshard_device *d, const struct reshard_device_options *o,
                               struct tp_err *err)
{
    tp_status st = control_agree(comm_control(o->ranks), open_gpu(d, err), err);

    if (st)
        reshard_device_close(d);
    d->is_usable = !st;
    return st;
}

static void open_auto(struct reshard_device *d, const struct reshard_device_options *o)
{
    struct tp_err why = { 0 };

    if (control_size(comm_control(o->ranks)) > 1)
        snprintf(d->why, sizeof d->why, "with several processes a GPU is not tried");
    else if (o->memory_bytes < AUTO_MEMORY_MIN)
        snprintf(d->why, sizeof d->why,
                 "--mem is less than 1G, and CUDA needs a large part of that");
    else if (!begin_in_thread(d, o)) {
        d->is_usable = !open_gpu(d, &why);
        snprintf(d->why, sizeof d->why, "%s", why.msg);
    }
    if (d->kind == RESHARD_DEVICE_DEFAULT)
        d->why[0] = '\0';
    d->transfer.if_faster = true;
}

tp_status reshard_device_open(struct reshard_device *out, const struct reshard_device_options *o,
                              struct tp_err *err)
{
    *out = (struct reshard_device){ .kind = o->kind, .used = "cpu" };
    out->transfer.memory_bytes = o->device_memory_bytes;
    out->opening.local_rank = comm_local_rank(o->ranks);
    if (o->kind == RESHARD_DEVICE_CPU)
        return TP_OK;
    if (o->kind != RESHARD_DEVICE_CUDA) {
        open_auto(out, o);
        return TP_OK;
    }
    out->used = "cuda";
    if (begin_in_thread(out, o))
        return TP_OK;
    return open_together(out, o, err) ? tp_fail_in(err, "--device cuda") : TP_OK;
}

void reshard_device_close(struct reshard_device *d)
{
    if (d->is_open)
        device_close(d->transfer.device);
    d->is_open = false;
    if (d->opening.is_begun)
        pthread_mutex_destroy(&d->opening.lock);
    d->opening.is_begun = false;
}

void reshard_device_explain(struct reshard_device *d, const struct reshard_report *r)
{
    char host[SIZE_TEXT_MAX], gpu[SIZE_TEXT_MAX];

    if (!d->is_there || d->kind == RESHARD_DEVICE_CUDA)
        return;
    if (r->host_rate <= 0 || r->device_rate <= 0) {
        snprintf(d->why, sizeof d->why, "the copy ended before it could be tried with a GPU");
        return;
    }
    d->used = r->device_rate > r->host_rate ? "cuda" : "cpu";
    snprintf(d->why, sizeof d->why, "it copied %s/s with the GPU and %s/s without",
             size_format(gpu, (int64_t)r->device_rate), size_format(host, (int64_t)r->host_rate));
}
