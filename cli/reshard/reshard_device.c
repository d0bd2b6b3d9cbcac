/* cli/reshard/reshard_device.c - see cli/reshard/reshard_device.h. */
#include "cli/reshard/reshard_device.h"

#include <stdio.h>
#include <string.h>

#include "cli/cuda_library.h"
#include "comm/control.h"
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
static tp_status open_gpu(struct reshard_device *d, const struct reshard_device_options *o,
                          struct tp_err *err)
{
    const struct cuda_library *cuda = NULL;
    int n = 0;
    tp_status st;

    TP_TRY(cuda_library_find(&cuda, err));
    TP_TRY(cuda->count(&n, err));
    TP_TRY(cuda->device_open(&d->transfer.device, comm_local_rank(o->ranks) % n, err));
    d->transfer.ops = cuda->kernels;
    d->is_open = true;
done:
    return st;
}

/* If one process has no GPU, none of them uses one. */
static tp_status open_together(struct reshard_device *d, const struct reshard_device_options *o,
                               struct tp_err *err)
{
    tp_status st = control_agree(comm_control(o->ranks), open_gpu(d, o, err), err);

    if (st)
        reshard_device_close(d);
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
    else if (open_gpu(d, o, &why))
        snprintf(d->why, sizeof d->why, "%s", why.msg);
    if (d->kind == RESHARD_DEVICE_DEFAULT)
        d->why[0] = '\0';
    d->transfer.if_faster = true;
}

tp_status reshard_device_open(struct reshard_device *out, const struct reshard_device_options *o,
                              struct tp_err *err)
{
    *out = (struct reshard_device){ .kind = o->kind, .used = "cpu" };
    out->transfer.memory_bytes = o->device_memory_bytes;
    if (o->kind == RESHARD_DEVICE_CPU)
        return TP_OK;
    if (o->kind != RESHARD_DEVICE_CUDA) {
        open_auto(out, o);
        return TP_OK;
    }
    out->used = "cuda";
    return open_together(out, o, err) ? tp_fail_in(err, "--device cuda") : TP_OK;
}

void reshard_device_close(struct reshard_device *d)
{
    if (d->is_open)
        device_close(d->transfer.device);
    d->is_open = false;
}

void reshard_device_explain(struct reshard_device *d, const struct reshard_report *r)
{
    char host[SIZE_TEXT_MAX], gpu[SIZE_TEXT_MAX];

    if (!d->is_open || d->kind == RESHARD_DEVICE_CUDA)
        return;
    if (r->host_rate <= 0 || r->device_rate <= 0) {
        snprintf(d->why, sizeof d->why, "the copy ended before it could be tried with a GPU");
        return;
    }
    d->used = r->device_rate > r->host_rate ? "cuda" : "cpu";
    snprintf(d->why, sizeof d->why, "it copied %s/s with the GPU and %s/s without",
             size_format(gpu, (int64_t)r->device_rate), size_format(host, (int64_t)r->host_rate));
}
