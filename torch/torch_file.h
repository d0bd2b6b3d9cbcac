/*
 * torch/torch_file.h - a file of torch.save: a zip archive with a pickle, data.pkl, and a member
 * for each storage, data/KEY.
 *
 * Only the pickle is read. Files of torch before 1.6, which are not archives, are refused.
 */
#ifndef TORCH_TORCH_FILE_H
#define TORCH_TORCH_FILE_H

#include "torch/pickle.h"
#include "torch/zip.h"

struct torch_file {
    struct zip zip;
    const char *prefix; /* of the names of members: "archive/" */
    const struct pickle_value *root;
};

/* Read the pickle of the archive in `part`; everything lives in the arena. TP_E_CORRUPT: it is not
 * such an archive, its pickle is damaged or hostile, or it was written on a big-endian machine. */
tp_status torch_file_read(struct torch_file *out, const struct file_part *part, struct arena *arena,
                          struct tp_err *err);

/* The member data/KEY; NULL: there is none. */
const struct zip_member *torch_file_storage(const struct torch_file *f, const char *key);

/* A file that is a pickle alone, such as .metadata. */
tp_status torch_file_read_pickle(const struct pickle_value **out, const struct file_part *part,
                                 struct arena *arena, struct tp_err *err);

#endif
