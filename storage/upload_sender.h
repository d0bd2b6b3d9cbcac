/*
 * storage/upload_sender.h - the parts of an upload, sent by threads of their own, several at a
 * time, while the caller continues.
 */
#ifndef STORAGE_UPLOAD_SENDER_H
#define STORAGE_UPLOAD_SENDER_H

#include <stddef.h>

#include "core/err.h"
#include "storage/upload.h"

/* Parts that wait or are being sent, of all uploads of the process together, unless
 * upload_sender_limit says otherwise. */
enum { UPLOAD_SENDER_PARTS = 2 };

/* Set the limit, at least 1. Thread safe. */
void upload_sender_limit(int parts);

/* A limit with which all connections are busy: one part for each, and the next ones. */
int upload_sender_usual(void);

struct upload_sender;

/* u is borrowed. */
tp_status upload_sender_new(struct upload_sender **out, struct upload *u, struct tp_err *err);

/* Send a part (upload_part) when it is its turn. Waits while there are as many as the limit allows.
 * `data` is malloc'ed, and freed in any case. Fails when an earlier part of this upload failed.
 * Thread safe. */
tp_status upload_sender_add(struct upload_sender *s, int part, unsigned char *data, size_t n,
                            struct tp_err *err);

/* Wait until all parts are sent. */
tp_status upload_sender_wait(struct upload_sender *s, struct tp_err *err);

/* Free; s may be NULL. Parts that wait are dropped. */
void upload_sender_free(struct upload_sender *s);

#endif
