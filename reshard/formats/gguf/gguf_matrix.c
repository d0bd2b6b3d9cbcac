/* reshard/formats/gguf/gguf_matrix.c - see reshard/formats/gguf/gguf_matrix.h. */
#include "reshard/formats/gguf/gguf_matrix.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct matrix {
    char *data;     /* NULL: nothing has come yet, or it is complete */
    int64_t filled; /* bytes that have come */
};

struct gguf_matrices {
    pthread_mutex_t lock; /* guards the list, but not the bytes of a matrix */
    int n;
    struct matrix *list;
};

tp_status gguf_matrices_new(struct gguf_matrices **out, int n, struct tp_err *err)
{
    struct gguf_matrices *m = calloc(1, sizeof *m);

    if (!m || !(m->list = calloc((size_t)n + 1, sizeof *m->list))) {
        free(m);
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d matrices", n);
    }
    pthread_mutex_init(&m->lock, NULL);
    m->n = n;
    *out = m;
    return TP_OK;
}

/* The memory of a matrix; NULL: there is none. */
static char *memory_of(struct gguf_matrices *m, int i, int64_t bytes)
{
    char *data;

    pthread_mutex_lock(&m->lock);
    if (!m->list[i].data)
        m->list[i].data = malloc((size_t)bytes);
    data = m->list[i].data;
    pthread_mutex_unlock(&m->lock);
    return data;
}

tp_status gguf_matrices_add(char **whole, struct gguf_matrices *m, int i, int64_t bytes, int64_t at,
                            const void *data, int64_t n, struct tp_err *err)
{
    char *to = memory_of(m, i, bytes);

    *whole = NULL;
    if (!to)
        return tp_fail(err, TP_E_NOMEM, "no memory for a matrix of %lld bytes", (long long)bytes);
    memcpy(to + at, data, (size_t)n);
    pthread_mutex_lock(&m->lock);
    m->list[i].filled += n;
    if (m->list[i].filled == bytes) {
        *whole = to;
        m->list[i].data = NULL;
    }
    pthread_mutex_unlock(&m->lock);
    return TP_OK;
}

void gguf_matrices_free(struct gguf_matrices *m)
{
    for (int i = 0; m && i < m->n; i++)
        free(m->list[i].data);
    if (m) {
        pthread_mutex_destroy(&m->lock);
        free(m->list);
    }
    free(m);
}
