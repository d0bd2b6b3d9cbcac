/* ckpt/shard_opener.c - see ckpt/shard_opener.h. */
#include "ckpt/shard_opener.h"

#include <stdlib.h>

#include "ckpt/step.h"
#include "core/thread_pool.h"
#include "storage/location.h"
#include "storage/remote.h"

/* A shard that was opened, or why not. */
struct shard_opener_slot {
    struct shard_reader *reader;
    struct tp_err err;
};

struct shard_opener {
    const char *dir;
    const struct manifest *m;
    int first, n, next; /* slots are of the shards first .. first + n - 1 */
    int room;
    struct shard_opener_slot *slots; /* [room] */
};

tp_status shard_opener_new(struct shard_opener **out, const char *dir, const struct manifest *m,
                           struct tp_err *err)
{
    struct shard_opener *o = calloc(1, sizeof *o);
    const int room = location_is_remote(dir) ? remote_connections() : 1;

    if (o)
        *o = (struct shard_opener){
            .dir = dir, .m = m, .room = room, .slots = calloc((size_t)room, sizeof *o->slots)
        };
    if (!o || !o->slots) {
        shard_opener_free(o);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to open its shards", dir);
    }
    *out = o;
    return TP_OK;
}

/* A thread_pool_fn. What fails is reported by shard_opener_next. */
static tp_status open_one(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct shard_opener *o = ctx;
    struct shard_opener_slot *slot = &o->slots[item];

    (void)worker;
    (void)err;
    *slot = (struct shard_opener_slot){ 0 };
    ckpt_open_shard(&slot->reader, o->dir, o->m, o->first + (int)item, &slot->err);
    return TP_OK;
}

tp_status shard_opener_next(struct shard_opener *o, struct shard_reader **out, struct tp_err *err)
{
    struct shard_opener_slot *slot;

    if (o->next == o->first + o->n) {
        const int left = o->m->n_shards - o->next, n = left < o->room ? left : o->room;
        tp_status st;

        o->first = o->next;
        o->n = 0; /* the slots are still of the shards before */
        st = thread_pool_run(open_one, o, n, n, err);
        if (st)
            return st;
        o->n = n;
    }
    slot = &o->slots[o->next++ - o->first];
    *out = slot->reader;
    slot->reader = NULL;
    if (slot->err.status)
        *err = slot->err;
    return slot->err.status;
}

void shard_opener_free(struct shard_opener *o)
{
    if (!o)
        return;
    for (int i = o->next; i < o->first + o->n; i++)
        shard_reader_close(o->slots[i - o->first].reader);
    free(o->slots);
    free(o);
}
