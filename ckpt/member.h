/*
 * ckpt/member.h - members of JSON objects that are to be of one kind and within bounds. What is
 * missing or otherwise is TP_E_CORRUPT, in a sentence that names file and member. Inside ckpt/
 * only.
 */
#ifndef CKPT_MEMBER_H
#define CKPT_MEMBER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

/* The text that is being read. */
struct member_reader {
    const char *path; /* for messages */
    struct arena *arena;
    struct tp_err *err;
};

/* TP_E_CORRUPT: "PATH: ...". */
tp_status member_fail(const struct member_reader *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
tp_status member_no_memory(const struct member_reader *p);

/* min and max are allowed themselves. */
tp_status member_int(const struct member_reader *p, int64_t *out, json_t *object, const char *key,
                     int64_t min, int64_t max);
tp_status member_small(const struct member_reader *p, int *out, json_t *object, const char *key,
                       int min, int max);
tp_status member_bool(const struct member_reader *p, bool *out, json_t *object, const char *key);

/* A string of the JSON tree, valid as long as that is; or a copy in the arena. */
tp_status member_text(const struct member_reader *p, const char **out, json_t *object,
                      const char *key);
tp_status member_keep(const struct member_reader *p, const char **out, json_t *object,
                      const char *key);

/* Exactly so many lower-case hexadecimal digits; out has room for a 0 after them. */
tp_status member_hex(const struct member_reader *p, char *out, size_t digits, json_t *object,
                     const char *key);

/* Of the tree; a list of at most max entries. */
tp_status member_list(const struct member_reader *p, json_t **out, size_t *n, json_t *object,
                      const char *key, size_t max);
tp_status member_object(const struct member_reader *p, json_t **out, json_t *object,
                        const char *key);

#endif
