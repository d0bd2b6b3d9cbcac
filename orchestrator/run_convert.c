/* orchestrator/run_convert.c - RESHARD: a checkpoint of another layout, and the prepare command.
 *
 * A conversion is tp-reshard from the checkpoint root into itself: the step is exchanged for the
 * converted one in one rename when its digests have been proved equal, and is the old one until
 * then. Killed, it goes on where it was, from what it left in .tmp. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/text.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/plan/conversion.h"
#include "orchestrator/run_state.h"

static tp_status start_helper(struct run *r, enum run_helper_kind kind, char *const *argv,
                              const char *log)
{
    r->helper.kind = kind;
    r->helper.since = run_now();
    r->helper.pid = run_spawn(r, argv, log, false);
    return r->helper.pid > 0 ? TP_OK : tp_fail_errno(&r->err, "cannot fork");
}

tp_status run_verify_checkpoint(struct run *r)
{
    char *argv[] = { (char *)(uintptr_t)r->self, "check", r->choice.dir, NULL };

    return start_helper(r, HELPER_CHECK, argv, "/dev/null");
}

/* After a conversion, or when none was needed. */
static tp_status go_on(struct run *r)
{
    struct job_words w;
    char log[PATH_MAX];
    tp_status st;

    if (!r->job->prepare.n)
        return run_launch(r);
    st = job_fill(&w, r->job, &r->job->prepare, &r->layout.way.spec, r->book.attempt + 1, &r->arena,
                  &r->err);
    if (st == TP_OK)
        st = run_transition(r, RUN_RESHARD, "prepare");
    if (st)
        return st;
    time_account_switch(r->ledger, TIME_RESHARDING, run_now());
    snprintf(log, sizeof log, "%.3900s/prepare.log", r->job->state);
    return start_helper(r, HELPER_PREPARE, w.word, log);
}

static tp_status start_conversion(struct run *r)
{
    char to[CONVERSION_SPEC_MAX], step[24], log[PATH_MAX];
    char *root = (char *)(uintptr_t)r->job->ckpt;
    char *argv[] = { "tp-reshard", root, "--step",  step,     "--to", to,
                     "-o",         root, "--force", "--json", NULL };
    tp_status st = run_transition(r, RUN_RESHARD, "intent");

    if (st)
        return st;
    time_account_switch(r->ledger, TIME_RESHARDING, run_now());
    snprintf(step, sizeof step, "%lld", (long long)r->choice.step);
    conversion_spec(to, &r->layout.way.spec);
    snprintf(log, sizeof log, "%.3900s/reshard.log", r->job->state);
    return start_helper(r, HELPER_CONVERT, argv, log);
}

static void tell_decision(struct run *r, const struct conversion_plan *p)
{
    char from[SPEC_TEXT_MAX], to[SPEC_TEXT_MAX];

    run_event(
        r, "reshard",
        json_pack("{s:s,s:s,s:s,s:I,s:I,s:f,s:f,s:s}", "how", p->convert ? "convert" : "resume",
                  "from", spec_format(from, &r->choice.spec), "to",
                  spec_format(to, &r->layout.way.spec), "checkpoint", (json_int_t)r->choice.step,
                  "bytes", (json_int_t)r->choice.bytes, "resume_seconds", p->resume_seconds,
                  "convert_seconds", p->convert_seconds, "reason", p->why));
}

tp_status run_reshard_begin(struct run *r)
{
    const struct conversion_rates rates = { r->book.read_rate, r->book.load_rate,
                                            r->book.convert_rate };
    struct conversion_plan p = { 0 };

    if (r->choice.step >= 0)
        conversion_decide(&p, r->job, &r->choice.spec, &r->layout.way.spec, r->choice.bytes,
                          &rates);
    if (p.differs && r->no_convert) {
        p.convert = false;
        snprintf(p.why, sizeof p.why, "the conversion failed: --resume reads it as it is");
    }
    r->crosses = p.differs && !p.convert;
    if (p.differs)
        tell_decision(r, &p);
    return p.convert ? start_conversion(r) : go_on(r);
}

/* The last line of a helper's log that says something. */
static void last_words(char *line, size_t size, const char *log)
{
    FILE *f = fopen(log, "re");
    char text[512];

    line[0] = 0;
    while (f && fgets(text, sizeof text, f))
        if (strspn(text, " \t\r\n{}") < strlen(text))
            snprintf(line, size, "%.*s", (int)strcspn(text, "\n"), text);
    if (f)
        fclose(f);
}

/* tp-reshard did not do it. tp-train can read the checkpoint as it is; others try again, and again
 * after a back-off, within the budgets of any other failure. */
static tp_status conversion_failed(struct run *r, int exit_code)
{
    char log[PATH_MAX], line[300];

    snprintf(log, sizeof log, "%.3900s/reshard.log", r->job->state);
    last_words(line, sizeof line, log);
    r->fault = (struct run_fault){ .kind = FAULT_RESHARD, .rank = -1, .node = -1, .step = -1 };
    snprintf(r->fault.reason, sizeof r->fault.reason, "tp-reshard %s %d: %.280s",
             exit_code >= 128 ? "was killed by signal" : "ended with",
             exit_code >= 128 ? exit_code - 128 : exit_code, line[0] ? line : "no word");
    text_clean(r->fault.reason);
    run_event(r, "reshard_failed",
              json_pack("{s:s,s:i}", "reason", r->fault.reason, "exit_code", exit_code));
    if (r->job->is_tp_train) {
        r->no_convert = true;
        return run_reshard_begin(r);
    }
    snprintf(r->log, sizeof r->log, "%s", log);
    return run_retry(r);
}

static tp_status conversion_done(struct run *r)
{
    double took = run_now() - r->helper.since;
    struct plan_candidate now;

    if (took > 0 && r->choice.bytes > 0)
        r->book.convert_rate = (double)r->choice.bytes / took;
    run_event(r, "resharded",
              json_pack("{s:f,s:I}", "seconds", took, "bytes", (json_int_t)r->choice.bytes));
    if (run_choose(r, &now, false, &r->err) || !run_config_same(&now.way, &r->layout.way))
        return run_plan_begin(r); /* nodes came or went meanwhile */
    r->choice.spec = r->layout.way.spec;
    return go_on(r);
}

static tp_status checked(struct run *r, int exit_code)
{
    double took = run_now() - r->helper.since;
    tp_status st = TP_OK;

    if (exit_code == 0) {
        r->is_verified = true;
        if (took > 0 && r->choice.bytes > 0)
            r->book.read_rate = (double)r->choice.bytes / took;
    } else {
        st = run_bad_checkpoint(r, &r->choice, "it does not verify");
    }
    return st ? st : run_plan_tick(r);
}

tp_status run_helper_done(struct run *r, int exit_code)
{
    char text[300];

    if (r->book.state != RUN_PLAN && r->book.state != RUN_RESHARD)
        return TP_OK;
    if (r->book.stop) {
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, "stopped before it was started");
        return TP_OK;
    }
    switch (r->helper.kind) {
    case HELPER_CHECK:
        return checked(r, exit_code);
    case HELPER_CONVERT:
        return exit_code == 0 ? conversion_done(r) : conversion_failed(r, exit_code);
    case HELPER_PREPARE:
        if (exit_code == 0)
            return run_launch(r);
        snprintf(text, sizeof text, "the prepare command ended with exit code %d; see %.100s/%s",
                 exit_code, r->job->state, "prepare.log");
        run_finish(r, RUN_FAILED, TP_E_IO, text);
        return TP_OK;
    }
    return TP_OK;
}

/* tp-run is to stop: what helps it too. What tp-reshard has begun stays for the next run. */
void run_helper_stop(const struct run *r)
{
    if (r->helper.pid > 0)
        kill(r->helper.pid, SIGTERM);
}
