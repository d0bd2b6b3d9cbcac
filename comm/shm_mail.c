/*
 * comm/shm_mail.c - messages between two ranks that share memory.
 *
 * Each ordered pair has a ring of bytes. A message is a header and then its bytes, which flow
 * through the ring as room appears; a large one whose buffer the receiver can reach (comm_alloc) is
 * not put in the ring: the receiver copies from the buffer while the sender waits.
 */
#include <string.h>

#include "comm/backend.h"
#include "comm/shm.h"

enum { DIRECT_MIN_BYTES = 64 << 10 };

struct mail_header {
    int64_t n_bytes;
    const char *shared; /* where the bytes are, or NULL: they follow */
};

struct mail {
    struct shm_ring *ring;
    char *bytes;
    int spins;
    struct shm_sleep *sleep;
};

static struct mail mail_open(struct comm *c, int from, int to)
{
    struct shm_comm *s = c->impl;

    return (struct mail){
        .ring = shm_group_ring(s->job, s->group, from, to),
        .bytes = shm_group_ring_bytes(s->job, s->group, from, to),
        .spins = s->job->spins,
        .sleep = &s->job->ranks[s->host_rank].sleep,
    };
}

/* Bytes from ring position `at` to its end, at most n; what is left of n is at its beginning. */
static uint32_t before_wrap(uint32_t at, uint32_t n)
{
    uint32_t left = SHM_RING_BYTES - at % SHM_RING_BYTES;

    return left < n ? left : n;
}

static void ring_put(struct mail *m, uint32_t at, const char *from, uint32_t n)
{
    uint32_t head = before_wrap(at, n);

    memcpy(m->bytes + at % SHM_RING_BYTES, from, head);
    memcpy(m->bytes, from + head, n - head);
}

static void ring_get(struct mail *m, uint32_t at, char *to, uint32_t n)
{
    uint32_t head = before_wrap(at, n);

    memcpy(to, m->bytes + at % SHM_RING_BYTES, head);
    memcpy(to + head, m->bytes, n - head);
}

static void ring_write(struct mail *m, const void *buf, int64_t n)
{
    const char *p = buf;
    uint32_t written = atomic_load(&m->ring->written.value);

    while (n > 0) {
        uint32_t read = atomic_load(&m->ring->read.value);
        uint32_t room = SHM_RING_BYTES - (written - read);
        uint32_t len = n < room ? (uint32_t)n : room;

        if (!room) {
            shm_word_wait(&m->ring->read, read, m->spins, m->sleep);
            continue;
        }
        ring_put(m, written, p, len);
        written += len;
        shm_word_set(&m->ring->written, written);
        p += len;
        n -= len;
    }
}

static void ring_read(struct mail *m, void *buf, int64_t n)
{
    char *p = buf;
    uint32_t read = atomic_load(&m->ring->read.value);

    while (n > 0) {
        uint32_t written = atomic_load(&m->ring->written.value);
        uint32_t there = written - read;
        uint32_t len = n < there ? (uint32_t)n : there;

        if (!there) {
            shm_word_wait(&m->ring->written, written, m->spins, m->sleep);
            continue;
        }
        ring_get(m, read, p, len);
        read += len;
        shm_word_set(&m->ring->read, read);
        p += len;
        n -= len;
    }
}

/* Tell where the bytes are. The receiver reads one byte more once it has copied them; *end gets the
 * ring position behind it. */
static void put_direct(struct mail *m, const void *buf, int64_t n_bytes, uint32_t *end)
{
    struct mail_header h = { .n_bytes = n_bytes, .shared = buf };
    char done = 0;

    ring_write(m, &h, sizeof h);
    ring_write(m, &done, 1);
    *end = atomic_load(&m->ring->written.value);
}

/* Until the receiver has read up to `end`; positions are modulo 2^32. */
static void wait_until_read(struct mail *m, uint32_t end)
{
    uint32_t read;

    while ((int32_t)((read = atomic_load(&m->ring->read.value)) - end) < 0)
        shm_word_wait(&m->ring->read, read, m->spins, m->sleep);
}

tp_status shm_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err)
{
    struct shm_comm *s = c->impl;
    struct mail m = mail_open(c, c->rank, to);
    struct mail_header h = { .n_bytes = n_bytes };
    uint32_t end;

    (void)err;
    if (n_bytes > DIRECT_MIN_BYTES && shm_in_arena(s->job, buf, n_bytes)) {
        put_direct(&m, buf, n_bytes, &end);
        wait_until_read(&m, end);
        return TP_OK;
    }
    ring_write(&m, &h, sizeof h);
    ring_write(&m, buf, n_bytes);
    return TP_OK;
}

tp_status shm_mail_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                        struct comm_request *ticket, struct tp_err *err)
{
    struct shm_comm *s = c->impl;
    struct mail m = mail_open(c, c->rank, to);

    if (!shm_in_arena(s->job, buf, n_bytes))
        return tp_fail(err, TP_E_INTERNAL, "a message to rank %d is posted from private memory",
                       to);
    put_direct(&m, buf, n_bytes, &ticket->end);
    return TP_OK;
}

tp_status shm_mail_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err)
{
    struct mail m = mail_open(c, c->rank, ticket->to);

    (void)err;
    wait_until_read(&m, ticket->end);
    return TP_OK;
}

tp_status shm_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    struct mail m = mail_open(c, from, c->rank);
    struct mail_header h;
    char done;

    ring_read(&m, &h, sizeof h);
    if (h.n_bytes != n_bytes)
        return tp_fail(err, TP_E_INTERNAL, "rank %d sends %lld bytes, and rank %d expects %lld",
                       from, (long long)h.n_bytes, c->rank, (long long)n_bytes);
    if (!h.shared) {
        ring_read(&m, buf, n_bytes);
        return TP_OK;
    }
    memcpy(buf, h.shared, (size_t)n_bytes);
    ring_read(&m, &done, 1);
    return TP_OK;
}
