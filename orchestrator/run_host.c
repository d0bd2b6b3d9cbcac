/* orchestrator/run_host.c - see run_state.h: what the run offers to its backend (backend.h). */
#include "orchestrator/run_state.h"

static bool ranks_run(const struct run *r)
{
    enum run_state s = r->record.state;

    return s == RUN_INIT || s == RUN_TRAIN || s == RUN_SAVE;
}

static tp_status host_commit(void *run, const char *what)
{
    struct run *r = run;

    return run_transition(r, r->record.state, what);
}

static tp_status host_save_and_stop(void *run, const struct backend_cause *cause)
{
    return ranks_run(run) ? run_drain_softly(run, cause->reason, cause->message) : TP_OK;
}

static void host_relaunch(void *run)
{
    struct run *r = run;

    r->record.relaunch = true;
}

static void host_finish(void *run, const struct backend_end *end)
{
    struct run *r = run;

    r->record.continues = end->continues;
    run_finish(r, end->state, end->result, end->cause.reason, end->cause.message);
}

static tp_status host_node_lost(void *run, struct node *node, const struct backend_cause *cause)
{
    return run_node_lost(run, node, cause, 0);
}

static bool host_node_has_ranks(const void *run, const struct node *node)
{
    const struct run *r = run;

    return attempt_uses(&r->attempt, node);
}

static bool host_node_reports(const void *run, const struct node *node)
{
    return run_node_reports(run, node);
}

static int host_free_ranks(const void *run)
{
    return run_free_ranks(run, false);
}

static bool host_larger_pays(void *run, int ranks)
{
    return run_rescale_pays(run, ranks);
}

static void host_pause(void *run, double since)
{
    run_time_from(run, TIME_WAITING, since);
}

static void host_resume(void *run)
{
    run_time_by_state(run);
}

static void host_extend(void *run, double seconds)
{
    run_drain_extend(run, seconds);
}

static void host_ask_again(void *run)
{
    run_drain_ask_again(run);
}

void run_host_open(struct run *r)
{
    r->host = (struct backend_host){ .run = r,
                                     .job = r->job,
                                     .self = r->setup->self,
                                     .env = r->setup->env,
                                     .record = &r->record,
                                     .nodes = &r->nodes,
                                     .err = &r->err,
                                     .event = run_event_of_backend,
                                     .commit = host_commit,
                                     .save_and_stop = host_save_and_stop,
                                     .relaunch = host_relaunch,
                                     .finish = host_finish,
                                     .node_lost = host_node_lost,
                                     .node_has_ranks = host_node_has_ranks,
                                     .node_reports = host_node_reports,
                                     .free_ranks = host_free_ranks,
                                     .larger_pays = host_larger_pays,
                                     .pause = host_pause,
                                     .resume = host_resume,
                                     .extend = host_extend,
                                     .ask_again = host_ask_again };
}
