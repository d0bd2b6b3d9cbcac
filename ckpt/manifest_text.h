/*
 * ckpt/manifest_text.h - the text of manifest.json: its checksum, its members, and its two lists,
 * entry by entry. Inside ckpt/ only.
 *
 * The lists have an entry for each tensor and each shard. At most one entry is in memory as a tree,
 * so a text that was made to mislead cannot use much memory (core/json_scan.h).
 */
#ifndef CKPT_MANIFEST_TEXT_H
#define CKPT_MANIFEST_TEXT_H

#include <jansson.h>

#include "ckpt/member.h"
#include "core/json_scan.h"

enum manifest_list { MANIFEST_TENSORS, MANIFEST_SHARDS, MANIFEST_LISTS };

struct manifest_text {
    struct json_scan *scan;
    json_t *head;                      /* the members that are read; others are null */
    int64_t n_entries[MANIFEST_LISTS]; /* of each list; -1: it is missing, or not a list */
};

/* Check the checksum and read the members. Close *t in any case. TP_E_CORRUPT says what is wrong;
 * messages go to p->err. */
tp_status manifest_text_open(struct manifest_text *t, const struct json_scan_input *in,
                             const struct member_reader *p);

/* Reads entry `number` of a list. */
typedef tp_status (*manifest_entry_fn)(void *ctx, enum manifest_list list, int64_t number,
                                       json_t *entry);

/* Read all entries of both lists, each list in its order. */
tp_status manifest_text_lists(struct manifest_text *t, manifest_entry_fn read, void *ctx,
                              const struct member_reader *p);

void manifest_text_close(struct manifest_text *t);

#endif
