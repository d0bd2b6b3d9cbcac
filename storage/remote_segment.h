/*
 * storage/remote_segment.h - parts of remote objects in memory, and the threads that fetch them.
 * Inside storage/ only: for remote_object.c. All functions but remote_segments_of_process expect
 * the lock.
 */
#ifndef STORAGE_REMOTE_SEGMENT_H
#define STORAGE_REMOTE_SEGMENT_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/err.h"
#include "storage/remote.h"
#include "storage/remote_range.h"
#include "storage/remote_wanted.h"

enum { REMOTE_SEGMENT_MAX = 4 << 20 };

enum remote_segment_state { SEGMENT_WAITING, SEGMENT_LOADING, SEGMENT_READY, SEGMENT_FAILED };

struct remote_segment {
    struct remote_segment *next;
    struct remote_object *object;
    enum remote_segment_state state;
    int64_t begin, n;
    unsigned char *data;
    bool is_pooled;   /* data is of the pool, else malloc'ed */
    int64_t wanted;   /* bytes that a reader has named; 0: it was not named */
    int64_t consumed; /* bytes that were copied out; may count some twice */
    int64_t used_at;  /* the last time, in ticks */
    bool exact;       /* what follows it is not wanted */
    int users;        /* readers that wait for it or copy from it */
    struct tp_err err;
};

/* All segments of the process. */
struct remote_segments {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* there is a segment to fetch; one was fetched or is not used */
    struct remote_segment *first;
    struct remote_wanted_list wanted;
    int64_t bytes, limit, ticks;
    int64_t counts; /* how often objects were counted */
    int n_objects, n_threads, n_idle;
    int n_waiting; /* segments in the state SEGMENT_WAITING */
    bool sparse;   /* remote_object_sparse */
    bool stop;     /* threads must end */
    pid_t owner;
    pthread_t threads[REMOTE_CONNECTIONS_MAX];
};

/* The process's; a forked process has its own. */
struct remote_segments *remote_segments_of_process(void);

/* The segment that has the byte at `offset`, or NULL. */
struct remote_segment *remote_segments_find(const struct remote_segments *s,
                                            const struct remote_object *o, int64_t offset);

/* Whether there is a thread that fetches; the first one is started, if it can be. */
bool remote_segments_can_fetch(struct remote_segments *s);

/* Begin to fetch n bytes. Makes room by evicting segments that are not in use: with `ahead` only
 * those that were read, otherwise any. NULL: there is no room now. */
struct remote_segment *remote_segments_add(struct remote_segments *s, struct remote_object *o,
                                           int64_t begin, int64_t n, bool ahead);

/* Keep n bytes that were fetched otherwise, if there is room; `data` is malloc'ed, and belongs to
 * the segments then. */
bool remote_segments_put(struct remote_segments *s, struct remote_object *o, int64_t begin,
                         int64_t n, unsigned char *data);

/* Note that a range will be read, and let the threads fetch it when there is room. */
void remote_segments_want(struct remote_segments *s, struct remote_object *o, int64_t begin,
                          int64_t end);

/* Begin to fetch the wanted range that has the byte at `offset`, for a reader that waits for it.
 * NULL: no range has it, or there is no room now; *wait: there will be. */
struct remote_segment *remote_segments_add_wanted(struct remote_segments *s,
                                                  const struct remote_object *o, int64_t offset,
                                                  bool *wait);

/* Forget a segment that is not needed any more, once it is not in use. */
void remote_segments_release(struct remote_segments *s, struct remote_segment *segment);

/* Forget a segment that no thread loads or uses. */
void remote_segments_remove(struct remote_segments *s, struct remote_segment *segment);

/* Wait for the threads, when the last object is closed. Leaves the lock meanwhile. */
void remote_segments_end_threads(struct remote_segments *s);

#endif
