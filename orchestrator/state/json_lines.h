/*
 * orchestrator/state/json_lines.h - files of one JSON value a line, which are only ever appended
 * to. A crash or a full disk may tear the last line.
 */
#ifndef ORCHESTRATOR_STATE_JSON_LINES_H
#define ORCHESTRATOR_STATE_JSON_LINES_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

/* An array of the newest `keep` values, oldest first; lines that do not parse are passed over.
 * Empty where there is no file. NULL: no memory. */
json_t *json_lines_read(const char *path, int keep);

/* Add `value`, whose reference it takes, and drop the oldest beyond `keep`. */
void json_lines_keep(json_t *list, json_t *value, int keep);

/* End a torn last line, so that the next has its own. fd: O_RDWR | O_APPEND. False: errno. */
bool json_lines_end(int fd);

#endif
