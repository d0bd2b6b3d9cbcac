/*
 * reshard/frames.h - a file of frames, each with a CRC32C of itself and that of the one before, so
 * that what a crash has torn at the end is found and written over.
 */
#ifndef RESHARD_FRAMES_H
#define RESHARD_FRAMES_H

#include <limits.h>
#include <stdint.h>

#include "core/err.h"

/* A frame: FRAME_HEAD bytes, the payload, FRAME_TAIL bytes. */
enum { FRAME_HEAD = 16, FRAME_TAIL = 4 };

/* Zero but for path and fd before the first frame. To undo a read, restore end and crc. */
struct frames {
    char path[PATH_MAX]; /* for messages */
    int fd;              /* the caller's */
    int64_t end;         /* of the last frame that was read or written */
    uint32_t crc;        /* of that frame; 0: none */
};

/* Write a frame at the end, so that it lasts; buf has FRAME_HEAD bytes before its `bytes` of
 * payload and FRAME_TAIL after them. */
tp_status frames_write(struct frames *f, uint32_t kind, unsigned char *buf, uint64_t bytes,
                       struct tp_err *err);

/* Read the next frame: malloc'ed, *bytes of payload after FRAME_HEAD. file_bytes: of the file.
 * TP_E_CORRUPT: there is none that is whole and of this kind. */
tp_status frames_read(unsigned char **out, uint64_t *bytes, struct frames *f, uint32_t kind,
                      int64_t file_bytes, struct tp_err *err);

#endif
