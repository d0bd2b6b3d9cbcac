/* reshard/export_folder.c - see reshard/export_folder.h. */
#include "reshard/export_folder.h"

#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "core/file_tree.h"
#include "core/stop.h"
#include "reshard/formats/model_folder.h"
#include "storage/remote.h"

/* In a temporary folder: where files are created to learn the places of tensors. */
#define PLACES_FOLDER "places.tmp"

/* Create the files in a folder that an interrupted run left, and keep the bytes of tensors there.
 * Which bytes these are, is known when all files have been created in another folder. */
static tp_status create_again(struct export_job *x, struct tp_err *err)
{
    char other[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(other, x->folder.tmp, PLACES_FOLDER, err));
    if (file_exists(other))
        TP_TRY(file_tree_remove(other, err));
    TP_TRY(file_make_dirs(other, err));
    TP_TRY(export_job_create(x, other, err));
    st = x->format->keep(&x->writer, x->folder.tmp, TRANSFER_JOURNAL_FILE, err);
    export_job_close_writer(x);
    if (!st)
        st = file_tree_remove(other, err);
    if (!st)
        st = export_job_create(x, x->folder.tmp, err);
done:
    return st;
}

/* Whether to take over a temporary folder: an atomic_folder_heir. */
static bool is_of_this_job(void *ctx, const char *path)
{
    struct export_job *x = ctx;
    const char *copy = arena_strdup(&x->arena, path);

    if (copy)
        resume_look(&x->resume, copy);
    return copy && x->resume.tmp == copy;
}

/* Begin the folder, and plan. An interrupted run is continued if `again`. */
static tp_status begin(struct export_job *x, bool again, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct resume_job job = export_job_resume(x);
    const struct atomic_folder_heir heir = { is_of_this_job, x };
    tp_status st;

    TP_TRY(export_job_check_source(q, err));
    TP_TRY(atomic_folder_begin(&x->folder, q->out, q->force, model_folder_replaceable,
                               again && x->format->keep ? &heir : NULL, err));
    resume_note_other(&x->resume, &job);
    TP_TRY(x->folder.resumed ? create_again(x, err) : export_job_create(x, x->folder.tmp, err));
    TP_TRY(export_job_plan(x, err));
    x->folder.scratch = TRANSFER_JOURNAL_FILE;
    if (!resume_fits(&x->resume, &x->copy) && x->folder.resumed)
        st = tp_fail(err, TP_E_BUDGET, "%s: was written with more --mem", x->folder.tmp);
    else if (x->folder.resumed)
        st = resume_continue(&x->resume, x->folder.tmp, &job, err);
    else if (x->format->keep)
        st = resume_create(&x->resume, x->folder.tmp, &job, err);
done:
    return st;
}

/* Remove a folder that cannot be continued. */
static tp_status discard(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = export_job_resume(x);
    tp_status st = x->copy.plan ? resume_forget(&x->resume, &job, err) : TP_OK;
    struct resume empty = { .interval_s = x->resume.interval_s };

    copy_job_free(&x->copy);
    export_job_close_writer(x);
    atomic_folder_abort(&x->folder);
    memcpy(empty.head.identity_sha256, x->resume.head.identity_sha256, SHA256_TEXT);
    x->resume = empty;
    return st;
}

static tp_status begin_or_continue(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = export_job_resume(x);
    tp_status st;

    if (x->format->keep) {
        TP_TRY(export_job_identify(x, err));
        x->resume.interval_s = x->request->journal_s;
    }
    st = begin(x, true, err);
    if (!st || st == TP_E_STOPPED || !x->folder.resumed)
        return st;
    resume_note_failed(err, &job);
    TP_TRY(discard(x, err));
    st = begin(x, false, err);
done:
    return st;
}

tp_status export_folder_write(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    stop_listen_all();       /* before it nothing has begun */
    remote_tries_stop(true); /* an outage may be why a signal came; after a failure, what is in
                                flight ends so, too */
    TP_TRY(begin_or_continue(x, err));
    TP_TRY(export_job_copy(x, err));
    TP_TRY(export_job_write_small_files(x, err));
    remote_tries_stop(false);
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    if (st == TP_E_STOPPED && x->format->keep)
        atomic_folder_suspend(&x->folder);
    else
        atomic_folder_abort(&x->folder);
    return st;
}
