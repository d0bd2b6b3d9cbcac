/* ckpt/hdf5_session.c - see ckpt/hdf5_session.h. */
#include "ckpt/hdf5_session.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { PAYLOAD_ALIGN = 4096 };

/* One thread at a time uses libhdf5, because not every build of it is thread safe. */
static pthread_mutex_t hdf5_lock = PTHREAD_MUTEX_INITIALIZER;

void hdf5_session_begin(struct hdf5_session *s, int fd, const char *path)
{
    pthread_mutex_lock(&hdf5_lock);
    *s = (struct hdf5_session){ .driver = -1,
                                .fapl = -1,
                                .fcpl = -1,
                                .file = -1,
                                .group_plist = -1,
                                .link_plist = -1,
                                .data_plist = -1,
                                .chunk_plist = -1,
                                .group = -1 };
    s->vfd.fd = fd;
    s->vfd.path = path;
    s->vfd.place = -1;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* libraries do not print */
}

tp_status hdf5_session_refuse(const struct hdf5_session *s, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_INTERNAL, "%s: libhdf5 cannot create %s", s->vfd.path, what);
}

/* Files have the format of HDF5 1.10, whichever version writes them: older programs read them, and
 * two versions write the same bytes. */
tp_status hdf5_session_open(struct hdf5_session *s, struct tp_err *err)
{
    s->fapl = H5Pcreate(H5P_FILE_ACCESS);
    s->fcpl = H5Pcreate(H5P_FILE_CREATE);
    s->group_plist = H5Pcreate(H5P_GROUP_CREATE);
    s->link_plist = H5Pcreate(H5P_LINK_CREATE);
    s->data_plist = H5Pcreate(H5P_DATASET_CREATE);
    if (s->fapl < 0 || s->fcpl < 0 || s->group_plist < 0 || s->link_plist < 0 ||
        s->data_plist < 0 || H5Pset_libver_bounds(s->fapl, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
        H5Pset_alignment(s->fapl, PAYLOAD_ALIGN, PAYLOAD_ALIGN) < 0 ||
        H5Pset_obj_track_times(s->fcpl, 0) < 0 || H5Pset_obj_track_times(s->group_plist, 0) < 0 ||
        H5Pset_obj_track_times(s->data_plist, 0) < 0 ||
        H5Pset_char_encoding(s->link_plist, H5T_CSET_UTF8) < 0 ||
        H5Pset_layout(s->data_plist, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(s->data_plist, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(s->data_plist, H5D_FILL_TIME_NEVER) < 0 ||
        vfd_select(s->fapl, &s->vfd, &s->driver) < 0)
        return hdf5_session_refuse(s, "property lists", err);
    return TP_OK;
}

/* libhdf5 does not call it: chunks are compressed before they are handed over, and read without
 * libhdf5. */
static size_t no_filter(unsigned flags, size_t n_values, const unsigned values[], size_t n_bytes,
                        size_t *room, void **data)
{
    (void)flags;
    (void)n_values;
    (void)values;
    (void)n_bytes;
    (void)room;
    (void)data;
    return 0;
}

/* libhdf5 knows a filter of its own for zstd, so that no
 * plugin is looked for, and files do not depend on which are installed. */
tp_status hdf5_session_open_chunked(struct hdf5_session *s, struct tp_err *err)
{
    const H5Z_class2_t zstd = { .version = H5Z_CLASS_T_VERS,
                                .id = HDF5_ZSTD_FILTER,
                                .encoder_present = 1,
                                .decoder_present = 1,
                                .name = "zstd",
                                .filter = no_filter };

    s->chunk_plist = H5Pcreate(H5P_DATASET_CREATE);
    if (H5Zregister(&zstd) < 0 || s->chunk_plist < 0 ||
        H5Pset_obj_track_times(s->chunk_plist, 0) < 0 ||
        H5Pset_alloc_time(s->chunk_plist, H5D_ALLOC_TIME_INCR) < 0 ||
        H5Pset_fill_time(s->chunk_plist, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_alignment(s->fapl, 1, 1) < 0 || H5Pset_shuffle(s->chunk_plist) < 0 ||
        H5Pset_filter(s->chunk_plist, HDF5_ZSTD_FILTER, H5Z_FLAG_OPTIONAL, 0, NULL) < 0)
        return hdf5_session_refuse(s, "property lists", err);
    return TP_OK;
}

static tp_status close_all(struct hdf5_session *s, struct tp_err *err)
{
    bool bad = false;

    if (s->group >= 0)
        bad |= H5Gclose(s->group) < 0;
    if (s->file >= 0)
        bad |= H5Fclose(s->file) < 0;
    if (s->fapl >= 0)
        H5Pclose(s->fapl);
    if (s->fcpl >= 0)
        H5Pclose(s->fcpl);
    if (s->group_plist >= 0)
        H5Pclose(s->group_plist);
    if (s->link_plist >= 0)
        H5Pclose(s->link_plist);
    if (s->data_plist >= 0)
        H5Pclose(s->data_plist);
    if (s->chunk_plist >= 0)
        H5Pclose(s->chunk_plist);
    if (s->driver >= 0)
        H5FDunregister(s->driver);
    free(s->zeros);
    if (s->vfd.first.status) {
        *err = s->vfd.first;
        return err->status;
    }
    return bad ? hdf5_session_refuse(s, "the complete file", err) : TP_OK;
}

tp_status hdf5_session_end(struct hdf5_session *s, struct tp_err *err)
{
    tp_status st = close_all(s, err);

    pthread_mutex_unlock(&hdf5_lock);
    return st;
}
