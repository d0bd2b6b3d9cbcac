/*
 * orchestrator/state/journal.h - what tp-run did and is about to do. So tp-run can be killed at
 * any time.
 *
 * STATE/journal has one line for each record: CRC32C, length, JSON. A record is appended and synced
 * before the action that it announces, or after the outcome that it reports. Each record has the
 * whole run record (run_record.h), so taking over means reading the last good record; the lines
 * before it are history for people. A torn last line is cut off, and damage before the last good
 * record is skipped. At 4 MiB a new journal begins with the last record, and the old file
 * becomes journal.old. STATE/lock is held (flock) while the journal is open.
 */
#ifndef ORCHESTRATOR_STATE_JOURNAL_H
#define ORCHESTRATOR_STATE_JOURNAL_H

#include <jansson.h>
#include <stdbool.h>

#include "core/err.h"

struct journal;

/* Open STATE/journal for writing, and create it if it does not exist. *last gets the last record,
 * NULL when there is none; the caller decrefs it. TP_E_EXISTS: another tp-run has it (err has its
 * pid); of one that has ended, for more than five seconds. TP_E_USAGE: STATE is not a folder of
 * this user alone (core/private_dir.h). */
tp_status journal_open(struct journal **out, json_t **last, const char *state, struct tp_err *err);

/* Append one record; takes over the reference. It is durable on return. */
tp_status journal_append(struct journal *j, json_t *record, struct tp_err *err);

/* Whether the last record could not be written. The caller sets this. */
bool journal_has_failed(const struct journal *j);
void journal_set_failed(struct journal *j, bool failed);

void journal_close(struct journal *j);

/* Read the last good record without the lock, for `status`. TP_E_NOTFOUND: there is no journal. */
tp_status journal_peek(json_t **last, const char *state, struct tp_err *err);

/* The run record in a journal record, also of an earlier version. Borrowed. */
const json_t *journal_run_record(const json_t *record);

#endif
