/*
 * reshard/formats/deepspeed/rank_copies.h - vectors that each tensor-parallel rank has whole, as
 * one: norms, and the biases of layers whose inputs are cut.
 *
 * The ranks of GPT-NeoX train their copies each for itself, and they may drift apart. A model in
 * another form has one, which is their mean. Where each rank adds its bias before the ranks'
 * outputs are summed, the model's bias is their sum (GPT-NeoX with gpt_j_residual). Means and sums
 * are computed in f64, so the mean of equal copies has their bits.
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_RANK_COPIES_H
#define RESHARD_FORMATS_DEEPSPEED_RANK_COPIES_H

#include "reshard/formats/pieces/piece.h"

enum rank_copies_rule {
    RANK_COPIES_MEAN,
    RANK_COPIES_SUM,
};

/* Which tensor it is, of so many. */
struct rank_copies_of {
    int tensor, rank;
    enum rank_copies_rule rule;
};

struct rank_copies;

/* For n_tensors tensors on `ranks` ranks; it lives as long as the source. */
tp_status rank_copies_new(struct rank_copies **out, struct piece_source *s, int n_tensors,
                          int ranks, struct tp_err *err);

/* Add elements first .. first + n - 1 of a rank's copy. p has name, shape, group and type of the
 * tensor; its file has them from p->begin on, one after the other. TP_E_CORRUPT: ranks have
 * different types. */
tp_status rank_copies_add(struct rank_copies *c, const struct rank_copies_of *of,
                          const struct piece *p, int64_t first, int64_t n, struct tp_err *err);

/* After all ranks: add the tensors to the source. TP_E_CORRUPT: a rank has not all of one. */
tp_status rank_copies_finish(struct rank_copies *c, struct tp_err *err);

#endif
