/* comm/self.c - one rank: every collective is a copy, or nothing. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/backend.h"

struct comm_memory {
    struct comm_memory *next;
    void *data;
    size_t n_bytes;
};

tp_status comm_memory_add(void **out, struct comm_memory **list, int64_t n_bytes,
                          struct tp_err *err)
{
    struct comm_memory *m = malloc(sizeof *m);

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communication buffer");
    /* Pages straight from the kernel: zeroed, aligned, and not touched before they are used. */
    m->n_bytes = n_bytes ? (size_t)n_bytes : 1;
    m->data = mmap(NULL, m->n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->data == MAP_FAILED) {
        free(m);
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes for a communication buffer",
                       (long long)n_bytes);
    }
    m->next = *list;
    *list = m;
    *out = m->data;
    return TP_OK;
}

void comm_memory_free(struct comm_memory *list)
{
    while (list) {
        struct comm_memory *next = list->next;

        munmap(list->data, list->n_bytes);
        free(list);
        list = next;
    }
}

static tp_status self_split(struct comm *out, struct comm *c, const int *members, int n_members,
                            struct tp_err *err)
{
    (void)out;
    (void)c;
    (void)members;
    (void)n_members;
    (void)err;
    return TP_OK;
}

static void self_free(struct comm *c)
{
    (void)c;
}

static tp_status self_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                 enum comm_op op, struct tp_err *err)
{
    (void)c;
    (void)buf;
    (void)n;
    (void)type;
    (void)op;
    (void)err;
    return TP_OK;
}

static tp_status self_all_gather(struct comm *c, void *out, const void *in, int64_t n_bytes,
                                 struct tp_err *err)
{
    (void)c;
    (void)err;
    if (n_bytes)
        memmove(out, in, (size_t)n_bytes);
    return TP_OK;
}

static tp_status self_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                                     enum comm_type type, struct tp_err *err)
{
    return self_all_gather(c, out, in, n * comm_type_bytes(type), err);
}

static tp_status self_broadcast(struct comm *c, void *buf, int64_t n_bytes, int root,
                                struct tp_err *err)
{
    (void)c;
    (void)buf;
    (void)n_bytes;
    (void)root;
    (void)err;
    return TP_OK;
}

static tp_status self_gather(struct comm *c, const void *in, int64_t n_bytes, void **out,
                             int64_t *sizes, struct tp_err *err)
{
    void *copy = malloc(n_bytes ? (size_t)n_bytes : 1);

    (void)c;
    if (!copy)
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes to gather", (long long)n_bytes);
    if (n_bytes)
        memcpy(copy, in, (size_t)n_bytes);
    *out = copy;
    sizes[0] = n_bytes;
    return TP_OK;
}

/* comm.c refuses messages to oneself, so these are never reached. */
static tp_status self_send(struct comm *c, const void *buf, int64_t n_bytes, int to,
                           struct tp_err *err)
{
    (void)c;
    (void)buf;
    (void)n_bytes;
    return tp_fail(err, TP_E_INTERNAL, "one rank cannot send to rank %d", to);
}

static tp_status self_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    (void)c;
    (void)buf;
    (void)n_bytes;
    return tp_fail(err, TP_E_INTERNAL, "one rank cannot receive from rank %d", from);
}

static tp_status self_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                           struct comm_request *ticket, struct tp_err *err)
{
    (void)ticket;
    return self_send(c, buf, n_bytes, to, err);
}

static tp_status self_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err)
{
    (void)c;
    (void)ticket;
    (void)err;
    return TP_OK;
}

static tp_status self_barrier(struct comm *c, struct tp_err *err)
{
    (void)c;
    (void)err;
    return TP_OK;
}

const struct comm_ops comm_self_ops = {
    .split = self_split,
    .free = self_free,
    .all_reduce = self_all_reduce,
    .all_gather = self_all_gather,
    .reduce_scatter = self_reduce_scatter,
    .broadcast = self_broadcast,
    .gather = self_gather,
    .send = self_send,
    .recv = self_recv,
    .post = self_post,
    .wait = self_wait,
    .barrier = self_barrier,
};

static void self_abort(struct comm *world, int code)
{
    (void)world;
    (void)code;
}

static void self_end(struct comm *world)
{
    comm_memory_free(world->process);
}

static tp_status self_alloc(void **out, struct comm *world, int64_t n_bytes, struct tp_err *err)
{
    struct comm_memory *list = world->process;
    tp_status st = comm_memory_add(out, &list, n_bytes, err);

    world->process = list;
    return st;
}

static const struct comm_transport self_way = { self_abort, self_end, self_alloc, NULL };

void comm_self_init(struct comm *world)
{
    world->ops = &comm_self_ops;
    world->way = &self_way;
    world->rank = 0;
    world->size = world->local_size = 1;
}
