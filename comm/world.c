/* comm/world.c - see comm/world.h. */
#include "comm/world.h"

#include <stdlib.h>

#include "comm/collective.h"
#include "comm/control.h"
#include "comm/cpu_transport.h"
#include "comm/host/host.h"
#include "comm/transport.h"

tp_status comm_open(struct comm_world **out, const struct comm_env *env, int64_t local_bytes,
                    struct tp_err *err)
{
    struct comm_world *w = calloc(1, sizeof *w);
    tp_status st;

    if (!w)
        return tp_fail(err, TP_E_NOMEM, "out of memory for the ranks of a job");
    if ((st = host_open(&w->process, env, local_bytes, err))) {
        free(w);
        return st;
    }
    w->control.world = w;
    *out = w;
    return TP_OK;
}

void comm_close(struct comm_world *w, tp_status abort)
{
    /* All ranks end together after "saved and stopped", after the answer "no", and after a failure
     * on which they have agreed. */
    bool failed = abort != TP_OK && abort != TP_E_STOPPED && abort != TP_E_NO;

    if (!w)
        return;
    while (w->comms)
        comm_free(w->comms);
    host_close(w->process, failed && !w->process->agreed ? abort : TP_OK);
    free(w);
}

int comm_local_size(const struct comm_world *w)
{
    return w->process->local_size;
}

int comm_local_rank(const struct comm_world *w)
{
    return w->process->local_rank;
}

bool comm_has_agreed(const struct comm_world *w)
{
    return w->process->agreed;
}

bool comm_has_threads(const struct comm_world *w)
{
    return w->process->threads;
}

struct comm_control *comm_control(struct comm_world *w)
{
    return &w->control;
}

/* ---- the device ---- */

/* This process begins or ends to wait for a queue that has a thread. */
static void waits_for_queue(void *ctx, bool waits)
{
    struct comm_world *w = ctx;

    heartbeat_collective(w->watch, waits);
    if (w->process->ops->waits)
        w->process->ops->waits(w->process, waits);
}

/* Rank 0's id for the transport, on all ranks. */
static tp_status share_id(struct comm_world *w, char id[COMM_ID_BYTES], struct tp_err *err)
{
    tp_status st;

    if (!w->transport->make_id)
        return TP_OK;
    st = w->process->rank == 0 ? w->transport->make_id(id, err) : TP_OK;
    if ((st = control_agree(&w->control, st, err)))
        return st;
    return control_broadcast(&w->control, id, COMM_ID_BYTES, 0, err);
}

tp_status comm_use_device(struct comm **out, struct comm_world *w, struct device *d,
                          const struct comm_transport *t, struct tp_err *err)
{
    struct comm *all = calloc(1, sizeof *all);
    char id[COMM_ID_BYTES] = { 0 };
    tp_status st;

    if (!all)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    w->device = d;
    w->transport = t ? t : &comm_cpu_transport;
    *all = (struct comm){
        .transport = w->transport, .world = w, .rank = w->process->rank, .size = w->process->size
    };
    if ((st = share_id(w, id, err)) || (st = w->transport->open(all, id, err))) {
        free(all);
        return st;
    }
    all->next = w->comms;
    w->comms = all;
    device_watch(d, waits_for_queue, w);
    *out = all;
    return TP_OK;
}

struct comm_request_for_memory {
    int64_t n_bytes, status;
};

/* Check that all ranks ask for the same size and that all got it. err has this rank's own
 * message. */
static tp_status check_memory(const struct comm_request_for_memory *all, int rank, int size,
                              struct tp_err *err)
{
    int64_t mine = all[rank].n_bytes;

    for (int r = 0; r < size; r++) {
        if (all[r].n_bytes != mine)
            return tp_fail(err, TP_E_INTERNAL,
                           "comm_alloc: rank %d asks for %lld bytes, rank %d for %lld", rank,
                           (long long)mine, r, (long long)all[r].n_bytes);
        if (all[r].status && r != rank)
            return tp_fail(err, (tp_status)all[r].status,
                           "rank %d has no room for a communication buffer of %lld bytes", r,
                           (long long)mine);
        if (all[r].status)
            return (tp_status)all[r].status;
    }
    return TP_OK;
}

tp_status comm_alloc(void **out, struct comm_world *w, int64_t n_bytes, struct tp_err *err)
{
    int size = w->process->size, rank = w->process->rank;
    struct comm_request_for_memory mine = { n_bytes, TP_OK }, *all;
    void *got = NULL;
    tp_status st = TP_OK;

    if (!(all = calloc((size_t)size, sizeof *all)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communication buffer");
    if (n_bytes < 0)
        mine.status = tp_fail(err, TP_E_INTERNAL, "comm_alloc of %lld bytes", (long long)n_bytes);
    else
        mine.status = w->transport->alloc(w, &got, n_bytes, err);
    TP_TRY(control_all_gather(&w->control, all, &mine, sizeof mine, err));
    if ((st = check_memory(all, rank, size, err)))
        w->process->agreed = true;
    else
        *out = got;
done:
    free(all);
    return st;
}

bool comm_promises(const struct comm_world *w, enum comm_promise promise)
{
    return w->transport->promises >> promise & 1;
}

/* ---- heartbeat and times ---- */

void comm_watch(struct comm_world *w, struct heartbeat *h)
{
    w->watch = h;
}

struct comm_times comm_times(const struct comm_world *w)
{
    struct device_times d = w->device ? device_times(w->device) : (struct device_times){ 0 };

    return (struct comm_times){ .waited = w->waited + d.waited,
                                .hidden = d.worked > d.waited ? d.worked - d.waited : 0 };
}
