/* comm/host/host.c - see comm/host/host.h. */
#include "comm/host/host.h"

#include <stdlib.h>

#include "comm/host/mpi.h"
#include "comm/host/self.h"
#include "comm/host/shm.h"

static struct host_group *group_new(struct host_process *p)
{
    struct host_group *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->process = p;
    return g;
}

static void group_free(struct host_group *g)
{
    if (g->ops)
        g->ops->free(g);
    free(g);
}

/* Fill p and the group of all ranks. */
static tp_status start(struct host_process *p, struct host_group *all, const struct comm_env *env,
                       int64_t local_bytes, struct tp_err *err)
{
    if (env->launched.job)
        return shm_process_open(p, all, &env->launched, local_bytes, err);
    if (env->is_mpi)
        return mpi_process_open(p, all, env, local_bytes, err);
    self_process_open(p, all);
    return TP_OK;
}

tp_status host_open(struct host_process **out, const struct comm_env *env, int64_t local_bytes,
                    struct tp_err *err)
{
    struct host_process *p = calloc(1, sizeof *p);
    struct host_group *all = p ? group_new(p) : NULL;
    tp_status st;

    if (!all) {
        free(p);
        return tp_fail(err, TP_E_NOMEM, "out of memory for a group of ranks");
    }
    if ((st = start(p, all, env, local_bytes, err))) {
        free(all);
        free(p);
        return st;
    }
    all->rank = p->rank;
    all->size = p->size;
    p->groups = all;
    *out = p;
    return TP_OK;
}

/* Whether a thread is inside a call; after a failure it may never return. */
static bool is_stuck(const struct host_process *p)
{
    for (const struct host_group *g = p->groups; g; g = g->next)
        if (atomic_load(&g->busy))
            return true;
    return false;
}

void host_close(struct host_process *p, tp_status abort)
{
    bool stuck = is_stuck(p);

    if (abort)
        p->ops->abort(p, tp_exit_code(abort));
    if (stuck) /* its memory stays until the process ends */
        return;
    for (struct host_group *g = p->groups, *next; g; g = next) {
        next = g->next;
        if (next) /* the last is the group of all ranks, which belongs to the process */
            group_free(g);
        else
            p->groups = g;
    }
    p->ops->end(p);
    free(p->groups);
    free(p);
}

struct host_group *host_all(const struct host_process *p)
{
    struct host_group *g = p->groups;

    while (g->next)
        g = g->next;
    return g;
}

void host_free(struct host_group *g)
{
    struct host_group **link;

    if (!g || atomic_load(&g->busy)) /* busy after a failure: host_close handles it */
        return;
    for (link = &g->process->groups; *link != g; link = &(*link)->next)
        ;
    *link = g->next;
    group_free(g);
}

/* ---- splitting ---- */

struct host_color {
    int64_t color, key;
};

/* List the ranks with this color, by key and then rank; returns how many. */
static int members_of(int *members, const struct host_color *all, int size, int64_t color)
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

/* Make the group of `members`; if it has several, ops->split sets its ops later. */
static tp_status make_group(struct host_group **out, struct host_group *g, const int *members,
                            int n_members, struct tp_err *err)
{
    struct host_group *made = group_new(g->process);

    if (!made)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a group of %d ranks", n_members);
    made->size = n_members;
    while (members[made->rank] != g->rank)
        made->rank++;
    if (n_members == 1)
        self_group_open(made);
    *out = made;
    return TP_OK;
}

tp_status host_split(struct host_group **out, struct host_group *g, int color, int key,
                     struct tp_err *err)
{
    struct host_color mine = { color, key };
    struct host_color *all = calloc((size_t)g->size, sizeof *all);
    int *members = calloc((size_t)g->size, sizeof *members), n = 0;
    struct host_group *made = NULL;
    tp_status st;

    if (!all || !members) {
        st = tp_fail(err, TP_E_NOMEM, "out of memory for a group of %d ranks", g->size);
        goto done;
    }
    TP_TRY(g->ops->all_gather(g, all, &mine, sizeof mine, err));
    if (color >= 0) {
        n = members_of(members, all, g->size, color);
        TP_TRY(make_group(&made, g, members, n, err));
    }
    TP_TRY(g->ops->split(n > 1 ? made : NULL, g, members, n, err));
    if (made) {
        made->next = g->process->groups;
        g->process->groups = made;
    }
    *out = made;
    made = NULL;
done:
    if (made && n == 1)
        group_free(made);
    else
        free(made); /* split has freed its impl, or has not made it */
    free(members);
    free(all);
    return st;
}

/* ---- calls ---- */

tp_status host_begin(struct host_group *g, bool on_thread, struct tp_err *err)
{
    if (atomic_exchange(&g->busy, true))
        return tp_fail(err, TP_E_INTERNAL, "rank %d of %d: two calls at once on one group of ranks",
                       g->rank, g->size);
    g->on_thread = on_thread;
    return TP_OK;
}

void host_end(struct host_group *g)
{
    atomic_store(&g->busy, false);
}
