/*
 * comm/shm.c - collectives of ranks that share memory (comm/shm.h).
 *
 * Every collective begins with a post: each rank says what it calls and where its buffer is, then
 * all meet at a barrier, so that ranks which do not call the same are told so instead of mixing
 * their data. Then there are three ways:
 *
 * small:  the data travel with the post, in a slot; one barrier is all.
 * direct: all buffers are of comm_alloc: ranks read, and for all-reduce write, each other's; a
 *         second barrier keeps buffers from being used again too early.
 * staged: any other: through the slots in pieces.
 *
 * Posts and slots come in pairs used in turn (parity). So no barrier is needed before the next one
 * is written: who writes a slot for the second time has passed a barrier in between, which all
 * others reached after they had read the first.
 */
#include "comm/shm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/backend.h"
#include "comm/reduce.h"

enum { SMALL_BYTES = 16 << 10 };

static void meet(struct comm *c)
{
    struct shm_comm *s = c->impl;
    struct shm_group *g = s->group;
    struct shm_rank *rank = &s->job->ranks[s->host_rank];
    uint32_t phase = atomic_load_explicit(&g->phase.value, memory_order_relaxed);

    if (atomic_fetch_add(&g->arrived, 1) + 1 < c->size) {
        shm_word_wait(&g->phase, phase, s->job->spins, c->behind ? &rank->behind : &rank->sleep);
        return;
    }
    atomic_store(&g->arrived, 0);
    shm_word_set(&g->phase, phase + 1);
}

/* The parity to use now; the next call gets the other. */
static int turn(struct shm_comm *s)
{
    s->parity ^= 1;
    return s->parity;
}

static struct shm_post *post_of(struct comm *c, int parity, int rank)
{
    struct shm_comm *s = c->impl;

    return shm_group_post(s->job, s->group, parity, rank);
}

static char *slot_of(struct comm *c, int parity, int rank)
{
    struct shm_comm *s = c->impl;

    return shm_group_slot(s->job, s->group, parity, rank);
}

static const char *call_name(int call)
{
    static const char *const names[COMM_CALLS] = {
        "all_reduce", "all_gather", "reduce_scatter", "broadcast",
        "gather",     "send",       "recv",           "barrier",
    };

    return call >= 0 && call < COMM_CALLS ? names[call] : "split";
}

/* Say what this rank calls, meet, and check that all call the same. */
static tp_status post(struct comm *c, int parity, const struct shm_post *said, struct tp_err *err)
{
    struct shm_comm *s = c->impl;
    struct shm_post mine = *said;

    if (mine.shared && !shm_in_arena(s->job, mine.shared, 1))
        mine.shared = NULL;
    *post_of(c, parity, c->rank) = mine;
    meet(c);
    for (int r = 0; r < c->size; r++) {
        const struct shm_post *other = post_of(c, parity, r);

        if (other->call != mine.call || other->kind != mine.kind ||
            (other->n_bytes != mine.n_bytes && mine.call != COMM_GATHER))
            return tp_fail(
                err, TP_E_INTERNAL,
                "ranks disagree: rank %d calls %s of %lld bytes (%d), rank %d %s of %lld "
                "bytes (%d)",
                c->rank, call_name(mine.call), (long long)mine.n_bytes, mine.kind, r,
                call_name(other->call), (long long)other->n_bytes, other->kind);
    }
    return TP_OK;
}

static bool all_shared(struct comm *c, int parity)
{
    for (int r = 0; r < c->size; r++)
        if (!post_of(c, parity, r)->shared)
            return false;
    return true;
}

static tp_status shm_barrier(struct comm *c, struct tp_err *err)
{
    struct shm_comm *s = c->impl;

    return post(c, turn(s), &(struct shm_post){ .call = COMM_BARRIER }, err);
}

/* The part of n elements that rank reduces: whole cache lines, so that no two ranks write one. */
static void slice(int64_t *lo, int64_t *len, const struct comm *c, int rank, int64_t n,
                  enum comm_type type)
{
    int64_t line = 64 / comm_type_bytes(type), hi;
    int64_t each = ((n + c->size - 1) / c->size + line - 1) / line * line;

    *lo = each * rank < n ? each * rank : n;
    hi = n - *lo < each ? n : *lo + each;
    *len = hi - *lo;
}

static void all_reduce_direct(struct comm *c, int parity, int64_t n, enum comm_type type,
                              enum comm_op op)
{
    void *bufs[SHM_RANKS_MAX];
    int64_t lo, len;

    slice(&lo, &len, c, c->rank, n, type);
    for (int r = 0; r < c->size; r++)
        bufs[r] = (char *)(uintptr_t)post_of(c, parity, r)->shared + lo * comm_type_bytes(type);
    comm_reduce(bufs, c->size, (const void *const *)bufs, c->size, len, type, op);
    meet(c);
}

/* One piece that fits a slot: in, each rank reduces its slice in its own slot, out. */
static void all_reduce_piece(struct comm *c, char *buf, int64_t n, enum comm_type type,
                             enum comm_op op)
{
    int parity = turn(c->impl);
    int64_t width = comm_type_bytes(type), lo, len;
    const void *rows[SHM_RANKS_MAX];
    void *own = slot_of(c, parity, c->rank);

    memcpy(own, buf, (size_t)(n * width));
    meet(c);
    slice(&lo, &len, c, c->rank, n, type);
    for (int r = 0; r < c->size; r++)
        rows[r] = slot_of(c, parity, r) + lo * width;
    own = (char *)own + lo * width;
    comm_reduce(&own, 1, rows, c->size, len, type, op);
    meet(c);
    for (int r = 0; r < c->size; r++) {
        slice(&lo, &len, c, r, n, type);
        memcpy(buf + lo * width, slot_of(c, parity, r) + lo * width, (size_t)(len * width));
    }
}

static void all_reduce_small(struct comm *c, int parity, void *buf, int64_t n, enum comm_type type,
                             enum comm_op op)
{
    const void *rows[SHM_RANKS_MAX];

    for (int r = 0; r < c->size; r++)
        rows[r] = slot_of(c, parity, r);
    comm_reduce(&buf, 1, rows, c->size, n, type, op);
}

static tp_status shm_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                enum comm_op op, struct tp_err *err)
{
    int64_t width = comm_type_bytes(type), piece = SHM_SLOT_BYTES / width;
    bool small = n * width <= SMALL_BYTES;
    int parity = turn(c->impl);
    tp_status st;

    if (small && n)
        memcpy(slot_of(c, parity, c->rank), buf, (size_t)(n * width));
    st = post(c, parity,
              &(struct shm_post){ COMM_ALL_REDUCE, (int)type * 2 + (int)op, n * width, buf }, err);
    if (st)
        return st;
    if (small)
        all_reduce_small(c, parity, buf, n, type, op);
    else if (all_shared(c, parity))
        all_reduce_direct(c, parity, n, type, op);
    else
        for (int64_t at = 0; at < n; at += piece)
            all_reduce_piece(c, (char *)buf + at * width, n - at < piece ? n - at : piece, type,
                             op);
    return TP_OK;
}

static void all_gather_direct(struct comm *c, int parity, char *out, int64_t n_bytes)
{
    for (int r = 0; r < c->size; r++) {
        const char *from = post_of(c, parity, r)->shared;

        if (from != out + r * n_bytes)
            memmove(out + r * n_bytes, from, (size_t)n_bytes);
    }
    meet(c);
}

/* `in` is in the slots of this parity: len bytes of each rank's part, which go to offset at. */
static void all_gather_take(struct comm *c, int parity, char *out, int64_t n_bytes, int64_t at,
                            int64_t len)
{
    for (int r = 0; r < c->size; r++)
        memcpy(out + r * n_bytes + at, slot_of(c, parity, r), (size_t)len);
}

static tp_status shm_all_gather(struct comm *c, void *out, const void *in, int64_t n_bytes,
                                struct tp_err *err)
{
    bool small = n_bytes <= SMALL_BYTES;
    int parity = turn(c->impl);
    tp_status st;

    if (small && n_bytes)
        memcpy(slot_of(c, parity, c->rank), in, (size_t)n_bytes);
    if ((st = post(c, parity, &(struct shm_post){ COMM_ALL_GATHER, 0, n_bytes, in }, err)))
        return st;
    if (small && n_bytes)
        all_gather_take(c, parity, out, n_bytes, 0, n_bytes);
    else if (!small && all_shared(c, parity))
        all_gather_direct(c, parity, out, n_bytes);
    else if (!small)
        for (int64_t at = 0; at < n_bytes; at += SHM_SLOT_BYTES) {
            int64_t len = n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES;

            parity = turn(c->impl);
            memcpy(slot_of(c, parity, c->rank), (const char *)in + at, (size_t)len);
            meet(c);
            all_gather_take(c, parity, out, n_bytes, at, len);
        }
    return TP_OK;
}

/* Elements [at, at + len) of every rank's part of `in`, one after another into the own slot. */
static void reduce_scatter_give(struct comm *c, int parity, const char *in, int64_t n_bytes,
                                int64_t at, int64_t len)
{
    char *slot = slot_of(c, parity, c->rank);

    for (int r = 0; r < c->size; r++)
        memcpy(slot + r * len, in + r * n_bytes + at, (size_t)len);
}

/* The same elements of this rank's part, summed over the slots. */
static void reduce_scatter_take(struct comm *c, int parity, char *out, int64_t len,
                                enum comm_type type)
{
    const void *rows[SHM_RANKS_MAX];
    void *dst = out;

    for (int r = 0; r < c->size; r++)
        rows[r] = slot_of(c, parity, r) + c->rank * len;
    comm_reduce(&dst, 1, rows, c->size, len / comm_type_bytes(type), type, COMM_SUM);
}

static void reduce_scatter_direct(struct comm *c, int parity, void *out, int64_t n,
                                  enum comm_type type)
{
    const void *rows[SHM_RANKS_MAX];

    for (int r = 0; r < c->size; r++)
        rows[r] = post_of(c, parity, r)->shared + c->rank * n * comm_type_bytes(type);
    comm_reduce(&out, 1, rows, c->size, n, type, COMM_SUM);
    meet(c);
}

static tp_status shm_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                                    enum comm_type type, struct tp_err *err)
{
    int64_t n_bytes = n * comm_type_bytes(type), piece = SHM_SLOT_BYTES / c->size / 8 * 8;
    bool small = n_bytes * c->size <= SMALL_BYTES;
    int parity = turn(c->impl);
    tp_status st;

    if (small && n)
        reduce_scatter_give(c, parity, in, n_bytes, 0, n_bytes);
    st = post(c, parity, &(struct shm_post){ COMM_REDUCE_SCATTER, (int)type, n_bytes, in }, err);
    if (st)
        return st;
    if (small && n)
        reduce_scatter_take(c, parity, out, n_bytes, type);
    else if (!small && all_shared(c, parity))
        reduce_scatter_direct(c, parity, out, n, type);
    else if (!small)
        for (int64_t at = 0; at < n_bytes; at += piece) {
            int64_t len = n_bytes - at < piece ? n_bytes - at : piece;

            parity = turn(c->impl);
            reduce_scatter_give(c, parity, in, n_bytes, at, len);
            meet(c);
            reduce_scatter_take(c, parity, (char *)out + at, len, type);
        }
    return TP_OK;
}

static tp_status shm_broadcast(struct comm *c, void *buf, int64_t n_bytes, int root,
                               struct tp_err *err)
{
    int parity = turn(c->impl);
    bool small = n_bytes <= SMALL_BYTES, is_root = c->rank == root;
    const char *shared;
    tp_status st;

    if (small && is_root && n_bytes)
        memcpy(slot_of(c, parity, root), buf, (size_t)n_bytes);
    if ((st = post(c, parity, &(struct shm_post){ COMM_BROADCAST, root, n_bytes, buf }, err)))
        return st;
    shared = post_of(c, parity, root)->shared;
    if (small && !is_root && n_bytes)
        memcpy(buf, slot_of(c, parity, root), (size_t)n_bytes);
    if (small)
        return TP_OK;
    if (shared) {
        if (!is_root)
            memcpy(buf, shared, (size_t)n_bytes);
        meet(c);
        return TP_OK;
    }
    for (int64_t at = 0; at < n_bytes; at += SHM_SLOT_BYTES) {
        size_t len = (size_t)(n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES);

        parity = turn(c->impl);
        if (is_root)
            memcpy(slot_of(c, parity, root), (char *)buf + at, len);
        meet(c);
        if (!is_root)
            memcpy((char *)buf + at, slot_of(c, parity, root), len);
    }
    return TP_OK;
}

/* Rank 0: sizes from the posts, and room for all of it, *all; then every rank learns whether there
 * is. The longest part in *longest. */
static tp_status gather_prepare(struct comm *c, int parity, char **all, int64_t *sizes,
                                int64_t *longest, struct tp_err *err)
{
    int64_t total = 0;

    *longest = 0;
    for (int r = 0; r < c->size; r++) {
        int64_t n = post_of(c, parity, r)->n_bytes;

        *longest = n > *longest ? n : *longest;
        if (c->rank == 0)
            sizes[r] = n;
        total += n;
    }
    *all = c->rank == 0 ? malloc(total ? (size_t)total : 1) : NULL;
    parity = turn(c->impl);
    post_of(c, parity, c->rank)->shared = *all;
    meet(c);
    if (!post_of(c, parity, 0)->shared)
        return tp_fail(err, TP_E_NOMEM, "rank 0 is out of memory: %lld bytes to gather",
                       (long long)total);
    return TP_OK;
}

static tp_status shm_gather(struct comm *c, const void *in, int64_t n_bytes, void **out,
                            int64_t *sizes, struct tp_err *err)
{
    int parity = turn(c->impl);
    int64_t longest;
    char *all;
    tp_status st;

    if ((st = post(c, parity, &(struct shm_post){ COMM_GATHER, 0, n_bytes, NULL }, err)))
        return st;
    if ((st = gather_prepare(c, parity, &all, sizes, &longest, err)))
        return st;
    for (int64_t at = 0; at < longest; at += SHM_SLOT_BYTES) {
        int64_t offset = 0;

        parity = turn(c->impl);
        if (at < n_bytes)
            memcpy(slot_of(c, parity, c->rank), (const char *)in + at,
                   (size_t)(n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES));
        meet(c);
        for (int r = 0; all && r < c->size; offset += sizes[r++]) {
            int64_t left = sizes[r] - at;

            if (left > 0)
                memcpy(all + offset + at, slot_of(c, parity, r),
                       (size_t)(left < SHM_SLOT_BYTES ? left : SHM_SLOT_BYTES));
        }
    }
    *out = all;
    return TP_OK;
}

tp_status shm_attach(struct comm *c, struct shm_job *job, struct shm_group *g, int host_rank,
                     struct tp_err *err)
{
    struct shm_comm *s = calloc(1, sizeof *s);

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    s->job = job;
    s->group = g;
    s->host_rank = host_rank;
    c->impl = s;
    c->ops = &comm_shm_ops;
    c->overlaps = true;
    return TP_OK;
}

/* The first member takes a group and tells the others where it is. */
static tp_status shm_split(struct comm *out, struct comm *c, const int *members, int n_members,
                           struct tp_err *err)
{
    struct shm_comm *s = c->impl;
    struct shm_group *g = NULL;
    int parity = turn(s);
    bool first = out && out->rank == 0, lacking = false;
    struct shm_post mine = { .call = COMM_CALLS };

    if (first && !(g = shm_group_take(s->job, n_members)))
        mine.kind = 1;
    memcpy(slot_of(c, parity, c->rank), &g, sizeof g);
    if (out && shm_attach(out, s->job, NULL, s->host_rank, err))
        mine.kind = 2;
    *post_of(c, parity, c->rank) = mine;
    meet(c);
    for (int r = 0; r < c->size; r++)
        lacking = lacking || post_of(c, parity, r)->kind;
    if (lacking) {
        if (g) {
            g->members_left = 1;
            shm_group_leave(s->job, g);
        }
        if (out)
            free(out->impl);
        return tp_fail(err, TP_E_NOMEM, "no memory for a communicator (%d can exist at a time)",
                       s->job->n_groups);
    }
    if (out)
        memcpy(&((struct shm_comm *)out->impl)->group, slot_of(c, parity, members[0]), sizeof g);
    return TP_OK;
}

static void shm_free(struct comm *c)
{
    struct shm_comm *s = c->impl;

    shm_group_leave(s->job, s->group);
    free(s);
}

const struct comm_ops comm_shm_ops = {
    .split = shm_split,
    .free = shm_free,
    .all_reduce = shm_all_reduce,
    .all_gather = shm_all_gather,
    .reduce_scatter = shm_reduce_scatter,
    .broadcast = shm_broadcast,
    .gather = shm_gather,
    .send = shm_send,
    .recv = shm_recv,
    .post = shm_mail_post,
    .wait = shm_mail_wait,
    .barrier = shm_barrier,
};
