/* comm/host/shm_mail.c - see comm/host/shm_mail.h. */
#include "comm/host/shm_mail.h"

#include <string.h>

#include "comm/host/shm_member.h"

static struct shm_ring *ring_of(struct host_group *g, int from, int to)
{
    struct shm_member *s = g->impl;

    return shm_group_ring(s->job, s->group, from, to);
}

static struct shm_message *messages_of(struct host_group *g, int from, int to)
{
    struct shm_member *s = g->impl;

    return shm_group_messages(s->job, s->group, from, to);
}

/* Wait until the word has reached `number`. It counts upwards modulo 2^32. */
static void wait_for(struct host_group *g, struct futex_word *word, uint32_t number)
{
    struct shm_member *s = g->impl;
    uint32_t now;

    while ((int32_t)((now = atomic_load(&word->value)) - number) < 0)
        futex_word_wait(word, now, s->job->spins, shm_member_sleep(g));
}

tp_status shm_send(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                   struct host_request *r, struct tp_err *err)
{
    struct shm_member *s = g->impl;
    struct shm_ring *ring = ring_of(g, g->rank, to);
    uint32_t sent = atomic_load(&ring->sent.value);

    if (!shm_job_in_arena(s->job, buf, n_bytes))
        return tp_fail(err, TP_E_INTERNAL, "a message to rank %d is sent from private memory", to);
    wait_for(g, &ring->copied, sent - SHM_MESSAGES_MAX + 1); /* until the ring has room */
    messages_of(g, g->rank, to)[sent % SHM_MESSAGES_MAX] = (struct shm_message){ buf, n_bytes };
    futex_word_set(&ring->sent, sent + 1);
    r->to = to;
    r->end = sent + 1;
    return TP_OK;
}

tp_status shm_wait(struct host_group *g, struct host_request *r, struct tp_err *err)
{
    (void)err;
    wait_for(g, &ring_of(g, g->rank, r->to)->copied, (uint32_t)r->end);
    return TP_OK;
}

tp_status shm_recv(struct host_group *g, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    struct shm_ring *ring = ring_of(g, from, g->rank);
    uint32_t copied = atomic_load(&ring->copied.value);
    const struct shm_message *message = &messages_of(g, from, g->rank)[copied % SHM_MESSAGES_MAX];

    wait_for(g, &ring->sent, copied + 1);
    if (message->n_bytes != n_bytes)
        return tp_fail(err, TP_E_INTERNAL, "rank %d sends %lld bytes, and rank %d expects %lld",
                       from, (long long)message->n_bytes, g->rank, (long long)n_bytes);
    if (n_bytes)
        memcpy(buf, message->at, (size_t)n_bytes);
    futex_word_set(&ring->copied, copied + 1);
    return TP_OK;
}
