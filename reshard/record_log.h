/*
 * reshard/record_log.h - an append-only file of records.
 *
 * Each record has a CRC32C of itself and that of the record before it. So a record that a crash
 * left incomplete at the end is recognized, and the next one is written over it.
 */
#ifndef RESHARD_RECORD_LOG_H
#define RESHARD_RECORD_LOG_H

#include <limits.h>
#include <stdint.h>

#include "core/err.h"

/* A record is RECORD_HEAD bytes, the payload, RECORD_TAIL bytes. */
enum { RECORD_HEAD = 16, RECORD_TAIL = 4 };

/* Before the first record all fields but path and fd are zero. To undo a read, restore end and
 * crc. */
struct record_log {
    char path[PATH_MAX]; /* for messages */
    int fd;              /* belongs to the caller */
    int64_t end;         /* of the last record that was read or written */
    uint32_t crc;        /* of that record; 0: none */
};

/* Append a record and fdatasync. buf has RECORD_HEAD bytes before its `bytes` of payload and
 * RECORD_TAIL bytes after them, which are filled in. */
tp_status record_log_append(struct record_log *log, uint32_t kind, unsigned char *buf,
                            uint64_t bytes, struct tp_err *err);

/* Read the next record of a file of file_bytes: *out is malloc'ed and has *bytes of payload after
 * RECORD_HEAD. TP_E_CORRUPT: there is no complete record of this kind. */
tp_status record_log_read(unsigned char **out, uint64_t *bytes, struct record_log *log,
                          uint32_t kind, int64_t file_bytes, struct tp_err *err);

#endif
