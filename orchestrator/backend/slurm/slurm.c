/* orchestrator/backend/slurm/slurm.c - see slurm.h and slurm_run.h: beginning and end, commands. */
#include "orchestrator/backend/slurm/slurm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static const double END_PATIENCE_S = 300; /* at the end, if Slurm does not answer */

/* ---- commands ---- */

void slurm_salloc_log(const struct slurm *s, enum slurm_command what, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%.4000s/%s.log", s->host->job->state,
             what == SLURM_COMMAND_GROW ? "grow" : "salloc");
}

bool slurm_is_running(const struct slurm *s, enum slurm_command what)
{
    return s->command[what].pid != 0;
}

tp_status slurm_start(struct slurm *s, enum slurm_command what, const struct job_words *words,
                      double patience_s)
{
    struct child *c = &s->command[what];
    bool is_salloc = what == SLURM_COMMAND_ALLOC || what == SLURM_COMMAND_GROW;
    struct environment env;
    struct child_setup setup = { .argv = words->word, .env = &env, .dir = s->client.dir };
    char log[PATH_MAX];
    tp_status st;

    if (c->pid)
        return TP_OK;
    if (words->n == 0)
        return tp_fail(s->host->err, TP_E_NOMEM, "no memory for a Slurm command");
    environment_copy(&env, environment_list(&s->env));
    if (what == SLURM_COMMAND_ALLOC)
        environment_set(&env, SLURM_SALLOC_ENV, s->host->record->run_id);
    slurm_salloc_log(s, what, log);
    if (is_salloc) { /* its output must outlive tp-run */
        unlink(log);
        setup.log = log;
    }
    st = child_start(c, &setup, s->host->err);
    c->until = patience_s > 0 ? clock_seconds() + patience_s : 0;
    environment_free(&env);
    return st;
}

char *slurm_salloc_text(const struct slurm *s, enum slurm_command what, struct arena *arena)
{
    char path[PATH_MAX], *text;
    struct tp_err ignored;
    size_t n;

    slurm_salloc_log(s, what, path);
    return file_read_own(&text, &n, path, 1 << 16, arena, &ignored) ? "" : text;
}

void slurm_event(struct slurm *s, enum slurm_result result, enum slurm_reason reason,
                 const char *message)
{
    s->host->event(s->host->run, "allocation", slurm_reason_name(reason), message,
                   json_pack("{s:s,s:I}", "result", slurm_result_name(result), "slurm_job",
                             (json_int_t)s->allocation.job));
}

struct backend_cause slurm_cause(enum slurm_reason reason, const char *message)
{
    return (struct backend_cause){ slurm_reason_name(reason), message };
}

void slurm_finish(struct slurm *s, enum run_state state, tp_status result, enum slurm_reason reason,
                  const char *message)
{
    const struct backend_end end = { .state = state,
                                     .result = result,
                                     .cause = slurm_cause(reason, message),
                                     .continues = reason == SLURM_JOB_CONTINUES ||
                                                  reason == SLURM_REQUEUED };

    s->host->finish(s->host->run, &end);
}

static tp_status ended(struct slurm *s, enum slurm_command what, int exit_code)
{
    switch (what) {
    case SLURM_COMMAND_VIEW:
        return slurm_viewed(s, exit_code);
    case SLURM_COMMAND_HOSTS:
        return slurm_named(s, exit_code);
    case SLURM_COMMAND_STATES:
        return slurm_saw_states(s, exit_code);
    case SLURM_COMMAND_ALLOC:
        return slurm_requested(s, exit_code);
    case SLURM_COMMAND_FIND:
        return slurm_next_found(s, exit_code);
    case SLURM_COMMAND_SUBMIT:
        return slurm_next_submitted(s, exit_code);
    case SLURM_COMMAND_PROBE:
        return slurm_probed(s, exit_code);
    case SLURM_COMMAND_DRAIN:
        slurm_node_drained(s, exit_code);
        return TP_OK;
    case SLURM_COMMAND_STANDBY:
    case SLURM_COMMAND_CANCEL:
        return TP_OK;
    default:
        return slurm_grown(s, what, exit_code);
    }
}

static tp_status slurm_reaped(void *state, pid_t pid, int status, bool *mine)
{
    struct slurm *s = state;

    for (int i = 0; i < SLURM_COMMANDS; i++)
        if (s->command[i].pid == pid) {
            *mine = true;
            return ended(s, (enum slurm_command)i, child_ended(&s->command[i], status));
        }
    return TP_OK;
}

/* ---- beginning ---- */

static tp_status slurm_open(void **state, const struct backend_host *host, const json_t *run_record)
{
    struct slurm *s = calloc(1, sizeof *s);
    const char *size = environment_get(host->env, "SLURM_JOB_NUM_NODES");
    const char *node = environment_get(host->env, "SLURMD_NODENAME");
    const json_t *own = json_object_get(run_record, "backend");
    struct home here;

    if (!s)
        return tp_fail(host->err, TP_E_NOMEM, "no memory");
    *state = s;
    slurm_home(&here, host->env);
    for (int i = 0; i < SLURM_COMMANDS; i++)
        s->command[i].fd = -1;
    s->host = host;
    s->options = slurm_options(host->job);
    s->inside = here.job;
    s->this_node = node ? node : "";
    slurm_client_env(&s->env, host->env);
    s->client = (struct slurm_client){ host->job, host->self, &s->env, host->job->state };
    s->allocation.wanted = s->options->nodes   ? s->options->nodes
                           : s->inside && size ? strtol(size, NULL, 10)
                                               : 1;
    s->query.view.left = -1;
    s->ending.cause = (struct backend_cause){ "", "" };
    slurm_allocation_read(s, own ? own : run_record, own == NULL);
    slurm_next_read(s, own ? own : run_record, own == NULL);
    return slurm_nodes_restore(s, run_record);
}

static void slurm_begin(void *state, bool fresh)
{
    struct slurm *s = state;

    if (fresh)
        slurm_next_forgive(s);
    slurm_allocation_begin(s);
    slurm_growth_drop(s);
}

static json_t *slurm_record(const void *state)
{
    const struct slurm *s = state;

    return json_pack("{s:I,s:b,s:I,s:I,s:I,s:I,s:I}", "job", (json_int_t)s->allocation.job, "own",
                     s->allocation.own, "next", (json_int_t)s->next.job, "held",
                     (json_int_t)s->next.held, "restarts", (json_int_t)s->next.restarts, "progress",
                     (json_int_t)s->next.progress, "idle", (json_int_t)s->next.idle);
}

/* ---- while it runs ---- */

static tp_status slurm_tick(void *state)
{
    struct slurm *s = state;
    double now = clock_seconds();
    tp_status st;

    slurm_pause_tick(s);
    for (int i = 0; i < SLURM_COMMANDS; i++)
        child_poll(&s->command[i], now);
    st = slurm_allocation_tick(s);
    if (st || s->allocation.stage != SLURM_STAGE_HELD || slurm_is_paused(s))
        return st; /* while the job is suspended, its end is postponed and nothing can be started */
    if ((st = slurm_ending_tick(s)) || run_state_is_final(s->host->record->state) ||
        s->ending.ending)
        return st;
    if ((st = slurm_standby_tick(s)) || (st = slurm_nodes_tick(s)))
        return st;
    return slurm_growth_tick(s);
}

static tp_status slurm_launch(void *state, const struct backend_launch *launch,
                              struct job_words *out)
{
    struct slurm *s = state;
    struct slurm_step step = { .job = s->allocation.job, .ranks = launch->world, .nodes = "" };
    struct job_words words;
    tp_status st;

    for (int i = 0; i < launch->world; i++)
        if (i == 0 || launch->node[i] != launch->node[i - 1]) {
            step.nodes = step.n_nodes ? arena_printf(launch->arena, "%s,%s", step.nodes,
                                                     launch->node[i]->name)
                                      : launch->node[i]->name;
            step.n_nodes++;
        }
    if (!step.nodes)
        return tp_fail(s->host->err, TP_E_NOMEM, "no memory for the command");
    if ((st = slurm_step_words(&words, s->host->job, &step, launch->arena, s->host->err)))
        return st;
    out->word = arena_array(launch->arena, (size_t)words.n + 5, sizeof *out->word);
    if (!out->word)
        return tp_fail(s->host->err, TP_E_NOMEM, "no memory for the command");
    memcpy(out->word, words.word, (size_t)words.n * sizeof *out->word);
    out->n = words.n;
    out->word[out->n++] = (char *)(uintptr_t)s->host->self;
    out->word[out->n++] = "relay";
    out->word[out->n++] = "slurm";
    out->word[out->n++] = (char *)(uintptr_t)launch->heartbeats;
    out->word[out->n] = NULL;
    return TP_OK;
}

static double slurm_node_timeout(const void *state)
{
    const struct slurm *s = state;

    return s->options->lost;
}

static bool slurm_wants_nodes(const void *state, int usable, bool has_layout)
{
    const struct slurm *s = state;

    return usable < s->host->nodes->n && (usable < s->options->min_nodes || !has_layout);
}

static struct backend_log slurm_read_log(const void *state, const char *text)
{
    (void)state;
    return (struct backend_log){ .unreachable = slurm_refused_step(text),
                                 .not_started = slurm_aborted_step(text) };
}

static void slurm_report_log(void *state, const char *text)
{
    struct slurm *s = state;
    const struct node_list *nodes = s->host->nodes;
    const struct backend_cause cause =
        slurm_cause(SLURM_NODE_UNREACHABLE, "Slurm cannot start ranks on it");

    if (slurm_refused_step(text))
        slurm_report_no_answer(s, "srun could not start the ranks");
    for (int i = 0; i < nodes->n; i++)
        if (!nodes->node[i]->down && slurm_lost_node(text, nodes->node[i]->name))
            s->host->node_lost(s->host->run, nodes->node[i], &cause);
}

/* ---- the end ---- */

/* Cancel a Slurm job at the end of the run, because no later tp-run would do it. */
static void give_back(struct slurm *s, long job)
{
    struct tp_err err = { 0 };
    char text[400];

    if (slurm_cancel(&s->client, job, END_PATIENCE_S, &err) == TP_OK)
        return;
    snprintf(text, sizeof text, "Slurm job %ld is left over; end it with scancel: %.300s", job,
             err.msg);
    slurm_event(s, SLURM_NOT_GIVEN_BACK, SLURM_REASON_NONE, text);
}

static void slurm_close(void *state, bool over)
{
    struct slurm *s = state;
    char log[PATH_MAX];

    if (over) {
        if (!s->host->record->continues && s->next.job)
            give_back(s, s->next.job);
        slurm_growth_drop(s);
        if (s->allocation.own) {
            slurm_end_request(s);
            if (s->allocation.job)
                give_back(s, s->allocation.job);
            slurm_salloc_log(s, SLURM_COMMAND_ALLOC, log);
            unlink(log);
        }
    } else { /* the request stays for the next tp-run */
        s->command[SLURM_COMMAND_ALLOC].pid = 0;
    }
    if (slurm_is_running(s, SLURM_COMMAND_STANDBY)) /* it also ends when STATE/home is gone */
        kill(s->command[SLURM_COMMAND_STANDBY].pid, SIGTERM);
    s->command[SLURM_COMMAND_STANDBY].pid = 0;
    for (int i = 0; i < SLURM_COMMANDS; i++)
        child_free(&s->command[i]);
    environment_free(&s->env);
    free(s->query.view_text);
    free(s->query.list);
    free(s);
}

const struct backend SLURM_BACKEND = {
    .job = &SLURM_JOB_BACKEND,
    .events = SLURM_EVENT_CODES,
    .reasons = SLURM_REASON_CODES,
    .results = SLURM_RESULT_CODES,
    .node_verb_refusal = "Slurm manages the nodes: use scontrol update NodeName=... State=DRAIN "
                         "Reason=...",
    .has_relays = true,
    .open = slurm_open,
    .begin = slurm_begin,
    .tick = slurm_tick,
    .reaped = slurm_reaped,
    .close = slurm_close,
    .record = slurm_record,
    .ready = slurm_ready,
    .wants_nodes = slurm_wants_nodes,
    .look = slurm_look,
    .command = slurm_launch,
    .node_timeout = slurm_node_timeout,
    .is_paused = slurm_is_paused,
    .explains_silence = slurm_explains_silence,
    .explains_sigterm = slurm_explains_sigterm,
    .after_save = slurm_after_save,
    .is_ending = slurm_is_ending,
    .hand_over = slurm_hand_over,
    .read_log = slurm_read_log,
    .report_log = slurm_report_log,
    .rank_of_line = slurm_rank_of_line,
    .node_excluded = slurm_node_excluded,
    .status = slurm_status,
    .line = slurm_line,
    .home = slurm_home,
    .relay = slurm_relay,
    .submit = slurm_verb_submit,
    .cancel_next = slurm_verb_cancel_next,
    .run_at = slurm_verb_run_at,
    .standby = slurm_standby,
    .standby_env = slurm_standby_env,
    .standby_end = slurm_standby_end,
};
