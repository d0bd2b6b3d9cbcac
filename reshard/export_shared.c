/* reshard/export_shared.c - see reshard/export_shared.h. */
#include "reshard/export_shared.h"

#include "comm/control.h"
#include "reshard/formats/model_folder.h"
#include "reshard/shared_step.h"

/* What one process does alone. */
tp_status export_shared_check(const struct export_job *x, struct tp_err *err)
{
    if (!x->control)
        return TP_OK;
    if (!x->format->share)
        return tp_fail(err, TP_E_USAGE,
                       "--format %s: %s is written by one process; start it without mpirun",
                       x->format->name, x->format->title);
    if (export_job_to_store(x))
        return tp_fail(err, TP_E_USAGE,
                       "%s: the files of other frameworks are written to a store by one process; "
                       "start it without mpirun, or write to a folder, and copy that",
                       x->request->out);
    return TP_OK;
}

/* Rank 0 begins the folder and creates the files, and the others open them. */
static tp_status begin_together(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    struct export_contents contents;
    tp_status st = TP_OK;

    if (export_job_is_root(x)) {
        st = export_job_check_source(q, err);
        if (!st)
            st = atomic_folder_begin(&x->folder, q->out, q->force, model_folder_replaceable, NULL,
                                     err);
        if (!st)
            st = export_job_create(x, x->folder.tmp, err);
    }
    TP_TRY(control_agree(x->control, st, err));
    TP_TRY(shared_step_folder(x->control, x->folder.tmp, err));
    contents = export_job_contents(x, x->folder.tmp);
    st = x->format->share(&x->writer, &contents, x->control, err);
done:
    return st;
}

/* Put what this process wrote on the disk. */
static tp_status sync_own(const struct export_job *x, struct tp_err *err)
{
    const struct reshard_endpoint *to = x->writer.endpoint;

    return control_agree(x->control, to->resumable->sync(to->ctx, err), err);
}

/* On rank 0, when all processes have written. */
static tp_status complete(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
    TP_TRY(export_job_write_small_files(x, err));
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    return st;
}

tp_status export_shared_write(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    TP_TRY(begin_together(x, err));
    TP_TRY(export_job_plan(x, err));
    TP_TRY(copy_job_run(&x->copy, err));
    TP_TRY(sync_own(x, err));
    st = control_agree(x->control, export_job_is_root(x) ? complete(x, err) : TP_OK, err);
done:
    if (export_job_is_root(x))
        atomic_folder_abort(&x->folder);
    return st;
}

tp_status export_shared_compare(struct export_job *x, struct tp_err *err)
{
    tp_status st = control_agree(x->control, export_job_identify(x, err), err);

    return st ? st
              : job_identity_compare(x->resume.head.identity_sha256, x->source.path, x->control,
                                     err);
}
