/*
 * reshard/transfer_journal.h - how far a move is, kept in a small file beside what it writes, so
 * that after a signal or a crash the next run goes on instead of starting over.
 *
 * A move does its windows in order; what it needs to know of those behind it, besides their number,
 * are the checksums that its endpoints have added up: arrays of 64-bit words. The journal is a head
 * that says which move it is, then records: so many windows are done, and these words have changed
 * since the record before. Each record carries a CRC32C and the one of its predecessor; reading
 * stops at the first that is torn, damaged or out of line, and the next one is written over it.
 *
 * The caller makes the targets' bytes last before it appends a record that covers them. The file is
 * of this machine's byte order and of this version alone: it lives in a temporary directory.
 */
#ifndef RESHARD_TRANSFER_JOURNAL_H
#define RESHARD_TRANSFER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/hash.h"
#include "core/err.h"
#include "reshard/engine/endpoint.h"

#define JOURNAL_FILE "progress"

/* Which move it is. */
struct transfer_journal_head {
    char identity_sha256[HASH_TEXT]; /* of what is moved and how */
    char places_sha256[HASH_TEXT];   /* of what lies where in the target's files */
    int64_t thread_bytes, n_tiles;   /* how tensors are cut into windows */
    int64_t n_words;                 /* filled in by transfer_journal_create */
    bool made_root;                  /* the target's root is the move's own: see ckpt_txn */
};

struct transfer_journal;

/* Read the head of dir's journal. TP_E_NOTFOUND: it has none; TP_E_CORRUPT: not one of ours, or
 * damaged. */
tp_status transfer_journal_peek(struct transfer_journal_head *head, const char *dir,
                                struct tp_err *err);

/* Begin a journal in dir, which has none; the sums, arrays in a fixed order, outlive it. */
tp_status transfer_journal_create(struct transfer_journal **out, const char *dir,
                                  const struct transfer_journal_head *head,
                                  const struct reshard_sums *sums, int n_sums, struct tp_err *err);

/* Go on with dir's journal: the sums become those of the last good record, *done its windows; what
 * comes after it is cut off. TP_E_CORRUPT: the head is not `head`; the sums are unchanged. */
tp_status transfer_journal_resume(struct transfer_journal **out, int64_t *done, const char *dir,
                                  const struct transfer_journal_head *head,
                                  const struct reshard_sums *sums, int n_sums, struct tp_err *err);

/* Windows below `done` are done, with the sums as they are now. Returns when the record lasts. */
tp_status transfer_journal_append(struct transfer_journal *j, int64_t done, struct tp_err *err);

/* Delete the file, under whatever name its directory has by now: after the directory has become a
 * checkpoint, so that there is no moment at which a crash loses all. One that hits before this
 * leaves the file there, where nobody minds it. */
void transfer_journal_remove(struct transfer_journal *j);

/* Close and free; j may be NULL. The file stays. */
void transfer_journal_close(struct transfer_journal *j);

#endif
