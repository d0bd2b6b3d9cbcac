/*
 * cli/reshard/reshard_device.h - the device that tp-reshard copies with: --device.
 */
#ifndef CLI_RESHARD_RESHARD_DEVICE_H
#define CLI_RESHARD_RESHARD_DEVICE_H

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
    struct transfer_device transfer; /* where is_open */
    enum reshard_device_kind kind;
    const char *used;                /* "cpu" or "cuda" */
    char why[sizeof(struct tp_err)]; /* why it is used; "": it is not worth a line */
};

/* Open this process's GPU: rank i of a host has GPU i, modulo how many there are. Collective: all
 * processes open one, or none. TP_E_NOTFOUND: --device cuda, and there is no library, no driver or
 * no GPU. */
tp_status reshard_device_open(struct reshard_device *out, const struct reshard_device_options *o,
                              struct tp_err *err);
void reshard_device_close(struct reshard_device *d);

/* Fill in `used` and `why` from what was done. */
void reshard_device_explain(struct reshard_device *d, const struct reshard_report *r);

#endif
