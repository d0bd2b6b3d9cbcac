/*
 * reshard/formats/pieces/piece.h - tensors that lie in pieces in the files of another framework, as
 * the source of a transfer.
 *
 * A piece is a box of a tensor, the file that has it, the byte of its first element, and a stride
 * for every axis. What a format cuts, fuses, stacks, flattens or transposes becomes pieces: a row
 * of a fused tensor is a piece with the strides of the whole. A reader of a format adds the pieces
 * of everything that it finds, under the group and the name that the tensor has here; all further
 * work is the same for all formats.
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_H
#define RESHARD_FORMATS_PIECES_PIECE_H

#include "core/arena.h"
#include "layout/tensor.h"
#include "reshard/engine/endpoint.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/file_table.h"

/* Of a piece whose elements its files have in another form, as of quantized weights, or several
 * times, as ranks have copies of a tensor. */
struct piece_decoder {
    const void *ctx;
    int64_t stored_bytes; /* which the files were seen to have */
    /* Read a run of the piece, which is a whole tensor. Thread safe. */
    tp_status (*read)(const void *ctx, const struct box *run, void *buf, struct tp_err *err);
    void (*will_read)(const void *ctx, const struct box *run);
    const char *joined; /* "the mean of the copies of 2 ranks"; NULL: it is quantized */
    const int *sums;    /* [n_sums] of all bytes that are stored (piece_source_add_sum) */
    int n_sums;         /* 0: there are none */
};

struct piece {
    const char *group, *name; /* GROUP_PARAM, "model.norm.weight"; borrowed */
    enum dtype dtype;         /* DTYPE_COUNT: a type that is not supported here */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];  /* of the whole tensor */
    struct box box;               /* what of it is stored here */
    int file;                     /* in the source's table of files */
    int64_t begin;                /* byte of its first element */
    int64_t stride[BOX_NDIM_MAX]; /* elements */
    int sum;                      /* of the bytes that contain it (piece_source_add_sum); 0: none */
    const struct piece_decoder *decoder; /* it reads them, and they have no strides; NULL: none */
};

/* Bytes of a file whose CRC-32 the format records. */
struct piece_sum {
    int file;
    int64_t begin, size;
    uint32_t crc;
    const char *what; /* the member, for messages; borrowed */
};

struct piece_source;

/* Whether a checksum covers all bytes that are stored of it. */
bool piece_has_sum(const struct piece *p);

/* A source without pieces; `path` is the folder or file that people named. */
tp_status piece_source_new(struct piece_source **out, const char *path, struct tp_err *err);
void piece_source_close(struct piece_source *s);

const char *piece_source_path(const struct piece_source *s);

/* Before anything is added: the most memory for its tables, and for what is read at a time to fill
 * them. 0: no limit. */
void piece_source_limit(struct piece_source *s, int64_t memory_bytes);

/* What is left of it, at least 1; 0: there is no limit. */
size_t piece_source_memory_left(struct piece_source *s);

/* For the strings and tables that live as long as the source. */
struct arena *piece_source_arena(struct piece_source *s);
struct file_table *piece_source_files(struct piece_source *s);

/* Add a file of the folder piece_source_path to its table; *file is its number there. */
tp_status piece_source_add_file(struct piece_source *s, const char *name, int *file,
                                struct tp_err *err);

/* Close something with the source: what decoders read from. */
void piece_source_own(struct piece_source *s, void *owned, void (*close)(void *owned));

/* Add a piece; an empty box adds nothing. TP_E_CORRUPT: the box does not fit its tensor. */
tp_status piece_source_add(struct piece_source *s, const struct piece *p, struct tp_err *err);

/* Add a sum; *number, from 1 on, is for struct piece. What a transfer has read of it is compared at
 * its end. */
tp_status piece_source_add_sum(struct piece_source *s, int *number, const struct piece_sum *sum,
                               struct tp_err *err);

/* The optimizer's step that the format records; -1: none. Two different ones are TP_E_CORRUPT.
 * `where` names what has this step, for the message. */
tp_status piece_source_set_step(struct piece_source *s, int64_t step, const char *where,
                                struct tp_err *err);
int64_t piece_source_step(const struct piece_source *s);

/* The program's iteration. It counts the steps too that fp16 skips, and is the step where the
 * optimizer records none. Two different ones are TP_E_CORRUPT. */
tp_status piece_source_set_iteration(struct piece_source *s, int64_t iteration, const char *where,
                                     struct tp_err *err);

/* The type that weights are made of when only their f32 masters are there; bf16 unless it is
 * set. */
void piece_source_set_weights(struct piece_source *s, enum dtype dtype);
enum dtype piece_source_weights(const struct piece_source *s);

/* Weights are only those of parameters that are not trained; the others are made of their masters,
 * as if there were only masters. */
void piece_source_set_frozen(struct piece_source *s);
bool piece_source_has_frozen(const struct piece_source *s);

/* Whether the optimizer's state is that of Megatron-LM's distributed optimizer. */
void piece_source_set_distributed(struct piece_source *s);
bool piece_source_is_distributed(const struct piece_source *s);

/* Rows of the tensors of the vocabulary in a format that may fill them up; 0: it is not known. */
void piece_source_set_vocab_rows(struct piece_source *s, int64_t rows);
int64_t piece_source_vocab_rows(const struct piece_source *s);

/* Whether AdamW has counted the steps of each tensor, as torch's does. Those of Transformer Engine
 * and Apex count the steps of a group. */
void piece_source_set_tensor_steps(struct piece_source *s);
bool piece_source_has_tensor_steps(const struct piece_source *s);

/* The modules of Megatron-LM's layers; unknown unless they are set. */
void piece_source_set_modules(struct piece_source *s, struct export_modules modules);
struct export_modules piece_source_modules(const struct piece_source *s);

/* Whether its tensors have the names of transformers 5's modules (module_piece.h). */
void piece_source_set_module_names(struct piece_source *s);
bool piece_source_has_module_names(const struct piece_source *s);

/* The name of that state's form, where Megatron-core loads it only before version 0.15; NULL: it is
 * another one. `form` is borrowed. */
void piece_source_set_old_form(struct piece_source *s, const char *form);
const char *piece_source_old_form(const struct piece_source *s);

/* AdamW's options that the format records. *out stays as it is when it records none. */
void piece_source_set_adamw(struct piece_source *s, const struct export_adamw *adamw);
void piece_source_adamw(const struct piece_source *s, struct export_adamw *out);

/* Whether to take AdamW's options of this owner, n bytes: a parameter, where each has its own, of
 * which the first counts; or a group, n = 0, which counts more. */
bool piece_source_adamw_is_of(struct piece_source *s, const char *owner, int n);

/* Note something that is not a tensor of the model, and stays behind. `name` is copied. */
tp_status piece_source_leave(struct piece_source *s, const char *name, struct tp_err *err);
int piece_source_left(const struct piece_source *s);

/* What of it means the same at every layout, in words of its format: an extra. A target with
 * the same kind of extras gets it (reshard/formats/export_format.h). */
struct piece_extra {
    const void *bytes;
    size_t n;
};

/* Note an extra. The bytes are copied. */
tp_status piece_source_leave_extra(struct piece_source *s, const char *name, const void *bytes,
                                   size_t n, struct tp_err *err);
/* NULL: it is none. */
const struct piece_extra *piece_source_left_extra(const struct piece_source *s, int i);

/* Say that what was noted last is in piece_source_adamw, so what has that has this too. */
void piece_source_left_in_adamw(struct piece_source *s);
bool piece_source_left_is_in_adamw(const struct piece_source *s, int i);
const char *piece_source_left_name(const struct piece_source *s, int i);

/* Note that the state of an optimizer which the files have is not added, and why: a sentence that
 * begins with the file. TP_E_NO: it is of another optimizer than AdamW and stays behind; other
 * statuses: who needs the optimizer fails with this. */
void piece_source_refuse_state(struct piece_source *s, const struct tp_err *why);
/* NULL: nothing was refused. */
const struct tp_err *piece_source_refused_state(const struct piece_source *s);

/* After all pieces were added: gather them into tensors. TP_E_CORRUPT: two pieces of a tensor
 * differ in shape or type. */
tp_status piece_source_finish(struct piece_source *s, struct tp_err *err);

/* ---- what there is, after piece_source_finish; ascending by group and name ---- */

struct piece_tensor {
    const struct piece *pieces; /* borrowed; the first of n */
    int n;
};

int piece_source_count(const struct piece_source *s);
struct piece_tensor piece_source_tensor(const struct piece_source *s, int i);

/* How many of them were quantized. */
int piece_source_decoded(const struct piece_source *s);

/* The tensor of this group and name; -1: there is none. */
int piece_source_find(const struct piece_source *s, const char *group, const char *name);

/* Whether it has any tensor of a group. */
bool piece_source_has(const struct piece_source *s, const char *group);

/* Compare the sum of every range that has one, and see that the files have the bytes of the other
 * pieces. *checked and *unchecked count bytes of pieces with and without a sum. TP_E_CORRUPT: a sum
 * differs, or a file is too short. TP_E_NOTFOUND: one is missing. */
tp_status piece_source_verify(struct piece_source *s, int64_t *checked, int64_t *unchecked,
                              struct tp_err *err);

/* ---- as an endpoint ---- */

/* Choose the tensors of the transfer: wanted[i] is taken from group from[i] (it may be another one,
 * when a weight is to be made from its master copy). TP_E_CORRUPT: one is missing or has another
 * shape or type; the message names it. */
tp_status piece_source_select(struct piece_source *s, const struct tensor *wanted,
                              const char *const *from, int n, struct tp_err *err);

/* Whether each byte that was chosen has a sum. */
bool piece_source_has_sums(const struct piece_source *s);

/* Its digests are of what was read so far, and its check compares the sums. */
const struct reshard_endpoint *piece_source_endpoint(const struct piece_source *s);

#endif
