/*
 * torch/pickle_machine.h - the machine that a pickle is a program for: its bytes, its stack, its
 * memo, and the values that instructions make. Inside torch/ only; torch/pickle.c and
 * torch/pickle_instruction.c have the instructions.
 *
 * All calls fail with TP_E_CORRUPT and what is wrong with the pickle, or with TP_E_NOMEM.
 */
#ifndef TORCH_PICKLE_MACHINE_H
#define TORCH_PICKLE_MACHINE_H

#include "core/arena.h"
#include "core/err.h"
#include "torch/pickle_value.h"

enum { PICKLE_MARKS_MAX = 1000 };

struct pickle_machine {
    const unsigned char *at, *begin, *end; /* the bytes that are left, and all */
    const char *path;
    struct arena *arena;
    size_t limit_bytes; /* of the arena at the beginning; the stack and the memo take from it */
    struct tp_err *err;
    struct pickle_value **stack, **memo;
    int64_t n_stack, stack_room, n_memo, memo_room;
    int64_t marks[PICKLE_MARKS_MAX]; /* of the stack */
    int n_marks;
    int64_t puts; /* MEMOIZE numbers by it */
};

/* ---- failures ---- */

tp_status pickle_refuse(struct pickle_machine *m, const char *what);
tp_status pickle_no_memory(struct pickle_machine *m);

/* ---- bytes ---- */

tp_status pickle_take(const unsigned char **p, struct pickle_machine *m, uint64_t n);

/* An unsigned number of `n` bytes, little-endian. */
tp_status pickle_take_number(uint64_t *out, struct pickle_machine *m, int n);

/* A line of text without its newline, in buf. */
tp_status pickle_take_line(char *buf, size_t size, struct pickle_machine *m);

/* ---- the stack and the memo ---- */

/* Make room for `need` values in the stack or the memo. */
tp_status pickle_grow(struct pickle_machine *m, struct pickle_value ***list, int64_t *room,
                      int64_t need);
tp_status pickle_push(struct pickle_machine *m, struct pickle_value *v);

/* The place on the stack below which instructions may not take values. */
int64_t pickle_bottom(const struct pickle_machine *m);
tp_status pickle_pop(struct pickle_value **out, struct pickle_machine *m);
tp_status pickle_top(struct pickle_value **out, struct pickle_machine *m);
tp_status pickle_push_mark(struct pickle_machine *m);

/* Take the values after the last mark, and the mark; or the last n values. They stay readable until
 * the next push. */
tp_status pickle_pop_mark(struct pickle_value ***items, int64_t *n, struct pickle_machine *m);
tp_status pickle_pop_many(struct pickle_value ***items, struct pickle_machine *m, int64_t n);

/* Note the top of the stack in the memo; push what was noted. */
tp_status pickle_memo_put(struct pickle_machine *m, uint64_t index);
tp_status pickle_memo_get(struct pickle_machine *m, uint64_t index);

/* ---- making values (pickle_make.c) ---- */

tp_status pickle_make(struct pickle_value **out, struct pickle_machine *m, enum pickle_kind kind);
tp_status pickle_push_new(struct pickle_machine *m, enum pickle_kind kind, int64_t number);

/* Note that `outer` contains `inner` from now on. */
tp_status pickle_hold(struct pickle_machine *m, struct pickle_value *outer,
                      struct pickle_value *inner);

/* Append items to a list, tuple or dict; push a new one. */
tp_status pickle_append(struct pickle_machine *m, struct pickle_value *v,
                        struct pickle_value *const *items, int64_t n);
tp_status pickle_push_list(struct pickle_machine *m, enum pickle_kind kind,
                           struct pickle_value *const *items, int64_t n);

/* A text of n bytes that follow; one whose length comes first, in `bytes` bytes. */
tp_status pickle_push_text(struct pickle_machine *m, enum pickle_kind kind, uint64_t n);
tp_status pickle_push_sized_text(struct pickle_machine *m, enum pickle_kind kind, int bytes);
tp_status pickle_push_global(struct pickle_machine *m, const char *module, const char *name);

/* A call. It is recorded, and nothing is called. */
tp_status pickle_push_call(struct pickle_machine *m, struct pickle_value *callable,
                           struct pickle_value *args, bool reduce);

/* An integer of n bytes; INT and LONG of protocol 0, as a line of text. */
tp_status pickle_push_long(struct pickle_machine *m, uint64_t n);
tp_status pickle_push_int_line(struct pickle_machine *m);

/* A float of 8 bytes; one as a line of text. */
tp_status pickle_push_float(struct pickle_machine *m);
tp_status pickle_push_float_line(struct pickle_machine *m);

#endif
