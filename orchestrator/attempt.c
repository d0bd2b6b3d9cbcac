/* orchestrator/attempt.c - see orchestrator/attempt.h. */
#include "orchestrator/attempt.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/text.h"
#include "orchestrator/process/memory_dir.h"
#include "orchestrator/process/process.h"

void attempt_init(struct attempt *a)
{
    *a = (struct attempt){ .supervisor.pidfd = -1, .heartbeats_fd = -1 };
}

void attempt_name(struct attempt *a, const char *state, const char *run_id, int64_t number)
{
    long long n = number;

    snprintf(a->id, sizeof a->id, "%.40s.%lld", run_id, n);
    snprintf(a->log, sizeof a->log, "%.3900s/attempt-%04lld.log", state, n);
    snprintf(a->exit_path, sizeof a->exit_path, "%.3900s/attempt-%04lld.exit", state, n);
}

/* ---- heartbeats ---- */

enum { BEATS_KEPT_MAX = 256 }; /* files that stay open, because a process may open 1,024 */

static void close_heartbeats(struct attempt *a)
{
    if (a->heartbeats_fd >= 0)
        close(a->heartbeats_fd);
    a->heartbeats_fd = -1;
}

tp_status attempt_choose_heartbeats(struct attempt *a, const char *state, int64_t number,
                                    bool shared, struct tp_err *err)
{
    close_heartbeats(a);
    a->is_private = !shared && memory_dir_is_possible();
    if (a->is_private)
        return memory_dir_name(a->heartbeats, err);
    snprintf(a->heartbeats, sizeof a->heartbeats, "%.3900s/heartbeats/%lld", state,
             (long long)number);
    return TP_OK;
}

/* Remove what a lost journal has left: the state folder is this user's, but the number was used. */
static tp_status remove_old(const char *path, struct tp_err *err)
{
    int fd;
    tp_status st = private_dir_open(&fd, path, err);

    if (st == TP_E_NOTFOUND)
        return TP_OK;
    return st ? st : private_dir_remove(fd, path, err);
}

tp_status attempt_make_heartbeats(struct attempt *a, struct tp_err *err)
{
    tp_status st;

    if (a->is_private) {
        memory_dir_clean(MEMORY_DIR_PARENT, MEMORY_DIR_KEEP_S);
        st = private_dir_make(&a->heartbeats_fd, a->heartbeats, err);
        if (!st)
            memory_dir_hold(a->heartbeats_fd);
        return st;
    }
    st = remove_old(a->heartbeats, err);
    return st ? st : private_dir_ensure(&a->heartbeats_fd, a->heartbeats, err);
}

void attempt_find_heartbeats(struct attempt *a, const char *path, const struct private_dir_id *id,
                             struct tp_err *err)
{
    int fd;

    close_heartbeats(a);
    snprintf(a->heartbeats, sizeof a->heartbeats, "%s", path);
    a->is_private = memory_dir_is(path);
    if (private_dir_open(&fd, path, err))
        return;
    if (id->ino && !private_dir_is(fd, id)) {
        tp_fail(err, TP_E_USAGE, "%s: is another folder than the one that tp-run made", path);
        close(fd);
        return;
    }
    if (a->is_private)
        memory_dir_hold(fd);
    a->heartbeats_fd = fd;
}

static void close_beats(struct attempt_rank *r)
{
    if (r->beats >= 0)
        close(r->beats);
    r->beats = -1;
}

int attempt_beats(struct attempt *a, int rank)
{
    struct attempt_rank *r = &a->rank[rank];
    struct tp_err ignored;
    int fd;

    if (r->beats >= 0 && !heartbeat_is_replaced(r->beats))
        return r->beats;
    if (a->heartbeats_fd >= 0 && heartbeat_find(&fd, a->heartbeats_fd, rank, &ignored) == TP_OK) {
        close_beats(r);
        r->beats = fd;
    }
    return r->beats;
}

void attempt_end_beats(struct attempt *a, int rank)
{
    /* what other hosts write is seen only by opening the file again (NFS) */
    if (!a->is_private || a->world > BEATS_KEPT_MAX)
        close_beats(&a->rank[rank]);
}

/* ---- ranks ---- */

static void forget_ranks(struct attempt *a)
{
    for (int i = 0; i < a->world; i++) {
        if (a->rank[i].pidfd >= 0)
            close(a->rank[i].pidfd);
        close_beats(&a->rank[i]);
    }
    free(a->rank);
    a->rank = NULL;
    a->world = 0;
}

tp_status attempt_place(struct attempt *a, int world, const struct node_list *nodes, double now,
                        struct tp_err *err)
{
    int left = 0, k = -1;

    forget_ranks(a);
    a->rank = calloc((size_t)world, sizeof *a->rank);
    a->world = a->rank ? world : 0;
    a->fault = (struct attempt_fault){ .rank = -1 };
    if (!a->rank)
        return tp_fail(err, TP_E_NOMEM, "no memory for %d ranks", world);
    for (int i = 0; i < world; i++) {
        while (left == 0 && k + 1 < nodes->n) {
            k++;
            left = node_is_usable(nodes->node[k], now, 0) ? node_slots(nodes->node[k]) : 0;
        }
        a->rank[i] = (struct attempt_rank){ .node = k < 0 ? NULL : nodes->node[k],
                                            .pidfd = -1,
                                            .beats = -1 };
        left--;
    }
    return TP_OK;
}

json_t *attempt_placement(const struct attempt *a)
{
    json_t *out = json_array();

    for (int i = 0, n; i < a->world; i += n) {
        const struct node *node = a->rank[i].node;

        for (n = 1; i + n < a->world && a->rank[i + n].node == node; n++)
            ;
        json_array_append_new(out, json_pack("[s,i]", node ? node->name : "", n));
    }
    return out;
}

/* Set the node of each rank from the value. False: that is not possible. */
static bool read_placement(struct node **of_rank, int world, const json_t *placement,
                           const struct node_list *nodes)
{
    const json_t *part;
    size_t i;
    int rank = 0;

    json_array_foreach(placement, i, part)
    {
        const char *name = json_string_value(json_array_get(part, 0));
        json_int_t n = json_integer_value(json_array_get(part, 1));
        struct node *node = name ? node_list_find(nodes, name) : NULL;

        if (!node || n < 1 || n > world - rank)
            return false;
        while (n-- > 0)
            of_rank[rank++] = node;
    }
    return rank == world;
}

void attempt_restore_placement(struct attempt *a, const json_t *placement,
                               const struct node_list *nodes)
{
    struct node **of_rank = calloc((size_t)a->world, sizeof(struct node *));

    if (of_rank && read_placement(of_rank, a->world, placement, nodes))
        for (int i = 0; i < a->world; i++)
            a->rank[i].node = of_rank[i];
    free(of_rank);
}

void attempt_set_launched(struct attempt *a, double now)
{
    a->launched_at = now;
}

int attempt_open_rank(struct attempt *a, int rank, const struct heartbeat_status *status)
{
    struct attempt_rank *r = &a->rank[rank];
    int fd;

    if (r->pid || r->gone)
        return -1;
    r->pid = (pid_t)status->pid;
    fd = process_pidfd(r->pid);
    if (fd < 0 || process_start(r->pid) == status->pid_start) {
        r->pidfd = fd;
        return fd;
    }
    close(fd); /* another process has this pid now */
    return -1;
}

void attempt_rank_ended(struct attempt *a, int rank)
{
    struct attempt_rank *r = &a->rank[rank];

    if (r->pidfd >= 0)
        close(r->pidfd);
    r->pidfd = -1;
    r->gone = true;
}

void attempt_move(struct attempt *a, int rank, struct node *node)
{
    a->rank[rank].node = node;
}

int attempt_rank_of(const struct attempt *a, int pidfd)
{
    for (int i = 0; i < a->world; i++)
        if (a->rank[i].pidfd == pidfd)
            return i;
    return -1;
}

bool attempt_uses(const struct attempt *a, const struct node *node)
{
    for (int i = 0; i < a->world; i++)
        if (a->rank[i].node == node)
            return true;
    return false;
}

void attempt_kill_on(const struct attempt *a, const struct node *node)
{
    for (int i = 0; i < a->world; i++)
        if (a->rank[i].node == node && a->rank[i].pidfd >= 0)
            process_signal(a->rank[i].pidfd, SIGKILL);
}

void attempt_set_log(struct attempt *a, const char *path)
{
    snprintf(a->log, sizeof a->log, "%s", path);
}

void attempt_set_fault(struct attempt *a, const struct attempt_fault *fault)
{
    a->fault = *fault;
}

struct attempt_fault attempt_fault(enum attempt_fault_kind kind, enum event_reason reason,
                                   const char *fmt, ...)
{
    struct attempt_fault f = { .kind = kind, .rank = -1, .step = -1, .reason = reason };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(f.message, sizeof f.message, fmt, ap);
    va_end(ap);
    text_clean(f.message);
    return f;
}

bool attempt_read_outcome(struct attempt *a)
{
    struct tp_err ignored;

    if (supervisor_read(&a->outcome, a->exit_path, &ignored) == TP_OK)
        return true;
    a->outcome = (struct supervisor_outcome){ .exit_code = -1, .started = 1 };
    return false;
}

void attempt_forget(struct attempt *a, bool over)
{
    struct tp_err ignored;

    forget_ranks(a);
    supervisor_forget(&a->supervisor);
    if (over && a->is_private && a->heartbeats_fd >= 0) {
        private_dir_remove(a->heartbeats_fd, a->heartbeats, &ignored);
        a->heartbeats_fd = -1;
    }
    close_heartbeats(a);
}
