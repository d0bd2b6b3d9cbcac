/*
 * torch/file_part.h - a range of bytes of an open file, wherever it is. An archive or a pickle may
 * be a whole file, or one of many that lie in a file side by side.
 */
#ifndef TORCH_FILE_PART_H
#define TORCH_FILE_PART_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "storage/object.h"

struct file_part {
    struct object object;
    const char *path; /* for messages; borrowed */
    int64_t begin;    /* of the range, in the file */
    int64_t size;
};

/* Read n bytes at `offset` in the range. TP_E_CORRUPT: they are not all in it. */
tp_status file_part_read(const struct file_part *part, int64_t offset, void *buf, int64_t n,
                         struct tp_err *err);

#endif
