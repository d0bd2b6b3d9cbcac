/*
 * reshard/move_journal.h - how far a move is, kept in a small file beside what it writes, so that
 * after a signal or a crash the next run goes on instead of starting over.
 *
 * A move does its windows in order; what it needs to know of those behind it, besides their number,
 * are the checksums that its ports have added up: arrays of 64-bit words. The journal is a head
 * that says which move it is, then records: so many windows are done, and these words have changed
 * since the record before. Each record carries a CRC32C and the one of its predecessor; reading
 * stops at the first that is torn, damaged or out of line, and the next one is written over it.
 *
 * The caller makes the targets' bytes last before it appends a record that covers them. The file is
 * of this machine's byte order and of this version alone: it lives in a temporary directory.
 */
#ifndef RESHARD_MOVE_JOURNAL_H
#define RESHARD_MOVE_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

#define JOURNAL_FILE "progress"

enum { JOURNAL_SHA_TEXT = 65 };

/* Which move it is. */
struct move_journal_head {
    char identity_sha256[JOURNAL_SHA_TEXT]; /* of what is moved and how */
    char places_sha256[JOURNAL_SHA_TEXT];   /* of what lies where in the target's files */
    int64_t worker_bytes, n_windows;        /* how tensors are cut into windows */
    int64_t n_words;                        /* filled in by move_journal_create */
    bool made_root;                         /* the target's root is the move's own: see ckpt_txn */
};

/* An array of sums. Borrowed. */
struct sums {
    uint64_t *words;
    int64_t n;
};

struct move_journal;

/* Read the head of dir's journal. TP_E_NOTFOUND: it has none; TP_E_CORRUPT: not one of ours, or
 * damaged. */
tp_status move_journal_peek(struct move_journal_head *head, const char *dir, struct tp_err *err);

/* Begin a journal in dir, which has none; the sums, arrays in a fixed order, outlive it. */
tp_status move_journal_create(struct move_journal **out, const char *dir,
                              const struct move_journal_head *head, const struct sums *sums,
                              int n_sums, struct tp_err *err);

/* Go on with dir's journal: the sums become those of the last good record, *done its windows; what
 * comes after it is cut off. TP_E_CORRUPT: the head is not `head`; the sums are unchanged. */
tp_status move_journal_resume(struct move_journal **out, int64_t *done, const char *dir,
                              const struct move_journal_head *head, const struct sums *sums,
                              int n_sums, struct tp_err *err);

/* Windows below `done` are done, with the sums as they are now. Returns when the record lasts. */
tp_status move_journal_append(struct move_journal *j, int64_t done, struct tp_err *err);

/* Delete the file, under whatever name its directory has by now: after the directory has become a
 * checkpoint, so that there is no moment at which a crash loses all. One that hits before this
 * leaves the file there, where nobody minds it. */
void move_journal_remove(struct move_journal *j);

/* Close and free; j may be NULL. The file stays. */
void move_journal_close(struct move_journal *j);

#endif
