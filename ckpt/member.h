/*
 * ckpt/member.h - reads members of JSON objects that must have a certain kind and range. Inside
 * ckpt/ only.
 *
 * A member that is missing or different is TP_E_CORRUPT; the message names the file and the member.
 */
#ifndef CKPT_MEMBER_H
#define CKPT_MEMBER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

struct member_reader {
    const char *path; /* of the file, for messages */
    struct arena *arena;
    struct tp_err *err;
};

/* TP_E_CORRUPT with the message "PATH: ...". */
tp_status member_fail(const struct member_reader *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
tp_status member_no_memory(const struct member_reader *p);

/* An integer from min to max. */
tp_status member_int(const struct member_reader *p, int64_t *out, json_t *object, const char *key,
                     int64_t min, int64_t max);
tp_status member_small(const struct member_reader *p, int *out, json_t *object, const char *key,
                       int min, int max);
tp_status member_bool(const struct member_reader *p, bool *out, json_t *object, const char *key);

/* A string. member_text borrows it from the JSON tree; member_keep copies it into the arena. */
tp_status member_text(const struct member_reader *p, const char **out, json_t *object,
                      const char *key);
tp_status member_keep(const struct member_reader *p, const char **out, json_t *object,
                      const char *key);

/* Exactly `digits` lower-case hexadecimal digits; out has room for them and a zero byte. */
tp_status member_hex(const struct member_reader *p, char *out, size_t digits, json_t *object,
                     const char *key);

/* A list of at most max entries, or an object. Borrowed from the tree. */
tp_status member_list(const struct member_reader *p, json_t **out, size_t *n, json_t *object,
                      const char *key, size_t max);
tp_status member_object(const struct member_reader *p, json_t **out, json_t *object,
                        const char *key);

#endif
