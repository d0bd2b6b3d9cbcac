/*
 * cli/print.h - results on stdout.
 */
#ifndef CLI_PRINT_H
#define CLI_PRINT_H

#include <jansson.h>

#include "core/err.h"

/* Print text that came from a file or the command line, with control characters and bytes that are
 * not UTF-8 escaped, so that a name cannot change the terminal or add a line (text_escape). */
void print_safe(const char *text);

/* The same between `before`, which is printed as it is, and a newline. */
void print_field(const char *before, const char *text);

/* The same of "group/name", the full name of a tensor, without a newline. */
void print_tensor(const char *group, const char *name);

/* A text as a JSON string. Paths and names may have any bytes, but a JSON string must be UTF-8: in
 * one that is not, bytes that do not belong to a character become '?'. */
json_t *print_text(const char *text);

/* Print a JSON value and a newline. */
void print_json(const json_t *value);

/* The entry i of a list, to be freed by the caller. */
typedef json_t *(*print_entry_fn)(const void *ctx, int i);

/* Print an object as print_json does: the members of head, of which there is one at least, and the
 * list `name` of n entries. Of these one is in memory at a time, because a list of all tensors
 * needs several times the memory of their table. */
void print_json_with_list(const json_t *head, const char *name, int n, print_entry_fn entry,
                          const void *ctx);

/* The same as print_json in one line without spaces. */
void print_json_line(const json_t *value);

/* Print one JSON object with the members of both, which are freed, and flush stdout. */
tp_status print_json_joined(json_t *a, json_t *b, struct tp_err *err);

/* A JSON list of n numbers. */
json_t *print_int_list(const int64_t *values, int n);

/* In place: write each number of a JSON text that has a fraction or exponent with the fewest digits
 * that read back as the same number, 0.0005 and not 0.00050000000000000001. Returns json. */
char *print_shorten(char *json);

/* Flush stdout; TP_E_IO when output was lost (a full disk, a closed pipe). */
tp_status print_done(struct tp_err *err);

/* Pass on the status of what reported `made`, a path that is complete. Where the report could not
 * be printed, the error says so: the exit code alone would say that there is nothing. */
tp_status print_reported(tp_status st, const char *made, struct tp_err *err);

#endif
