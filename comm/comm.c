/* comm/comm.c - see comm/comm.h: checks, counts, and what is the same for every back end. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "comm/backend.h"
#include "comm/launch.h"
#include "core/clock.h"

static tp_status world_start(struct comm *world, int64_t local_bytes, struct tp_err *err)
{
    bool is_rank = false;
    int mpi_size = 0;
    tp_status st;

    if ((st = comm_shm_init(world, local_bytes, &is_rank, err)) || is_rank)
        return st;
    if (launch_is_mpi(&mpi_size))
        return comm_mpi_init(world, mpi_size, local_bytes, err);
    comm_self_init(world);
    return TP_OK;
}

tp_status comm_init(struct comm **out, int64_t local_bytes, struct tp_err *err)
{
    struct comm *world = calloc(1, sizeof *world);
    tp_status st;

    if (!world)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    world->world = world;
    if ((st = world_start(world, local_bytes, err))) {
        free(world);
        return st;
    }
    *out = world;
    return TP_OK;
}

static void release(struct comm *c)
{
    c->ops->free(c);
    free(c);
}

void comm_free(struct comm *c)
{
    struct comm **link;

    if (!c || c == c->world || c->n_jobs) /* after a failure: comm_end decides */
        return;
    for (link = &c->world->next; *link != c; link = &(*link)->next)
        ;
    *link = c->next;
    release(c);
}

void comm_end(struct comm *world, tp_status abort)
{
    /* Saved and stopped, and an answer of no, are ends that all ranks come to together; and so is a
     * failure that they have agreed on. */
    bool failed = abort != TP_OK && abort != TP_E_STOPPED && abort != TP_E_NO, alive;

    if (!world)
        return;
    alive = !comm_background_end(world, failed);
    if (failed && (!world->agreed || alive))
        world->way->abort(world, tp_exit_code(abort));
    if (alive) /* the thread is inside a collective, until the process ends */
        return;
    for (struct comm *c = world->next, *next; c; c = next) {
        next = c->next;
        release(c);
    }
    world->way->end(world);
    free(world);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

bool comm_overlaps(const struct comm *c)
{
    return c->overlaps;
}

int comm_local_size(const struct comm *c)
{
    return c->world->local_size;
}

const struct comm_counts *comm_counts(const struct comm *c)
{
    return &c->counts;
}

void comm_watch(struct comm *world, struct heartbeat *t)
{
    world->tell = t;
}

static tp_status refuse_busy(const struct comm *c, struct tp_err *err)
{
    return tp_fail(
        err, TP_E_INTERNAL,
        "rank %d of %d: a collective is called on a communicator that has %d jobs in the "
        "background",
        c->rank, c->size, c->n_jobs);
}

tp_status comm_enter(struct comm *c, enum comm_call call, int64_t n_bytes, struct tp_err *err)
{
    if (c->n_jobs)
        return refuse_busy(c, err);
    c->counts.calls[call]++;
    c->counts.bytes[call] += n_bytes;
    c->world->entered = clock_seconds();
    heartbeat_collective(c->world->tell, true);
    return TP_OK;
}

tp_status comm_leave(struct comm *c, tp_status st)
{
    heartbeat_collective(c->world->tell, false);
    c->world->waited += clock_seconds() - c->world->entered;
    return st;
}

/* comm_split */

struct color_key {
    int64_t color, key;
};

/* The ranks that share `mine`'s color, by key and then rank; returns how many. */
static int split_members(int *members, const struct color_key *all, int size, int64_t color)
{
    int n = 0;

    for (int r = 0; r < size; r++) {
        int at = n;

        if (all[r].color != color)
            continue;
        for (; at > 0 && all[members[at - 1]].key > all[r].key; at--)
            members[at] = members[at - 1];
        members[at] = r;
        n++;
    }
    return n;
}

static struct comm *comm_new_split(struct comm *c, const int *members, int n_members)
{
    struct comm *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    made->world = c->world;
    made->size = n_members;
    made->ops = n_members == 1 ? &comm_self_ops : c->ops;
    while (members[made->rank] != c->rank)
        made->rank++;
    return made;
}

tp_status comm_split(struct comm **out, struct comm *c, int color, int key, struct tp_err *err)
{
    struct color_key mine = { color, key };
    struct color_key *all = calloc((size_t)c->size, sizeof *all);
    int *members = calloc((size_t)c->size, sizeof *members);
    struct comm *made = NULL;
    int n = 0;
    tp_status st = c->n_jobs ? refuse_busy(c, err) : TP_OK;

    if (st)
        goto done;
    if (!all || !members) {
        st = tp_fail(err, TP_E_NOMEM, "out of memory for a communicator of %d ranks", c->size);
        goto done;
    }
    TP_TRY(c->ops->all_gather(c, all, &mine, sizeof mine, err));
    if (color >= 0) {
        n = split_members(members, all, c->size, color);
        made = comm_new_split(c, members, n);
        if (!made) {
            st = tp_fail(err, TP_E_NOMEM, "out of memory for a communicator of %d ranks", n);
            goto done;
        }
    }
    TP_TRY(c->ops->split(n > 1 ? made : NULL, c, members, n, err));
    if (made) {
        made->next = c->world->next;
        c->world->next = made;
    }
    *out = made;
    made = NULL;
done:
    free(made);
    free(members);
    free(all);
    return st;
}

tp_status comm_alloc(void **out, struct comm *c, int64_t n_bytes, struct tp_err *err)
{
    struct {
        int64_t n_bytes, status;
    } mine = { n_bytes, TP_OK }, *all = NULL;
    void *got = NULL;
    tp_status st = TP_OK;

    if (n_bytes < 0)
        return tp_fail(err, TP_E_INTERNAL, "comm_alloc of %lld bytes", (long long)n_bytes);
    if (!(all = calloc((size_t)c->size, sizeof *all)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communication buffer");
    mine.status = c->world->way->alloc(&got, c->world, n_bytes, err);
    TP_TRY(c->ops->all_gather(c, all, &mine, sizeof mine, err));
    for (int r = 0; r < c->size; r++) {
        if (all[r].n_bytes != n_bytes)
            st = tp_fail(err, TP_E_INTERNAL,
                         "comm_alloc: rank %d asks for %lld bytes, rank %d for %lld", c->rank,
                         (long long)n_bytes, r, (long long)all[r].n_bytes);
        else if (all[r].status && r != c->rank)
            st = tp_fail(err, (tp_status)all[r].status,
                         "rank %d has no room for a communication buffer of %lld bytes", r,
                         (long long)n_bytes);
        else if (all[r].status)
            st = (tp_status)all[r].status; /* err has this rank's own sentence */
        if (st)
            goto done;
    }
    *out = got;
done:
    free(all);
    return st;
}

/* The collectives: count, then the back end. */

tp_status comm_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                          enum comm_op op, struct tp_err *err)
{
    tp_status st = comm_enter(c, COMM_ALL_REDUCE, n * comm_type_bytes(type), err);

    return st ? st : comm_leave(c, c->ops->all_reduce(c, buf, n, type, op, err));
}

tp_status comm_all_gather(struct comm *c, void *out, const void *in, int64_t n, enum comm_type type,
                          struct tp_err *err)
{
    tp_status st = comm_enter(c, COMM_ALL_GATHER, n * comm_type_bytes(type), err);

    return st ? st : comm_leave(c, c->ops->all_gather(c, out, in, n * comm_type_bytes(type), err));
}

tp_status comm_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                              enum comm_type type, struct tp_err *err)
{
    tp_status st = comm_enter(c, COMM_REDUCE_SCATTER, n * comm_type_bytes(type), err);

    return st ? st : comm_leave(c, c->ops->reduce_scatter(c, out, in, n, type, err));
}

static tp_status check_peer(const struct comm *c, int peer, const char *what, bool may_be_self,
                            struct tp_err *err)
{
    if (peer < 0 || peer >= c->size || (peer == c->rank && !may_be_self))
        return tp_fail(err, TP_E_INTERNAL, "rank %d of %d: %s rank %d", c->rank, c->size, what,
                       peer);
    return TP_OK;
}

tp_status comm_broadcast(struct comm *c, void *buf, int64_t n_bytes, int root, struct tp_err *err)
{
    tp_status st = check_peer(c, root, "broadcast from", true, err);

    if (st || (st = comm_enter(c, COMM_BROADCAST, n_bytes, err)))
        return st;
    return comm_leave(c, c->ops->broadcast(c, buf, n_bytes, root, err));
}

tp_status comm_gather(struct comm *c, const void *in, int64_t n_bytes, void **out, int64_t *sizes,
                      struct tp_err *err)
{
    tp_status st = comm_enter(c, COMM_GATHER, n_bytes, err);

    return st ? st : comm_leave(c, c->ops->gather(c, in, n_bytes, out, sizes, err));
}

tp_status comm_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err)
{
    tp_status st = check_peer(c, to, "send to", false, err);

    if (st || (st = comm_enter(c, COMM_SEND, n_bytes, err)))
        return st;
    return comm_leave(c, c->ops->send(c, buf, n_bytes, to, err));
}

tp_status comm_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    tp_status st = check_peer(c, from, "receive from", false, err);

    if (st || (st = comm_enter(c, COMM_RECV, n_bytes, err)))
        return st;
    return comm_leave(c, c->ops->recv(c, buf, n_bytes, from, err));
}

tp_status comm_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                    struct comm_request *ticket, struct tp_err *err)
{
    tp_status st = check_peer(c, to, "send to", false, err);

    if (st)
        return st;
    if ((st = comm_enter(c, COMM_SEND, n_bytes, err)))
        return st;
    if ((st = comm_leave(c, c->ops->post(c, buf, n_bytes, to, ticket, err))))
        return st;
    ticket->to = to;
    ticket->pending = true;
    return TP_OK;
}

tp_status comm_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err)
{
    if (!ticket->pending)
        return TP_OK;
    ticket->pending = false;
    return c->ops->wait(c, ticket, err);
}

tp_status comm_barrier(struct comm *c, struct tp_err *err)
{
    tp_status st = comm_enter(c, COMM_BARRIER, 0, err);

    return st ? st : comm_leave(c, c->ops->barrier(c, err));
}

/* comm_agree */

tp_status comm_agree(struct comm *c, tp_status st, struct tp_err *err)
{
    int64_t mine = st, *all = calloc((size_t)c->size, sizeof *all);
    int first = 0;
    char msg[TP_ERR_MAX] = "";
    tp_status agreed;

    if (!all) /* the others would wait for this rank for ever: TP_E_NOMEM ends the job */
        return tp_fail(err, TP_E_NOMEM, "out of memory to agree on a status");
    agreed = comm_all_gather(c, all, &mine, 1, COMM_I64, err);
    while (!agreed && first < c->size && all[first] == TP_OK)
        first++;
    if (agreed || first == c->size)
        goto done;
    if (c->rank == first)
        memcpy(msg, err->msg, sizeof msg);
    agreed = comm_broadcast(c, msg, sizeof msg, first, err);
    if (agreed)
        goto done;
    agreed = (tp_status)all[first];
    if (c->rank != first) {
        tp_fail(err, agreed, "%s", msg);
        tp_fail_in(err, "rank %d", first);
    }
    if (c == c->world)
        c->agreed = true;
done:
    free(all);
    return agreed;
}
