/*
 * core/json_scan.h - walks over a JSON text and gives out one value of it at a time.
 *
 * A tree of a whole text can need 80 times the memory of the text. So what is read from files that
 * anyone may have made is not parsed at once: this module finds where each member or entry begins
 * and ends, and the caller has a JSON library parse one of them at a time. Only a window of the
 * text is in memory. The grammar is checked, except for the digits of numbers and the bytes of
 * strings, which the library checks when it parses.
 *
 *     TP_TRY(json_scan_open(&s, &input, err));
 *     TP_TRY(json_scan_enter(s, '{', err));
 *     while (!(st = json_scan_member(s, &key, &more, err)) && more)
 *         TP_TRY(json_scan_value(s, &value, err));      or json_scan_skip, or json_scan_enter
 *     ...
 *     TP_TRY(json_scan_end(s, err));
 *
 * A text that is not JSON, or exceeds a limit, is TP_E_CORRUPT: "PATH: is not a JSON object: ...".
 */
#ifndef CORE_JSON_SCAN_H
#define CORE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* What one value may have at most. A tree of it then needs less than 20 MiB. */
enum {
    JSON_VALUE_BYTES_MAX = 4 << 20,
    JSON_VALUE_PARTS_MAX = 50000, /* values in it, at any depth */
    JSON_DEPTH_MAX = 128,
};

/* Where a text is: in memory, or a part of a file. */
struct json_scan_input {
    const char *path; /* for messages */
    const char *text; /* NULL: in the file */
    int fd;
    int64_t begin, size; /* of the text in the file, in bytes */
    /* Reads from what is not a local file; NULL: it is one. */
    tp_status (*read)(const void *ctx, const char *path, int64_t offset, void *buf, size_t n,
                      struct tp_err *err);
    const void *ctx;
};

struct json_scan_input json_scan_input_text(const char *text, size_t size, const char *path);
struct json_scan_input json_scan_input_file(int fd, int64_t begin, int64_t size, const char *path);

/* Read a part of the text. */
tp_status json_scan_input_read(const struct json_scan_input *in, int64_t offset, void *buf,
                               size_t n, struct tp_err *err);

struct json_scan;

/* A piece of the text, valid until the next call. */
struct json_scan_text {
    const char *text;
    size_t n;
};

/* Begin at the text's first byte. *in is copied; its path and text are borrowed. */
tp_status json_scan_open(struct json_scan **out, const struct json_scan_input *in,
                         struct tp_err *err);
void json_scan_close(struct json_scan *s);

/* Begin again. */
void json_scan_rewind(struct json_scan *s);

/* Enter the object ('{') or list ('[') that comes next. *entered, if it is not NULL: whether the
 * next value is one; without it, another value is an error. */
tp_status json_scan_enter(struct json_scan *s, char open, bool *entered, struct tp_err *err);

/* The key of the next member of the object, with its quotes. *more is false after the last one;
 * then the object has been left. */
tp_status json_scan_member(struct json_scan *s, struct json_scan_text *key, bool *more,
                           struct tp_err *err);

/* Whether the list has another entry. False: it has been left. */
tp_status json_scan_entry(struct json_scan *s, bool *more, struct tp_err *err);

/* The next value: its text, within the limits above; or skip it, whatever its size. */
tp_status json_scan_value(struct json_scan *s, struct json_scan_text *value, struct tp_err *err);
tp_status json_scan_skip(struct json_scan *s, struct tp_err *err);

/* Nothing but white space may follow. */
tp_status json_scan_end(struct json_scan *s, struct tp_err *err);

/* Whether a text is within the limits of a value, so that it may be parsed at once. It need not be
 * JSON. */
bool json_scan_is_bounded(const char *text, size_t size);

#endif
