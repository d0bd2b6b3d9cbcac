/*
 * comm/host/shm_collective.c - see comm/host/shm_collective.h.
 *
 * Every collective begins with a post: each rank announces its call and the address of its buffer,
 * and all wait at a barrier. Then there are three cases:
 *
 * small:  the data are in a slot, written before the same barrier; no other barrier is needed.
 * direct: all buffers come from shm_job_alloc. Ranks read, and for all-reduce write, each other's
 *         buffers; a second barrier makes sure that no buffer is used again too early.
 * staged: in all other cases the data pass through the slots, in pieces.
 *
 * There are two sets of posts and slots, which are used alternately (parity). So no barrier is
 * needed before the next post or slot is written: a rank that writes a slot again has passed a
 * barrier in between, which all others reached after they had read the slot.
 */
#include "comm/host/shm_collective.h"

#include <stdlib.h>
#include <string.h>

#include "comm/host/shm_member.h"

enum { SMALL_BYTES = 16 << 10 };

static bool all_shared(struct host_group *g, int parity)
{
    for (int r = 0; r < g->size; r++)
        if (!shm_member_post(g, parity, r)->shared)
            return false;
    return true;
}

tp_status shm_barrier(struct host_group *g, struct tp_err *err)
{
    return shm_member_agree(g, shm_member_turn(g), &(struct shm_post){ .call = SHM_CALL_BARRIER },
                            err);
}

/* The part of n elements that `rank` reduces: whole cache lines, so that no line has two
 * writers. */
static void slice(int64_t *lo, int64_t *len, const struct host_group *g, int rank, int64_t n,
                  enum dtype type)
{
    int64_t line = 64 / dtype_bytes(type), hi;
    int64_t each = ((n + g->size - 1) / g->size + line - 1) / line * line;

    *lo = each * rank < n ? each * rank : n;
    hi = n - *lo < each ? n : *lo + each;
    *len = hi - *lo;
}

static void all_reduce_direct(struct host_group *g, int parity, int64_t n, enum dtype type,
                              enum tree_reduce_op op)
{
    void *bufs[SHM_RANKS_MAX];
    int64_t lo, len;

    slice(&lo, &len, g, g->rank, n, type);
    for (int r = 0; r < g->size; r++)
        bufs[r] = (char *)(uintptr_t)shm_member_post(g, parity, r)->shared + lo * dtype_bytes(type);
    tree_reduce(
        &(struct tree_reduce){ bufs, g->size, (const void *const *)bufs, g->size, type, op }, len);
    shm_member_barrier(g);
}

/* All-reduce one piece that fits a slot: copy it in, reduce a slice on each rank, copy it out. */
static void all_reduce_piece(struct host_group *g, char *buf, int64_t n, enum dtype type,
                             enum tree_reduce_op op)
{
    int parity = shm_member_turn(g);
    int64_t width = dtype_bytes(type), lo, len;
    const void *rows[SHM_RANKS_MAX];
    void *own = shm_member_slot(g, parity, g->rank);

    memcpy(own, buf, (size_t)(n * width));
    shm_member_barrier(g);
    slice(&lo, &len, g, g->rank, n, type);
    for (int r = 0; r < g->size; r++)
        rows[r] = shm_member_slot(g, parity, r) + lo * width;
    own = (char *)own + lo * width;
    tree_reduce(&(struct tree_reduce){ &own, 1, rows, g->size, type, op }, len);
    shm_member_barrier(g);
    for (int r = 0; r < g->size; r++) {
        slice(&lo, &len, g, r, n, type);
        memcpy(buf + lo * width, shm_member_slot(g, parity, r) + lo * width, (size_t)(len * width));
    }
}

static void all_reduce_small(struct host_group *g, int parity, void *buf, int64_t n,
                             enum dtype type, enum tree_reduce_op op)
{
    const void *rows[SHM_RANKS_MAX];

    for (int r = 0; r < g->size; r++)
        rows[r] = shm_member_slot(g, parity, r);
    tree_reduce(&(struct tree_reduce){ &buf, 1, rows, g->size, type, op }, n);
}

tp_status shm_all_reduce(struct host_group *g, void *buf, int64_t n, enum dtype type,
                         enum tree_reduce_op op, struct tp_err *err)
{
    int64_t width = dtype_bytes(type), piece = SHM_SLOT_BYTES / width;
    bool small = n * width <= SMALL_BYTES;
    int parity = shm_member_turn(g);
    tp_status st;

    if (small && n)
        memcpy(shm_member_slot(g, parity, g->rank), buf, (size_t)(n * width));
    st = shm_member_agree(
        g, parity,
        &(struct shm_post){ SHM_CALL_ALL_REDUCE, (int)type * 2 + (int)op, n * width, buf }, err);
    if (st)
        return st;
    if (small)
        all_reduce_small(g, parity, buf, n, type, op);
    else if (all_shared(g, parity))
        all_reduce_direct(g, parity, n, type, op);
    else
        for (int64_t at = 0; at < n; at += piece)
            all_reduce_piece(g, (char *)buf + at * width, n - at < piece ? n - at : piece, type,
                             op);
    return TP_OK;
}

static void all_gather_direct(struct host_group *g, int parity, char *out, int64_t n_bytes)
{
    for (int r = 0; r < g->size; r++) {
        const char *from = shm_member_post(g, parity, r)->shared;

        if (from != out + r * n_bytes)
            memmove(out + r * n_bytes, from, (size_t)n_bytes);
    }
    shm_member_barrier(g);
}

/* Copy len bytes of each rank's part from its slot of this parity to offset `at` of the part. */
static void all_gather_take(struct host_group *g, int parity, char *out, int64_t n_bytes,
                            int64_t at, int64_t len)
{
    for (int r = 0; r < g->size; r++)
        memcpy(out + r * n_bytes + at, shm_member_slot(g, parity, r), (size_t)len);
}

tp_status shm_all_gather(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                         struct tp_err *err)
{
    bool small = n_bytes <= SMALL_BYTES;
    int parity = shm_member_turn(g);
    tp_status st;

    if (small && n_bytes)
        memcpy(shm_member_slot(g, parity, g->rank), in, (size_t)n_bytes);
    if ((st = shm_member_agree(g, parity, &(struct shm_post){ SHM_CALL_ALL_GATHER, 0, n_bytes, in },
                               err)))
        return st;
    if (small && n_bytes)
        all_gather_take(g, parity, out, n_bytes, 0, n_bytes);
    else if (!small && all_shared(g, parity))
        all_gather_direct(g, parity, out, n_bytes);
    else if (!small)
        for (int64_t at = 0; at < n_bytes; at += SHM_SLOT_BYTES) {
            int64_t len = n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES;

            parity = shm_member_turn(g);
            memcpy(shm_member_slot(g, parity, g->rank), (const char *)in + at, (size_t)len);
            shm_member_barrier(g);
            all_gather_take(g, parity, out, n_bytes, at, len);
        }
    return TP_OK;
}

/* Whether every rank sends this one as many rows as it expects. */
static tp_status check_rows(struct host_group *g, int parity, const struct host_rows *rows,
                            struct tp_err *err)
{
    for (int r = 0; r < g->size; r++) {
        const int32_t *send =
            (const int32_t *)(const void *)shm_member_slot(g, parity, r) + g->rank;

        if (send[1] - send[0] != rows->recv[r + 1] - rows->recv[r])
            return tp_fail(err, TP_E_INTERNAL, "rank %d sends %d rows, but rank %d expects %d", r,
                           send[1] - send[0], g->rank, rows->recv[r + 1] - rows->recv[r]);
    }
    return TP_OK;
}

/* Each rank's slot has its rows->send, and each rank copies what is for it. */
tp_status shm_all_to_all(struct host_group *g, void *out, const void *in,
                         const struct host_rows *rows, struct tp_err *err)
{
    int64_t n_bytes = rows->row_bytes;
    int parity = shm_member_turn(g);
    tp_status st;

    memcpy(shm_member_slot(g, parity, g->rank), rows->send,
           ((size_t)g->size + 1) * sizeof *rows->send);
    st =
        shm_member_agree(g, parity, &(struct shm_post){ SHM_CALL_ALL_TO_ALL, 0, n_bytes, in }, err);
    if (st)
        return st;
    if (!all_shared(g, parity))
        return tp_fail(err, TP_E_INTERNAL, "an all-to-all of memory that ranks do not share");
    st = check_rows(g, parity, rows, err);
    for (int r = 0; r < g->size && !st; r++) {
        const int32_t *send =
            (const int32_t *)(const void *)shm_member_slot(g, parity, r) + g->rank;

        memcpy((char *)out + rows->recv[r] * n_bytes,
               (const char *)shm_member_post(g, parity, r)->shared + send[0] * n_bytes,
               (size_t)((send[1] - send[0]) * n_bytes));
    }
    shm_member_barrier(g);
    return st;
}

/* Copy elements [at, at + len) of every rank's part of `in` to this rank's slot, in rank order. */
static void reduce_scatter_give(struct host_group *g, int parity, const char *in, int64_t n_bytes,
                                int64_t at, int64_t len)
{
    char *slot = shm_member_slot(g, parity, g->rank);

    for (int r = 0; r < g->size; r++)
        memcpy(slot + r * len, in + r * n_bytes + at, (size_t)len);
}

/* Sum the same elements of this rank's part over the slots. */
static void reduce_scatter_take(struct host_group *g, int parity, char *out, int64_t len,
                                enum dtype type)
{
    const void *rows[SHM_RANKS_MAX];
    void *dst = out;

    for (int r = 0; r < g->size; r++)
        rows[r] = shm_member_slot(g, parity, r) + g->rank * len;
    tree_reduce(&(struct tree_reduce){ &dst, 1, rows, g->size, type, TREE_REDUCE_SUM },
                len / dtype_bytes(type));
}

static void reduce_scatter_direct(struct host_group *g, int parity, void *out, int64_t n,
                                  enum dtype type)
{
    const void *rows[SHM_RANKS_MAX];

    for (int r = 0; r < g->size; r++)
        rows[r] = shm_member_post(g, parity, r)->shared + g->rank * n * dtype_bytes(type);
    tree_reduce(&(struct tree_reduce){ &out, 1, rows, g->size, type, TREE_REDUCE_SUM }, n);
    shm_member_barrier(g);
}

tp_status shm_reduce_scatter(struct host_group *g, void *out, const void *in, int64_t n,
                             enum dtype type, struct tp_err *err)
{
    int64_t n_bytes = n * dtype_bytes(type), piece = SHM_SLOT_BYTES / g->size / 8 * 8;
    bool small = n_bytes * g->size <= SMALL_BYTES;
    int parity = shm_member_turn(g);
    tp_status st;

    if (small && n)
        reduce_scatter_give(g, parity, in, n_bytes, 0, n_bytes);
    st = shm_member_agree(
        g, parity, &(struct shm_post){ SHM_CALL_REDUCE_SCATTER, (int)type, n_bytes, in }, err);
    if (st)
        return st;
    if (small && n)
        reduce_scatter_take(g, parity, out, n_bytes, type);
    else if (!small && all_shared(g, parity))
        reduce_scatter_direct(g, parity, out, n, type);
    else if (!small)
        for (int64_t at = 0; at < n_bytes; at += piece) {
            int64_t len = n_bytes - at < piece ? n_bytes - at : piece;

            parity = shm_member_turn(g);
            reduce_scatter_give(g, parity, in, n_bytes, at, len);
            shm_member_barrier(g);
            reduce_scatter_take(g, parity, (char *)out + at, len, type);
        }
    return TP_OK;
}

tp_status shm_broadcast(struct host_group *g, void *buf, int64_t n_bytes, int root,
                        struct tp_err *err)
{
    int parity = shm_member_turn(g);
    bool small = n_bytes <= SMALL_BYTES, is_root = g->rank == root;
    const char *shared;
    tp_status st;

    if (small && is_root && n_bytes)
        memcpy(shm_member_slot(g, parity, root), buf, (size_t)n_bytes);
    if ((st = shm_member_agree(g, parity,
                               &(struct shm_post){ SHM_CALL_BROADCAST, root, n_bytes, buf }, err)))
        return st;
    shared = shm_member_post(g, parity, root)->shared;
    if (small && !is_root && n_bytes)
        memcpy(buf, shm_member_slot(g, parity, root), (size_t)n_bytes);
    if (small)
        return TP_OK;
    if (shared) {
        if (!is_root)
            memcpy(buf, shared, (size_t)n_bytes);
        shm_member_barrier(g);
        return TP_OK;
    }
    for (int64_t at = 0; at < n_bytes; at += SHM_SLOT_BYTES) {
        size_t len = (size_t)(n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES);

        parity = shm_member_turn(g);
        if (is_root)
            memcpy(shm_member_slot(g, parity, root), (char *)buf + at, len);
        shm_member_barrier(g);
        if (!is_root)
            memcpy((char *)buf + at, shm_member_slot(g, parity, root), len);
    }
    return TP_OK;
}

/* Rank 0 reads the sizes from the posts and allocates *all. Every rank learns whether that worked.
 * *longest gets the size of the longest part. */
static tp_status gather_prepare(struct host_group *g, int parity, char **all, int64_t *sizes,
                                int64_t *longest, struct tp_err *err)
{
    int64_t total = 0;

    *longest = 0;
    for (int r = 0; r < g->size; r++) {
        int64_t n = shm_member_post(g, parity, r)->n_bytes;

        *longest = n > *longest ? n : *longest;
        if (g->rank == 0)
            sizes[r] = n;
        total += n;
    }
    *all = g->rank == 0 ? malloc(total ? (size_t)total : 1) : NULL;
    parity = shm_member_turn(g);
    shm_member_post(g, parity, g->rank)->shared = *all;
    shm_member_barrier(g);
    if (!shm_member_post(g, parity, 0)->shared)
        return tp_fail(err, TP_E_NOMEM, "rank 0 is out of memory: %lld bytes to gather",
                       (long long)total);
    return TP_OK;
}

tp_status shm_gather(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                     int64_t *sizes, struct tp_err *err)
{
    int parity = shm_member_turn(g);
    int64_t longest;
    char *all;
    tp_status st;

    if ((st = shm_member_agree(g, parity, &(struct shm_post){ SHM_CALL_GATHER, 0, n_bytes, NULL },
                               err)))
        return st;
    if ((st = gather_prepare(g, parity, &all, sizes, &longest, err)))
        return st;
    for (int64_t at = 0; at < longest; at += SHM_SLOT_BYTES) {
        int64_t offset = 0;

        parity = shm_member_turn(g);
        if (at < n_bytes)
            memcpy(shm_member_slot(g, parity, g->rank), (const char *)in + at,
                   (size_t)(n_bytes - at < SHM_SLOT_BYTES ? n_bytes - at : SHM_SLOT_BYTES));
        shm_member_barrier(g);
        for (int r = 0; all && r < g->size; offset += sizes[r++]) {
            int64_t left = sizes[r] - at;

            if (left > 0)
                memcpy(all + offset + at, shm_member_slot(g, parity, r),
                       (size_t)(left < SHM_SLOT_BYTES ? left : SHM_SLOT_BYTES));
        }
    }
    *out = all;
    return TP_OK;
}
