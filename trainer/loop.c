/* trainer/loop.c - see trainer/loop.h. */
#include "trainer/loop.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "core/heartbeat.h"
#include "core/size.h"
#include "core/stop.h"
#include "core/text.h"
#include "trainer/logits.h"
#include "trainer/restore.h"
#include "trainer/run_summary.h"
#include "trainer/snapshot.h"
#include "trainer/step.h"
#include "trainer/train_log.h"

/* A request to stop causes a save, so it ends the wait for the lock of the root only after this
 * time. */
static const double LOCK_STOP_S = 3;

struct loop {
    struct trainer *t;
    const struct loop_output *output;
    bool is_first;               /* rank 0: prints and logs */
    int64_t first_step;          /* the first step that this run trains */
    int64_t first_tokens;        /* seen before it */
    double began;                /* when it did */
    struct snapshot *snapshot;   /* NULL without --ckpt */
    struct heartbeat *heartbeat; /* NULL without a watcher; borrowed */
    struct train_log log;        /* of rank 0, with --log */
    bool log_waits;              /* its last line could not be written */
    bool stopping;               /* a rank was asked to stop */
    bool warned_of_nan;
    bool any_busy;           /* a rank is still busy with a save */
    double cpu;              /* processor time of this rank at the last exchange */
    double cpu_of_all;       /* of all ranks, since the exchange before */
    struct comm_times times; /* of this rank at the last exchange */
    double waited, hidden;   /* since the exchange before, a mean of the ranks */
};

static int64_t peak_rss_bytes(void)
{
    struct rusage u;

    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

__attribute__((format(printf, 3, 4))) static void print(const struct loop *l, bool is_step,
                                                        const char *fmt, ...)
{
    char line[TP_ERR_MAX];
    va_list ap;

    if (!l->is_first)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    l->output->print(l->output->ctx, is_step, line);
}

/* A rank waits for a lock: struct root_lock_wait. */
static void say(void *ctx, const char *sentence)
{
    print(ctx, false, "%s", sentence);
}

/* ---- before the first step ---- */

/* The steps that were passed over; this must not be silent. */
static void print_damaged(const struct loop *l, const struct resume_step *chosen)
{
    int listed = chosen->n_damaged < RESUME_STEP_LISTED ? chosen->n_damaged : RESUME_STEP_LISTED;

    for (int i = 0; i < listed; i++)
        print(l, false, "warning: %s/step-%08lld IS DAMAGED: %s; going back to step %lld",
              l->t->config->ckpt, (long long)chosen->damaged[i].step, chosen->damaged[i].why,
              (long long)chosen->step);
    if (chosen->n_damaged > listed)
        print(l, false, "warning: %d more steps are damaged", chosen->n_damaged - listed);
}

static void print_resumed(const struct loop *l, const struct restore_report *r)
{
    const struct train_config *c = l->t->config;
    int64_t step = l->t->position.step;
    bool no_place = step > 0 && l->t->position.next_sample == 0; /* after an import */

    if (r->new_optimizer)
        print(l, false,
              "%s: AdamW starts with zero moments, as a new optimizer does; learning rate%s at "
              "step %lld",
              c->reset_optim ? "--reset-optim" : "the checkpoint has no optimizer state",
              no_place ? " continues" : " and data continue", (long long)step);
    if (no_place)
        print(l, false,
              "the checkpoint, which tp-train did not save, does not say how much of the data was "
              "used: the data starts at the first sequence, the learning rate at step %lld",
              (long long)step);
    if (c->step >= 0 && r->chosen.newest > c->step)
        print(l, false,
              "warning: %s has newer steps, up to %lld: this run replaces a step when it saves one "
              "with the same number; until then --resume without --step continues from the newest",
              c->ckpt, (long long)r->chosen.newest);
}

static void print_start(const struct loop *l, const struct restore_report *r)
{
    const struct train_config *c = l->t->config;
    char bytes[SIZE_TEXT_MAX], needed[SIZE_TEXT_MAX], spec[SPEC_TEXT_MAX];
    char all[SIZE_TEXT_MAX], all_needed[SIZE_TEXT_MAX], note[DEQUANTIZED_NOTE_MAX];

    print_damaged(l, &r->chosen);
    if (r->root_was_empty)
        print(l, false, "NOTHING TO RESUME in %s: starting from the beginning", c->ckpt);
    if (r->kind == RESTORE_CKPT)
        print(l, false,
              "resumed from %s (written by %s) at %s: step %lld of %lld; read %s of %s needed "
              "(rank 0: %s of %s)",
              r->from, r->layout, spec_format(spec, &c->spec), (long long)l->t->position.step,
              (long long)c->steps, size_format(all, r->all_bytes_read),
              size_format(all_needed, r->all_bytes_needed), size_format(bytes, r->bytes_read),
              size_format(needed, r->bytes_needed));
    else if (r->kind == RESTORE_SAFETENSORS)
        print(l, false, "start: weights of %s%s%s", r->from, r->left_out.n ? "; left out: " : "",
              r->left_out.text);
    else
        print(l, false, "start: random weights, seed %lld", (long long)c->seed);
    if (r->dequantized)
        print(l, false, "%s", safetensors_dequantized_note(note, r->dequantized));
    if (r->kind == RESTORE_CKPT)
        print_resumed(l, r);
    if (r->warning[0])
        print(l, false, "warning: %s", r->warning);
    if (l->t->model->dropout > 0)
        print(l, false,
              "warning: the model's config.json sets dropout %g, but tp-train has no dropout",
              l->t->model->dropout);
    if (c->opt.min_lr > c->opt.lr)
        print(l, false,
              "warning: --lr %g is below --min-lr %g%s, so the learning rate grows; to let it "
              "decay, give a --min-lr of for example %g",
              c->opt.lr, c->opt.min_lr,
              c->opt.min_lr == train_config_default().opt.min_lr ? ", which is the default" : "",
              c->opt.lr / 10);
}

static void print_summary(const struct loop *l, const struct step_messages *messages)
{
    char line[RUN_SUMMARY_MAX];

    for (int i = 0; l->is_first && i < RUN_SUMMARY_LINES; i++)
        if (run_summary_line(line, l->t, messages, i)[0])
            print(l, false, "%s", line);
}

/* Everything that can fail comes before the first output, so after a failure only the error is
 * printed. */
static tp_status begin(struct loop *l, struct tp_err *err)
{
    const struct train_config *c = l->t->config;
    struct comm_control *control = l->t->parallel.control;
    const struct root_lock_wait wait = { say, l, LOCK_STOP_S };
    struct step_messages messages = { 0 };
    struct restore_report report;
    tp_status st;

    heartbeat_phase(l->heartbeat, HEARTBEAT_LOAD);
    if (c->ckpt)
        l->snapshot = snapshot_prepare(l->t);
    TP_TRY(restore_start(l->t, &report, err));
    if (l->is_first && c->log)
        st = train_log_open(&l->log, c->log, err);
    TP_TRY(control_agree(control, st, err));
    if (c->ckpt)
        TP_TRY(snapshot_open(l->snapshot, l->t, c->resume != RESUME_NO, &wait, err));
    if (c->logits)
        TP_TRY(logits_write(l->t, c->logits, err));
    if (l->log.path)
        st = c->resume == RESUME_NO ? train_log_empty(&l->log, err)
                                    : train_log_continue(&l->log, err);
    if (l->is_first && !st)
        st = step_messages_count(&messages, l->t, err);
    TP_TRY(control_agree(control, st, err));
    l->first_step = l->t->position.step;
    l->first_tokens = l->t->position.tokens;
    print_summary(l, &messages);
    print_start(l, &report);
    if (c->logits)
        print(l, false, "logits of the first batch are in %s", c->logits);
    heartbeat_phase(l->heartbeat, HEARTBEAT_TRAIN);
    l->cpu = clock_cpu_seconds();
    l->times = comm_times(l->t->parallel.ranks);
    l->began = clock_seconds();
done:
    return st;
}

/* ---- between steps ---- */

/* Exchange what every rank has to know of the others after a step, in one small reduction. */
static tp_status exchange(struct loop *l, struct step_result *r, struct tp_err *err)
{
    struct comm_control *control = l->t->parallel.control;
    struct comm_times now = comm_times(l->t->parallel.ranks), before = l->times;
    double cpu = clock_cpu_seconds(), n = control_size(control);
    double words[] = { r->loss_share,
                       stop_requested(),
                       l->snapshot && snapshot_poll(l->snapshot),
                       cpu - l->cpu,
                       (now.waited - before.waited) / n,
                       (now.hidden - before.hidden) / n,
                       !device_event_done(l->t->state_copied) };
    tp_status st = TP_OK;

    if (control_size(control) > 1)
        st = control_sum_f64(control, words, 7, err);
    r->loss_share = words[0];
    l->stopping = words[1] > 0;
    l->any_busy = words[2] > 0;
    l->cpu_of_all = words[3];
    l->waited = words[4];
    l->hidden = words[5];
    l->t->graph.copying = words[6] > 0;
    l->times = now;
    l->cpu = cpu;
    return st;
}

static bool is_exit_step(const struct train_config *c, int64_t step)
{
    return c->exit_step >= 0 && step >= c->exit_step;
}

static bool is_last(const struct loop *l)
{
    const struct train_config *c = l->t->config;
    int64_t step = l->t->position.step;

    return step >= c->steps || l->stopping || is_exit_step(c, step);
}

/* Continue a save in progress, and begin one that is due. Wait for the last one. */
static tp_status save(struct loop *l, struct tp_err *err)
{
    const struct train_config *c = l->t->config;
    bool last = is_last(l);
    tp_status st = TP_OK;

    if (!l->snapshot)
        return TP_OK;
    if (snapshot_is_pending(l->snapshot) && !l->any_busy)
        TP_TRY(snapshot_advance(l->snapshot, err));
    if (last || (c->save_every && l->t->position.step % c->save_every == 0)) {
        heartbeat_phase(l->heartbeat, HEARTBEAT_SAVE);
        TP_TRY(snapshot_begin(l->snapshot, l->t, err));
        l->t->graph.copying = true;
        if (last)
            TP_TRY(snapshot_wait(l->snapshot, err));
        heartbeat_phase(l->heartbeat, HEARTBEAT_TRAIN);
    }
    heartbeat_saved(l->heartbeat, snapshot_newest_step(l->snapshot));
done:
    return st;
}

/* Warn once: weights that are NaN stay NaN, and are saved like this. */
static void warn_of_nan(struct loop *l, const struct train_log_entry *e)
{
    if (l->warned_of_nan || (isfinite(e->loss) && isfinite(e->grad_norm)))
        return;
    l->warned_of_nan = true;
    print(
        l, false,
        "warning: the loss or gradient norm of step %lld is NaN or infinite: checkpoints from "
        "here on are useless%s; stop the run, and resume from an older step (--step), for example "
        "with a smaller --lr",
        (long long)(e->step + 1),
        l->t->config->keep ? ", and --keep removes none of those before" : "");
}

/* A disk that is full costs no step of a run that saves: its lines wait. Without --ckpt the log may
 * be all that the run is for. */
static tp_status write_log(struct loop *l, const struct train_log_entry *e, struct tp_err *err)
{
    struct tp_err why = { 0 };
    tp_status st = train_log_write(&l->log, e, &why);

    if (st && !l->t->config->ckpt) {
        *err = why;
        return st;
    }
    if (st && !l->log_waits)
        print(l, false, "warning: %s; training goes on, and the lines wait in memory", why.msg);
    if (!st && l->log_waits)
        print(l, false, "--log %s: is written again", l->log.path);
    l->log_waits = st != TP_OK;
    return TP_OK;
}

/* Say what is lost, unless the log ended the run. */
static void close_log(struct loop *l)
{
    struct tp_err why = { 0 };
    int64_t lost = l->log.path ? train_log_flush(&l->log, &why) : 0;

    if (lost && l->t->config->ckpt)
        print(l, false, "warning: %lld line%s of --log %s %s lost", (long long)lost,
              lost == 1 ? "" : "s", l->log.path, lost == 1 ? "is" : "are");
    train_log_close(&l->log);
}

static tp_status record(struct loop *l, const struct step_result *r, double seconds,
                        double save_seconds, struct tp_err *err)
{
    const struct train_config *c = l->t->config;
    char spec[SPEC_TEXT_MAX], line[TRAIN_LOG_TEXT_MAX];
    const struct train_log_entry e = { .step = l->t->position.step - 1,
                                       .steps = c->steps,
                                       .loss =
                                           isnan(r->loss_share) ? NAN : r->loss_share, /* no -nan */
                                       .grad_norm = isnan(r->grad_norm) ? NAN : r->grad_norm,
                                       .lr = r->lr,
                                       .tokens = l->t->position.tokens,
                                       .seconds = seconds,
                                       .tokens_per_s =
                                           (double)(c->global_batch_size * c->seq_length) / seconds,
                                       .save_seconds = save_seconds,
                                       .cpu_seconds = l->cpu_of_all,
                                       .comm_wait_seconds = l->waited,
                                       .comm_hidden_seconds = l->hidden,
                                       .peak_rss_bytes = peak_rss_bytes(),
                                       .layout = spec_format(spec, &c->spec) };

    if (!l->is_first)
        return TP_OK;
    print(l, true, "%s", train_log_format(line, &e));
    warn_of_nan(l, &e);
    return l->log.path ? write_log(l, &e, err) : TP_OK;
}

static tp_status run_step(struct loop *l, bool *agreed, struct tp_err *err)
{
    struct step_result r = { 0 };
    double start = clock_seconds(), trained, saved;
    tp_status st;

    *agreed = false;
    TP_TRY(step_run(l->t, &r, err));
    TP_TRY(exchange(l, &r, err));
    trained = clock_seconds();
    *agreed = true;
    if (l->snapshot && !(isfinite(r.loss_share) && isfinite(r.grad_norm)))
        snapshot_spare_before(l->snapshot, l->t->position.step);
    TP_TRY(save(l, err));
    saved = clock_seconds();
    heartbeat_step(l->heartbeat, l->t->position.step, r.loss_share);
    *agreed = false;
    TP_TRY(record(l, &r, trained - start, l->snapshot ? saved - trained : 0, err));
    *agreed = true;
done:
    return st;
}

/* ---- the run ---- */

/* What this run trained, with its saves. */
static void format_total(char *buf, size_t size, const struct loop *l)
{
    double seconds = clock_seconds() - l->began;
    int64_t steps = l->t->position.step - l->first_step;

    snprintf(buf, size, "; %lld step%s in %.1f s, %.0f tokens/s", (long long)steps,
             steps == 1 ? "" : "s", seconds,
             (double)(l->t->position.tokens - l->first_tokens) / seconds);
}

static tp_status end(struct loop *l, struct tp_err *err)
{
    const struct train_config *c = l->t->config;
    int64_t step = l->t->position.step;
    char word[TEXT_WORD_MAX];

    if (step >= c->steps) {
        char total[96];

        if (l->first_step >= c->steps)
            snprintf(total, sizeof total, "; nothing was left to train (--steps %lld)",
                     (long long)c->steps);
        else
            format_total(total, sizeof total, l);
        print(l, false, "done: %lld step%s%s%s%s", (long long)step, step == 1 ? "" : "s",
              c->ckpt ? ", saved in " : "", c->ckpt ? c->ckpt : "", total);
        return TP_OK;
    }
    if (!c->ckpt)
        return tp_fail(err, TP_E_STOPPED,
                       "stopped on request after step %lld of %lld; nothing was saved, because "
                       "there is no --ckpt",
                       (long long)step, (long long)c->steps);
    if (is_exit_step(c, l->first_step))
        return tp_fail(err, TP_E_STOPPED,
                       "nothing was trained: the checkpoint in %s is at step %lld, and --exit-step "
                       "is %lld; give a later one, or leave it out to train to --steps %lld",
                       c->ckpt, (long long)step, (long long)c->exit_step, (long long)c->steps);
    return tp_fail(err, TP_E_STOPPED,
                   "saved and stopped after step %lld of %lld; continue with --resume --ckpt %s",
                   (long long)step, (long long)c->steps, text_shell_word(word, c->ckpt));
}

tp_status loop_run(struct trainer *t, const struct loop_output *out, bool *agreed,
                   struct tp_err *err)
{
    struct loop l = { .t = t,
                      .output = out,
                      .is_first = control_rank(t->parallel.control) == 0,
                      .heartbeat = t->config->heartbeat };
    tp_status st;

    *agreed = true;
    comm_watch(t->parallel.ranks, l.heartbeat);
    TP_TRY(begin(&l, err));
    while (!is_last(&l))
        TP_TRY(run_step(&l, agreed, err));
    st = end(&l, err);
done:
    snapshot_close(l.snapshot);
    close_log(&l);
    comm_watch(t->parallel.ranks, NULL);
    return st;
}
