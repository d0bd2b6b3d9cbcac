/* cli/train/train_device.c - see cli/train/train_device.h. */
#include "cli/train/train_device.h"

#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"

tp_status train_device_open(struct trainer_device *out, const struct train_device_options *o,
                            struct tp_err *err)
{
    const struct cpu_options options = { .threads = o->threads,
                                         .no_comm_thread = o->no_comm_thread };

    out->ops = &kernels_cpu;
    return cpu_device_open(&out->device, &options, err);
}
