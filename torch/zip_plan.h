/*
 * torch/zip_plan.h - a new archive of stored members, whose places are known before their bytes.
 *
 * Add the members, place them, write the archive: headers, directory, and the bytes of members that
 * are known. The bytes of the others are written by whoever has them, in any order; their CRC-32
 * then goes to two places that the plan names.
 */
#ifndef TORCH_ZIP_PLAN_H
#define TORCH_ZIP_PLAN_H

#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

enum { ZIP_PLAN_ALIGN = 64 }; /* of the bytes of a member, as torch.save aligns them */

struct zip_plan_member {
    const char *name;  /* borrowed */
    const void *data;  /* borrowed; NULL: written later */
    int64_t size;      /* bytes */
    int64_t local;     /* of its header in the archive */
    int64_t begin;     /* of its bytes in the archive */
    int64_t crc_at[2]; /* where its CRC-32 is in the archive, 4 bytes, little-endian */
};

/* All zeroes is an empty plan. */
struct zip_plan {
    struct zip_plan_member *members;
    int n, room;
    int64_t directory, size; /* after zip_plan_place: of the directory's begin, of all */
};

void zip_plan_free(struct zip_plan *p);

/* Add a member. TP_E_NOMEM. */
tp_status zip_plan_add(struct zip_plan *p, const char *name, const void *data, int64_t size,
                       struct tp_err *err);

/* Compute all places. */
void zip_plan_place(struct zip_plan *p);

/* Write everything but the bytes that are written later, from byte `base` of a file on. */
tp_status zip_plan_write(const struct zip_plan *p, int fd, const char *path, int64_t base,
                         struct tp_err *err);

#endif
