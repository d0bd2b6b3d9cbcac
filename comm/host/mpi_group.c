/* comm/host/mpi_group.c - see comm/host/mpi_group.h. */
#include "comm/host/mpi_group.h"

#include <stdlib.h>

tp_status mpi_group_fail(const struct host_group *g, int code, const char *what, struct tp_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;

    MPI_Error_string(code, text, &len);
    return tp_fail(err, TP_E_COMM, "rank %d of %d: %s failed: %s", g->rank, g->size, what, text);
}

tp_status mpi_group_scratch(struct mpi_group *m, int64_t n_bytes, struct tp_err *err)
{
    if (n_bytes <= m->scratch_bytes)
        return TP_OK;
    free(m->scratch);
    m->scratch_bytes = 0;
    if (!(m->scratch = aligned_alloc(64, (size_t)(n_bytes + 63) / 64 * 64)))
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes for a collective",
                       (long long)n_bytes);
    m->scratch_bytes = n_bytes;
    return TP_OK;
}

static void handle_free(struct mpi_group *m)
{
    if (!m)
        return;
    for (struct mpi_message *x = m->spare, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    free(m->scratch);
    free(m->send);
    free(m->recv);
    free(m->requests);
    free(m->rows);
    free(m);
}

static struct mpi_group *handle_new(int size)
{
    struct mpi_group *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->comm = MPI_COMM_NULL;
    m->send = calloc((size_t)size, sizeof *m->send);
    m->recv = calloc((size_t)size, sizeof *m->recv);
    m->requests = calloc((size_t)size * 2, sizeof *m->requests);
    m->rows = calloc((size_t)size, sizeof *m->rows);
    if (m->send && m->recv && m->requests && m->rows)
        return m;
    handle_free(m);
    return NULL;
}

tp_status mpi_group_open(struct host_group *g, MPI_Comm comm, struct tp_err *err)
{
    struct mpi_group *m = handle_new(g->size);

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a group of ranks");
    m->comm = comm;
    g->impl = m;
    MPI_TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    return TP_OK;
}

void mpi_group_close(struct host_group *g)
{
    struct mpi_group *m = g->impl;

    if (!m)
        return;
    if (m->comm != MPI_COMM_WORLD)
        MPI_Comm_free(&m->comm);
    handle_free(m);
    g->impl = NULL;
}
