/* comm/host/self.c - see comm/host/self.h. */
#include "comm/host/self.h"

#include <stdlib.h>
#include <string.h>

#include "device/cpu/pages.h"

static tp_status self_split(struct host_group *out, struct host_group *g, const int *members,
                            int n_members, struct tp_err *err)
{
    (void)out;
    (void)g;
    (void)members;
    (void)n_members;
    (void)err;
    return TP_OK;
}

static void self_free(struct host_group *g)
{
    (void)g;
}

static tp_status self_all_reduce(struct host_group *g, void *buf, int64_t n, enum dtype type,
                                 enum tree_reduce_op op, struct tp_err *err)
{
    (void)g;
    (void)buf;
    (void)n;
    (void)type;
    (void)op;
    (void)err;
    return TP_OK;
}

static tp_status self_all_gather(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                                 struct tp_err *err)
{
    (void)g;
    (void)err;
    if (n_bytes)
        memmove(out, in, (size_t)n_bytes);
    return TP_OK;
}

/* comm/collective.c copies, so this is not called. */
static tp_status self_all_to_all(struct host_group *g, void *out, const void *in,
                                 const struct host_rows *rows, struct tp_err *err)
{
    return self_all_gather(g, out, in, rows->send[1] * rows->row_bytes, err);
}

static tp_status self_reduce_scatter(struct host_group *g, void *out, const void *in, int64_t n,
                                     enum dtype type, struct tp_err *err)
{
    return self_all_gather(g, out, in, n * dtype_bytes(type), err);
}

static tp_status self_broadcast(struct host_group *g, void *buf, int64_t n_bytes, int root,
                                struct tp_err *err)
{
    (void)g;
    (void)buf;
    (void)n_bytes;
    (void)root;
    (void)err;
    return TP_OK;
}

static tp_status self_gather(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                             int64_t *sizes, struct tp_err *err)
{
    void *copy = malloc(n_bytes ? (size_t)n_bytes : 1);

    (void)g;
    if (!copy)
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes to gather", (long long)n_bytes);
    if (n_bytes)
        memcpy(copy, in, (size_t)n_bytes);
    *out = copy;
    sizes[0] = n_bytes;
    return TP_OK;
}

/* comm/collective.c refuses messages of a rank to itself, so these are not called. */
static tp_status self_send(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                           struct host_request *r, struct tp_err *err)
{
    (void)g;
    (void)buf;
    (void)n_bytes;
    (void)r;
    return tp_fail(err, TP_E_INTERNAL, "one rank cannot send to rank %d", to);
}

static tp_status self_recv(struct host_group *g, void *buf, int64_t n_bytes, int from,
                           struct tp_err *err)
{
    (void)g;
    (void)buf;
    (void)n_bytes;
    return tp_fail(err, TP_E_INTERNAL, "one rank cannot receive from rank %d", from);
}

static tp_status self_wait(struct host_group *g, struct host_request *r, struct tp_err *err)
{
    (void)g;
    (void)r;
    (void)err;
    return TP_OK;
}

static tp_status self_barrier(struct host_group *g, struct tp_err *err)
{
    (void)g;
    (void)err;
    return TP_OK;
}

static const struct host_group_ops SELF_GROUP = {
    .split = self_split,
    .free = self_free,
    .all_reduce = self_all_reduce,
    .all_gather = self_all_gather,
    .all_to_all = self_all_to_all,
    .reduce_scatter = self_reduce_scatter,
    .broadcast = self_broadcast,
    .gather = self_gather,
    .send = self_send,
    .wait = self_wait,
    .recv = self_recv,
    .barrier = self_barrier,
};

void self_group_open(struct host_group *g)
{
    g->ops = &SELF_GROUP;
}

static void self_abort(struct host_process *p, int code)
{
    (void)p;
    (void)code;
}

static void self_end(struct host_process *p)
{
    struct pages *memory = p->impl;

    pages_unmap_all(&memory);
}

static tp_status self_alloc(struct host_process *p, void **out, int64_t n_bytes, struct tp_err *err)
{
    struct pages *memory = p->impl;
    tp_status st = pages_map(&memory, out, n_bytes, err);

    p->impl = memory;
    return st;
}

static const struct host_process_ops SELF_PROCESS = { self_abort, self_end, self_alloc, NULL };

void self_process_open(struct host_process *p, struct host_group *all)
{
    p->ops = &SELF_PROCESS;
    p->size = p->local_size = 1;
    p->threads = true;
    self_group_open(all);
}
