/* cli/train/train_device.c - see cli/train/train_device.h. */
#include "cli/train/train_device.h"

#include <stdio.h>

#include "cli/train/train_cuda.h"
#include "comm/control.h"
#include "core/thread_pool.h"
#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"

static tp_status open_cpu(struct trainer_device *out, const struct train_device_options *o,
                          struct tp_err *err)
{
    const struct cpu_options options = { .threads = o->threads,
                                         .no_comm_thread = o->no_comm_thread };
    tp_status st = thread_pool_check_start(o->threads, err);

    *out = (struct trainer_device){ .ops = &kernels_cpu };
    return st ? st : cpu_device_open(&out->device, &options, err);
}

/* If one rank has no GPU, none of them uses one. */
static tp_status open_cuda(struct trainer_device *out, const struct train_device_options *o,
                           struct tp_err *err)
{
    struct train_cuda_gpu gpu;
    tp_status st = train_cuda_open(out, &gpu, o->ranks, o->same_gpus, o->heartbeat, err);

    st = control_agree(comm_control(o->ranks), st, err);
    if (!st)
        st = train_cuda_check(&gpu, o->ranks, o->heartbeat, err);
    if (st) {
        device_close(out->device);
        out->device = NULL;
    }
    return st;
}

static tp_status open_auto(struct trainer_device *out, char note[TRAIN_DEVICE_NOTE_MAX],
                           const struct train_device_options *o, struct tp_err *err)
{
    if (!open_cuda(out, o, err)) {
        snprintf(note, TRAIN_DEVICE_NOTE_MAX, "device: cuda, because each rank has a GPU");
        return TP_OK;
    }
    snprintf(note, TRAIN_DEVICE_NOTE_MAX, "device: cpu, because of: %s", err->msg);
    control_recover(comm_control(o->ranks), err);
    return control_agree(comm_control(o->ranks), open_cpu(out, o, err), err);
}

tp_status train_device_open(struct trainer_device *out, char note[TRAIN_DEVICE_NOTE_MAX],
                            const struct train_device_options *o, struct tp_err *err)
{
    note[0] = '\0';
    switch (o->kind) {
    case TRAIN_DEVICE_CUDA:
        return open_cuda(out, o, err);
    case TRAIN_DEVICE_AUTO:
        return open_auto(out, note, o, err);
    default:
        return control_agree(comm_control(o->ranks), open_cpu(out, o, err), err);
    }
}
