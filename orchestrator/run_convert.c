/* orchestrator/run_convert.c - see run_state.h: RESHARD converts a checkpoint of another layout,
 * and runs the job's prepare command.
 *
 * For a conversion, tp-reshard reads and writes the same checkpoint root. When the digests have
 * been proved equal, one rename replaces the old step by the converted one. If tp-reshard is
 * killed, the next one continues from the files that it left in .tmp.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/text.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/plan/conversion.h"
#include "orchestrator/run_state.h"
#include "orchestrator/watch/log_tail.h"

struct run_convert {
    bool has_failed;  /* a conversion for this launch has failed, so tp-train reads the other layout
                       */
    bool is_prepared; /* nothing is left to run before the launch */
    bool reads_other; /* the attempt reads a checkpoint of another layout */
};

tp_status run_convert_open(struct run *r)
{
    r->convert = calloc(1, sizeof *r->convert);
    return r->convert ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

void run_convert_reset(struct run *r)
{
    *r->convert = (struct run_convert){ 0 };
}

bool run_reads_other_layout(const struct run *r)
{
    return r->convert->reads_other;
}

static void log_path(const struct run *r, char path[PATH_MAX], const char *name)
{
    snprintf(path, PATH_MAX, "%.3900s/%s.log", r->job->state, name);
}

/* Launch, after a program that took its time only if the plan still holds and the lock of the root
 * is free. */
static tp_status launch(struct run *r)
{
    r->convert->is_prepared = true;
    return r->record.state == RUN_RESHARD ? run_convert_tick(r) : run_launch(r);
}

tp_status run_convert_tick(struct run *r)
{
    if (!r->convert->is_prepared)
        return TP_OK;
    if (r->record.stop)
        return run_plan_stop(r);
    if (!run_plan_holds(r))
        return run_plan_begin(r);
    if (!run_plan_waits_for_root(r))
        return run_launch(r);
    run_time(r, TIME_WAITING);
    return TP_OK;
}

/* Prepare after a conversion, or if none is needed. */
static tp_status prepare(struct run *r)
{
    const struct plan_candidate *layout = run_selected_layout(r);
    struct arena arena = { 0 };
    struct job_words w;
    char log[PATH_MAX];
    tp_status st;

    if (!r->job->prepare.n)
        return launch(r);
    st = job_fill(&w, r->job, &r->job->prepare, &layout->config.spec, r->record.attempt + 1, &arena,
                  &r->err);
    if (st == TP_OK)
        st = run_transition(r, RUN_RESHARD, "prepare");
    if (st == TP_OK) {
        run_time(r, TIME_RESHARDING);
        log_path(r, log, "prepare");
        st = run_helper_start(r, HELPER_PREPARE, w.word, log);
    }
    arena_free(&arena);
    return st;
}

static tp_status convert(struct run *r)
{
    char to[CONVERSION_SPEC_MAX], step[24], log[PATH_MAX];
    char *root = (char *)(uintptr_t)r->job->ckpt;
    char *argv[] = { "tp-reshard", root, "--step",  step,     "--to", to,
                     "-o",         root, "--force", "--json", NULL };
    tp_status st = run_transition(r, RUN_RESHARD, "intent");

    if (st)
        return st;
    run_time(r, TIME_RESHARDING);
    snprintf(step, sizeof step, "%lld", (long long)run_selected_checkpoint(r)->step);
    conversion_spec(to, &run_selected_layout(r)->config.spec);
    log_path(r, log, "reshard");
    return run_helper_start(r, HELPER_CONVERT, argv, log);
}

static void report_decision(struct run *r, const struct conversion_plan *p)
{
    const struct checkpoint_selection *c = run_selected_checkpoint(r);
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX];

    run_event(r, EVENT_RESHARD, p->reason, p->message,
              json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f}", "how", p->convert ? "convert" : "resume",
                        "from", spec_format(from, &c->spec), "to",
                        spec_format(to, &run_selected_layout(r)->config.spec), "checkpoint",
                        (json_int_t)c->step, "bytes", (json_int_t)c->bytes, "resume_seconds",
                        p->resume_seconds, "convert_seconds", p->convert_seconds));
}

tp_status run_convert_begin(struct run *r)
{
    const struct conversion_rates rates = { r->record.read_rate, r->record.load_rate,
                                            r->record.convert_rate };
    const struct checkpoint_selection *c = run_selected_checkpoint(r);
    struct conversion_plan p = { 0 };

    if (c->step >= 0)
        conversion_decide(&p, r->job, &c->spec, &run_selected_layout(r)->config.spec, c->bytes,
                          &rates);
    if (p.differs && r->convert->has_failed) {
        p.convert = false;
        p.reason = REASON_CONVERSION_FAILED;
        snprintf(p.message, sizeof p.message, "the conversion failed: --resume reads it as it is");
    }
    r->convert->reads_other = p.differs && !p.convert;
    if (p.differs)
        report_decision(r, &p);
    return p.convert ? convert(r) : prepare(r);
}

/* tp-reshard has failed. tp-train can read the checkpoint of another layout. For other programs the
 * conversion is tried again after a back-off, within the same budgets as any other failure. */
static tp_status conversion_failed(struct run *r, int exit_code)
{
    char log[PATH_MAX], line[300] = "", *tail;
    struct attempt_fault f;

    log_path(r, log, "reshard");
    tail = log_tail_read(log);
    if (tail)
        text_last_line(line, sizeof line, tail, "{}");
    free(tail);
    f = attempt_fault(FAULT_RESHARD, REASON_TP_RESHARD_FAILED, "tp-reshard %s %d: %.280s",
                      exit_code >= 128 ? "was killed by signal" : "ended with exit code",
                      exit_code >= 128 ? exit_code - 128 : exit_code,
                      line[0] ? line : "it printed nothing");
    run_event(r, EVENT_RESHARD_FAILED, f.reason, f.message,
              json_pack("{s:i}", "exit_code", exit_code));
    if (!r->job->is_tp_train)
        return run_retry(r, &f, log);
    if (!run_plan_holds(r))
        return run_plan_begin(r);
    r->convert->has_failed = true;
    return run_convert_begin(r);
}

tp_status run_converted(struct run *r, int exit_code, double seconds)
{
    int64_t bytes = run_selected_checkpoint(r)->bytes;

    if (exit_code)
        return conversion_failed(r, exit_code);
    if (seconds > 0 && bytes > 0)
        r->record.convert_rate = (double)bytes / seconds;
    run_event(r, EVENT_RESHARDED, REASON_NONE, NULL,
              json_pack("{s:f,s:I}", "seconds", seconds, "bytes", (json_int_t)bytes));
    if (!run_plan_holds(r))
        return run_plan_begin(r);
    run_plan_converted(r);
    return prepare(r);
}

/* A command that was killed, by the kernel for its memory perhaps, or whose layout or nodes have
 * changed meanwhile, may do better. One that ends with an error would do so again. A shell ends
 * with 128 and the signal when its command was killed. */
tp_status run_prepared(struct run *r, int exit_code)
{
    const bool killed = exit_code > 128 && exit_code <= 128 + SIGRTMAX;
    char log[PATH_MAX], text[300];
    struct attempt_fault f;

    if (exit_code == 0)
        return launch(r);
    f = attempt_fault(FAULT_RESHARD, REASON_PREPARE_FAILED, "the prepare command %s %d",
                      killed ? "was killed by signal" : "ended with exit code",
                      killed ? exit_code - 128 : exit_code);
    if (!run_plan_holds(r)) {
        run_note(r, f.message);
        return run_plan_begin(r);
    }
    log_path(r, log, "prepare");
    if (killed)
        return run_retry(r, &f, log);
    snprintf(text, sizeof text, "%.60s; see %.200s", f.message, log);
    run_finish(r, RUN_FAILED, TP_E_IO, event_reason_name(REASON_PREPARE_FAILED), text);
    return TP_OK;
}
