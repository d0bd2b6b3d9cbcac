/* ckpt/vfd.c - see ckpt/vfd.h. */
#include "ckpt/vfd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"

/* libhdf5 leaves 256 to 511 to drivers that are not registered with The HDF Group. */
enum { DRIVER_NUMBER = 511 };

/* An open file; begins with libhdf5's own part. */
struct vfd_file {
    H5FD_t base;
    struct vfd *vfd;
    haddr_t eoa, eof;
};

/* The driver information in a file access property list. */
struct vfd_info {
    struct vfd *vfd;
};

static H5FD_t *vfd_open(const char *name, unsigned flags, hid_t fapl, haddr_t max)
{
    const struct vfd_info *info = H5Pget_driver_info(fapl);
    struct vfd_file *f = calloc(1, sizeof *f);
    struct stat sb;

    (void)name;
    (void)flags;
    (void)max;
    if (!f || !info || fstat(info->vfd->fd, &sb) != 0) {
        free(f);
        return NULL;
    }
    f->vfd = info->vfd;
    f->eof = info->vfd->blank ? 0 : (haddr_t)sb.st_size;
    return &f->base;
}

/* Allocate. libhdf5 must not extend its first block into the payload, so the file ends after the
 * payload as soon as there is a block. */
static haddr_t vfd_alloc(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, hsize_t size)
{
    struct vfd_file *f = (struct vfd_file *)file;
    struct vfd *vfd = f->vfd;
    haddr_t at = f->eoa;

    (void)dxpl;
    if (type == H5FD_MEM_DRAW && vfd->place >= 0) {
        at = (haddr_t)vfd->place;
        vfd->place = -1;
        return at;
    }
    if (at == 0 && size > (hsize_t)vfd->payload)
        return HADDR_UNDEF;
    f->eoa = at + size;
    if (f->eoa < (haddr_t)vfd->payload_end)
        f->eoa = (haddr_t)vfd->payload_end;
    vfd->end = (int64_t)f->eoa;
    return at;
}

static herr_t vfd_close(H5FD_t *file)
{
    free(file);
    return 0;
}

static herr_t vfd_query(const H5FD_t *file, unsigned long *flags)
{
    const struct vfd_file *f = (const struct vfd_file *)file;

    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA |
             H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    if (!f || !f->vfd->payload_end) /* without a file: what it may have */
        *flags |= H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t vfd_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct vfd_file *)file)->eoa;
}

static herr_t vfd_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t addr)
{
    struct vfd_file *f = (struct vfd_file *)file;

    (void)type;
    f->eoa = addr;
    f->vfd->end = (int64_t)addr;
    return 0;
}

static haddr_t vfd_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct vfd_file *)file)->eof;
}

static herr_t vfd_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size,
                       void *buffer)
{
    struct vfd_file *f = (struct vfd_file *)file;
    size_t there = addr >= f->eof ? 0 : size < f->eof - addr ? size : (size_t)(f->eof - addr);
    struct tp_err err = { 0 };

    (void)type;
    (void)dxpl;
    memset(buffer, 0, size);
    if (there && file_read_at(f->vfd->fd, f->vfd->path, (int64_t)addr, buffer, there, &err) &&
        !f->vfd->first.status)
        f->vfd->first = err;
    return 0;
}

static herr_t vfd_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size,
                        const void *buffer)
{
    struct vfd_file *f = (struct vfd_file *)file;
    struct tp_err err = { 0 };

    (void)dxpl;
    if (type == H5FD_MEM_DRAW && f->vfd->payload_end) { /* it is there */
        if (addr + size > f->eof)
            f->eof = addr + size;
        return 0;
    }
    if (file_write_at(f->vfd->fd, f->vfd->path, (int64_t)addr, buffer, size, &err) &&
        !f->vfd->first.status)
        f->vfd->first = err;
    if (addr + size > f->eof)
        f->eof = addr + size;
    return 0;
}

herr_t vfd_select(hid_t fapl, struct vfd *vfd, hid_t *driver)
{
    const H5FD_class_t class = {
#ifdef H5FD_CLASS_VERSION /* since HDF5 1.14 */
        .version = H5FD_CLASS_VERSION,
        .value = DRIVER_NUMBER,
#endif
        .name = "tp-ckpt",
        .maxaddr = (haddr_t)INT64_MAX,
        .fc_degree = H5F_CLOSE_STRONG,
        .fapl_size = sizeof(struct vfd_info),
        .open = vfd_open,
        .close = vfd_close,
        .query = vfd_query,
        .alloc = vfd->payload_end ? vfd_alloc : NULL,
        .get_eoa = vfd_get_eoa,
        .set_eoa = vfd_set_eoa,
        .get_eof = vfd_get_eof,
        .read = vfd_read,
        .write = vfd_write,
        .fl_map = H5FD_FLMAP_DICHOTOMY,
    };
    const struct vfd_info info = { .vfd = vfd };

    *driver = H5FDregister(&class);
    if (*driver < 0)
        return -1;
    return H5Pset_driver(fapl, *driver, &info);
}
