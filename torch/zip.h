/*
 * torch/zip.h - the directory of a zip archive as torch.save writes it: members are stored, not
 * compressed, so each is a range of bytes in the file.
 *
 * This is stricter than most readers. It refuses compression, encryption, two members of one name,
 * members that overlap, and local headers that disagree with the directory.
 */
#ifndef TORCH_ZIP_H
#define TORCH_ZIP_H

#include "core/arena.h"
#include "torch/file_part.h"

struct zip_member {
    const char *name;
    int64_t begin, size; /* of its bytes, in the range of the archive */
    uint32_t crc;        /* CRC-32 of its bytes; 0: the writer computed none */
};

struct zip {
    struct file_part part;
    struct zip_member *members; /* ascending by name */
    int n;
};

/* Read the directory of the archive in `part`. Names and members live in the arena. TP_E_CORRUPT:
 * it is not such an archive; the message says why. TP_E_BUDGET: the arena has a limit, and more is
 * needed for them and for reading them. */
tp_status zip_read(struct zip *out, const struct file_part *part, struct arena *arena,
                   struct tp_err *err);

/* The member of this name; NULL: there is none. */
const struct zip_member *zip_find(const struct zip *z, const char *name);

/* Read a member and compare its CRC-32. TP_E_CORRUPT: it differs. */
tp_status zip_check(const struct zip *z, const struct zip_member *m, struct tp_err *err);

/* The same for a range of bytes whose CRC-32 is known. `what` names it in the message. */
tp_status zip_check_range(const struct file_part *part, int64_t begin, int64_t size, uint32_t crc,
                          const char *what, struct tp_err *err);

#endif
