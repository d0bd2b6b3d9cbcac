/* reshard/shared_step.c - see reshard/shared_step.h. */
#include "reshard/shared_step.h"

#include "ckpt/epoch.h"
#include "core/file.h"

tp_status shared_step_folder(struct comm_control *control, char path[PATH_MAX], struct tp_err *err)
{
    tp_status st = control_broadcast(control, path, PATH_MAX, 0, err);

    if (!st && !file_is_dir(path))
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: rank 0 has made this folder, but rank %d does not have it; write to a "
                     "file system that all nodes share",
                     path, control_rank(control));
    return control_agree(control, st, err);
}

void shared_step_note_idle(const struct checkpoint_target *target, struct comm_control *control,
                           struct progress *progress)
{
    const int idle = checkpoint_target_idle(target);

    if (control_rank(control) == 0 && idle > 0)
        progress_note(progress,
                      "--zstd: each shard is compressed by one process, so %d of %d processes have "
                      "nothing to do",
                      idle, control_size(control));
}

/* Rank 0 begins the step; all open the shards. */
static tp_status begin(struct shared_step *s, struct ckpt_transaction *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (control_rank(s->control) == 0) {
        st = ckpt_epoch(&s->begin.epoch, s->begin.root, err);
        if (!st)
            st = ckpt_begin(t, &s->begin, err);
    }
    TP_TRY(control_agree(s->control, st, err));
    TP_TRY(shared_step_folder(s->control, t->tmp.path, err));
    TP_TRY(checkpoint_target_create(s->target, t->tmp.path, err));
done:
    return st;
}

tp_status shared_step_run(struct shared_step *s, struct manifest *m, struct tp_err *err)
{
    const bool is_root = control_rank(s->control) == 0;
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    tp_status st;

    TP_TRY(begin(s, &t, err));
    TP_TRY(copy_job_run(s->copy, err));
    TP_TRY(checkpoint_target_finish(s->target, m, s->arena, err));
    if (is_root) {
        st = copy_job_prove(s->copy, err);
        if (!st)
            st = ckpt_commit(&t, m, err);
    }
    st = control_agree(s->control, st, err);
done:
    if (st && is_root)
        ckpt_abort(&t);
    return st;
}
