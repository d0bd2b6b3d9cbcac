/*
 * reshard/foreign_contents.h - what a checkpoint of another framework contains, and whether it is
 * intact: for tp-ckpt show, verify and digest.
 */
#ifndef RESHARD_FOREIGN_CONTENTS_H
#define RESHARD_FOREIGN_CONTENTS_H

#include "core/arena.h"
#include "core/progress.h"
#include "layout/tensor.h"
#include "reshard/formats/foreign.h"

struct foreign_contents {
    struct arena arena;
    const struct foreign_format *format;
    struct piece_source *source;
    struct tensor *tensors; /* those of supported types, ascending by group and name */
    int n_tensors;
    const char *note; /* what to tell people of the model that was chosen; NULL: nothing */
};

/* Whether there is a checkpoint of another framework at `path`. */
bool foreign_contents_detect(const char *path);

/* Open it. `config` is a config.json, or NULL: that of the folder, or one that is made from the
 * checkpoint (foreign_model.h); formats that need none are read without. Close also after a
 * failure. */
tp_status foreign_contents_open(struct foreign_contents *out, const char *path, const char *config,
                                struct tp_err *err);
void foreign_contents_close(struct foreign_contents *c);

/* Prove that the pieces hold each element of each tensor once, and that the bytes of all ranges
 * that have a checksum agree with it. *unchecked is the number of bytes without one. TP_E_CORRUPT
 * is the first finding. */
tp_status foreign_contents_verify(struct foreign_contents *c, int64_t *checked, int64_t *unchecked,
                                  struct tp_err *err);

/* Read everything: digests[i] is that of tensors[i]. TP_E_CORRUPT: as foreign_contents_verify. */
tp_status foreign_contents_digest(struct foreign_contents *c, struct digest *digests,
                                  struct progress *progress, struct tp_err *err);

#endif
