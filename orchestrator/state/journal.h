/*
 * orchestrator/state/journal.h - what tp-run did and is about to do, so that it can be killed
 * anywhere.
 *
 * STATE/journal: a line a record, "CRC32C LENGTH {json}\n", appended and fsynced before the action
 * it announces and after the outcome it reports. Each record carries the whole book (book.h), so
 * that taking over is reading the last good record; the lines before it are history for people. A
 * torn last line is cut off, damage before the last good record passed over. At 4 MiB a new journal
 * begins with the last record; the one before is journal.old. STATE/lock is held (flock) for as
 * long as the journal is open.
 */
#ifndef ORCHESTRATOR_STATE_JOURNAL_H
#define ORCHESTRATOR_STATE_JOURNAL_H

#include <jansson.h>
#include <stdint.h>

#include "core/err.h"

struct journal;

/* Open STATE/journal for writing (made if absent). *last gets the last record, NULL when there is
 * none; the caller decrefs it. TP_E_EXISTS: another tp-run has it (its pid is named). */
tp_status journal_open(struct journal **out, json_t **last, const char *state, struct tp_err *err);

/* Append one record: takes over the reference. Durable on return. */
tp_status journal_append(struct journal *j, json_t *record, struct tp_err *err);

void journal_close(struct journal *j);

/* The last good record without taking the lock, for `status`. TP_E_NOTFOUND: no journal. */
tp_status journal_peek(json_t **last, const char *state, struct tp_err *err);

#endif
