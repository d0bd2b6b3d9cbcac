/*
 * reshard/read_back.h - checks that what a journal claims is on the disk, before a transfer
 * resumes. Inside reshard/ only.
 *
 * What the interrupted run wrote is read again and compared with the journal's checksums. Chunks
 * that differ, because a disk or another program damaged them, are copied again from the source,
 * and must then be equal.
 */
#ifndef RESHARD_READ_BACK_H
#define RESHARD_READ_BACK_H

#include "reshard/engine/transfer.h"
#include "reshard/transfer_journal.h"

struct read_back {
    struct transfer_plan *plan;
    const struct reshard_endpoint *target; /* created again; its sums are the journal's */
    struct transfer_journal *journal;
    int64_t tiles;             /* 0 .. tiles - 1 are complete, says the journal */
    int64_t bytes;             /* that they wrote */
    struct progress *progress; /* counts bytes that are read, and receives notes; NULL: none */
    int64_t damaged;           /* result: chunks that were written again */
};

/* TP_OK: everything that the journal claims is there. TP_E_CORRUPT: a chunk cannot be repaired.
 * TP_E_STOPPED: a signal asked to stop; nothing is lost. */
tp_status read_back_run(struct read_back *r, struct tp_err *err);

#endif
