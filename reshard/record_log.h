/*
 * reshard/record_log.h - a file of frames, each with a CRC32C of itself and that of the one before,
 * so that what a crash has torn at the end is found and written over.
 */
#ifndef RESHARD_RECORD_LOG_H
#define RESHARD_RECORD_LOG_H

#include <limits.h>
#include <stdint.h>

#include "core/err.h"

/* A frame: RECORD_HEAD bytes, the payload, RECORD_TAIL bytes. */
enum { RECORD_HEAD = 16, RECORD_TAIL = 4 };

/* Zero but for path and fd before the first frame. To undo a read, restore end and crc. */
struct record_log {
    char path[PATH_MAX]; /* for messages */
    int fd;              /* the caller's */
    int64_t end;         /* of the last frame that was read or written */
    uint32_t crc;        /* of that frame; 0: none */
};

/* Write a frame at the end, so that it lasts; buf has RECORD_HEAD bytes before its `bytes` of
 * payload and RECORD_TAIL after them. */
tp_status record_log_write(struct record_log *f, uint32_t kind, unsigned char *buf, uint64_t bytes,
                           struct tp_err *err);

/* Read the next frame: malloc'ed, *bytes of payload after RECORD_HEAD. file_bytes: of the file.
 * TP_E_CORRUPT: there is none that is whole and of this kind. */
tp_status record_log_read(unsigned char **out, uint64_t *bytes, struct record_log *f, uint32_t kind,
                          int64_t file_bytes, struct tp_err *err);

#endif
