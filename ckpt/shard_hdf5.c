/* ckpt/shard_hdf5.c - see ckpt/shard_hdf5.h. */
#include "ckpt/shard_hdf5.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/hdf5_attribute.h"
#include "ckpt/hdf5_session.h"
#include "ckpt/hdf5_type.h"
#include "ckpt/manifest.h"
#include "ckpt/shard.h"
#include "ckpt/tensor_name.h"

static bool put_root_attributes(hid_t file, const struct layout *layout, int rank, bool chunked)
{
    char spec[SPEC_TEXT_MAX];

    return hdf5_attribute_text(file, "format", MANIFEST_FORMAT) &&
           hdf5_attribute_int(file, "version", chunked ? MANIFEST_VERSION : MANIFEST_VERSION_RAW) &&
           hdf5_attribute_text(file, "layout", spec_format(spec, &layout->spec)) &&
           hdf5_attribute_int(file, "rank", rank);
}

/* ---- datasets ---- */

static tp_status enter_group(struct hdf5_session *s, const char *name, struct tp_err *err)
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
    return s->group < 0 ? hdf5_session_refuse(s, name, err) : TP_OK;
}

/* The name of the dataset of a box in its group. */
enum { DATASET_NAME = TENSOR_NAME_BYTES_MAX + 16 };

static void name_dataset(char name[DATASET_NAME], const struct tensor *t,
                         const struct stored_box *b)
{
    snprintf(name, DATASET_NAME, b->part ? "%s@%d" : "%s", t->name, b->part);
}

/* Create the dataset of a box, with its attributes. Negative: libhdf5 failed. */
static hid_t create_dataset(const struct hdf5_session *s, const struct tensor *t,
                            const struct stored_box *b, hid_t plist)
{
    char name[DATASET_NAME];
    hsize_t dims[BOX_NDIM_MAX];
    hid_t type = hdf5_type_of(t->dtype), space, data = -1;

    name_dataset(name, t, b);
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)b->box.len[d];
    space = t->ndim ? H5Screate_simple(t->ndim, dims, NULL) : H5Screate(H5S_SCALAR);
    if (type >= 0 && space >= 0)
        data = H5Dcreate2(s->group, name, type, space, s->link_plist, plist, H5P_DEFAULT);
    if (data >= 0 && t->ndim &&
        (!hdf5_attribute_ints(data, "global_shape", t->shape, t->ndim) ||
         !hdf5_attribute_ints(data, "offset", b->box.lo, t->ndim))) {
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
static tp_status add_payload(struct hdf5_session *s, const struct tensor *t,
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
        return hdf5_session_refuse(s, name, err);
    *offset = (int64_t)at;
    return TP_OK;
}

/* Hand a chunk that is in the file over to libhdf5: the driver gives it that place and writes
 * nothing. */
static bool put_chunk(struct hdf5_session *s, hid_t data, const struct stored_box *b,
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
static tp_status add_chunks(struct hdf5_session *s, const struct shard_structure *x, int box,
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
        return at == chunks[0].offset ? TP_OK : hdf5_session_refuse(s, t->name, err);
    }
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)chunks[0].box.len[d];
    if (H5Pset_chunk(s->chunk_plist, t->ndim, dims) < 0)
        return hdf5_session_refuse(s, t->name, err);
    data = create_dataset(s, t, b, s->chunk_plist);
    ok = data >= 0;
    for (int64_t k = 0; k < n && ok; k++)
        ok = put_chunk(s, data, b, &chunks[k]);
    if (data >= 0)
        ok &= H5Dclose(data) >= 0;
    name_dataset(name, t, b);
    return ok ? TP_OK : hdf5_session_refuse(s, name, err);
}

static tp_status add_index(struct hdf5_session *s, int64_t n_rows, int64_t *offset,
                           struct tp_err *err)
{
    hsize_t dims = (hsize_t)n_rows;
    hid_t type = hdf5_type_of_index(), space = H5Screate_simple(1, &dims, NULL), data = -1;
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
        return hdf5_session_refuse(s, "/index", err);
    *offset = (int64_t)at;
    return TP_OK;
}

static tp_status create_all(struct hdf5_session *s, struct shard_offsets *offsets,
                            const struct shard_structure *x, struct tp_err *err)
{
    tp_status st = TP_OK;

    TP_TRY(hdf5_session_open(s, err));
    if (x->chunks)
        TP_TRY(hdf5_session_open_chunked(s, err));
    s->file = H5Fcreate(s->vfd.path, H5F_ACC_TRUNC, s->fcpl, s->fapl);
    if (s->file < 0)
        return hdf5_session_refuse(s, "the file", err);
    if (!put_root_attributes(s->file, x->layout, x->boxes[0].rank, x->chunks != NULL))
        return hdf5_session_refuse(s, "the attributes of /", err);
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
    struct hdf5_session s;
    tp_status st, closed;

    hdf5_session_begin(&s, fd, path);
    s.vfd.blank = true;
    if (structure->chunks) {
        s.vfd.payload = SHARD_PAYLOAD_BEGIN;
        s.vfd.payload_end = structure->payload_end;
        s.zeros = calloc(1, CODEC_STORED_MAX);
    }
    st = create_all(&s, offsets, structure, err);
    closed = hdf5_session_end(&s, &close_err);
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
    struct hdf5_session s;
    hid_t data = -1, space = -1;
    haddr_t at = HADDR_UNDEF;
    tp_status st;

    hdf5_session_begin(&s, fd, path);
    st = hdf5_session_open(&s, err);
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
    if (hdf5_session_end(&s, &close_err) && !st) {
        *err = close_err;
        st = err->status;
    }
    return st;
}
