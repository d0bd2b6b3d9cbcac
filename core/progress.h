/*
 * core/progress.h - the progress line of a long operation, on stderr.
 *
 * On a terminal it is one line that is redrawn, with rate and remaining time. Elsewhere, as in a
 * log, there is a line every ten seconds at most. When the operation is done, a last line gives
 * its total and rate. Programs create the object; libraries only call progress_add. This is the
 * one module below cli/ that prints.
 */
#ifndef CORE_PROGRESS_H
#define CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress;

/* Begin. `title` is borrowed. quiet: print nothing. NULL when memory is out; all functions below
 * accept NULL and do nothing. */
struct progress *progress_new(const char *title, int64_t total_bytes, bool quiet);

/* Set the total once it is known, and count from here on: bytes that were added before belong to an
 * earlier part of the operation. */
void progress_total(struct progress *p, int64_t total_bytes);

/* n_bytes more are done. Any thread may call this. */
void progress_add(struct progress *p, int64_t n_bytes);

/* Print "TITLE: sentence" on a line of its own, also when quiet: what a person should know while
 * the work continues. Control characters are printed as '?'. */
void progress_note(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* progress_note for callbacks; ctx is the struct progress. */
void progress_say(void *ctx, const char *sentence);

/* End and free, and remove the line from a terminal: the program prints a result that has its own
 * total and rate. */
void progress_erase(struct progress *p);

/* End and free. ok: print the last line; otherwise leave the line as it is. */
void progress_end(struct progress *p, bool ok);

#endif
