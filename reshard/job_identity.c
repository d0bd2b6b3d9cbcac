/* reshard/job_identity.c - see reshard/job_identity.h. */
#include "reshard/job_identity.h"

#include <string.h>
#include <sys/stat.h>

#include "ckpt/temporary.h"
#include "storage/location.h"
#include "storage/object.h"

tp_status job_identity_new(struct sha256 **h, const char *what, struct tp_err *err)
{
    tp_status st = sha256_new(h, err);

    if (st)
        return st;
    job_identity_text(*h, what);
    job_identity_text(*h, TP_VERSION);
    return TP_OK;
}

/* With the zero at its end, so that two texts are not one longer text. */
void job_identity_text(struct sha256 *h, const char *text)
{
    sha256_add(h, text ? text : "", text ? strlen(text) + 1 : 1);
}

void job_identity_number(struct sha256 *h, int64_t number)
{
    sha256_add(h, &number, sizeof number);
}

void job_identity_tensors(struct sha256 *h, const struct tensor *tensors, int n)
{
    job_identity_number(h, n);
    for (int i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];

        job_identity_text(h, t->group);
        job_identity_text(h, t->name);
        job_identity_number(h, t->dtype);
        for (int d = 0; d < t->ndim; d++)
            job_identity_number(h, t->shape[d]);
    }
}

/* Its ETag changes with its content. What has none is never the same. */
static tp_status add_remote(struct sha256 *h, const char *path, struct tp_err *err)
{
    char id[SAVE_ID_TEXT] = "";
    struct object o;
    int64_t size;
    tp_status st = object_open(&o, &size, path, err);

    if (st)
        return st;
    job_identity_text(h, path);
    job_identity_number(h, size);
    job_identity_text(h, object_etag(&o));
    if (!object_etag(&o)[0])
        st = temporary_save_id(id, err);
    job_identity_text(h, id);
    object_close(&o);
    return st;
}

tp_status job_identity_file(struct sha256 *h, const char *path, struct tp_err *err)
{
    struct stat sb;

    if (location_is_remote(path))
        return add_remote(h, path, err);
    if (stat(path, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot be found", path);
    job_identity_text(h, path);
    job_identity_number(h, sb.st_size);
    job_identity_number(h, sb.st_mtim.tv_sec);
    job_identity_number(h, sb.st_mtim.tv_nsec);
    return TP_OK;
}

tp_status job_identity_compare(const char identity[SHA256_TEXT], const char *source,
                               struct comm_control *control, struct tp_err *err)
{
    char first[SHA256_TEXT];
    tp_status st;

    memcpy(first, identity, SHA256_TEXT);
    TP_TRY(control_broadcast(control, first, SHA256_TEXT, 0, err));
    if (memcmp(first, identity, SHA256_TEXT) != 0)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: rank %d finds other files there than rank 0, by their sizes, times or "
                     "contents; all nodes need the same files, on a file system that they share, "
                     "and no program may write to them",
                     source, control_rank(control));
    st = control_agree(control, st, err);
done:
    return st;
}
