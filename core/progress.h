/*
 * core/progress.h - the progress line of a long operation, on stderr.
 *
 * On a terminal it is one line that is redrawn, with rate and remaining time, cut to the width of
 * the terminal. Elsewhere, as in a log, there is a line every ten seconds at most. When the
 * operation is done, a last line gives its total and rate. Durations from a minute on are in
 * minutes, hours and days ("2 h 1 min left"). Programs create the object; libraries only call
 * progress_add. This is the one module below cli/ that prints.
 *
 * An operation may have several actions, one after the other (copying, then cloning), each with a
 * total and a rate of its own. For scripts there is a JSON object per line, every second at most
 * and at the end of each action:
 *   {"progress": "resharding", "action": "copying", "bytes_done": 1, "bytes_total": 2,
 *    "bytes_per_s": 3, "seconds_left": 0.5, "bytes_copied": 1, "bytes_cloned": 0, "bytes_sent": 0}
 * bytes_done, bytes_total and the rate are those of the action; the bytes that were copied, cloned
 * and sent to a store are those of the whole operation. Notes stay sentences: they do not begin
 * with a brace.
 */
#ifndef CORE_PROGRESS_H
#define CORE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress;

/* PROGRESS_LINES: as PROGRESS_TEXT into a log, also on a terminal: one that cannot redraw a
 * line. */
enum progress_style { PROGRESS_TEXT, PROGRESS_LINES, PROGRESS_QUIET, PROGRESS_JSON };

/* What happens to the bytes of an action. */
enum progress_kind { PROGRESS_OTHER, PROGRESS_COPIED, PROGRESS_CLONED, PROGRESS_KINDS };

/* Begin. `title` is borrowed. PROGRESS_QUIET: print nothing but notes. NULL when memory is out; all
 * functions below accept NULL and do nothing. */
struct progress *progress_new(const char *title, int64_t total_bytes, enum progress_style style);

/* Where a line finds the bytes that this process has sent to a store; called from any thread. */
void progress_sent(struct progress *p, int64_t (*sent_bytes)(void));

/* Begin an action, which is borrowed ("copying"), of this many bytes, and count from here on. */
void progress_action(struct progress *p, const char *action, enum progress_kind kind,
                     int64_t total_bytes);

/* Set the total once it is known, and count from here on: bytes that were added before belong to an
 * earlier part of the operation. */
void progress_total(struct progress *p, int64_t total_bytes);

/* n_bytes more are done. Any thread may call this. */
void progress_add(struct progress *p, int64_t n_bytes);

/* The same when they were handled in another way than the action's. */
void progress_add_as(struct progress *p, enum progress_kind kind, int64_t n_bytes);

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
