/*
 * torch/pickle_writer.h - writes a pickle of protocol 2, one instruction after the other.
 *
 * The caller knows the machine: an instruction pushes a value, or takes what is on the stack.
 *
 *     pickle_write_dict(w);
 *     pickle_write_text(w, "lr");
 *     pickle_write_float(w, 1e-3);
 *     pickle_write_op(w, PICKLE_OP_SETITEMS);
 *
 * When memory is out, `failed` is set and stays; a caller looks at the end.
 */
#ifndef TORCH_PICKLE_WRITER_H
#define TORCH_PICKLE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zeroes is an empty pickle. */
struct pickle_writer {
    char *data; /* freed by pickle_writer_free */
    size_t n, room;
    int memo; /* values that can be pushed again */
    bool failed;
};

/* Instructions without operands. */
enum pickle_op {
    PICKLE_OP_MARK = '(',
    PICKLE_OP_NONE = 'N',
    PICKLE_OP_TRUE = 0x88,
    PICKLE_OP_FALSE = 0x89,
    PICKLE_OP_EMPTY_TUPLE = ')',
    PICKLE_OP_TUPLE = 't', /* of all values after the mark */
    PICKLE_OP_EMPTY_LIST = ']',
    PICKLE_OP_APPENDS = 'e', /* all values after the mark to the list before it */
    PICKLE_OP_EMPTY_DICT = '}',
    PICKLE_OP_SETITEMS = 'u', /* all keys and values after the mark to the dict before it */
    PICKLE_OP_REDUCE = 'R',   /* call a function with a tuple */
    PICKLE_OP_NEWOBJ = 0x81,  /* make an object of a class, with a tuple */
    PICKLE_OP_BUILD = 'b',    /* give the object its state, a dict or a tuple */
    PICKLE_OP_PERSID = 'Q',   /* what a tuple names: a storage of torch.save */
    PICKLE_OP_STOP = '.',
};

void pickle_writer_free(struct pickle_writer *w);

/* The first instruction. */
void pickle_write_begin(struct pickle_writer *w);
void pickle_write_op(struct pickle_writer *w, enum pickle_op op);
/* Begin a dict, or an OrderedDict, which PICKLE_OP_SETITEMS ends after its keys and values; or a
 * list, which PICKLE_OP_APPENDS ends after its values. */
void pickle_write_dict(struct pickle_writer *w);
void pickle_write_ordered_dict(struct pickle_writer *w);
void pickle_write_list(struct pickle_writer *w);
void pickle_write_int(struct pickle_writer *w, int64_t v);
void pickle_write_float(struct pickle_writer *w, double v);
void pickle_write_text(struct pickle_writer *w, const char *text); /* UTF-8 */
/* A name in a module: a class or a function. */
void pickle_write_global(struct pickle_writer *w, const char *module, const char *name);
/* A tuple of n whole numbers. */
void pickle_write_ints(struct pickle_writer *w, const int64_t *v, int n);

/* What a writer that remembered nothing has pushed. */
void pickle_write_pushed(struct pickle_writer *w, const void *bytes, size_t n);

/* A key of a dict and its value. */
void pickle_write_key_int(struct pickle_writer *w, const char *key, int64_t v);
void pickle_write_key_float(struct pickle_writer *w, const char *key, double v);
void pickle_write_key_bool(struct pickle_writer *w, const char *key, bool v);
void pickle_write_key_none(struct pickle_writer *w, const char *key);
/* The value is a tuple of two numbers. */
void pickle_write_key_floats(struct pickle_writer *w, const char *key, double a, double b);

/* Remember the value on top of the stack; the result is for pickle_write_again. */
int pickle_write_remember(struct pickle_writer *w);
/* Push a remembered value. */
void pickle_write_again(struct pickle_writer *w, int memo);

#endif
