/* orchestrator/watch/rank_progress.c - see orchestrator/watch/rank_progress.h. */
#include "orchestrator/watch/rank_progress.h"

static bool is_stopped(char state)
{
    return state == 'T' || state == 't' || state == 'D' || state == 'Z';
}

/* Compare the progress of two ranks; < 0: a is behind b. A rank that has not reported is behind all
 * others. */
static int compare(const struct rank_progress *a, const struct rank_progress *b)
{
    int64_t x, y;

    if (!a->seen || !b->seen)
        return (int)a->seen - (int)b->seen;
    if (a->status.step != b->status.step)
        return a->status.step < b->status.step ? -1 : 1;
    x = a->status.entered + a->status.left;
    y = b->status.entered + b->status.left;
    return (x > y) - (x < y);
}

int rank_progress_last(const struct rank_progress rank[], int world)
{
    int worst = -1, ties = 0, stopped = -1, n_stopped = 0;

    for (int i = 0; i < world; i++) {
        int c = worst < 0 ? -1 : compare(&rank[i], &rank[worst]);

        if (rank[i].seen && rank[i].status.phase == HEARTBEAT_DONE)
            continue;
        ties = c < 0 ? 1 : ties + (c == 0);
        worst = c < 0 ? i : worst;
    }
    if (ties <= 1)
        return worst;
    for (int i = 0; i < world; i++)
        if (compare(&rank[i], &rank[worst]) == 0 && is_stopped(rank[i].state)) {
            stopped = i;
            n_stopped++;
        }
    return n_stopped == 1 ? stopped : -1;
}

int rank_progress_stopped(const struct rank_progress rank[], int world, int64_t now_ns,
                          int64_t deadline_ns)
{
    int worst = -1, n = 0;

    for (int i = 0; i < world; i++) {
        const struct rank_progress *r = &rank[i];

        if (!r->seen || r->status.phase == HEARTBEAT_DONE || (r->state != 'T' && r->state != 't') ||
            now_ns - r->changed_ns <= deadline_ns)
            continue;
        n++;
        if (worst < 0 || compare(r, &rank[worst]) < 0)
            worst = i;
    }
    return n < world ? worst : -1;
}
