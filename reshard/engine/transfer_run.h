/*
 * reshard/engine/transfer_run.h - a plan that is being executed: inside reshard/engine/ only.
 * execute.c runs it in rounds, move_tile.c copies a tile, look_ahead.c names what will be read,
 * repeat.c reads back or copies again what an earlier process did.
 */
#ifndef RESHARD_ENGINE_TRANSFER_RUN_H
#define RESHARD_ENGINE_TRANSFER_RUN_H

#include <stdatomic.h>

#include "reshard/engine/transfer_plan.h"

enum { TRANSFER_ALIGN = 64 }; /* of the parts of a buffer */

/*
 * The buffer of a thread has three parts for the tile that the thread works on: the run that is
 * read from the source, the same run after a cast, and the runs of all targets that are gathered
 * from several sources. A run that one extent holds contiguously for one other extent needs no
 * copy: it is written from where it was read, or read to where it will be written from. A target in
 * host memory needs no third part: its runs are gathered where they belong.
 */
struct transfer_worker {
    char *buffer;
    struct transfer_tile tile;
    int *targets;          /* positions of the targets that overlap the source's run */
    char **gathered;       /* [position of a target] where its run is gathered; NULL: nowhere yet */
    char *read, *cast;     /* parts of the buffer, for this tile */
    char *free;            /* the rest of it */
    bool is_cast;          /* `cast` holds the run that was read */
    bool counts;           /* of the processes that read the run, this one adds it to the sums */
    bool is_direct;        /* every run of the tile is written as it was read */
    struct digest written; /* of a direct tile, so far */
};

/* Which tiles the source has been told of. */
struct transfer_ahead {
    pthread_mutex_t lock;
    int64_t next;              /* the first tile that was not named */
    int64_t bytes;             /* of the tiles that were named */
    struct transfer_tile tile; /* with room for its arrays */
};

struct transfer_run {
    struct transfer_plan *plan;
    struct transfer_ahead ahead;
    struct transfer_worker *workers;
    int64_t next;       /* the first tile that is left */
    int64_t end;        /* of the tiles that the threads are moving */
    int64_t round_size; /* tiles of the next round */
    atomic_llong bytes_read, bytes_written;
    struct device_start *start; /* NULL: the threads do everything */
    struct device_ring *ring;   /* NULL: no round was on a device yet */
    struct transfer_choice {
        bool host_only; /* the device was measured, and is slower */
        bool is_made;   /* the choice is final */
        double host_rate, device_rate;
        int64_t device_bytes;
    } choice;
};

/* Whether runs are gathered in the target's memory, because host code can write there. */
static inline bool transfer_gathers_in_place(const struct transfer_plan *p)
{
    return p->transfer.to->place && !p->transfer.device;
}

static inline int64_t transfer_aligned(int64_t n_bytes)
{
    return (n_bytes + TRANSFER_ALIGN - 1) / TRANSFER_ALIGN * TRANSFER_ALIGN;
}

/* Tell the source what the tiles after this number will read, as far ahead as it wants to know. */
void transfer_look_ahead(struct transfer_run *r, int64_t number);

/* Copy tile number `number` with the buffers of a worker. */
tp_status transfer_move_tile(struct transfer_run *r, int64_t number, int worker,
                             struct tp_err *err);

#endif
