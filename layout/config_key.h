/*
 * layout/config_key.h - read one key of config.json into its member of struct model, as a row of a
 * family's table says (layout/family.h).
 */
#ifndef LAYOUT_CONFIG_KEY_H
#define LAYOUT_CONFIG_KEY_H

#include <jansson.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/family.h"

/* The first failure is kept in st. */
struct config_key_reader {
    json_t *root;     /* the whole config.json */
    const char *path; /* for messages */
    struct arena *arena;
    struct tp_err *err;
    tp_status st;
};

/* Set the member of k. A number of layers must be read before the types of layers. r->st is
 * TP_E_USAGE if the key is missing, of the wrong type, out of range, or a value that is not
 * supported. What tp-train alone does not support is kept in m->untrained. */
void config_key_read(struct config_key_reader *r, const struct family_key *k, struct model *m);

/* Fail because the key has another value than expected; found may be NULL: it is missing. */
void config_key_fail(struct config_key_reader *r, const char *key, const char *expected,
                     json_t *found);

/* Keep in m->untrained what tp-train does not compute, unless something is there already. */
void config_key_untrained(struct config_key_reader *r, struct model *m, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
