/*
 * ckpt/hdf5_session.h - one use of libhdf5: its lock, our file driver, and the property lists of
 * groups and datasets. Inside ckpt/ only.
 *
 *     hdf5_session_begin(&s, fd, path);
 *     ... s.vfd.blank = true, hdf5_session_open, s.file = H5Fcreate(...), ...
 *     hdf5_session_end(&s, &err);
 *
 * Object times are off everywhere, because two saves of the same state must have the same bytes.
 */
#ifndef CKPT_HDF5_SESSION_H
#define CKPT_HDF5_SESSION_H

#include <hdf5.h>

#include "ckpt/vfd.h"
#include "core/err.h"

enum { HDF5_ZSTD_FILTER = 32015 }; /* its registered number */

/* Everything that is open while a structure is created; -1: not open. The caller sets file and
 * group, the rest of vfd, and zeros (allocated with malloc); hdf5_session_end closes and frees
 * them. */
struct hdf5_session {
    struct vfd vfd;
    hid_t driver, fapl, fcpl, file;
    hid_t group_plist, link_plist, data_plist;
    hid_t chunk_plist;      /* of chunked datasets */
    unsigned char *zeros;   /* CODEC_STORED_MAX; never read */
    hid_t group;            /* the current group */
    const char *group_name; /* its name, or NULL */
};

/* Wait until no other thread uses libhdf5, and begin. Nothing is open yet. fd stays the caller's;
 * path is borrowed, for messages too. hdf5_session_end must follow. */
void hdf5_session_begin(struct hdf5_session *s, int fd, const char *path);

/* Open the driver and the property lists of contiguous datasets, with elements aligned to 4 KiB.
 * TP_E_INTERNAL: libhdf5 refuses. */
tp_status hdf5_session_open(struct hdf5_session *s, struct tp_err *err);

/* After hdf5_session_open: also the property list of chunked datasets with the filters shuffle and
 * zstd, and nothing is aligned any more. TP_E_INTERNAL. */
tp_status hdf5_session_open_chunked(struct hdf5_session *s, struct tp_err *err);

/* TP_E_INTERNAL, with the message that libhdf5 cannot create `what` in this file. */
tp_status hdf5_session_refuse(const struct hdf5_session *s, const char *what, struct tp_err *err);

/* Close everything, and let other threads use libhdf5. The file is complete only when this
 * succeeds. The driver's first error, or TP_E_INTERNAL. */
tp_status hdf5_session_end(struct hdf5_session *s, struct tp_err *err);

#endif
