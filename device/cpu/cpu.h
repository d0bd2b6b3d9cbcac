/*
 * device/cpu/cpu.h - the CPU of this process as a device.
 *
 * A queue for computing or copying runs each operation at once, in the thread that queues it. So
 * on such a queue every event is passed. A queue for communication has a thread, which runs its
 * operations one by one while the caller continues; the first operation starts it. Both kinds of
 * memory are pages of the system, huge ones if it has them. Queuing allocates nothing.
 */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "device/device.h"

struct cpu_options {
    int threads;         /* threads that a kernel may use; at least 1 */
    bool no_comm_thread; /* queues for communication run at once too (an MPI without threads) */
};

/* TP_E_NOMEM. */
tp_status cpu_device_open(struct device **out, const struct cpu_options *o, struct tp_err *err);

#endif
