/* storage/upload_file.c - see storage/upload_file.h. */
#include "storage/upload_file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "storage/store_object.h"
#include "storage/upload.h"
#include "storage/upload_sender.h"

enum { HELD_MAX = 2 };

struct upload_file_part {
    unsigned char *bytes; /* NULL: not begun, or sent */
    int64_t payload_left; /* bytes that have not arrived */
    bool held, sent;
};

struct upload_file {
    struct upload_file_request request;
    struct upload *upload;
    struct upload_sender *sender;
    int64_t size, part_bytes;
    int n_parts;
    bool shared, appeared;
    struct upload_file_part *parts;
    int64_t held[HELD_MAX][2]; /* offset and length of what is known at the end */
    int n_held;
    pthread_mutex_t lock; /* guards parts, but for their bytes */
};

static int64_t part_length(const struct upload_file *u, int part)
{
    const int64_t left = u->size - part * u->part_bytes;

    return left < u->part_bytes ? left : u->part_bytes;
}

/* The bytes that offset .. offset + n - 1 and a part have in common. */
static int64_t overlap(const struct upload_file *u, int part, int64_t offset, int64_t n,
                       int64_t *begin)
{
    const int64_t lo = part * u->part_bytes, hi = lo + part_length(u, part);
    const int64_t end = offset + n < hi ? offset + n : hi;

    *begin = offset > lo ? offset : lo;
    return end > *begin ? end - *begin : 0;
}

tp_status upload_file_new(struct upload_file **out, const struct upload_file_request *q,
                          struct tp_err *err)
{
    struct upload_file *u = calloc(1, sizeof *u);

    if (!u)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", q->path);
    pthread_mutex_init(&u->lock, NULL);
    u->request = *q;
    u->size = q->size;
    u->part_bytes = upload_part_bytes(u->size);
    u->n_parts = u->size > 0 ? (int)((u->size + u->part_bytes - 1) / u->part_bytes) : 1;
    u->parts = calloc((size_t)u->n_parts, sizeof *u->parts);
    if (!u->parts) {
        upload_file_end(u);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", q->path);
    }
    *out = u;
    return TP_OK;
}

/* The parts of a range. */
static void range_parts(const struct upload_file *u, int64_t offset, int64_t n, int *first,
                        int *end)
{
    *first = (int)(offset / u->part_bytes);
    *end = n > 0 ? (int)((offset + n - 1) / u->part_bytes) + 1 : *first;
}

void upload_file_expect(struct upload_file *u, int64_t offset, int64_t n)
{
    int64_t begin;
    int p, end;

    for (range_parts(u, offset, n, &p, &end); p < end; p++)
        u->parts[p].payload_left += overlap(u, p, offset, n, &begin);
}

void upload_file_hold(struct upload_file *u, int64_t offset, int64_t n)
{
    int p, end;

    for (range_parts(u, offset, n, &p, &end); p < end; p++)
        u->parts[p].held = true;
    if (n > 0 && u->n_held < HELD_MAX) {
        u->held[u->n_held][0] = offset;
        u->held[u->n_held++][1] = n;
    }
}

tp_status upload_file_begin(struct upload_file *u, const char *id, struct tp_err *err)
{
    const char *path = u->request.path;
    tp_status st = id ? upload_join(&u->upload, path, u->size, id, err)
                      : upload_begin(&u->upload, path, u->size, err);

    return st ? st : upload_sender_new(&u->sender, u->upload, err);
}

/* ---- parts ---- */

/* The bytes of a part in whole words, as pieces are combined. */
static int64_t part_words(const struct upload_file *u, int part)
{
    const int64_t word = sizeof(uint64_t);

    return (part_length(u, part) + word - 1) / word;
}

/* Allocate a part, with what is not payload; under the lock. */
static tp_status begin_part(struct upload_file *u, int part, struct tp_err *err)
{
    const struct upload_file_request *q = &u->request;
    struct upload_file_part *p = &u->parts[part];
    const int64_t n = part_length(u, part);
    const size_t room = (size_t)part_words(u, part) * sizeof(uint64_t);
    unsigned char *bytes;
    tp_status st = TP_OK;

    if (p->bytes)
        return TP_OK;
    if (p->sent)
        return tp_fail(err, TP_E_INTERNAL, "%s: a byte of part %d was written twice", q->path,
                       part);
    bytes = malloc(room + 1);
    if (!bytes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", q->path, (long long)n);
    memset(bytes + n, 0, room - (size_t)n);
    if (q->structure)
        st = q->structure(q->ctx, part * u->part_bytes, bytes, n, err);
    if (st)
        free(bytes);
    else
        p->bytes = bytes;
    return st;
}

/* Send a part, all of whose bytes are there. */
static tp_status send_part(struct upload_file *u, int part, struct tp_err *err)
{
    struct upload_file_part *p = &u->parts[part];
    unsigned char *bytes;

    pthread_mutex_lock(&u->lock);
    bytes = p->bytes;
    p->bytes = NULL;
    p->sent = true;
    pthread_mutex_unlock(&u->lock);
    return upload_sender_add(u->sender, part, bytes, (size_t)part_length(u, part), err);
}

tp_status upload_file_write(struct upload_file *u, int64_t offset, const void *data, int64_t n,
                            struct tp_err *err)
{
    const unsigned char *from = data;
    tp_status st = TP_OK;

    while (n > 0 && !st) {
        const int part = (int)(offset / u->part_bytes);
        struct upload_file_part *p = &u->parts[part];
        int64_t begin;
        const int64_t here = overlap(u, part, offset, n, &begin);
        bool complete;

        pthread_mutex_lock(&u->lock);
        st = begin_part(u, part, err);
        pthread_mutex_unlock(&u->lock);
        if (st)
            break;
        memcpy(p->bytes + (begin - part * u->part_bytes), from, (size_t)here);
        pthread_mutex_lock(&u->lock);
        p->payload_left -= here;
        complete = p->payload_left == 0 && !p->held;
        pthread_mutex_unlock(&u->lock);
        if (complete)
            st = send_part(u, part, err);
        offset += here;
        from += here;
        n -= here;
    }
    return st;
}

/* ---- the end ---- */

tp_status upload_file_shorten(struct upload_file *u, int64_t size, int64_t payload_end,
                              struct tp_err *err)
{
    int64_t begin;

    if (size > u->size)
        return tp_fail(err, TP_E_INTERNAL, "%s: has %lld bytes, at most %lld were expected",
                       u->request.path, (long long)size, (long long)u->size);
    for (int p = 0; p < u->n_parts; p++)
        u->parts[p].payload_left -= overlap(u, p, payload_end, u->size - payload_end, &begin);
    u->size = size;
    u->n_parts = (int)((size + u->part_bytes - 1) / u->part_bytes);
    upload_shorten(u->upload, size);
    upload_file_hold(u, payload_end, size - payload_end);
    return TP_OK;
}

/* Take the final bytes of what was held of a part. */
static tp_status refresh(struct upload_file *u, int part, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < u->n_held && !st; i++) {
        int64_t begin;
        const int64_t n = overlap(u, part, u->held[i][0], u->held[i][1], &begin);

        if (n > 0)
            st = u->request.final(u->request.ctx, begin,
                                  u->parts[part].bytes + (begin - part * u->part_bytes), n, err);
    }
    return st;
}

tp_status upload_file_finish(struct upload_file *u, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int part = 0; part < u->n_parts; part++) {
        const struct upload_file_part *p = &u->parts[part];

        if (upload_file_is_sent(u, part) || (u->shared && !p->held))
            continue;
        if (p->payload_left != 0)
            return tp_fail(err, TP_E_INTERNAL, "%s: %lld bytes of part %d were not written",
                           u->request.path, (long long)p->payload_left, part);
        TP_TRY(begin_part(u, part, err));
        TP_TRY(refresh(u, part, err));
        TP_TRY(send_part(u, part, err));
    }
done:
    return st;
}

tp_status upload_file_wait(struct upload_file *u, struct tp_err *err)
{
    return upload_sender_wait(u->sender, err);
}

tp_status upload_file_complete(struct upload_file *u, struct tp_err *err)
{
    tp_status st = upload_complete(u->upload, err);

    u->appeared = !st;
    return st;
}

void upload_file_remove(struct upload_file *u)
{
    struct tp_err ignored;

    if (u->appeared)
        store_object_delete(u->request.path, &ignored);
    u->appeared = false;
}

void upload_file_end(struct upload_file *u)
{
    if (!u)
        return;
    upload_sender_free(u->sender);
    upload_end(u->upload);
    for (int i = 0; u->parts && i < u->n_parts; i++)
        free(u->parts[i].bytes);
    pthread_mutex_destroy(&u->lock);
    free(u->parts);
    free(u);
}

/* ---- several processes ---- */

void upload_file_share(struct upload_file *u)
{
    u->shared = true;
}

const char *upload_file_id(const struct upload_file *u)
{
    return upload_id(u->upload);
}

uint64_t *upload_file_receipts(const struct upload_file *u, int64_t *n_words)
{
    return upload_receipts(u->upload, n_words);
}

int upload_file_parts(const struct upload_file *u)
{
    return u->n_parts;
}

bool upload_file_is_sent(const struct upload_file *u, int part)
{
    return u->parts[part].sent || upload_has_part(u->upload, part);
}

uint64_t *upload_file_piece(const struct upload_file *u, int part, int64_t *n_words)
{
    *n_words = part_words(u, part);
    return (uint64_t *)(void *)u->parts[part].bytes;
}

tp_status upload_file_add_piece(struct upload_file *u, int part, struct tp_err *err)
{
    return begin_part(u, part, err);
}

bool upload_file_is_held(const struct upload_file *u, int part)
{
    return u->parts[part].held;
}

tp_status upload_file_send_piece(struct upload_file *u, int part, struct tp_err *err)
{
    u->parts[part].payload_left = 0;
    return u->parts[part].held ? TP_OK : send_part(u, part, err);
}

void upload_file_drop_piece(struct upload_file *u, int part)
{
    free(u->parts[part].bytes);
    u->parts[part].bytes = NULL;
}
