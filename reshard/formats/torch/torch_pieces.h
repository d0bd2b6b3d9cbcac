/*
 * reshard/formats/torch/torch_pieces.h - tensors in files of torch.save as pieces of a source.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCH_PIECES_H
#define RESHARD_FORMATS_TORCH_TORCH_PIECES_H

#include "reshard/formats/pieces/piece.h"
#include "torch/torch_tensor.h"

/* A file whose pickle has been read, or a part of a file. */
struct torch_pieces {
    struct piece_source *source;
    int file; /* in the source's table of files */
    struct torch_file torch;
    const struct pickle_value *root;
    struct arena arena; /* of the pickle's values */
    int *sums;          /* [members of the archive] number of its sum in the source; 0: none */
};

/* Read the pickle of file number `file`: of its bytes from `begin` on, `size` of them; -1: all.
 * Close also after a failure. */
tp_status torch_pieces_open(struct torch_pieces *out, struct piece_source *s, int file,
                            int64_t begin, int64_t size, struct tp_err *err);
void torch_pieces_close(struct torch_pieces *x);

/* Compare the CRC-32 of all members of the archive that lies in a file of s, as torch_pieces_open
 * has it. What does not begin as an archive has none. TP_E_CORRUPT: one differs, or the archive is
 * damaged. */
tp_status torch_pieces_check(struct piece_source *s, int file, int64_t begin, int64_t size,
                             struct tp_err *err);

/* A whole tensor of the file as a piece; the caller may then narrow it. Group and name are
 * borrowed. */
tp_status torch_pieces_tensor(struct piece *out, struct torch_pieces *x,
                              const struct pickle_value *v, const char *group, const char *name,
                              struct tp_err *err);

/* An optimizer's step: a tensor of one element, or an int, which DeepSpeed's own Adam and older
 * optimizers count with. */
bool torch_pieces_is_number(const struct pickle_value *v);

/* Its value, a whole number. `name` is that of the tensor, for messages. */
tp_status torch_pieces_number(int64_t *out, struct torch_pieces *x, const struct pickle_value *v,
                              const char *name, struct tp_err *err);

/* Take the option of this key, of lr, betas, eps and weight_decay. False: it is none of these, or
 * no number. */
bool torch_pieces_adamw_option(struct export_adamw *out, const char *key,
                               const struct pickle_value *v);

/* Take lr, betas, eps and weight decay from one of torch.optim's param_groups, as far as it has
 * them. false: it has no lr, and *out stays as it is. */
bool torch_pieces_adamw(struct export_adamw *out, const struct pickle_value *group);

#endif
