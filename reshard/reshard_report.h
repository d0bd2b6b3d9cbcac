/*
 * reshard/reshard_report.h - what a reshard did, or what a dry run foresees.
 */
#ifndef RESHARD_RESHARD_REPORT_H
#define RESHARD_RESHARD_REPORT_H

#include <limits.h>

#include "ckpt/root.h"
#include "reshard/clone_job.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/reshard_kinds.h"
#include "reshard/resume.h"

struct reshard_report {
    struct arena arena; /* of everything below */
    char dir[PATH_MAX]; /* step directory of the source */
    char out[PATH_MAX]; /* root of the target */
    struct spec from, to;
    struct spec kept; /* the axes that the request did not name and that are not 1 in the source;
                         kept.given has their bits */
    int64_t step;
    int n_tensors, boxes_from, boxes_to;
    int64_t *rank_bytes;           /* [ranks of `to`] payload of each rank's file; 0: it has none */
    struct transfer_stats planned; /* of this process */
    const struct reshard_kind *kinds; /* only of a dry run */
    int n_kinds;

    /* All processes together: what was done, or what a dry run foresees. */
    int processes;
    int64_t bytes_read, bytes_written, tiles;
    int64_t peak_bytes; /* resident memory of the process that has most */
    int64_t base_bytes; /* of it, the program and its tables */
    double seconds;
    int64_t device_bytes;          /* of this process, that a device copied */
    double host_rate, device_rate; /* of this process; as in struct transfer_stats */

    /* Proof. Every chunk that was read had the checksum that the source states. */
    int digests_equal; /* tensors whose digest is the same in source and target */
    int casts; /* tensors that were cast: what was written has the digest of the cast of what was
                  read */

    int zstd;             /* level of compression; 0: none */
    int64_t stored_bytes; /* of payload in the new files, when they are compressed */

    int64_t cloned_bytes; /* payload that shares its blocks with the source and was not read */

    int linked_files; /* of the source that the new step consists of; 0: everything was copied */
    int64_t linked_bytes; /* their payload, which was not read: its digests are the same because the
                             indexes are */

    int64_t resumed_tiles, all_tiles; /* completed by an interrupted run before; of the whole job */
    int64_t damaged_chunks; /* of what the interrupted run wrote; they were written again */
};

/* Where the report finds its figures; all borrowed. */
struct reshard_outcome {
    const struct ckpt_found *from;
    const struct layout *to;
    struct spec kept;
    const char *out;
    const struct copy_job *copy;
    const struct resume *resume;
    const struct clone_job *clone;
    const struct checkpoint_target *target;
    const int64_t *linked_rank_bytes; /* [ranks of `to`] payload of the files that were linked;
                                         NULL: all was copied */
    struct comm_control *control;
    int zstd;
    bool dry_run;
};

/* Fill in everything but `seconds`. Collective over the control. */
tp_status reshard_report_fill(struct reshard_report *r, const struct reshard_outcome *outcome,
                              struct tp_err *err);

/* Files of the target. */
int reshard_report_files(const struct reshard_report *r);
void reshard_report_free(struct reshard_report *r);

#endif
