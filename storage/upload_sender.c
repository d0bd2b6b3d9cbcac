/* storage/upload_sender.c - see storage/upload_sender.h. */
#include "storage/upload_sender.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/background_thread.h"
#include "storage/remote.h"

enum { PARTS_NEXT = 2 };

struct sender_part {
    struct sender_part *next;
    struct upload_sender *sender;
    unsigned char *data;
    size_t n;
    int part;
};

struct upload_sender {
    struct upload *upload;
    int pending;       /* parts that wait or are being sent */
    struct tp_err err; /* of the first part that failed */
};

/* What belongs to the process: the parts that wait, first to last, and the threads. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* a part waits; a part is gone */
    struct sender_part *first;
    int n_waiting, n_parts, limit; /* parts that wait; those and what is being sent; the most */
    int n_senders, n_threads, n_idle;
    bool stop;
    pid_t owner; /* of the threads: a forked process has none */
    pthread_t threads[REMOTE_CONNECTIONS_MAX];
} process = { .lock = PTHREAD_MUTEX_INITIALIZER,
              .work = PTHREAD_COND_INITIALIZER,
              .done = PTHREAD_COND_INITIALIZER,
              .limit = UPLOAD_SENDER_PARTS };

int upload_sender_usual(void)
{
    return remote_connections() + PARTS_NEXT;
}

void upload_sender_limit(int parts)
{
    pthread_mutex_lock(&process.lock);
    process.limit = parts < 1 ? 1 : parts;
    pthread_mutex_unlock(&process.lock);
}

/* Take a part off the list: of this sender, or, with NULL, of any. */
static struct sender_part *take(const struct upload_sender *s)
{
    struct sender_part **at = &process.first, *p;

    while (*at && s && (*at)->sender != s)
        at = &(*at)->next;
    p = *at;
    if (p) {
        *at = p->next;
        process.n_waiting--;
    }
    return p;
}

static void forget(struct sender_part *p)
{
    p->sender->pending--;
    process.n_parts--;
    free(p->data);
    free(p);
    pthread_cond_broadcast(&process.done);
}

static void *run_thread(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&process.lock);
    while (!process.stop) {
        struct sender_part *p = take(NULL);
        struct tp_err err = { 0 };
        tp_status st;

        if (!p) {
            process.n_idle++;
            pthread_cond_wait(&process.work, &process.lock);
            process.n_idle--;
            continue;
        }
        pthread_mutex_unlock(&process.lock);
        st = upload_part(p->sender->upload, p->part, p->data, p->n, &err);
        pthread_mutex_lock(&process.lock);
        if (st && !p->sender->err.status)
            p->sender->err = err;
        forget(p);
    }
    pthread_mutex_unlock(&process.lock);
    return NULL;
}

/* One more thread for the part that is to be added, if all are busy and more may be. */
static bool start_thread(void)
{
    if (process.n_idle > process.n_waiting || process.n_threads >= remote_connections())
        return process.n_threads > 0;
    if (background_thread_start(&process.threads[process.n_threads], run_thread, NULL) == 0)
        process.n_threads++;
    return process.n_threads > 0;
}

static void end_threads(void)
{
    process.stop = true;
    pthread_cond_broadcast(&process.work);
    pthread_mutex_unlock(&process.lock);
    for (int i = 0; i < process.n_threads; i++)
        pthread_join(process.threads[i], NULL);
    pthread_mutex_lock(&process.lock);
    process.n_threads = 0;
    process.stop = false;
    pthread_cond_broadcast(&process.done);
}

tp_status upload_sender_new(struct upload_sender **out, struct upload *u, struct tp_err *err)
{
    struct upload_sender *s = calloc(1, sizeof *s);

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "no memory for an upload");
    s->upload = u;
    pthread_mutex_lock(&process.lock);
    if (process.owner != getpid()) {
        process.first = NULL;
        process.n_waiting = process.n_parts = process.n_senders = process.n_threads =
            process.n_idle = 0;
        process.owner = getpid();
    }
    while (process.stop) /* the threads of earlier uploads are ending */
        pthread_cond_wait(&process.done, &process.lock);
    process.n_senders++;
    pthread_mutex_unlock(&process.lock);
    *out = s;
    return TP_OK;
}

/* Append a part; under the lock. */
static tp_status append(struct upload_sender *s, int part, unsigned char *data, size_t n,
                        struct tp_err *err)
{
    struct sender_part *p = calloc(1, sizeof *p), **at = &process.first;

    if (!p || !start_thread()) {
        free(p);
        free(data);
        return tp_fail(err, TP_E_NOMEM, "no memory or thread to send part %d", part + 1);
    }
    *p = (struct sender_part){ NULL, s, data, n, part };
    while (*at)
        at = &(*at)->next;
    *at = p;
    s->pending++;
    process.n_parts++;
    process.n_waiting++;
    pthread_cond_signal(&process.work);
    return TP_OK;
}

tp_status upload_sender_add(struct upload_sender *s, int part, unsigned char *data, size_t n,
                            struct tp_err *err)
{
    tp_status st;

    pthread_mutex_lock(&process.lock);
    while (process.n_parts >= process.limit && !s->err.status)
        pthread_cond_wait(&process.done, &process.lock);
    st = s->err.status;
    if (st) {
        *err = s->err;
        free(data);
    } else {
        st = append(s, part, data, n, err);
    }
    pthread_mutex_unlock(&process.lock);
    return st;
}

tp_status upload_sender_wait(struct upload_sender *s, struct tp_err *err)
{
    tp_status st;

    pthread_mutex_lock(&process.lock);
    while (s->pending > 0)
        pthread_cond_wait(&process.done, &process.lock);
    st = s->err.status;
    if (st)
        *err = s->err;
    pthread_mutex_unlock(&process.lock);
    return st;
}

void upload_sender_free(struct upload_sender *s)
{
    struct sender_part *p;

    if (!s)
        return;
    pthread_mutex_lock(&process.lock);
    while ((p = take(s)))
        forget(p);
    while (s->pending > 0)
        pthread_cond_wait(&process.done, &process.lock);
    if (--process.n_senders == 0)
        end_threads();
    pthread_mutex_unlock(&process.lock);
    free(s);
}
