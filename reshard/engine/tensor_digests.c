/* reshard/engine/tensor_digests.c - see reshard/engine/tensor_digests.h. */
#include "reshard/engine/tensor_digests.h"

#include "reshard/engine/reduce_sums.h"

void tensor_digests_init(struct tensor_digests *d)
{
    *d = (struct tensor_digests){ .n = 0 };
    pthread_mutex_init(&d->lock, NULL);
}

void tensor_digests_end(struct tensor_digests *d)
{
    pthread_mutex_destroy(&d->lock);
}

bool tensor_digests_make(struct tensor_digests *d, int n, struct arena *arena)
{
    struct digest *sums = arena_array(arena, (size_t)n + 1, sizeof *sums);

    if (!sums)
        return false;
    d->sums = sums;
    d->n = n;
    return true;
}

void tensor_digests_add(struct tensor_digests *d, int tensor, const struct digest *part)
{
    pthread_mutex_lock(&d->lock);
    digest_add(&d->sums[tensor], part);
    pthread_mutex_unlock(&d->lock);
}

struct digest tensor_digests_of(const struct tensor_digests *d, int tensor)
{
    return d->sums[tensor];
}

tp_status tensor_digests_combine(struct tensor_digests *d, struct comm_control *control,
                                 struct tp_err *err)
{
    return reduce_digests(control, d->sums->d, 2 * (int64_t)d->n, err);
}

struct reshard_sums tensor_digests_words(const struct tensor_digests *d)
{
    return (struct reshard_sums){ d->sums->d, 2 * (int64_t)d->n };
}
