/*
 * cli/reshard/reshard_device.h - the device that tp-reshard copies with: --device.
 */
#ifndef CLI_RESHARD_RESHARD_DEVICE_H
#define CLI_RESHARD_RESHARD_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/world.h"
#include "reshard/reshard.h"

/* AUTO: a GPU if it is faster by measurement, else the processor. DEFAULT is AUTO, and says nothing
 * where there is no GPU. */
enum reshard_device_kind {
    RESHARD_DEVICE_DEFAULT,
    RESHARD_DEVICE_AUTO,
    RESHARD_DEVICE_CPU,
    RESHARD_DEVICE_CUDA,
};

/* Read the value of --device; NULL: it was not given. TP_E_USAGE. */
tp_status reshard_device_kind_parse(enum reshard_device_kind *out, const char *text,
                                    struct tp_err *err);

struct reshard_device_options {
    enum reshard_device_kind kind;
    int64_t device_memory_bytes, memory_bytes; /* --device-mem, --mem */
    struct comm_world *ranks;                  /* borrowed */
};

struct reshard_device {
    bool is_open;
    bool is_there;                   /* it is open, or was not opened because the copy had ended */
    struct transfer_device transfer; /* where is_usable */
    bool is_usable;                  /* it is open, or a thread is opening it */
    enum reshard_device_kind kind;
    const char *used;                /* "cpu" or "cuda" */
    char why[sizeof(struct tp_err)]; /* why it is used; "": it is not worth a line */
    struct reshard_device_opening {
        int local_rank; /* of this process */
        bool is_begun, has_thread;
        atomic_bool is_unwanted;
        pthread_t thread;
        pthread_mutex_t lock; /* for has_thread */
        tp_status st;         /* of the thread; read after joining it */
        struct tp_err err;
    } opening;
};

/* Open this process's GPU: rank i of a host has GPU i, modulo how many there are. Collective: all
 * processes open one, or none. TP_E_NOTFOUND: --device cuda, and there is no library, no driver or
 * no GPU. One process with enough memory only begins to, in a thread, and copies meanwhile; `out`
 * then stays where it is. */
tp_status reshard_device_open(struct reshard_device *out, const struct reshard_device_options *o,
                              struct tp_err *err);
void reshard_device_close(struct reshard_device *d);

/* After the work, which ended with st: end the thread. Returns the failure of a GPU that was asked
 * for and could not be opened, as if it had been opened before the work; else st. */
tp_status reshard_device_finish(struct reshard_device *d, tp_status st, struct tp_err *err);

/* Fill in `used` and `why` from what was done. */
void reshard_device_explain(struct reshard_device *d, const struct reshard_report *r);

#endif
