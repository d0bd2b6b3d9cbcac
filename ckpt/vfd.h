/*
 * ckpt/vfd.h - the virtual file driver through which libhdf5 lays out a shard.
 *
 * libhdf5 1.10 may crash, as late as in its exit handler, after a write that failed. So this driver
 * never fails: it remembers the first error and reports success; the caller looks at
 * vfd.first before it believes the file. It takes no locks, which fail on shared file systems, and
 * moves bytes with pread and pwrite on a descriptor that belongs to the caller and stays open.
 */
#ifndef CKPT_VFD_H
#define CKPT_VFD_H

#include <hdf5.h>
#include <stdbool.h>

#include "core/err.h"

/* One open file; lives until libhdf5 has closed it. */
struct vfd {
    int fd;
    const char *path;    /* for messages and H5Fcreate; borrowed */
    struct tp_err first; /* the first failure, or TP_OK */
    bool blank;          /* take the file for empty, whatever it holds: all is laid out anew */
    int64_t end;         /* one behind the last byte that libhdf5 allocated */
};

/* Register the driver and set it in fapl. *driver is to be given back with H5FDunregister when the
 * fapl is closed. Negative: libhdf5 refused. */
herr_t vfd_select(hid_t fapl, struct vfd *vfd, hid_t *driver);

#endif
