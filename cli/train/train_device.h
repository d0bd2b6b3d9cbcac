/*
 * cli/train/train_device.h - the device that tp-train computes on: --device. Only train_device.c
 * and train_cuda.c know which one it is; tests replace train_device.c.
 */
#ifndef CLI_TRAIN_TRAIN_DEVICE_H
#define CLI_TRAIN_TRAIN_DEVICE_H

#include <stdbool.h>

#include "comm/world.h"
#include "core/heartbeat.h"
#include "trainer/trainer.h"

/* AUTO: GPUs if all ranks have one, else CPUs. */
enum train_device_kind { TRAIN_DEVICE_CPU, TRAIN_DEVICE_CUDA, TRAIN_DEVICE_AUTO };

struct train_device_options {
    enum train_device_kind kind;
    int threads;         /* threads that a kernel on a CPU may use; at least 1 */
    bool no_comm_thread; /* communication must not have a thread */
    bool same_gpus;      /* all ranks of this host see the same GPUs */
    struct comm_world *ranks;
    struct heartbeat *heartbeat; /* is told when GPUs are missing; may be NULL */
};

enum { TRAIN_DEVICE_NOTE_MAX = 1400 };

/* Open the device; the caller closes out->device. Collective; all ranks get the same kind of
 * device, or the same failure. note: what AUTO has chosen and why, else "". TP_E_NOTFOUND: there is
 * no library, no driver or no GPU; TP_E_USAGE: fewer GPUs than ranks; TP_E_NOMEM. */
tp_status train_device_open(struct trainer_device *out, char note[TRAIN_DEVICE_NOTE_MAX],
                            const struct train_device_options *o, struct tp_err *err);

#endif
