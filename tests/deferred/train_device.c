/* tests/deferred/train_device.c - the deferred device for tp-train; see cli/train/train_device.h.
 */
#include "cli/train/train_device.h"

#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "tests/deferred/deferred.h"

tp_status train_device_open(struct trainer_device *out, const struct train_device_options *o,
                            struct tp_err *err)
{
    const char *seed = getenv("TP_DEFERRED_SEED");
    const struct deferred_options options = { .threads = o->threads,
                                              .seed = seed ? strtoull(seed, NULL, 10) : 0 };

    out->ops = &kernels_cpu;
    return deferred_device_open(&out->device, &options, err);
}
