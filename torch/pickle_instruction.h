/*
 * torch/pickle_instruction.h - what the instructions of a pickle that take values from the stack
 * do. Inside torch/ only; torch/pickle.c has their codes.
 *
 * All calls fail with TP_E_CORRUPT and what is wrong with the pickle, or with TP_E_NOMEM.
 */
#ifndef TORCH_PICKLE_INSTRUCTION_H
#define TORCH_PICKLE_INSTRUCTION_H

#include <stdbool.h>

#include "torch/pickle_machine.h"

/* APPENDS, SETITEMS, ADDITEMS: the values after the mark go into the value of this kind below it.
 * Of an instance of a class that is a list, dict or set, the items are left out. */
tp_status pickle_do_append_marked(struct pickle_machine *m, enum pickle_kind kind);

/* APPEND, SETITEM: the same with the last n values. */
tp_status pickle_do_append_few(struct pickle_machine *m, int64_t n, enum pickle_kind kind);

/* TUPLE1, TUPLE2, TUPLE3: a tuple of the last n values. */
tp_status pickle_do_tuple(struct pickle_machine *m, int64_t n);

/* TUPLE, LIST, DICT: a container of the values after the mark. */
tp_status pickle_do_collect(struct pickle_machine *m, enum pickle_kind kind);

/* POP_MARK: drop the values after the mark. push_opaque: FROZENSET, a value that nobody looks
 * at. */
tp_status pickle_do_pop_mark(struct pickle_machine *m, bool push_opaque);

/* POP: drop the last value, or the mark if it is last. */
tp_status pickle_do_pop(struct pickle_machine *m);

/* REDUCE, NEWOBJ: record the call of a function, or of a class, with arguments. */
tp_status pickle_do_call(struct pickle_machine *m, bool reduce);

/* NEWOBJ_EX: the same for a class with keyword arguments, which are left out. */
tp_status pickle_do_new_object_ex(struct pickle_machine *m);

/* BUILD: give an object its state. */
tp_status pickle_do_build(struct pickle_machine *m);

/* BINPERSID: a value that is outside the pickle, by its id. */
tp_status pickle_do_persistent(struct pickle_machine *m);

/* STACK_GLOBAL: the name of what a module has, from two texts. */
tp_status pickle_do_stack_global(struct pickle_machine *m);

/* DUP: the last value again. */
tp_status pickle_do_duplicate(struct pickle_machine *m);

#endif
