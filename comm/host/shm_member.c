/* comm/host/shm_member.c - see comm/host/shm_member.h. */
#include "comm/host/shm_member.h"

#include <stddef.h>

int shm_member_turn(struct host_group *g)
{
    struct shm_member *s = g->impl;

    s->parity ^= 1;
    return s->parity;
}

struct shm_post *shm_member_post(struct host_group *g, int parity, int rank)
{
    struct shm_member *s = g->impl;

    return shm_group_post(s->job, s->group, parity, rank);
}

char *shm_member_slot(struct host_group *g, int parity, int rank)
{
    struct shm_member *s = g->impl;

    return shm_group_slot(s->job, s->group, parity, rank);
}

struct futex_sleep *shm_member_sleep(struct host_group *g)
{
    struct shm_member *s = g->impl;
    struct shm_rank *rank = &s->job->ranks[s->host_rank];

    return g->on_thread ? &rank->thread_sleep : &rank->sleep;
}

void shm_member_barrier(struct host_group *g)
{
    struct shm_member *s = g->impl;
    struct shm_group *shared = s->group;
    uint32_t phase = atomic_load_explicit(&shared->phase.value, memory_order_relaxed);

    if (atomic_fetch_add(&shared->arrived, 1) + 1 < g->size) {
        futex_word_wait(&shared->phase, phase, s->job->spins, shm_member_sleep(g));
        return;
    }
    atomic_store(&shared->arrived, 0);
    futex_word_set(&shared->phase, phase + 1);
}

static const char *call_name(int call)
{
    static const char *const names[SHM_CALLS] = {
        "all_reduce", "all_gather", "reduce_scatter", "broadcast",
        "gather",     "barrier",    "split",          "all_to_all",
    };

    return call >= 0 && call < SHM_CALLS ? names[call] : "an unknown call";
}

tp_status shm_member_agree(struct host_group *g, int parity, const struct shm_post *said,
                           struct tp_err *err)
{
    struct shm_member *s = g->impl;
    struct shm_post mine = *said;

    if (mine.shared && !shm_job_in_arena(s->job, mine.shared, 1))
        mine.shared = NULL;
    *shm_member_post(g, parity, g->rank) = mine;
    shm_member_barrier(g);
    for (int r = 0; r < g->size; r++) {
        const struct shm_post *other = shm_member_post(g, parity, r);

        if (other->call != mine.call || other->kind != mine.kind ||
            (other->n_bytes != mine.n_bytes && mine.call != SHM_CALL_GATHER))
            return tp_fail(
                err, TP_E_INTERNAL,
                "ranks disagree: rank %d calls %s of %lld bytes (%d), rank %d %s of %lld "
                "bytes (%d)",
                g->rank, call_name(mine.call), (long long)mine.n_bytes, mine.kind, r,
                call_name(other->call), (long long)other->n_bytes, other->kind);
    }
    return TP_OK;
}
