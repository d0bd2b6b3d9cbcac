/*
 * torch/pickle_value.h - the values of a pickle (torch/pickle.h), and calls that look at them.
 */
#ifndef TORCH_PICKLE_VALUE_H
#define TORCH_PICKLE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"

enum { PICKLE_DEPTH_MAX = 100 }; /* how deep values nest */

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_TEXT,  /* UTF-8 */
    PICKLE_BYTES, /* bytes, or a str of Python 2 */
    PICKLE_LIST,
    PICKLE_TUPLE,
    PICKLE_DICT,       /* also collections.OrderedDict and defaultdict */
    PICKLE_GLOBAL,     /* a name in a module */
    PICKLE_OBJECT,     /* a call, or an instance of a class */
    PICKLE_PERSISTENT, /* what is stored outside the pickle: a torch storage */
    PICKLE_OPAQUE,     /* not needed here: sets, integers of more than 64 bits */
};

struct pickle_value {
    unsigned char kind;  /* enum pickle_kind */
    unsigned char depth; /* of what it contains; 0: nothing */
    bool held;           /* another value contains it, so it does not change any more */
    union {
        int64_t number; /* BOOL, INT */
        double real;
        struct {
            const char *s; /* a 0 byte follows; there may be others inside */
            int64_t n;
        } text; /* TEXT, BYTES */
        struct {
            const struct pickle_value **items;
            int64_t n, room;
        } list; /* LIST, TUPLE; DICT: keys and values in turn */
        struct {
            const char *module, *name;
        } global;
        struct {
            const struct pickle_value *callable, *args, *state; /* state: NULL, or that of BUILD */
        } object;
        const struct pickle_value *id; /* PERSISTENT */
    };
};

/* ---- looking at values; all accept NULL, and a value of any kind ---- */

bool pickle_is(const struct pickle_value *v, enum pickle_kind kind);

/* Whether it is the name `name` of `module`. */
bool pickle_is_global(const struct pickle_value *v, const char *module, const char *name);

/* Whether it is a call of, or an instance of the class, `name` of `module`. */
bool pickle_is_call(const struct pickle_value *v, const char *module, const char *name);

/* Its text when it is one without 0 bytes; else NULL. */
const char *pickle_text(const struct pickle_value *v);

/* The number of items of a list or tuple, and one of them; 0 and NULL for other values. */
int64_t pickle_count(const struct pickle_value *v);
const struct pickle_value *pickle_item(const struct pickle_value *v, int64_t i);

/* The number of entries of a dict, and one of them. */
int64_t pickle_entries(const struct pickle_value *v);
const struct pickle_value *pickle_key(const struct pickle_value *v, int64_t i);
const struct pickle_value *pickle_entry(const struct pickle_value *v, int64_t i);

/* The value of a key that is text, in a dict; of a repeated key the last one, as in Python. The
 * attribute of an object whose state is a dict. NULL: there is none. */
const struct pickle_value *pickle_get(const struct pickle_value *v, const char *key);

/* The value of a key that is an integer, in a dict; of a repeated key the last one. NULL: there is
 * none. It looks at all keys; struct pickle_numbers is for more than a few. */
const struct pickle_value *pickle_get_number(const struct pickle_value *v, int64_t key);

/* The keys of a dict that are integers, ascending. */
struct pickle_numbers {
    struct pickle_number *list;
    int64_t n;
};

struct pickle_number {
    int64_t key, at; /* the entry's index in the dict */
    const struct pickle_value *value;
};

/* Make the index of a dict, in the arena; other values have none. False: memory is out. */
bool pickle_numbers_make(struct pickle_numbers *out, const struct pickle_value *v,
                         struct arena *arena);

/* What pickle_get_number finds, in logarithmic time. */
const struct pickle_value *pickle_numbers_find(const struct pickle_numbers *numbers, int64_t key);

/* Whether v is an integer; *n is its value. */
bool pickle_int(int64_t *n, const struct pickle_value *v);

/* Whether v is a number; *x is its value, else it stays as it is. */
bool pickle_real(double *x, const struct pickle_value *v);

#endif
