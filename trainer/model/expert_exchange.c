/* trainer/model/expert_exchange.c - see trainer/model/expert_exchange.h. */
#include "trainer/model/expert_exchange.h"

static int ep_of(const struct network *n)
{
    return n->ep ? comm_size(n->ep) : 1;
}

/* ---- numbers of rows ---- */

static int64_t host_rows(const struct network *n)
{
    return activations_host_rows(n->experts, ep_of(n));
}

void expert_exchange_counts(const struct pass *p, const struct activations_experts *e)
{
    const struct network *n = p->net;
    int32_t *all = p->scratch->all_offsets;

    if (n->ep) {
        comm_all_gather(n->ep, n->k.queue, all, e->offsets, (n->experts + 1) * (int64_t)sizeof *all,
                        DTYPE_U8);
        n->k.ops->permute_dispatch(n->k.queue, &(struct permute_dispatch){ .send = e->send,
                                                                           .recv = e->recv,
                                                                           .groups = e->groups,
                                                                           .all_offsets = all,
                                                                           .size = comm_size(n->ep),
                                                                           .rank = comm_rank(n->ep),
                                                                           .experts = n->experts });
    }
    if (!n->k.ops->reads_rows_on_host)
        return;
    device_copy(n->k.queue, e->host_rows, n->ep ? e->groups : e->offsets,
                host_rows(n) * (int64_t)sizeof *e->host_rows);
    device_record(n->k.queue, n->counted);
}

/* After a failure the numbers may be anything. Nothing that is queued from now on runs, but its
 * arguments must not be outside of their arrays, so all numbers become 0. The device keeps the
 * failure. */
void expert_exchange_wait(const struct pass *p, const struct activations_experts *e)
{
    struct tp_err err;

    if (!p->net->k.ops->reads_rows_on_host || !device_event_sync(p->net->counted, &err))
        return;
    for (int64_t i = 0; i < host_rows(p->net); i++)
        e->host_rows[i] = 0;
}

struct expert_linear_rows expert_exchange_rows(const struct pass *p,
                                               const struct activations_experts *e)
{
    const struct network *n = p->net;

    return (struct expert_linear_rows){ .offsets = n->ep ? e->groups : e->offsets,
                                        .host_offsets = e->host_rows,
                                        .experts = n->experts / ep_of(n),
                                        .groups = n->experts };
}

/* ---- copies ---- */

/* Send rows to each ep rank; `back`: those that have come from it. */
static void exchange(const struct pass *p, const struct activations_experts *e, void *to,
                     const void *from, int64_t row_bytes, bool back)
{
    const struct network *n = p->net;
    const int32_t *send = e->host_rows + n->experts + 1, *recv = send + comm_size(n->ep) + 1;
    const struct comm_rows rows = { .row_bytes = row_bytes,
                                    .send = back ? e->recv : e->send,
                                    .recv = back ? e->send : e->recv,
                                    .counted = p->rows * n->per_token,
                                    .host_send = back ? recv : send,
                                    .host_recv = back ? send : recv };

    comm_all_to_all(n->ep, n->k.queue, to, from, &rows);
}

const void *expert_exchange_dispatch(const struct pass *p, const struct activations_experts *e,
                                     void *to, const void *copies, int64_t row_bytes)
{
    if (!p->net->ep)
        return copies;
    exchange(p, e, to, copies, row_bytes, false);
    return to;
}

const void *expert_exchange_collect(const struct pass *p, const struct activations_experts *e,
                                    void *to, const void *results, int64_t row_bytes)
{
    if (!p->net->ep)
        return results;
    exchange(p, e, to, results, row_bytes, true);
    return to;
}
