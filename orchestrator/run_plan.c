/* orchestrator/run_plan.c - PLAN: nodes, layout, checkpoint. See run_inside.h. */
#include <string.h>

#include "ckpt/root_lock.h"
#include "core/text.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"

static const double BUSY_TOLD_S = 2;

bool run_node_usable(const struct run *r, int node, bool settled_only)
{
    const struct run_node *n = &r->book.nodes[node];
    double now = run_now();

    if (n->down || n->excluded_to > now)
        return false;
    return !settled_only || n->back_since <= 0 || now - n->back_since >= r->job->restart.settle;
}

/* Ranks that can be used: of all nodes but the spares, which step in as others are lost. */
int run_free_ranks(const struct run *r, bool settled_only)
{
    int64_t most = r->job->n_nodes - r->job->restart.spares, used = 0;
    int ranks = 0;

    for (int i = 0; i < r->job->n_nodes && used < most; i++)
        if (run_node_usable(r, i, settled_only)) {
            ranks += r->job->nodes[i].slots;
            used++;
        }
    return ranks;
}

tp_status run_choose_of(const struct run *r, struct plan_candidate *out, int ranks,
                        struct tp_err *err)
{
    struct arena arena = { 0 };
    struct plan_candidate *c = NULL;
    int n = 0;
    tp_status st = candidates_find(&c, &n, r->job, &r->book, ranks, &arena, err);

    if (st == TP_OK)
        st = candidates_pick(out, c, n, r->book.resize, err);
    if (st == TP_E_LAYOUT && r->book.resize[0]) /* not possible now: as good as it gets */
        st = candidates_pick(out, c, n, "", err);
    arena_free(&arena);
    return st;
}

tp_status run_choose(struct run *r, struct plan_candidate *out, bool settled_only,
                     struct tp_err *err)
{
    return run_choose_of(r, out, run_free_ranks(r, settled_only), err);
}

tp_status run_plan_begin(struct run *r)
{
    tp_status st;

    if (r->slurm && (r->fault.kind == FAULT_EXIT || r->fault.kind == FAULT_LOST)) {
        r->slurm->must_look = r->slurm->stage == SLURM_HELD; /* srun ended: why? */
        r->slurm->next_look = 0;
    }

    run_forget_attempt(r);
    time_account_switch(r->ledger, TIME_PLANNING, run_now());
    r->is_verified = r->no_convert = r->crosses = false;
    r->no_nodes_told = false;
    st = run_transition(r, RUN_PLAN, "intent");
    return st ? st : run_plan_tick(r);
}

/* No layout for the nodes that are left: wait for some, unless none is missing. */
static tp_status wait_for_nodes(struct run *r)
{
    bool all = true;

    for (int i = 0; i < r->job->n_nodes; i++)
        all = all && run_node_usable(r, i, false);
    if (all) {
        char text[TP_ERR_MAX];

        snprintf(text, sizeof text, "%s", r->err.msg);
        run_finish(r, RUN_FAILED, TP_E_LAYOUT, text);
        return TP_OK;
    }
    if (!r->no_nodes_told)
        run_event(r, "plan",
                  json_pack("{s:s,s:s,s:i}", "result", "waiting for nodes", "reason",
                            text_clean(r->err.msg), "ranks", run_free_ranks(r, false)));
    r->no_nodes_told = true;
    time_account_switch(r->ledger, TIME_WAITING, run_now());
    return TP_OK;
}

/* The root cannot be claimed now: said when that lasts, for who holds it may have been stopped. */
static bool root_is_busy(struct run *r)
{
    double now = run_now();
    struct tp_err who;

    if (r->job->checkpoints != JOB_CKPT_TP || !root_lock_is_held(r->job->ckpt, &who)) {
        r->busy_since = 0;
        return false;
    }
    if (r->busy_since <= 0)
        r->busy_since = now;
    if (now - r->busy_since > BUSY_TOLD_S && r->busy_told < r->busy_since) {
        run_event(r, "plan",
                  json_pack("{s:s,s:s}", "result", "waiting for the checkpoint root", "reason",
                            text_clean(who.msg)));
        r->busy_told = now;
    }
    time_account_switch(r->ledger, TIME_WAITING, now);
    return true;
}

/* Slurm: nodes were lost, and what is left is too little. */
static bool needs_allocation(const struct run *r, tp_status chosen)
{
    int usable = 0;

    if (r->job->backend != &SLURM_JOB_BACKEND)
        return false;
    for (int i = 0; i < r->job->n_nodes; i++)
        usable += run_node_usable(r, i, false);
    return usable < r->job->n_nodes &&
           (usable < slurm_options(r->job)->min_nodes || chosen == TP_E_LAYOUT);
}

/* *ready: a checkpoint is chosen, or there is none and never was. */
static tp_status choose_checkpoint(struct run *r, bool *ready)
{
    tp_status st;

    *ready = true;
    r->choice.step = -1;
    if (r->job->checkpoints != JOB_CKPT_TP)
        return TP_OK;
    if ((st = checkpoint_find(&r->choice, r->job->ckpt, &r->err)))
        return st;
    if (r->choice.step < 0 && (r->choice.any_ever || r->book.saved >= 0)) {
        char text[TP_ERR_MAX];

        snprintf(text, sizeof text,
                 "%.500s: there were checkpoints and none is good; to begin again from step 0, "
                 "move the root away",
                 r->job->ckpt);
        run_finish(r, RUN_FAILED, TP_E_CORRUPT, text);
        *ready = false;
        return TP_OK;
    }
    if (r->choice.step < 0 || r->is_verified)
        return TP_OK;
    *ready = false;
    return run_verify_checkpoint(r);
}

tp_status run_plan_tick(struct run *r)
{
    double now = run_now();
    char spec[SPEC_TEXT_MAX];
    bool ready;
    tp_status st;

    if (r->helper.pid)
        return TP_OK;
    if (r->book.stop) {
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, "stopped before it was started");
        return TP_OK;
    }
    if (r->wait_until > now) {
        time_account_switch(r->ledger, TIME_WAITING, now);
        return TP_OK;
    }
    r->wait_until = 0;
    if (root_is_busy(r))
        return TP_OK;
    if (r->slurm && ((st = run_slurm_ready(r, &ready)) || !ready || r->over))
        return st;
    st = run_choose(r, &r->layout, false, &r->err);
    if (needs_allocation(r, st))
        return run_slurm_hand_over(r, "too few nodes of the allocation are left");
    if (st == TP_E_LAYOUT)
        return wait_for_nodes(r);
    if (st)
        return st;
    time_account_switch(r->ledger, TIME_PLANNING, now);
    st = choose_checkpoint(r, &ready);
    if (st || !ready || r->over)
        return st;
    run_event(r, "plan",
              json_pack("{s:s,s:s,s:i,s:i,s:I}", "result", "launch", "layout",
                        spec_format(spec, &r->layout.way.spec), "ranks", r->layout.ranks,
                        "free_ranks", run_free_ranks(r, false), "checkpoint",
                        (json_int_t)r->choice.step));
    return run_reshard_begin(r);
}

/* A checkpoint did not verify or load: the second time it is put away. */
tp_status run_bad_checkpoint(struct run *r, const struct checkpoint_selection *c, const char *why)
{
    struct run_record *b = &r->book;
    char to[PATH_MAX];
    int i = 0;

    while (i < b->n_bad && b->bad[i].step != c->step)
        i++;
    if (i == b->n_bad) {
        i = b->n_bad < RUN_RECORD_BAD_MAX ? b->n_bad++ : 0;
        b->bad[i].step = c->step;
        b->bad[i].fails = 0;
    }
    b->bad[i].fails++;
    if (b->bad[i].fails < 2)
        return run_transition(r, b->state, "a checkpoint failed once");
    if (run_transition(r, b->state, "quarantine") ||
        checkpoint_quarantine(to, c, r->job->ckpt, &r->err))
        return r->err.status;
    b->bad[i] = b->bad[--b->n_bad];
    run_event(r, "quarantine",
              json_pack("{s:I,s:s,s:s}", "step", (json_int_t)c->step, "reason", why, "to",
                        text_clean(to)));
    return TP_OK;
}
