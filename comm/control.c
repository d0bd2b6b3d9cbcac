/* comm/control.c - see comm/control.h. */
#include "comm/control.h"

#include <stdlib.h>
#include <string.h>

#include "comm/host/host.h"
#include "comm/transport.h"

static struct host_group *group_of(const struct comm_control *c)
{
    return host_all(c->world->process);
}

int control_rank(const struct comm_control *c)
{
    return c ? c->world->process->rank : 0;
}

int control_size(const struct comm_control *c)
{
    return c ? c->world->process->size : 1;
}

/* Begin a call. `leave` ends it and returns st. */
static tp_status enter(struct comm_control *c, struct tp_err *err)
{
    tp_status st = host_begin(group_of(c), false, err);

    if (!st)
        transport_wait_begin(c->world);
    return st;
}

static tp_status leave(struct comm_control *c, tp_status st)
{
    transport_wait_end(c->world);
    host_end(group_of(c));
    return st;
}

tp_status control_barrier(struct comm_control *c, struct tp_err *err)
{
    struct host_group *g = group_of(c);
    tp_status st = enter(c, err);

    return st ? st : leave(c, g->ops->barrier(g, err));
}

tp_status control_broadcast(struct comm_control *c, void *buf, int64_t n_bytes, int root,
                            struct tp_err *err)
{
    struct host_group *g = group_of(c);
    tp_status st;

    if (root < 0 || root >= g->size)
        return tp_fail(err, TP_E_INTERNAL, "rank %d of %d: broadcast from rank %d", g->rank,
                       g->size, root);
    st = enter(c, err);
    return st ? st : leave(c, g->ops->broadcast(g, buf, n_bytes, root, err));
}

tp_status control_all_gather(struct comm_control *c, void *out, const void *in, int64_t n_bytes,
                             struct tp_err *err)
{
    struct host_group *g = group_of(c);
    tp_status st = enter(c, err);

    return st ? st : leave(c, g->ops->all_gather(g, out, in, n_bytes, err));
}

tp_status control_gather(struct comm_control *c, const void *in, int64_t n_bytes, void **out,
                         int64_t *sizes, struct tp_err *err)
{
    struct host_group *g = group_of(c);
    tp_status st = enter(c, err);

    return st ? st : leave(c, g->ops->gather(g, in, n_bytes, out, sizes, err));
}

static tp_status reduce(struct comm_control *c, void *x, int64_t n, enum dtype type,
                        enum tree_reduce_op op, struct tp_err *err)
{
    struct host_group *g = group_of(c);
    tp_status st = enter(c, err);

    return st ? st : leave(c, g->ops->all_reduce(g, x, n, type, op, err));
}

tp_status control_sum_f64(struct comm_control *c, double *x, int64_t n, struct tp_err *err)
{
    return reduce(c, x, n, DTYPE_F64, TREE_REDUCE_SUM, err);
}

tp_status control_sum_i64(struct comm_control *c, int64_t *x, int64_t n, struct tp_err *err)
{
    return reduce(c, x, n, DTYPE_I64, TREE_REDUCE_SUM, err);
}

tp_status control_max_i64(struct comm_control *c, int64_t *x, int64_t n, struct tp_err *err)
{
    return reduce(c, x, n, DTYPE_I64, TREE_REDUCE_MAX, err);
}

static tp_status agree_with_others(struct comm_control *c, tp_status st, struct tp_err *err)
{
    int rank = control_rank(c), size = control_size(c), first = 0;
    int64_t mine = st, *all = calloc((size_t)size, sizeof *all);
    char msg[TP_ERR_MAX] = "";
    tp_status agreed;

    if (!all) /* TP_E_NOMEM ends the job, because the others would wait for this rank forever */
        return tp_fail(err, TP_E_NOMEM, "out of memory to agree on a status");
    agreed = control_all_gather(c, all, &mine, sizeof mine, err);
    while (!agreed && first < size && all[first] == TP_OK)
        first++;
    if (agreed || first == size)
        goto done;
    if (rank == first)
        memcpy(msg, err->msg, sizeof msg);
    agreed = control_broadcast(c, msg, sizeof msg, first, err);
    if (agreed)
        goto done;
    agreed = (tp_status)all[first];
    if (rank != first) {
        tp_fail(err, agreed, "%s", msg);
        tp_fail_in(err, "rank %d", first);
    }
    c->world->process->agreed = true;
done:
    free(all);
    return agreed;
}

tp_status control_agree(struct comm_control *c, tp_status st, struct tp_err *err)
{
    return c ? agree_with_others(c, st, err) : st;
}

void control_recover(struct comm_control *c, struct tp_err *err)
{
    c->world->process->agreed = false;
    *err = (struct tp_err){ 0 };
}
