/*
 * ckpt/vfd.h - the virtual file driver (VFD) through which libhdf5 creates a shard.
 *
 * libhdf5 1.10 can crash after a failed write, even in its exit handler. So this driver never
 * fails: it keeps the first error and reports success, and the caller checks vfd.first before it
 * uses the file. The driver takes no locks, because they fail on shared file systems. It uses pread
 * and pwrite on a descriptor that belongs to the caller and stays open.
 */
#ifndef CKPT_VFD_H
#define CKPT_VFD_H

#include <hdf5.h>
#include <stdbool.h>

#include "core/err.h"

/* One open file. Must live until libhdf5 has closed it. */
struct vfd {
    int fd;
    const char *path;    /* for messages and H5Fcreate; borrowed */
    struct tp_err first; /* the first error, or TP_OK */
    bool blank;          /* treat the file as empty, whatever it contains */
    int64_t end;         /* the end of what libhdf5 has allocated */

    /* A file in which payload exists already, from `payload` on to `payload_end` (0: it has none).
     * libhdf5 then allocates only the superblock before it, and everything else after it. Raw data
     * are allocated at `place`, where they are, and not written. */
    int64_t payload, payload_end;
    int64_t place; /* for the next allocation of raw data; -1: it goes after the payload too */
};

/* Register the driver and set it in fapl. The caller passes *driver to H5FDunregister after it has
 * closed fapl. Negative: libhdf5 failed. */
herr_t vfd_select(hid_t fapl, struct vfd *vfd, hid_t *driver);

#endif
