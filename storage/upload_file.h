/*
 * storage/upload_file.h - an object of a store whose bytes are written in any order, as those of a
 * file: it is uploaded in parts, without a local copy.
 *
 * A part is sent when all of its payload has arrived (storage/upload_sender.h), so only parts that
 * have begun, wait or are being sent are in memory. What is not payload, such as a header, is read
 * from its caller when a part begins.
 *
 *     TP_TRY(upload_file_new(&u, &what, err));
 *     upload_file_expect(u, offset, n);              for all payload
 *     upload_file_hold(u, offset, n);                for what is known at the end only
 *     TP_TRY(upload_file_begin(u, NULL, err));
 *     TP_TRY(upload_file_write(u, offset, data, n, err));      each byte of payload once
 *     TP_TRY(upload_file_finish(u, err));
 *     TP_TRY(upload_file_wait(u, err));
 *     TP_TRY(upload_file_complete(u, err));          it appears
 *     upload_file_end(u);
 */
#ifndef STORAGE_UPLOAD_FILE_H
#define STORAGE_UPLOAD_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct upload_file;

struct upload_file_request {
    const char *path; /* s3://...; borrowed */
    int64_t size;     /* bytes; or the most, if upload_file_shorten follows */
    /* Bytes that are not payload. NULL: what is not payload is held. Under a lock. */
    tp_status (*structure)(void *ctx, int64_t offset, void *buf, int64_t n, struct tp_err *err);
    /* The final bytes of what was held, in upload_file_finish. */
    tp_status (*final)(void *ctx, int64_t offset, void *buf, int64_t n, struct tp_err *err);
    void *ctx;
};

tp_status upload_file_new(struct upload_file **out, const struct upload_file_request *q,
                          struct tp_err *err);

/* n bytes at `offset` are payload; n bytes become known in upload_file_finish, and so are their
 * parts' turn to be sent. */
void upload_file_expect(struct upload_file *u, int64_t offset, int64_t n);
void upload_file_hold(struct upload_file *u, int64_t offset, int64_t n);

/* Begin the upload, or join the one that another process has begun (storage/upload.h). */
tp_status upload_file_begin(struct upload_file *u, const char *id, struct tp_err *err);

/* Thread safe. */
tp_status upload_file_write(struct upload_file *u, int64_t offset, const void *data, int64_t n,
                            struct tp_err *err);

/* The object has only so many bytes; less payload is expected. Before upload_file_finish. */
tp_status upload_file_shorten(struct upload_file *u, int64_t size, int64_t payload_end,
                              struct tp_err *err);

/* Begin to send what is left; and wait until all is sent. The object is not visible yet. */
tp_status upload_file_finish(struct upload_file *u, struct tp_err *err);
tp_status upload_file_wait(struct upload_file *u, struct tp_err *err);

/* Make the object appear; as upload_complete. */
tp_status upload_file_complete(struct upload_file *u, struct tp_err *err);

/* Remove the object if it has appeared. */
void upload_file_remove(struct upload_file *u);

/* Free; u may be NULL. An object that has not appeared never does, if this process has begun it. */
void upload_file_end(struct upload_file *u);

/* ---- several processes write one object ----
 *
 * One begins the upload; the others join it by its id. Each sends the parts of which all payload
 * has arrived in it. Of the others, processes have pieces: the bytes of a part that arrived here,
 * and 0 for the rest of its payload. The process that began combines the pieces of all by OR,
 * before upload_file_finish.
 */

const char *upload_file_id(const struct upload_file *u);

/* Every part but those that are held is sent, or being sent, by some process: upload_file_finish
 * sends only these. */
void upload_file_share(struct upload_file *u);

/* As upload_receipts. After upload_file_wait. */
uint64_t *upload_file_receipts(const struct upload_file *u, int64_t *n_words);

int upload_file_parts(const struct upload_file *u);

/* Whether this process has sent a part, or has a receipt of another one for it. */
bool upload_file_is_sent(const struct upload_file *u, int part);

/* The piece of a part, as words, the last of them filled up with 0. NULL: there is none here. */
uint64_t *upload_file_piece(const struct upload_file *u, int part, int64_t *n_words);

/* Where there is no piece of a part, make one without payload. */
tp_status upload_file_add_piece(struct upload_file *u, int part, struct tp_err *err);

/* Whether a part has bytes that are held: then only the process that began may send it, in
 * upload_file_finish. */
bool upload_file_is_held(const struct upload_file *u, int part);

/* The piece of a part is all of it now: send it, unless it is held. */
tp_status upload_file_send_piece(struct upload_file *u, int part, struct tp_err *err);

/* Free the piece of a part that another process sends. */
void upload_file_drop_piece(struct upload_file *u, int part);

#endif
