/* cli/reshard/reshard_job.c - see cli/reshard/reshard_job.h. */
#include "cli/reshard/reshard_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/rss.h"
#include "core/stop.h"

/* What will become resident besides the buffers, measured generously: libhdf5 and the code that is
 * touched later; a row of a shard's table in the writer and on its way to the file; a file. */
enum { LATER_BYTES = 12 << 20, ROW_BYTES = 512, FILE_BYTES = 64 << 10 };

/* ---- names ---- */

/* The root that holds a step directory, as a path to which something can be appended. */
static tp_status root_of(char root[PATH_MAX], const char *dir, struct tp_err *err)
{
    char *slash;

    if (!realpath(dir, root))
        return tp_fail_errno(err, "%s: cannot resolve", dir);
    slash = strrchr(root, '/');
    if (slash && slash != root)
        *slash = 0;
    return TP_OK;
}

/* CKPT as it was given, without slashes at its end; a step directory's root for a step directory.
 */
static tp_status name_out(struct reshard_job *job, const struct reshard_request *q,
                          struct tp_err *err)
{
    char root[PATH_MAX], given[PATH_MAX];
    size_t n = strlen(q->ckpt);
    tp_status st;

    if (q->out) {
        if (snprintf(job->out, sizeof job->out, "%s", q->out) < (int)sizeof job->out)
            return TP_OK;
        return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", q->out);
    }
    while (n > 1 && q->ckpt[n - 1] == '/')
        n--;
    if ((st = root_of(root, job->dir, err)))
        return st;
    if (realpath(q->ckpt, given) && strcmp(given, root) == 0 && q->ckpt[n - 1] != '.')
        snprintf(root, sizeof root, "%.*s", (int)n, q->ckpt); /* CKPT is the root: keep its form */
    if (snprintf(job->out, sizeof job->out, "%s-%s", root, q->to) < (int)sizeof job->out)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", root);
}

/* ---- layouts ---- */

static tp_status check_from(const struct reshard_job *job, const char *text, struct tp_err *err)
{
    struct spec from;
    char is[SPEC_TEXT_MAX];
    tp_status st = spec_parse(&from, text, err);

    if (st)
        return tp_fail_in(err, "--from");
    if (spec_matches(&from, &job->m.layout.spec))
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT, "%s: is %s, not %s as --from says", job->dir,
                   spec_format(is, &job->m.layout.spec), text);
}

/* The tensors that go along, with the target's types. */
static tp_status choose_tensors(struct reshard_job *job, const struct reshard_request *q,
                                struct tensor **tensors, int *n, struct tp_err *err)
{
    const struct layout *from = &job->m.layout;
    size_t room = (size_t)from->n_tensors + 1;
    struct tensor *list = arena_array(&job->arena, room, sizeof *list);

    job->ids = arena_array(&job->arena, room, sizeof *job->ids);
    job->tensors = arena_array(&job->arena, room, sizeof *job->tensors);
    *n = 0;
    for (int i = 0; list && job->ids && job->tensors && i < from->n_tensors; i++) {
        const struct tensor *t = &from->tensors[i];
        bool is_param = strcmp(t->group, GROUP_PARAM) == 0;
        struct reshard_tensor *mt = &job->tensors[*n];

        if (q->no_optim && !is_param)
            continue;
        list[*n] = *t;
        if (q->dtype && is_param && dtype_is_float(t->dtype))
            list[*n].dtype = *q->dtype;
        mt->name = arena_printf(&job->arena, "%s/%s", t->group, t->name);
        mt->ndim = t->ndim;
        memcpy(mt->shape, t->shape, sizeof t->shape);
        if (!mt->name)
            break;
        job->ids[(*n)++] = i;
    }
    if (!list || !job->ids || !job->tensors || (*n < from->n_tensors && !job->tensors[0].name))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", job->dir);
    if (*n == 0)
        return tp_fail(err, TP_E_USAGE, "%s: has no tensors in the group " GROUP_PARAM, job->dir);
    *tensors = list;
    return TP_OK;
}

static tp_status make_layout(struct reshard_job *job, const struct reshard_request *q,
                             struct tp_err *err)
{
    struct tensor *tensors = NULL;
    struct spec to;
    int n = 0;
    tp_status st = spec_parse(&to, q->to, err);

    if (st)
        return tp_fail_in(err, "--to");
    spec_fill(&to, &job->m.layout.spec);
    if ((st = choose_tensors(job, q, &tensors, &n, err)))
        return st;
    return layout_make(&job->layout, &to, job->m.layout.n_layers, tensors, n, &job->arena, err);
}

/* ---- the plan ---- */

/* Plan; with the windows of an earlier run when there is one and its buffers fit. */
static tp_status plan_move(struct reshard_job *job, struct transfer *m, struct tp_err *err)
{
    tp_status st;

    if (job->comm)
        return transfer_plan_make(&job->plan, m, err);
    m->thread_bytes = reshard_journal_worker_bytes(job);
    st = transfer_plan_make(&job->plan, m, err);
    if (st != TP_E_BUDGET || m->thread_bytes == 0)
        return st;
    m->thread_bytes = 0;
    return transfer_plan_make(&job->plan, m, err);
}

static tp_status make_plan(struct reshard_job *job, const struct reshard_request *q,
                           struct tp_err *err)
{
    struct transfer m = {
        .n_tensors = job->layout.n_tensors,
        .tensors = job->tensors,
        .from = checkpoint_source_endpoint(job->source),
        .to = checkpoint_target_endpoint(job->target),
        .threads = q->jobs,
        .comm = job->comm,
    };
    int64_t later = LATER_BYTES + checkpoint_target_rows(job->target) * ROW_BYTES +
                    (int64_t)spec_world(&job->layout.spec) * FILE_BYTES +
                    reshard_journal_bytes(job);
    tp_status st =
        rss_budget(&m.memory_bytes, &job->base_bytes, q->memory_bytes, later, q->jobs, err);

    if (job->comm)
        st = comm_agree(job->comm, st, err);
    if (!st)
        st = plan_move(job, &m, err);
    if (!st)
        transfer_plan_stats(job->plan, &job->planned);
    return st;
}

static tp_status open_endpoints(struct reshard_job *job, const struct reshard_request *q,
                                struct tp_err *err)
{
    tp_status st;

    TP_TRY(ckpt_open(job->dir, &job->m, q->ckpt, q->step, &job->arena, err));
    memcpy(job->note, err->msg, sizeof job->note);
    err->msg[0] = 0;
    if (q->from)
        TP_TRY(check_from(job, q->from, err));
    TP_TRY(make_layout(job, q, err));
    TP_TRY(name_out(job, q, err));
    TP_TRY(ckpt_check_root(job->out, err)); /* a plan promises what the run will do */
    TP_TRY(checkpoint_source_open(&job->source, job->dir, &job->m, job->ids, job->layout.n_tensors,
                                  job->comm, err));
    TP_TRY(checkpoint_target_plan(&job->target, &job->layout, job->comm, err));
    TP_TRY(reshard_journal_identify(job, q, err));
done:
    return st;
}

tp_status reshard_job_plan(struct reshard_job *job, const struct reshard_request *request,
                           struct comm *comm, struct tp_err *err)
{
    tp_status st;

    job->comm = comm;
    job->force = request->force;
    st = open_endpoints(job, request, err);
    if (comm)
        st = comm_agree(comm, st, err);
    return st ? st : make_plan(job, request, err);
}

/* ---- the run ---- */

/* The same elements have the same digest however they are cut: what was written is what was read,
 * and what was read is what was saved. */
static tp_status compare_digests(struct reshard_job *job, struct tp_err *err)
{
    for (int i = 0; i < job->layout.n_tensors; i++) {
        struct digest to = checkpoint_target_digest(job->target, i);
        tp_status st;

        if (job->layout.tensors[i].dtype != job->m.layout.tensors[job->ids[i]].dtype) {
            job->casts++;
            continue;
        }
        st = checkpoint_source_compare(job->source, i, job->tensors[i].name, &to, err);
        if (st)
            return st;
        job->digests_equal++;
    }
    return TP_OK;
}

/* Several processes: begin the step on rank 0, tell the others where, make the shards. */
static tp_status begin_together(struct reshard_job *job, struct tp_err *err)
{
    struct ckpt_txn txn = { .alive = -1 };
    int64_t epoch = 0;
    bool root = comm_rank(job->comm) == 0;
    tp_status st = TP_OK;

    if (root) {
        st = ckpt_epoch(&epoch, job->out, err);
        if (!st)
            st = ckpt_begin(&txn, job->out, job->m.step, epoch, job->force, err);
    }
    TP_TRY(comm_agree(job->comm, st, err));
    TP_TRY(comm_broadcast(job->comm, txn.tmp, sizeof txn.tmp, 0, err));
    TP_TRY(checkpoint_target_create(job->target, &txn, err));
done:
    if (root && st)
        ckpt_abort(&txn);
    job->txn = txn;
    return st;
}

tp_status reshard_job_begin(struct reshard_job *job, struct tp_err *err)
{
    int64_t epoch = 0;
    tp_status st;

    job->note[0] = 0;
    job->txn.alive = -1;
    if (job->comm)
        return begin_together(job, err);
    stop_listen_all();
    st = ckpt_epoch(&epoch, job->out, err);
    return st ? st : reshard_journal_begin(job, epoch, err);
}

/* After all has been written: prove, then make the step appear. Rank 0 alone. */
static tp_status commit(struct reshard_job *job, struct manifest *m, struct tp_err *err)
{
    tp_status st = compare_digests(job, err);

    if (!st)
        st = ckpt_commit(&job->txn, m, err);
    if (!st && job->journal.file)
        transfer_journal_remove(job->journal.file);
    return st;
}

tp_status reshard_job_run(struct reshard_job *job, struct progress *progress, struct tp_err *err)
{
    bool root = !job->comm || comm_rank(job->comm) == 0;
    struct manifest m = job->m;
    tp_status st;

    m.layout = job->layout;
    transfer_plan_progress(job->plan, progress);
    TP_TRY(transfer_execute(job->plan, &job->done, err));
    TP_TRY(checkpoint_target_finish(job->target, &m, &job->arena, err));
    if (root)
        st = commit(job, &m, err);
    if (job->comm)
        st = comm_agree(job->comm, st, err);
done:
    if (st == TP_E_STOPPED)
        ckpt_leave(&job->txn);
    else if (root && st)
        ckpt_abort(&job->txn);
    return st;
}

void reshard_job_free(struct reshard_job *job)
{
    transfer_journal_close(job->journal.file);
    transfer_plan_free(job->plan);
    checkpoint_target_close(job->target);
    checkpoint_source_close(job->source);
    arena_free(&job->arena);
    *job = (struct reshard_job){ 0 };
}
