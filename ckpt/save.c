/* ckpt/save.c - see ckpt/save.h. */
#include "ckpt/save.h"

#include "ckpt/root.h"
#include "storage/location.h"

tp_status ckpt_save_begin(struct ckpt_save *s, const struct ckpt_begin_request *request,
                          struct tp_err *err)
{
    tp_status st;

    *s = (struct ckpt_save){ .in_store = location_kind(request->root) == LOCATION_S3 };
    s->local.tmp.lock_fd = -1;
    if (!s->in_store)
        return ckpt_begin(&s->local, request, err);
    st = store_step_begin(&s->store, request->root, request->step, request->force, err);
    s->store.epoch = request->epoch;
    return st;
}

const char *ckpt_save_dir(const struct ckpt_save *s)
{
    return s->in_store ? s->store.dir : s->local.tmp.path;
}

tp_status ckpt_save_clear(struct ckpt_save *s, struct tp_err *err)
{
    return s->in_store ? store_step_clear(&s->store, err) : TP_OK;
}

tp_status ckpt_save_commit(struct ckpt_save *s, struct manifest *m, struct tp_err *err)
{
    return s->in_store ? store_step_commit(&s->store, m, err) : ckpt_commit(&s->local, m, err);
}

bool ckpt_save_owns(const struct ckpt_save *s)
{
    return s->in_store && store_step_owns(&s->store);
}

void ckpt_save_abort(struct ckpt_save *s)
{
    if (!s->in_store)
        ckpt_abort(&s->local);
}

tp_status ckpt_save_check_root(const char *root, struct tp_err *err)
{
    return location_kind(root) == LOCATION_S3 ? store_step_check_root(root, err)
                                              : ckpt_check_root(root, err);
}
