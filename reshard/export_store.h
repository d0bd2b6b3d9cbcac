/*
 * reshard/export_store.h - an export to an S3-compatible store: all files appear, or none.
 *
 * Tensors are uploaded while they are written (reshard/formats/upload_set.h). Headers and small
 * files are made in a scratch folder, and sent at the end. config.json is created last; its
 * presence is the commit. Everything is created only if there is none (If-None-Match), so of two
 * exports to one prefix at most one succeeds, and nothing of others is ever replaced or removed.
 */
#ifndef RESHARD_EXPORT_STORE_H
#define RESHARD_EXPORT_STORE_H

#include <limits.h>

#include "core/err.h"
#include "reshard/formats/upload_set.h"

struct export_store {
    char to[PATH_MAX];  /* s3://... */
    char dir[PATH_MAX]; /* the scratch folder; "": none */
    const char *mark;   /* the file that is created last; borrowed */
    struct upload_set *files;
};

/* Begin. scratch: where to make the scratch folder; NULL: /tmp. TP_E_EXISTS: the prefix has
 * objects. TP_E_USAGE: `to` is not in a store. */
tp_status export_store_begin(struct export_store *s, const char *to, const char *mark,
                             const char *scratch, int n_tensors, struct tp_err *err);

/* When the store has all tensors, and the scratch folder all small files: make everything appear.
 * After a failure nothing has. */
tp_status export_store_commit(struct export_store *s, struct tp_err *err);

/* Remove the scratch folder, and what was not committed. Also for one that is all zeroes. */
void export_store_end(struct export_store *s);

#endif
