/* orchestrator/run_root.c - see run_state.h: the checkpoint root belongs to this job as long as it
 * lives (ckpt/root_owner.h). For a job whose checkpoints are not ours, all functions do nothing. A
 * root in a store has neither owner nor lock: there the epoch alone decides, and the newest job
 * wins. */
#include <stdlib.h>

#include "ckpt/root.h"
#include "ckpt/root_lock.h"
#include "ckpt/root_owner.h"
#include "ckpt/store_step.h"
#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/run_state.h"
#include "storage/location.h"

struct run_root {
    struct root_owner *owner; /* NULL: not claimed */
    double next_beat;
};

tp_status run_root_open(struct run *r)
{
    r->root = calloc(1, sizeof *r->root);
    return r->root ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

/* The claim stays while processes of the attempt may be alive. */
void run_root_close(struct run *r)
{
    if (r->root)
        root_owner_close(r->root->owner, !r->record.open);
    free(r->root);
    r->root = NULL;
}

bool run_root_is_in_store(const struct run *r)
{
    return r->job->checkpoints == JOB_CKPT_TP && location_is_remote(r->job->ckpt);
}

tp_status run_root_failed(struct run *r, const char *what)
{
    const struct attempt_fault f =
        attempt_fault(FAULT_RESHARD, REASON_STORE_FAILED, "%.400s", what);

    return run_retry(r, &f, "");
}

bool run_root_is_folder(const struct run *r)
{
    return r->job->checkpoints == JOB_CKPT_TP && !run_root_is_in_store(r);
}

tp_status run_root_check(struct run *r)
{
    if (run_root_is_in_store(r)) /* ranks that train need no answer of the store now */
        return r->record.open ? TP_OK : store_step_check_root(r->job->ckpt, &r->err);
    return run_root_is_folder(r) ? root_owner_check(r->job->ckpt, r->record.run_id, &r->err)
                                 : TP_OK;
}

void run_root_set_child(struct run *r)
{
    if (r->root->owner)
        root_owner_set_child(r->root->owner, r->record.supervisor, r->record.supervisor_start);
}

tp_status run_root_claim(struct run *r, bool make)
{
    const struct root_owner_claim claim = { r->record.run_id, r->job->name };
    const char *root = r->job->ckpt;
    tp_status st;

    if (!run_root_is_folder(r) || r->root->owner || (!make && !file_is_dir(root)))
        return TP_OK;
    if ((st = ckpt_check_root(root, &r->err)) || (st = file_make_dirs(root, &r->err)))
        return st;
    st = root_owner_claim(&r->root->owner, root, &claim, &r->err);
    if (st == TP_OK && r->record.open)
        run_root_set_child(r);
    return st;
}

void run_root_tick(struct run *r)
{
    double now = clock_seconds();
    struct tp_err ignored;

    if (!run_root_is_folder(r) || now < r->root->next_beat)
        return;
    r->root->next_beat = now + ROOT_OWNER_BEAT_S;
    if (r->root->owner)
        root_owner_beat(r->root->owner);
    else if (r->record.open && !root_lock_is_held(r->job->ckpt, &ignored)) /* after a takeover */
        run_root_claim(r, false);
}
