/* trainer/resume_step.c - see trainer/resume_step.h. */
#include "trainer/resume_step.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/root.h"
#include "ckpt/save.h"
#include "core/arena.h"
#include "core/file.h"
#include "storage/folder.h"
#include "storage/location.h"

struct resume_step resume_step_init(void)
{
    return (struct resume_step){ .step = -1, .newest = -1 };
}

static void note(struct resume_step *r, int64_t step, const char *why)
{
    if (r->n_damaged < RESUME_STEP_LISTED) {
        r->damaged[r->n_damaged].step = step;
        snprintf(r->damaged[r->n_damaged].why, RESUME_STEP_WHY_MAX, "%.*s", RESUME_STEP_WHY_MAX - 1,
                 why);
    }
    r->n_damaged++;
}

void resume_step_reject(struct resume_step *r, const char *why)
{
    note(r, r->step, why);
}

/* Why a step cannot be opened. */
static void note_unreadable(struct resume_step *r, const char *root, int64_t step)
{
    struct tp_err why = { 0 };
    struct arena arena = { 0 };
    struct ckpt_found found;

    if (ckpt_open(&found, root, step, &arena, &why))
        note(r, step, why.msg);
    else
        note(r, step, "it was not complete a moment ago");
    arena_free(&arena);
}

/* The newest complete step that is older than the one that was rejected. */
static tp_status choose_newest(struct resume_step *r, const char *root, struct tp_err *err)
{
    const int64_t rejected = r->step; /* -1: none */
    struct arena arena = { 0 };
    struct ckpt_step *steps = NULL;
    int n = 0;
    bool exists = file_exists(root);
    tp_status st = location_is_remote(root) ? folder_exists(&exists, root, err) : TP_OK;

    if (!st && exists)
        st = ckpt_list(&steps, &n, root, &arena, err);

    r->step = -1;
    for (int i = n - 1; i >= 0 && r->step < 0; i--) {
        if (strstr(steps[i].name, ".tmp") || (rejected >= 0 && steps[i].step >= rejected))
            continue;
        if (steps[i].complete)
            r->step = steps[i].step;
        else
            note_unreadable(r, root, steps[i].step);
    }
    if (r->newest < 0)
        r->newest = r->step;
    arena_free(&arena);
    return st;
}

/* The step of --step. */
static tp_status choose_given(struct resume_step *r, const struct train_config *c,
                              struct tp_err *err)
{
    struct arena arena = { 0 };
    struct ckpt_found found;
    tp_status st;

    TP_TRY(choose_newest(r, c->ckpt, err));
    TP_TRY(ckpt_open(&found, c->ckpt, c->step, &arena, err));
    r->step = c->step;
    r->n_damaged = 0; /* newer steps were not passed over because of damage */
done:
    arena_free(&arena);
    return st ? tp_fail_in(err, "--step %lld", (long long)c->step) : TP_OK;
}

tp_status resume_step_advise(tp_status st, const struct train_config *c, struct tp_err *err)
{
    const struct tp_err why = *err;

    if (st != TP_E_CORRUPT || c->step < 0)
        return st;
    return tp_fail(err, st, "%.900s; leave out --step to resume from the newest intact step",
                   why.msg);
}

/* Refuse a root whose steps cannot be read: one of them may be intact and of a later version. */
static tp_status refuse_damaged(const struct resume_step *r, const struct train_config *c,
                                struct tp_err *err)
{
    return tp_fail(err, c->resume != RESUME_NO ? TP_E_CORRUPT : TP_E_EXISTS,
                   "%s: has no checkpoint that can be read: %.600s; to start from the beginning "
                   "move it away, or name another --ckpt",
                   c->ckpt, r->damaged[0].why);
}

tp_status resume_step_choose(struct resume_step *r, const struct train_config *c,
                             struct tp_err *err)
{
    tp_status st;

    TP_TRY(ckpt_save_check_root(c->ckpt, err));
    if (c->step >= 0)
        return choose_given(r, c, err);
    TP_TRY(choose_newest(r, c->ckpt, err));
    if (c->resume == RESUME_NO && r->step >= 0)
        st = tp_fail(err, TP_E_EXISTS,
                     "%s already has checkpoints (step %lld): continue with --resume, or name "
                     "another --ckpt",
                     c->ckpt, (long long)r->step);
    else if (r->step < 0 && r->n_damaged)
        st = refuse_damaged(r, c, err);
    else if (c->resume == RESUME_MUST && r->step < 0)
        st = tp_fail(err, TP_E_NOTFOUND, "%s has no checkpoint to resume (--resume=must)", c->ckpt);
done:
    return st;
}
