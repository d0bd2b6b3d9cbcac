/*
 * ckpt/shard_hdf5.c - see ckpt/shard_hdf5.h.
 *
 * Object times are off everywhere, because two saves of the same state must have the same bytes.
 */
#include "ckpt/shard_hdf5.h"

#include <hdf5.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/shard.h"
#include "ckpt/tensor_name.h"
#include "ckpt/vfd.h"

enum { PAYLOAD_ALIGN = 4096 };

/* Everything that is open while a structure is created; -1: not open. */
struct shard_hdf5_session {
    struct vfd vfd;
    hid_t driver, fapl, fcpl, file;
    hid_t group_plist, link_plist, data_plist;
    hid_t chunk_plist;      /* of chunked datasets */
    unsigned char *zeros;   /* CODEC_STORED_MAX; never read */
    hid_t group;            /* the current group */
    const char *group_name; /* its name, or NULL */
};

/* One thread at a time uses libhdf5, because not every build of it is thread safe. */
static pthread_mutex_t hdf5_lock = PTHREAD_MUTEX_INITIALIZER;

static tp_status refused(const struct shard_hdf5_session *s, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_INTERNAL, "%s: libhdf5 cannot create %s", s->vfd.path, what);
}

static tp_status open_plists(struct shard_hdf5_session *s, struct tp_err *err)
{
    s->fapl = H5Pcreate(H5P_FILE_ACCESS);
    s->fcpl = H5Pcreate(H5P_FILE_CREATE);
    s->group_plist = H5Pcreate(H5P_GROUP_CREATE);
    s->link_plist = H5Pcreate(H5P_LINK_CREATE);
    s->data_plist = H5Pcreate(H5P_DATASET_CREATE);
    if (s->fapl < 0 || s->fcpl < 0 || s->group_plist < 0 || s->link_plist < 0 ||
        s->data_plist < 0 ||
        H5Pset_libver_bounds(s->fapl, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST) < 0 ||
        H5Pset_alignment(s->fapl, PAYLOAD_ALIGN, PAYLOAD_ALIGN) < 0 ||
        H5Pset_obj_track_times(s->fcpl, 0) < 0 || H5Pset_obj_track_times(s->group_plist, 0) < 0 ||
        H5Pset_obj_track_times(s->data_plist, 0) < 0 ||
        H5Pset_char_encoding(s->link_plist, H5T_CSET_UTF8) < 0 ||
        H5Pset_layout(s->data_plist, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(s->data_plist, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(s->data_plist, H5D_FILL_TIME_NEVER) < 0 ||
        vfd_select(s->fapl, &s->vfd, &s->driver) < 0)
        return refused(s, "property lists", err);
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

/* The properties of a chunked dataset. libhdf5 knows a filter of its own for zstd, so that no
 * plugin is looked for, and files do not depend on which are installed. */
static tp_status open_chunk_plist(struct shard_hdf5_session *s, struct tp_err *err)
{
    const H5Z_class2_t zstd = { .version = H5Z_CLASS_T_VERS,
                                .id = SHARD_ZSTD_FILTER,
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
        H5Pset_filter(s->chunk_plist, SHARD_ZSTD_FILTER, H5Z_FLAG_OPTIONAL, 0, NULL) < 0)
        return refused(s, "property lists", err);
    return TP_OK;
}

/* Close everything. The file is complete only when this succeeds. */
static tp_status session_close(struct shard_hdf5_session *s, struct tp_err *err)
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
    return bad ? refused(s, "the complete file", err) : TP_OK;
}

static void session_init(struct shard_hdf5_session *s, int fd, const char *path)
{
    *s = (struct shard_hdf5_session){ .driver = -1,
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

/* ---- types ---- */

/* Floating-point types that HDF5 does not predefine: 16 bits, from the top sign, exponent,
 * mantissa. */
static hid_t make_float16(int exponent_bits, int mantissa_bits, int bias)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);

    if (t < 0)
        return -1;
    if (H5Tset_fields(t, 15, (size_t)mantissa_bits, (size_t)exponent_bits, 0,
                      (size_t)mantissa_bits) < 0 ||
        H5Tset_precision(t, 16) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, (size_t)bias) < 0) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

static hid_t make_type(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DTYPE_BF16:
        return make_float16(8, 7, 127);
    case DTYPE_F16:
        return make_float16(5, 10, 15);
    case DTYPE_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case DTYPE_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case DTYPE_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DTYPE_U8:
        return H5Tcopy(H5T_STD_U8LE);
    default:
        return -1;
    }
}

static herr_t insert(hid_t type, const char *name, size_t *offset, hid_t member, int count)
{
    hsize_t n = (hsize_t)count;
    hid_t t = count > 1 ? H5Tarray_create2(member, 1, &n) : H5Tcopy(member);
    herr_t result = t < 0 ? -1 : H5Tinsert(type, name, *offset, t);

    if (t >= 0) {
        *offset += H5Tget_size(t);
        H5Tclose(t);
    }
    return result;
}

/* A row of /index, packed, as chunk_entry_encode writes it and docs/FORMAT.md specifies it. */
static hid_t make_row_type(void)
{
    hid_t t = H5Tcreate(H5T_COMPOUND, CHUNK_ENTRY_BYTES);
    size_t at = 0;

    if (t < 0)
        return -1;
    if (insert(t, "tensor", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "part", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "ndim", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "codec", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "lo", &at, H5T_STD_I64LE, BOX_NDIM_MAX) < 0 ||
        insert(t, "len", &at, H5T_STD_I64LE, BOX_NDIM_MAX) < 0 ||
        insert(t, "offset", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "stored_bytes", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "raw_bytes", &at, H5T_STD_I64LE, 1) < 0 ||
        insert(t, "crc32c", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "reserved", &at, H5T_STD_U32LE, 1) < 0 ||
        insert(t, "digest0", &at, H5T_STD_U64LE, 1) < 0 ||
        insert(t, "digest1", &at, H5T_STD_U64LE, 1) < 0 || at != CHUNK_ENTRY_BYTES) {
        H5Tclose(t);
        return -1;
    }
    return t;
}

/* ---- attributes: for people who use h5py; no program here reads them ---- */

static bool put_attribute(hid_t where, const char *name, hid_t file_type, hid_t space,
                          hid_t memory_type, const void *value)
{
    hid_t a = H5Acreate2(where, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = a >= 0 && H5Awrite(a, memory_type, value) >= 0;

    if (a >= 0)
        H5Aclose(a);
    return ok;
}

static bool put_ints(hid_t where, const char *name, const int64_t *values, int n)
{
    hsize_t dims = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &dims, NULL);
    bool ok =
        space >= 0 && put_attribute(where, name, H5T_STD_I64LE, space, H5T_NATIVE_INT64, values);

    if (space >= 0)
        H5Sclose(space);
    return ok;
}

static bool put_int(hid_t where, const char *name, int64_t value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    bool ok =
        space >= 0 && put_attribute(where, name, H5T_STD_I64LE, space, H5T_NATIVE_INT64, &value);

    if (space >= 0)
        H5Sclose(space);
    return ok;
}

static bool put_text(hid_t where, const char *name, const char *text)
{
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    bool ok = space >= 0 && type >= 0 && H5Tset_size(type, strlen(text)) >= 0 &&
              H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0 && H5Tset_cset(type, H5T_CSET_UTF8) >= 0 &&
              put_attribute(where, name, type, space, type, text);

    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return ok;
}

static bool put_root_attributes(hid_t file, const struct layout *layout, int rank, bool chunked)
{
    char spec[SPEC_TEXT_MAX];

    return put_text(file, "format", MANIFEST_FORMAT) &&
           put_int(file, "version", chunked ? MANIFEST_VERSION : MANIFEST_VERSION_RAW) &&
           put_text(file, "layout", spec_format(spec, &layout->spec)) &&
           put_int(file, "rank", rank);
}

/* ---- datasets ---- */

static tp_status enter_group(struct shard_hdf5_session *s, const char *name, struct tp_err *err)
{
    if (s->group_name && strcmp(s->group_name, name) == 0)
        return TP_OK;
    if (s->group >= 0)
        H5Gclose(s->group);
    if (H5Lexists(s->file, name, H5P_DEFAULT) > 0)
        s->group = H5Gopen2(s->file, name, H5P_DEFAULT);
    else
        s->group = H5Gcreate2(s->file, name, s->link_plist, s->group_plist, H5P_DEFAULT);
    s->group_name = name;
    return s->group < 0 ? refused(s, name, err) : TP_OK;
}

/* The name of the dataset of a box in its group. */
enum { DATASET_NAME = TENSOR_NAME_BYTES_MAX + 16 };

static void name_dataset(char name[DATASET_NAME], const struct tensor *t,
                         const struct stored_box *b)
{
    snprintf(name, DATASET_NAME, b->part ? "%s@%d" : "%s", t->name, b->part);
}

/* Create the dataset of a box, with its attributes. Negative: libhdf5 failed. */
static hid_t create_dataset(const struct shard_hdf5_session *s, const struct tensor *t,
                            const struct stored_box *b, hid_t plist)
{
    char name[DATASET_NAME];
    hsize_t dims[BOX_NDIM_MAX];
    hid_t type = make_type(t->dtype), space, data = -1;

    name_dataset(name, t, b);
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)b->box.len[d];
    space = t->ndim ? H5Screate_simple(t->ndim, dims, NULL) : H5Screate(H5S_SCALAR);
    if (type >= 0 && space >= 0)
        data = H5Dcreate2(s->group, name, type, space, s->link_plist, plist, H5P_DEFAULT);
    if (data >= 0 && t->ndim &&
        (!put_ints(data, "global_shape", t->shape, t->ndim) ||
         !put_ints(data, "offset", b->box.lo, t->ndim))) {
        H5Dclose(data);
        data = -1;
    }
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return data;
}

/* A contiguous dataset for one box; *offset receives the offset of its elements. */
static tp_status add_payload(struct shard_hdf5_session *s, const struct tensor *t,
                             const struct stored_box *b, int64_t *offset, struct tp_err *err)
{
    char name[DATASET_NAME];
    hid_t data = create_dataset(s, t, b, s->data_plist);
    haddr_t at = HADDR_UNDEF;
    bool ok = data >= 0;

    if (ok)
        at = H5Dget_offset(data);
    if (data >= 0)
        ok &= H5Dclose(data) >= 0;
    name_dataset(name, t, b);
    if (!ok || at == HADDR_UNDEF)
        return refused(s, name, err);
    *offset = (int64_t)at;
    return TP_OK;
}

/* Hand a chunk that is in the file over to libhdf5: the driver gives it that place and writes
 * nothing. */
static bool put_chunk(struct shard_hdf5_session *s, hid_t data, const struct stored_box *b,
                      const struct chunk_entry *c)
{
    const unsigned skipped[CODECS] = { [CODEC_RAW] = 3, [CODEC_ZSTD] = 1 }; /* bits of filters */
    hsize_t at[BOX_NDIM_MAX], stored = 0;
    haddr_t found = HADDR_UNDEF;
    unsigned mask = 0;

    for (int d = 0; d < c->box.ndim; d++)
        at[d] = (hsize_t)(c->box.lo[d] - b->box.lo[d]);
    s->vfd.place = c->offset;
    return H5Dwrite_chunk(data, H5P_DEFAULT, skipped[c->codec], at, (size_t)c->stored_bytes,
                          s->zeros) >= 0 &&
           H5Dget_chunk_info_by_coord(data, at, &mask, &found, &stored) >= 0 &&
           found == (haddr_t)c->offset && stored == (hsize_t)c->stored_bytes && s->vfd.place == -1;
}

/* A dataset of box number `box`, whose n chunks are in the file. */
static tp_status add_chunks(struct shard_hdf5_session *s, const struct shard_structure *x, int box,
                            struct tp_err *err)
{
    const struct stored_box *b = &x->boxes[box];
    const struct tensor *t = &x->layout->tensors[b->tensor];
    const struct chunk_entry *chunks = x->chunks + x->first_chunk[box];
    const int64_t n = x->first_chunk[box + 1] - x->first_chunk[box];
    hsize_t dims[BOX_NDIM_MAX];
    char name[DATASET_NAME];
    int64_t at = -1;
    hid_t data;
    bool ok;

    if (t->ndim == 0) { /* HDF5 has no chunked scalars */
        s->vfd.place = chunks[0].offset;
        if (add_payload(s, t, b, &at, err))
            return err->status;
        return at == chunks[0].offset ? TP_OK : refused(s, t->name, err);
    }
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)chunks[0].box.len[d];
    if (H5Pset_chunk(s->chunk_plist, t->ndim, dims) < 0)
        return refused(s, t->name, err);
    data = create_dataset(s, t, b, s->chunk_plist);
    ok = data >= 0;
    for (int64_t k = 0; k < n && ok; k++)
        ok = put_chunk(s, data, b, &chunks[k]);
    if (data >= 0)
        ok &= H5Dclose(data) >= 0;
    name_dataset(name, t, b);
    return ok ? TP_OK : refused(s, name, err);
}

static tp_status add_index(struct shard_hdf5_session *s, int64_t n_rows, int64_t *offset,
                           struct tp_err *err)
{
    hsize_t dims = (hsize_t)n_rows;
    hid_t type = make_row_type(), space = H5Screate_simple(1, &dims, NULL), data = -1;
    haddr_t at = HADDR_UNDEF;

    if (type >= 0 && space >= 0)
        data = H5Dcreate2(s->file, "index", type, space, s->link_plist, s->data_plist, H5P_DEFAULT);
    if (data >= 0) {
        at = H5Dget_offset(data);
        H5Dclose(data);
    }
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (at == HADDR_UNDEF)
        return refused(s, "/index", err);
    *offset = (int64_t)at;
    return TP_OK;
}

static tp_status create_all(struct shard_hdf5_session *s, struct shard_offsets *offsets,
                            const struct shard_structure *x, struct tp_err *err)
{
    tp_status st = TP_OK;

    TP_TRY(open_plists(s, err));
    if (x->chunks)
        TP_TRY(open_chunk_plist(s, err));
    s->file = H5Fcreate(s->vfd.path, H5F_ACC_TRUNC, s->fcpl, s->fapl);
    if (s->file < 0)
        return refused(s, "the file", err);
    if (!put_root_attributes(s->file, x->layout, x->boxes[0].rank, x->chunks != NULL))
        return refused(s, "the attributes of /", err);
    for (int i = 0; i < x->n_boxes; i++) {
        const struct tensor *t = &x->layout->tensors[x->boxes[i].tensor];

        TP_TRY(enter_group(s, t->group, err));
        if (x->chunks)
            TP_TRY(add_chunks(s, x, i, err));
        else
            TP_TRY(add_payload(s, t, &x->boxes[i], &offsets->payload[i], err));
    }
    TP_TRY(add_index(s, x->index_rows, &offsets->index, err));
done:
    return st;
}

tp_status shard_hdf5_create(struct shard_offsets *offsets, int fd, const char *path,
                            const struct shard_structure *structure, struct tp_err *err)
{
    struct tp_err close_err = { 0 };
    struct shard_hdf5_session s;
    tp_status st, closed;

    pthread_mutex_lock(&hdf5_lock);
    session_init(&s, fd, path);
    s.vfd.blank = true;
    if (structure->chunks) {
        s.vfd.payload = SHARD_PAYLOAD_BEGIN;
        s.vfd.payload_end = structure->payload_end;
        s.zeros = calloc(1, CODEC_STORED_MAX);
    }
    st = create_all(&s, offsets, structure, err);
    closed = session_close(&s, &close_err);
    pthread_mutex_unlock(&hdf5_lock);
    if (closed && (!st || closed == TP_E_IO)) { /* report an I/O error first, it is the cause */
        *err = close_err;
        return closed;
    }
    offsets->size = s.vfd.end;
    return st;
}

tp_status shard_hdf5_find_index(int64_t *offset, int64_t *n_rows, int fd, const char *path,
                                struct tp_err *err)
{
    struct tp_err close_err = { 0 };
    struct shard_hdf5_session s;
    hid_t data = -1, space = -1;
    haddr_t at = HADDR_UNDEF;
    tp_status st;

    pthread_mutex_lock(&hdf5_lock);
    session_init(&s, fd, path);
    st = open_plists(&s, err);
    if (!st)
        s.file = H5Fopen(path, H5F_ACC_RDONLY, s.fapl);
    if (s.file >= 0)
        data = H5Dopen2(s.file, "index", H5P_DEFAULT);
    if (data >= 0) {
        at = H5Dget_offset(data);
        space = H5Dget_space(data);
        *n_rows = H5Sget_simple_extent_npoints(space);
        H5Sclose(space);
        H5Dclose(data);
    }
    if (!st && at == HADDR_UNDEF)
        st = tp_fail(err, TP_E_CORRUPT, "%s: has no dataset /index", path);
    *offset = (int64_t)at;
    if (session_close(&s, &close_err) && !st) {
        *err = close_err;
        st = err->status;
    }
    pthread_mutex_unlock(&hdf5_lock);
    return st;
}
