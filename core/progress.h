/*
 * core/progress.h - how long work tells people how far it is.
 *
 * On a terminal: one line that is rewritten, with rate and time left. Elsewhere (a log): a plain
 * line at the start, at most one every ten seconds, and one at the end. All on stderr, all through
 * the program that made the object; libraries only call progress_add.
 */
#ifndef CORE_PROGRESS_H
#define CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress;

/* Begin; title is borrowed. quiet gives an object that prints nothing. NULL when memory is out,
 * which every call below takes as quiet. */
struct progress *progress_new(const char *title, int64_t total_bytes, bool quiet);

/* Set the total once it is known. */
void progress_total(struct progress *p, int64_t total_bytes);

/* n bytes more are done; from any thread. */
void progress_add(struct progress *p, int64_t n_bytes);

/* End the line and free. ok: the closing line says done with rate; else it is left as it stands. */
void progress_end(struct progress *p, bool ok);

#endif
