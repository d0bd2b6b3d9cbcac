/* ckpt/shard_upload.c - see ckpt/shard_upload.h. */
#include "ckpt/shard_upload.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "storage/upload_sender.h"

struct shard_upload_part {
    unsigned char *bytes; /* NULL: not begun, or sent */
    int64_t payload_left; /* bytes that have not arrived */
    bool has_index, sent;
};

struct shard_upload {
    const struct shard_writer *w;
    struct upload *upload;
    struct upload_sender *sender;
    int64_t part_bytes;
    int n_parts;
    bool appeared;
    struct shard_upload_part *parts;
    pthread_mutex_t lock; /* guards parts, but for their bytes */
};

static int64_t part_length(const struct shard_upload *u, int part)
{
    const int64_t left = u->w->size - part * u->part_bytes;

    return left < u->part_bytes ? left : u->part_bytes;
}

/* The bytes that offset .. offset + n - 1 and a part have in common. */
static int64_t overlap(const struct shard_upload *u, int part, int64_t offset, int64_t n,
                       int64_t *begin)
{
    const int64_t lo = part * u->part_bytes, hi = lo + part_length(u, part);
    const int64_t end = offset + n < hi ? offset + n : hi;

    *begin = offset > lo ? offset : lo;
    return end > *begin ? end - *begin : 0;
}

/* Count the payload of each part, and mark those that have a piece of /index. */
static void count(struct shard_upload *u)
{
    const struct shard_writer *w = u->w;
    int64_t begin;

    for (int64_t k = 0; k < w->n_chunks; k++) {
        const struct chunk_entry *c = &w->chunks[k];
        const int last = (int)((c->offset + c->stored_bytes - 1) / u->part_bytes);

        for (int p = (int)(c->offset / u->part_bytes); p <= last; p++)
            u->parts[p].payload_left += overlap(u, p, c->offset, c->stored_bytes, &begin);
    }
    for (int p = 0; p < u->n_parts; p++)
        u->parts[p].has_index =
            overlap(u, p, w->index_offset, w->n_chunks * CHUNK_ENTRY_BYTES, &begin) > 0;
}

tp_status shard_upload_begin(struct shard_upload **out, const struct shard_writer *w,
                             struct tp_err *err)
{
    struct shard_upload *u = calloc(1, sizeof *u);
    tp_status st;

    if (!u)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", w->path);
    pthread_mutex_init(&u->lock, NULL);
    u->w = w;
    u->part_bytes = upload_part_bytes(w->size);
    u->n_parts = (int)((w->size + u->part_bytes - 1) / u->part_bytes);
    u->parts = calloc((size_t)u->n_parts, sizeof *u->parts);
    if (!u->parts)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory to write it", w->path));
    count(u);
    TP_TRY(upload_begin(&u->upload, w->path, w->size, err));
    TP_TRY(upload_sender_new(&u->sender, u->upload, err));
    *out = u;
    u = NULL;
done:
    shard_upload_end(u);
    return st;
}

/* Allocate a part, with what is outside payloads; under the lock. */
static tp_status begin_part(struct shard_upload *u, int part, struct tp_err *err)
{
    struct shard_upload_part *p = &u->parts[part];
    const size_t n = (size_t)part_length(u, part);
    unsigned char *bytes;
    tp_status st;

    if (p->bytes)
        return TP_OK;
    if (p->sent)
        return tp_fail(err, TP_E_INTERNAL, "%s: a byte of part %d was written twice", u->w->path,
                       part);
    bytes = malloc(n);
    if (!bytes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %zu bytes", u->w->path, n);
    st = file_read_at(u->w->fd, u->w->path, part * u->part_bytes, bytes, n, err);
    if (st)
        free(bytes);
    else
        p->bytes = bytes;
    return st;
}

/* Send a part, all of whose bytes are there. */
static tp_status send_part(struct shard_upload *u, int part, struct tp_err *err)
{
    struct shard_upload_part *p = &u->parts[part];
    unsigned char *bytes;

    pthread_mutex_lock(&u->lock);
    bytes = p->bytes;
    p->bytes = NULL;
    p->sent = true;
    pthread_mutex_unlock(&u->lock);
    return upload_sender_add(u->sender, part, bytes, (size_t)part_length(u, part), err);
}

tp_status shard_upload_write(struct shard_upload *u, int64_t offset, const void *data, int64_t n,
                             struct tp_err *err)
{
    const unsigned char *from = data;
    tp_status st = TP_OK;

    while (n > 0 && !st) {
        const int part = (int)(offset / u->part_bytes);
        struct shard_upload_part *p = &u->parts[part];
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
        complete = p->payload_left == 0 && !p->has_index;
        pthread_mutex_unlock(&u->lock);
        if (complete)
            st = send_part(u, part, err);
        offset += here;
        from += here;
        n -= here;
    }
    return st;
}

/* Take the final bytes of /index, which is in the writer's file. */
static tp_status refresh_index(struct shard_upload *u, int part, struct tp_err *err)
{
    const struct shard_writer *w = u->w;
    int64_t begin, n = overlap(u, part, w->index_offset, w->n_chunks * CHUNK_ENTRY_BYTES, &begin);

    if (n == 0)
        return TP_OK;
    return file_read_at(w->fd, w->path, begin,
                        u->parts[part].bytes + (begin - part * u->part_bytes), (size_t)n, err);
}

tp_status shard_upload_finish(struct shard_upload *u, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int part = 0; part < u->n_parts && !st; part++) {
        struct shard_upload_part *p = &u->parts[part];

        if (p->sent)
            continue;
        if (p->payload_left != 0)
            return tp_fail(err, TP_E_INTERNAL, "%s: %lld bytes of part %d were not written",
                           u->w->path, (long long)p->payload_left, part);
        TP_TRY(begin_part(u, part, err));
        TP_TRY(refresh_index(u, part, err));
        TP_TRY(send_part(u, part, err));
    }
done:
    return st;
}

tp_status shard_upload_wait(struct shard_upload *u, struct tp_err *err)
{
    return upload_sender_wait(u->sender, err);
}

tp_status shard_upload_complete(struct shard_upload *u, struct tp_err *err)
{
    tp_status st = upload_complete(u->upload, err);

    u->appeared = !st;
    return st;
}

void shard_upload_remove(struct shard_upload *u)
{
    struct tp_err ignored;

    if (u->appeared)
        upload_delete(u->w->path, &ignored);
    u->appeared = false;
}

void shard_upload_end(struct shard_upload *u)
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
