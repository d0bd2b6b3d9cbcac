/*
 * reshard/formats/checkpoint/shared_upload.h - a shard that several processes write to a store.
 *
 * Each process sends the parts of which it has all payload (storage/upload_file.h). Tiles are
 * divided in the order of the tensors, as they are in a file, so of each file only the parts
 * between two processes are left. Rank 0 combines their pieces, and the others send them in turn.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_SHARED_UPLOAD_H
#define RESHARD_FORMATS_CHECKPOINT_SHARED_UPLOAD_H

#include "comm/control.h"
#include "storage/upload_file.h"

/* The id of rank 0's upload, for all to join; id has UPLOAD_ID_MAX bytes. u is used on rank 0 only.
 * Collective. */
tp_status shared_upload_id(struct comm_control *c, char *id, const struct upload_file *u,
                           struct tp_err *err);

/* After all writing, of a shard that rank 0 has created and all others have joined: combine the
 * pieces of all, and begin to send them. Collective. */
tp_status shared_upload_combine(struct comm_control *c, struct upload_file *u, struct tp_err *err);

/* Then: wait until the store has what all processes sent. Rank 0 gets the receipts, so that it can
 * make the shard appear. Collective. */
tp_status shared_upload_settle(struct comm_control *c, struct upload_file *u, struct tp_err *err);

#endif
