/*
 * torch/torch_save.h - a new file as torch.save writes it: a pickle, and storages whose bytes come
 * later.
 *
 *     torch_save_begin(&s);
 *     storage = torch_save_tensor(&s, DTYPE_F32, 2, shape);   into the pickle s.pickle
 *     TP_TRY(torch_save_place(&s, err));                      ends the pickle
 *     at = torch_save_member(&s, storage)->begin;
 *     TP_TRY(torch_save_write(&s, fd, path, base, err));
 *
 * The bytes of a storage lie in the file as they lie in memory: little-endian.
 */
#ifndef TORCH_TORCH_SAVE_H
#define TORCH_TORCH_SAVE_H

#include "layout/box.h"
#include "layout/dtype.h"
#include "torch/pickle_writer.h"
#include "torch/zip_plan.h"

struct torch_save_storage {
    int64_t bytes;
    bool known; /* `data` has the bytes */
    char data[8];
    const char *more; /* instead of `data`, in the arena */
};

/* All zeroes can be freed. */
struct torch_save {
    struct pickle_writer pickle; /* the caller writes the object that is saved */
    struct arena arena;
    struct torch_save_storage *storages;
    int n, room;
    struct zip_plan zip;
    int first; /* member of storage 0 */
};

void torch_save_begin(struct torch_save *s);
void torch_save_free(struct torch_save *s);

/* The name of a type in module torch: "float32". */
const char *torch_save_dtype(enum dtype dtype);

/* Push a contiguous tensor with a storage of its own. Returns the storage's number. */
int torch_save_tensor(struct torch_save *s, enum dtype dtype, int ndim, const int64_t *shape);

/* Push a tensor of one element, without axes, whose value is known: a counter of steps. As in
 * PyTorch it is f32, or f64 where f32 does not have the number (torch_save_number_dtype). */
void torch_save_number(struct torch_save *s, int64_t value);
enum dtype torch_save_number_dtype(int64_t value);

/* The largest number up to which f64 has all. */
#define TORCH_SAVE_NUMBER_MAX (1LL << 53)

/* Push an i32 tensor of this shape with the numbers 0, 1, 2, ..., as a mesh of ranks is. */
void torch_save_range(struct torch_save *s, int ndim, const int64_t *shape);

/* Push a tensor of this shape, all of whose bytes are zero. */
void torch_save_zeros(struct torch_save *s, enum dtype dtype, int ndim, const int64_t *shape);

/* End the pickle and compute where everything lies. TP_E_NOMEM. */
tp_status torch_save_place(struct torch_save *s, struct tp_err *err);

/* After torch_save_place: the bytes of a storage; bytes of the whole file. */
const struct zip_plan_member *torch_save_member(const struct torch_save *s, int storage);
int64_t torch_save_bytes(const struct torch_save *s);

/* Write all but the storages whose bytes come later, from byte `base` of a file on. */
tp_status torch_save_write(const struct torch_save *s, int fd, const char *path, int64_t base,
                           struct tp_err *err);

#endif
