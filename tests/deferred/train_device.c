/* tests/deferred/train_device.c - the deferred device for tp-train; see cli/train/train_device.h.
 */
#include "cli/train/train_device.h"

#include <stdlib.h>

#include "comm/control.h"
#include "kernels/cpu/cpu.h"
#include "tests/deferred/deferred.h"

tp_status train_device_open(struct trainer_device *out, char note[TRAIN_DEVICE_NOTE_MAX],
                            const struct train_device_options *o, struct tp_err *err)
{
    const char *seed = getenv("TP_DEFERRED_SEED");
    const struct deferred_options options = { .threads = o->threads,
                                              .seed = seed ? strtoull(seed, NULL, 10) : 0 };

    note[0] = '\0';
    out->ops = &kernels_cpu;
    return control_agree(comm_control(o->ranks), deferred_device_open(&out->device, &options, err),
                         err);
}
