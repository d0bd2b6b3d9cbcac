/*
 * orchestrator/state/json_lines.h - append-only files with one JSON value per line.
 *
 * A crash or a full disk may leave a torn last line.
 */
#ifndef ORCHESTRATOR_STATE_JSON_LINES_H
#define ORCHESTRATOR_STATE_JSON_LINES_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

/* An array of the newest `keep` values, oldest first, without lines that are not JSON. Empty if the
 * file does not exist. NULL: no memory. */
json_t *json_lines_read(const char *path, int keep);

/* Call `use` with each value of the file, in order, without keeping it in memory. */
void json_lines_each(const char *path, void (*use)(void *ctx, json_t *value), void *ctx);

/* Append `value`, taking over its reference, and drop the oldest beyond `keep`. */
void json_lines_keep(json_t *list, json_t *value, int keep);

/* End a torn last line, so that the next value begins a new line. fd: O_RDWR | O_APPEND. False: see
 * errno. */
bool json_lines_end(int fd);

#endif
