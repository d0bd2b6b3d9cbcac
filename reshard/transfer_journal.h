/*
 * reshard/transfer_journal.h - a small file that records how far a transfer is, so that after a
 * signal or a crash a later process can resume it.
 *
 * The file is in the directory of the transfer's target. A transfer completes its tiles in order.
 * To resume it, a process needs the number of completed tiles and the running checksums of its
 * endpoints, which are arrays of 64-bit words. The journal has a head, which identifies the
 * transfer, and records: a number of completed tiles, and the words that have changed since the
 * record before. Reading stops at the first record that is incomplete, damaged or out of sequence;
 * the next record is written over it. The transaction that makes the directory appear removes the
 * file right before the rename (ckpt_transaction.scratch).
 *
 * The caller syncs the target before it appends a record that covers what was written. The file is
 * in this machine's byte order and for this version of the program only.
 */
#ifndef RESHARD_TRANSFER_JOURNAL_H
#define RESHARD_TRANSFER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/sha256.h"
#include "core/err.h"
#include "reshard/engine/endpoint.h"

#define TRANSFER_JOURNAL_FILE "progress"

/* Which transfer it is. */
struct transfer_journal_head {
    char identity_sha256[SHA256_TEXT]; /* of what is transferred, and how */
    char layout_sha256[SHA256_TEXT];   /* of which boxes are where in the target's files */
    int64_t thread_bytes, n_tiles;     /* how tensors are cut into tiles */
    int64_t n_words;                   /* filled in by transfer_journal_create */
    bool made_root;                    /* the transfer created the target's root */
};

/* What a journal is about; all borrowed. */
struct transfer_journal_subject {
    const char *dir;
    const struct transfer_journal_head *head;
    const struct reshard_sums *sums; /* [n_sums] of source and target */
    int n_sums;
};

struct transfer_journal;

/* Read the head of the journal in dir. TP_E_NOTFOUND: there is none. TP_E_CORRUPT: it is damaged,
 * or another program's. */
tp_status transfer_journal_peek(struct transfer_journal_head *head, const char *dir,
                                struct tp_err *err);

/* Create a journal. It gets its name when its head is on disk. */
tp_status transfer_journal_create(struct transfer_journal **out,
                                  const struct transfer_journal_subject *s, struct tp_err *err);

/* Continue the journal of an earlier process: the words of the sums become those of its last good
 * record, and *done its number of tiles; what follows that record is cut off.
 * TP_E_CORRUPT: the journal is about another transfer; the sums are unchanged. */
tp_status transfer_journal_resume(struct transfer_journal **out, int64_t *done,
                                  const struct transfer_journal_subject *s, struct tp_err *err);

/* Record that tiles 0 .. done - 1 are complete, with the sums as they are now. Returns when the
 * record is on disk. */
tp_status transfer_journal_append(struct transfer_journal *j, int64_t done, struct tp_err *err);

/* Set the words of the sums back to those of the last record. */
void transfer_journal_restore(const struct transfer_journal *j);

/* Close and free; j may be NULL. The file stays. */
void transfer_journal_close(struct transfer_journal *j);

#endif
